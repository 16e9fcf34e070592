"""Checkers of consumer groups and exactly-once pipes."""
