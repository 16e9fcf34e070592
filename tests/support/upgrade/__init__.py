"""Nodes of an older release beside nodes of the working copy."""
