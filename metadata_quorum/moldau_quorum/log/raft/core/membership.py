"""The memberships that a log holds, newest last: one is in force as soon as it is appended, and goes with its entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_quorum.log.raft.core.types import Configuration, Entry, EntryKind, SnapshotPoint, decode_configuration

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConfigurationHistory:
    """Invariant: indexes grow; the first is that of the newest snapshot, or 0, and is never dropped."""

    __slots__ = ("_items",)

    def __init__(self, snapshot: SnapshotPoint | None, bootstrap: Configuration) -> None:
        """``bootstrap`` is in force until the log says otherwise."""
        self._items = [(snapshot.index, snapshot.configuration) if snapshot is not None else (0, bootstrap)]

    @property
    def current(self) -> Configuration:
        """The newest, committed or not."""
        return self._items[-1][1]

    @property
    def previous(self) -> Configuration:
        """The one before the newest, as far as it is known; else the newest."""
        return self._items[-2][1] if len(self._items) > 1 else self._items[-1][1]

    @property
    def current_index(self) -> int:
        """Index of the newest."""
        return self._items[-1][0]

    def at(self, index: int) -> Configuration:
        """In force as of ``index``, which must not lie before the newest snapshot."""
        assert self._items[0][0] <= index, "older memberships are forgotten"
        return next(value for at, value in reversed(self._items) if at <= index)

    def appended(self, entries: Sequence[Entry]) -> bool:
        """Looks for memberships among new entries; returns whether there was one.

        Raises:
            ValueError: an entry holds no membership that a quorum can have.
        """
        found = False
        for entry in entries:
            if entry.kind == EntryKind.CONFIGURATION:
                assert entry.index > self.current_index, "memberships come in the order of the log"
                self._items.append((entry.index, decode_configuration(entry.data)))
                found = True
        return found

    def truncated(self, last_index: int) -> None:
        """The log was cut after ``last_index``."""
        while self._items[-1][0] > last_index:
            self._items.pop()
        assert self._items, "the membership of a snapshot is committed"

    def compacted(self, point: SnapshotPoint) -> None:
        """A snapshot replaces what lies before it."""
        self._items = [(point.index, point.configuration), *(item for item in self._items if item[0] > point.index)]

    def reset(self, point: SnapshotPoint) -> None:
        """The log was replaced by a snapshot."""
        self._items = [(point.index, point.configuration)]
