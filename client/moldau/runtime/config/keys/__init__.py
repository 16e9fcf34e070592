"""Declarations of every configuration key, one module for each subject."""
