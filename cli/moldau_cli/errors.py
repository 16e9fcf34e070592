"""Exit codes, and the exceptions with which a command reports why it failed."""

from __future__ import annotations

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141
"""The reader of a pipe closed it: 128 + SIGPIPE, as a shell reports it for ``cat`` and ``grep``."""


class CommandError(Exception):
    """A command failed. The text is one line for the user."""

    exit_code = EXIT_FAILED


class UsageError(CommandError):
    """The user asked for something invalid: an unknown name, a bad value, a missing file."""

    exit_code = EXIT_USAGE
