"""The syncs of a write-ahead log, and which writes each of them covers.

The engines number what they write. At most one sync runs. It covers the writes that were made before it began; messages
that promise these writes may be sent when it has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_quorum.log.raft.storage.wal import SyncWork, WriteAheadLog


class WriteSyncs:
    """Begins and ends the syncs of one log."""

    __slots__ = ("_covered", "_wal", "written")

    def __init__(self, wal: WriteAheadLog) -> None:
        self._wal = wal
        self.written = 0
        """The number of the last write; the engine counts it up."""
        self._covered: int | None = None  # the last write that the running sync covers

    @property
    def is_clean(self) -> bool:
        """Whether every write is durable."""
        return not self._wal.dirty and self._covered is None

    @property
    def is_wanted(self) -> bool:
        """Whether ``begin`` has work."""
        return self._wal.dirty and self._covered is None

    def begin(self) -> SyncWork | None:
        """Returns the work that makes all writes durable; None without writes, or while a sync runs."""
        if self._covered is not None:
            return None
        work = self._wal.begin_sync()
        if work is not None:
            self._covered = self.written
        return work

    def done(self, work: SyncWork) -> int:
        """Ends a sync whose ``run`` has returned, and returns the number of the last write that it covered."""
        covered, self._covered = self._covered, None
        assert covered is not None, "a sync ends once"
        self._wal.sync_done(work)
        return covered
