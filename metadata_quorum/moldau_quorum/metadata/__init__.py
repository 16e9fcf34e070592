"""Metadata records, the image they add up to, its deltas and its snapshots. All modules are pure."""
