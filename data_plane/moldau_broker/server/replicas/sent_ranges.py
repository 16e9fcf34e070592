"""The report of a range of a log file that could not be read while an answer was sent."""

from __future__ import annotations

import errno
import posixpath
from functools import partial
from typing import TYPE_CHECKING

from moldau_broker.log.errors import storage_failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_broker.server.replicas.replica_manager import ReplicaManager


def reporter(replicas: ReplicaManager) -> Callable[[str, OSError], None]:
    """Returns what takes the log directory of an unreadable file offline (``FileRange.on_error``)."""
    return partial(_sending_failed, replicas)


def _sending_failed(replicas: ReplicaManager, path: str, error: OSError) -> None:
    if error.errno == errno.EBADF:
        return  # the log was closed meanwhile, with its directory or with the broker
    directory = posixpath.dirname(posixpath.dirname(path))
    replicas.directory_failed(storage_failure(directory, f"reading {path}", error))
