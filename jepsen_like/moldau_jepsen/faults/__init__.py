"""Faults that simulation and chaos share."""
