"""Exit codes, and the exception with which a command says why it failed."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """A command failed; the text is one line for the user."""

    exit_code = EXIT_FAILED


class UsageError(CommandError):
    """What was asked cannot be asked: an unknown name, a bad value, a missing file."""

    exit_code = EXIT_USAGE
