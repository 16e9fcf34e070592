"""Checks of client quotas, and the planted bugs that they must find."""
