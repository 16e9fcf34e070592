"""Invariants, and the observers that check them after every step."""
