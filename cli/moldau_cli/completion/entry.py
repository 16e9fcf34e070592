"""Answers a shell that asks for completions, through typer's scripts for bash, zsh and fish.

The scripts put the command line into environment variables. Global options are taken out of it first, because the
library does not know them.
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import Final

from moldau_cli.completion.core.words import rejoined, without_globals
from moldau_cli.completion.names import profiles
from moldau_cli.errors import CommandError

COMPLETE_VARIABLE: Final = "_MOLDAU_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")


def complete() -> bool:
    """Answers where the global options are meant, and prepares the rest for the library.

    Returns whether the answer is written.
    """
    from typer.completion import completion_init  # type: ignore[attr-defined]  # typer re-exports it

    from moldau_cli.client.address import use_profile
    from moldau_cli.client.settings import use_command_config
    from moldau_cli.words import brokers_last

    completion_init()
    words, typed = _command_line()
    line = without_globals(words, typed)
    try:
        use_command_config(line.found.get("--command-config"))
        use_profile(line.found.get("--profile"))
    except CommandError:
        return True  # a wrong file or profile names no cluster that could be asked
    if line.awaits:
        return line.awaits == "--command-config" or _answer(profiles(line.typed))
    _set_command_line(brokers_last(line.words), line.typed)
    return False


def script(shell: str) -> str:
    """Returns the script that makes a shell ask."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    text: str = get_completion_script(prog_name="moldau", complete_var=COMPLETE_VARIABLE, shell=shell)
    return text


def _answer(names: list[str]) -> bool:
    if os.environ[COMPLETE_VARIABLE].endswith("zsh") and names:
        quoted = "\n".join(f'"{name}"' for name in names)
        sys.stdout.write(f"_arguments '*: :(({quoted}))'\n")
    else:
        sys.stdout.write("".join(f"{name}\n" for name in names))
    return True


def _command_line() -> tuple[list[str], str]:
    """Returns the words before the one that is typed, and that one, as typer's scripts pass them."""
    if "COMP_WORDS" in os.environ:
        words = _split(os.environ["COMP_WORDS"])
        cursor = int(os.environ.get("COMP_CWORD") or 0)
        *before, typed = rejoined([*words[1:cursor], words[cursor] if cursor < len(words) else ""])
        return before, typed
    text = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(text)[1:]
    return (words, "") if not words or text.endswith(" ") else (words[:-1], words[-1])


def _set_command_line(words: list[str], typed: str) -> None:
    if "COMP_WORDS" in os.environ:
        os.environ["COMP_WORDS"] = shlex.join(["moldau", *words, *([typed] if typed else [])])
        os.environ["COMP_CWORD"] = str(len(words) + 1)
    else:
        os.environ["_TYPER_COMPLETE_ARGS"] = f"{shlex.join(['moldau', *words])} {shlex.quote(typed) if typed else ''}"


def _split(text: str) -> list[str]:
    """Splits as a shell does; an unfinished quote ends with the text."""
    for closing in ("", "'", '"'):
        try:
            return shlex.split(text + closing)
        except ValueError:
            continue
    return text.split()
