"""Errors of the launcher of local clusters, as the command line reports them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def launcher_errors() -> Iterator[None]:
    """Turns the launcher's errors into the command line's."""
    from moldau_jepsen.launcher import LauncherError, LauncherUsageError

    try:
        yield
    except LauncherUsageError as error:
        raise UsageError(str(error)) from error
    except LauncherError as error:
        raise CommandError(str(error)) from error
