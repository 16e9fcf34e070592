"""Completion in shells: the names of topics, groups and profiles, and the options that any command takes."""
