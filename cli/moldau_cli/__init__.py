"""The ``moldau`` command."""
