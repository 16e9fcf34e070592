"""Tiered storage of one broker: copies closed segments to the object store, deletes there, and reads from there."""
