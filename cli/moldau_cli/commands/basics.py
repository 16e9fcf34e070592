"""The commands ``moldau server``, for the list of commands only, and ``moldau version``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def server_help(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration file of the node.")],
    check: Annotated[
        bool, typer.Option("--check", help="Say whether the configuration can be used, and start nothing.")
    ] = False,
    node: Annotated[
        int | None,
        typer.Option(
            metavar="ID",
            help="Of the processes of broker.processes, run only this one; default: all, and restart those that end.",
        ),
    ] = None,
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="Of lines on stderr: debug, info, warning or error.")
    ] = "info",
    log_format: Annotated[
        str,
        typer.Option(metavar="FORM", help="Either text, or json with one object a line; default: node.log.format."),
    ] = "",
    with_parent: Annotated[
        bool, typer.Option("--with-parent", help="End when the process that started this one ends.")
    ] = False,
) -> None:
    """Run one node from a properties or TOML file (roles broker, controller, or both)."""
    raise AssertionError(f"server {config} is handled before the command-line library is loaded")


def version() -> None:
    """Print Moldau's version."""
    from moldau.version import VERSION
    from moldau_cli import output

    output.answer({"version": VERSION}, VERSION)
