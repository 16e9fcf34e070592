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
        """The newest membership, committed or not."""
        return self._items[-1][1]

    @property
    def previous(self) -> Configuration:
        """The membership before the newest if it is known, else the newest."""
        return self._items[-2][1] if len(self._items) > 1 else self._items[-1][1]

    @property
    def current_index(self) -> int:
        """The index of the newest membership."""
        return self._items[-1][0]

    def at(self, index: int) -> Configuration:
        """Returns the membership in force as of ``index``, which must not lie before the newest snapshot."""
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
        """Drops the memberships after ``last_index``, where the log was cut."""
        while self._items[-1][0] > last_index:
            self._items.pop()
        assert self._items, "the membership of a snapshot is committed"

    def compacted(self, point: SnapshotPoint) -> None:
        """Drops the memberships that a snapshot has replaced."""
        self._items = [(point.index, point.configuration), *(item for item in self._items if item[0] > point.index)]

    def reset(self, point: SnapshotPoint) -> None:
        """Starts again with the membership of a snapshot that replaced the log."""
        self._items = [(point.index, point.configuration)]
