"""File descriptors: the number that the process may have, and its division among files and connections.

A process without free descriptors can neither write a checkpoint nor accept a connection. Its disks are healthy, so the
shortage must not count as a disk failure (``is_shortage``). To prevent it, ``DescriptorBudget`` divides the process's
limit, and the broker refuses connections and new segments before the last descriptor is taken.
"""

from __future__ import annotations

import errno
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

UNLIMITED: Final = 1 << 30
SHORTAGE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE)
COMFORTABLE: Final = 16_384
"""A limit below this is worth a warning: some thousand partitions, or as many connections, use it up."""

_CACHED_MAX: Final = 4096


def is_shortage(error: BaseException | None) -> bool:
    """Returns whether an error, or one that caused it, says that the process or the system has no descriptors left."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in SHORTAGE_ERRNOS:
            return True
        error = error.__cause__
    return False


class DescriptorBudget:
    """Divides the descriptors of a process between log files and the connections of clients.

    A sixteenth is reserved for checkpoints, connections to other nodes and listeners. An eighth is for files that can
    be closed at any time. Files that must stay open get at least a quarter, connections of clients another; each may
    use the rest that the other leaves.
    """

    __slots__ = (
        "_available",
        "_closed",
        "_closings",
        "_opened",
        "_openings",
        "_share",
        "cached_max",
        "connections",
        "limit",
    )

    def __init__(self, limit: int = UNLIMITED) -> None:
        """``limit`` is what the process may have open."""
        self.limit = limit
        self.cached_max = min(limit // 8, _CACHED_MAX)
        self._available = limit - min(max(limit // 16, 32), limit // 4) - self.cached_max
        self._share = limit // 4
        self.connections: Callable[[], int] = lambda: 0
        # Files are opened and closed in several threads: two counters that each only rise lose nothing to a race.
        self._openings, self._closings = count(1), count(1)
        self._opened = self._closed = 0

    @property
    def files(self) -> int:
        """Files that are open, those that can be closed at any time included."""
        return self._opened - self._closed

    def file_opened(self) -> None:
        """Counts a file."""
        self._opened = next(self._openings)

    def file_closed(self) -> None:
        """Counts a file no more."""
        self._closed = next(self._closings)

    @property
    def files_max(self) -> int:
        """How many files that must stay open there may be now."""
        return self._available - max(self.connections(), self._share)

    def connections_max(self, files_kept: int) -> int:
        """Returns how many connections there may be now, beside ``files_kept`` files that must stay open."""
        return self._available - max(files_kept, self._share)
