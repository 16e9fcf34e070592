"""Drivers for the pure cores of the coordinators."""
