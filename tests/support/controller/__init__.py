"""Helpers that run the controller's decisions without a shell."""
