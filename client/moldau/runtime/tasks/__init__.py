"""Helpers for trio tasks: signals, bounded buffers, loops of steps, grouped exceptions."""
