"""Runs seeds: options, one run, many runs, kept runs, shrinking, controls."""
