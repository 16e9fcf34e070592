"""Pure parts of the source: its options, columns, offsets and filters."""
