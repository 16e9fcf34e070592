"""Preparation of a node on its machine: its configuration file, its directories, and checks of the machine."""
