"""The pure parts of the sink: its options, and the protocol that writes each row exactly once."""
