"""Whole simulated clusters for tests of the broker."""
