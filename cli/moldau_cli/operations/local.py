"""Local clusters that commands change, and the errors of their launcher as the command line reports them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from moldau_cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from moldau_jepsen.launcher import LocalCluster


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


@contextmanager
def locked_cluster(directory: Path) -> Iterator[LocalCluster]:
    """Opens a cluster, and keeps other commands from changing it for the length of the block.

    Raises:
        LauncherError: there is no cluster, or another command changes it.
    """
    from moldau_jepsen.launcher import open_cluster
    from moldau_jepsen.launcher.directories import exclusive

    open_cluster(directory)  # without a cluster there is nothing to lock
    with exclusive(directory):
        yield open_cluster(directory)  # the command that held the lock until now may have changed it
