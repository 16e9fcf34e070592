"""Helpers for trio tasks: signals, bounded buffers, backoff, grouped exceptions."""
