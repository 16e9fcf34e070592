"""Metadata records, the image that they give, its deltas and its snapshots. All modules are pure."""
