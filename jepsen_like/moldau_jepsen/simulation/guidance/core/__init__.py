"""The choice itself, as pure functions."""
