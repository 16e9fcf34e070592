"""Handlers of requests about groups: their members, their offsets, and what share groups deliver."""
