"""Mirrors between simulated clusters."""
