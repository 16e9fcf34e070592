"""The commands ``moldau server``, for the list of commands only, and ``moldau version``."""

from __future__ import annotations


def server_help(config: str) -> None:
    """Run one node from a properties or TOML file (roles broker, controller, or both)."""
    raise AssertionError(f"server {config} is handled before the command-line library is loaded")


def version() -> None:
    """Print Moldau's version."""
    from moldau.version import VERSION
    from moldau_cli import output

    output.answer({"version": VERSION}, VERSION)
