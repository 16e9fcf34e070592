"""Draws a plan of faults and executes it against a simulated cluster."""
