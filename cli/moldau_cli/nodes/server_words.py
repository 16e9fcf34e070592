"""The words of ``moldau server``, which are read without the command-line library."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau_cli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = "usage: moldau server CONFIG [--check] [--node ID] [--log-level LEVEL] [--log-format FORM] [--with-parent]"
HELP = """Usage: moldau server [OPTIONS] CONFIG

  Run one node from a properties or TOML file (roles broker, controller, or
  both). MOLDAU_... environment variables override keys of the file:
  MOLDAU_NODE_ID is node.id.

Options:
  --check            Say whether the configuration can be used, and start
                     nothing.
  --node ID          Of the processes of broker.processes, run only this one;
                     default: all, and restart those that end.
  --log-level LEVEL  Of lines on stderr: debug, info, warning or error.
                     [default: info]
  --log-format FORM  Either text, or json with one object a line; default:
                     node.log.format.
  --with-parent      End when the process that started this one ends.
  -h, --help         Show this message and exit.
"""
"""As that of other commands, but no library of theirs is loaded: see ``moldau_cli.main``."""
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


class ServerWords(NamedTuple):
    """The meaning of the words."""

    path: str
    level: str
    log_format: str
    """One of ``LOG_FORMATS``; empty: as configured."""
    with_parent: bool
    node_id: int | None
    """The only process to run; None: all."""


def parse_words(arguments: Sequence[str]) -> ServerWords:
    """Parses the words behind ``moldau server``, in any order.

    Raises:
        UsageError: a word is wrong or missing.
    """
    path: str | None = None
    level, log_format = "info", ""
    with_parent = False
    node_id: int | None = None
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--with-parent":
            with_parent = True
        elif argument == "--node":
            number = rest.pop(0) if rest else ""
            if not number.isdecimal():
                raise UsageError(f"--node must be the number of a node, not {number!r}; {USAGE}")
            node_id = int(number)
        elif argument == "--log-level":
            level = _choice(rest, argument, LOG_LEVELS)
        elif argument == "--log-format":
            log_format = _choice(rest, argument, LOG_FORMATS)
        elif argument == "--json":
            continue  # accepted everywhere; only --check and wrong words have a document
        elif argument.startswith("-"):
            raise UsageError(f"unknown option {argument}; {USAGE}")
        elif path is not None:
            raise UsageError(f"one configuration file expected, got {path} and {argument}; {USAGE}")
        else:
            path = argument
    if path is None:
        raise UsageError(f"configuration file missing; {USAGE}")
    return ServerWords(path, level, log_format, with_parent, node_id)


def _choice(rest: list[str], option: str, choices: Sequence[str]) -> str:
    """Takes the value of an option from the words that are left."""
    value = rest.pop(0).lower() if rest else ""
    if value not in choices:
        raise UsageError(f"{option} must be one of {', '.join(choices)}, not {value!r}; {USAGE}")
    return value
