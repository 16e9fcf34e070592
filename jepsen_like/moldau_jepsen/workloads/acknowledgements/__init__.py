"""Producers that ask for fewer acknowledgements than all, and what they may lose."""
