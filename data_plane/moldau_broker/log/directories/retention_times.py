"""When retention must look at which log, so that a run of it costs nothing for logs at rest.

Whether retention deletes segments of a log, or rolls its active one, depends on the log and on the time. So a log is
looked at in the next run after a change, and in the first run after the time that ``retention.next_look_ms`` gives.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_broker.log.partition.partition_log import PartitionLog


class RetentionTimes:
    """The logs that the next run of retention looks at. Invariant: ``_times`` holds the valid entries of ``_heap``."""

    __slots__ = ("_changed", "_count", "_heap", "_times")

    def __init__(self) -> None:
        self._changed: dict[PartitionLog, None] = {}
        self._heap: list[tuple[int, int, PartitionLog]] = []  # time, number of the entry, log
        self._times: dict[PartitionLog, int] = {}  # numbers of entries
        self._count = 0

    def changed(self, logs: Iterable[PartitionLog]) -> None:
        """Notes logs that are new or have changed."""
        for log in logs:
            self._changed[log] = None
            self._times.pop(log, None)

    def looked(self, log: PartitionLog, next_ms: int | None) -> None:
        """Notes that a log need not be looked at before ``next_ms`` (None: at all), unless it changes."""
        self._times.pop(log, None)
        if next_ms is not None:
            self._count += 1
            self._times[log] = self._count
            heappush(self._heap, (next_ms, self._count, log))

    def take_due(self, now_ms: int) -> list[PartitionLog]:
        """Returns the logs to look at now; the caller reports each that still exists with ``looked``."""
        changed, self._changed = self._changed, {}
        heap, times = self._heap, self._times
        while heap and heap[0][0] <= now_ms:
            _, number, log = heappop(heap)
            if times.get(log) == number:
                del times[log]
                changed[log] = None
        if len(heap) > 2 * len(times) + 64:  # most entries are void
            self._heap = sorted(entry for entry in heap if times.get(entry[2]) == entry[1])
        return [log for log in changed if not log.storage.released]
