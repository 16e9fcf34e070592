"""Secrets that commands read from standard input."""

from __future__ import annotations

import sys

from moldau_cli.errors import UsageError


def typed_line(what: str) -> str:
    """Returns one line of standard input without its end; ``what`` names it in errors.

    Raises:
        UsageError: it is not UTF-8.
    """
    try:
        return sys.stdin.readline().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} on standard input is not UTF-8 text") from error
