"""Draws a plan of faults and executes it against real processes."""
