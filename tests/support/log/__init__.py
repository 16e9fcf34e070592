"""Logs on a virtual disk, their naive model, and campaigns against it."""
