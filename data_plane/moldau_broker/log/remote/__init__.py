"""Parts of a log whose topic is tiered: where it begins on this disk, and the segments to copy (KIP-405)."""
