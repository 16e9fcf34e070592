"""The log in memory: the entries behind the newest compaction, in order, without gaps.

The part that was cut off is remembered by its last position (``base``). Nothing here knows about disks; the core
tracks how much of the log is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau_quorum.log.raft.core.types import Entry


class EntryLog:
    """Entries ``base_index + 1 .. last_index``. Invariant: indexes are dense and epochs never fall."""

    __slots__ = ("_entries", "_size_bytes", "base_epoch", "base_index")

    def __init__(self, base_index: int = 0, base_epoch: int = 0, entries: Iterable[Entry] = ()) -> None:
        """``base`` is the position before the first of ``entries``."""
        self.base_index = base_index
        self.base_epoch = base_epoch
        self._entries: list[Entry] = []
        self._size_bytes = 0
        self.append(tuple(entries))

    @property
    def first_index(self) -> int:
        """The index of the first entry in memory, or of the next one to come."""
        return self.base_index + 1

    @property
    def last_index(self) -> int:
        """The index of the last entry; ``base_index`` if there is none."""
        return self.base_index + len(self._entries)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last entry."""
        return self._entries[-1].epoch if self._entries else self.base_epoch

    @property
    def size_bytes(self) -> int:
        """The approximate bytes of all entries in memory."""
        return self._size_bytes

    def epoch_at(self, index: int) -> int | None:
        """Returns the epoch of the entry at ``index``; None where this log does not know it."""
        position = index - self.base_index - 1
        if 0 <= position < len(self._entries):
            return self._entries[position].epoch
        return self.base_epoch if position == -1 else None

    def entry(self, index: int) -> Entry:
        """Returns the entry at ``index``, which must be in memory."""
        assert self.base_index < index <= self.last_index, "the index is outside the log"
        return self._entries[index - self.base_index - 1]

    def slice(self, first: int, last: int, bytes_max: int) -> tuple[Entry, ...]:
        """Returns the entries ``first .. last`` (inclusive) that fit into ``bytes_max``; the first in any case."""
        assert first > self.base_index, "entries before the base are gone"
        start = first - self.base_index - 1
        stop = min(last, self.last_index) - self.base_index
        size = 0
        for position in range(start, stop):
            size += self._entries[position].size_bytes
            if size > bytes_max and position > start:
                return tuple(self._entries[start:position])
        return tuple(self._entries[start:stop])

    def append(self, entries: Sequence[Entry]) -> None:
        """Adds entries that follow the last."""
        index, epoch = self.last_index, self.last_epoch
        for entry in entries:
            index += 1
            assert entry.index == index, "entries of a log are dense"
            assert entry.epoch >= epoch, "epochs of a log never fall"
            epoch = entry.epoch
            self._size_bytes += entry.size_bytes
        self._entries.extend(entries)

    def truncate(self, last_index: int) -> None:
        """Drops the entries after ``last_index``."""
        assert self.base_index <= last_index <= self.last_index, "a log is cut within itself"
        position = last_index - self.base_index
        self._size_bytes -= sum(entry.size_bytes for entry in self._entries[position:])
        del self._entries[position:]

    def compact(self, base_index: int) -> None:
        """Drops the entries up to ``base_index``, which must be in memory."""
        epoch = self.epoch_at(base_index)
        assert epoch is not None, "a log is compacted within itself"
        count = base_index - self.base_index
        self._size_bytes -= sum(entry.size_bytes for entry in self._entries[:count])
        del self._entries[:count]
        self.base_index, self.base_epoch = base_index, epoch

    def reset(self, base_index: int, base_epoch: int) -> None:
        """Drops all entries: the log goes on after a snapshot that does not agree with it."""
        self._entries.clear()
        self._size_bytes = 0
        self.base_index, self.base_epoch = base_index, base_epoch

    def compaction_point(self, index_max: int, bytes_kept: int) -> int:
        """Returns the largest base up to ``index_max`` that leaves about ``bytes_kept`` bytes before and at it."""
        kept = 0
        for position in range(index_max - self.base_index - 1, -1, -1):
            kept += self._entries[position].size_bytes
            if kept > bytes_kept:
                return self.base_index + position + 1
        return self.base_index

    def agreement_bound(self, index: int, epoch: int) -> int:
        """The largest index up to ``index`` whose epoch is at most ``epoch``: no later entry can be that of the other.

        Both ends of a mismatch use it to skip whole epochs (etcd's findConflictByTerm).
        """
        index = min(index, self.last_index)
        while index > self.base_index:
            found = self.epoch_at(index)
            assert found is not None, "the index lies within the log"
            if found <= epoch:
                return index
            index -= 1
        return index
