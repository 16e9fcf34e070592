"""Formats, positions and input of records. All modules are pure."""
