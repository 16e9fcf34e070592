"""Runs a whole cluster in a simulated world."""
