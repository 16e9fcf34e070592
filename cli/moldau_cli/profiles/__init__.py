"""Profiles: named clusters with their addresses and client settings, in a file of the user."""
