"""``moldau completion``: the scripts that make shells complete commands."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from moldau_cli import output
from moldau_cli.errors import CommandError


class Shell(enum.StrEnum):
    """The shells that can complete commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Shell,
    install: Annotated[
        bool, typer.Option("--install", help="Write the script and the lines that load it into your home directory.")
    ] = False,
) -> None:
    """Print the script that makes a shell complete commands, options, topics, groups and profiles."""
    from moldau_cli.completion.entry import COMPLETE_VARIABLE, script

    if not install:
        output.answer({"shell": shell.value, "script": script(shell.value)}, script(shell.value))
        return
    from typer.completion import install as write_script  # type: ignore[attr-defined]  # typer re-exports it

    try:
        _, path = write_script(shell=shell.value, prog_name="moldau", complete_var=COMPLETE_VARIABLE)
    except OSError as error:
        raise CommandError(f"cannot install the script: {error}") from error
    output.answer({"shell": shell.value, "path": str(path)}, f"written: {path}; open a new shell")
