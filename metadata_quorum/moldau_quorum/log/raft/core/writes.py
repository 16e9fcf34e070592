"""The writes of one member: what is to be written, what was handed out, and what is durable. Pure.

Each ``Ready`` has a number. Its owner writes what it holds and reports the number once the write is durable; a sync
covers all earlier numbers as well.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class HandedOut(NamedTuple):
    """The writes of one ``Ready``."""

    number: int
    first_index: int | None
    """The first entry to write; None if no entry has changed."""
    has_hard_state: bool


class Writes:
    """Invariant: ``durable_index`` is the end of a durable prefix of the present log."""

    __slots__ = (
        "_dirty_from",
        "_handed_out",
        "_has_hard_state",
        "durable_index",
        "hard_state_number",
        "number",
        "synced_number",
    )

    def __init__(self, durable_index: int) -> None:
        """Starts with a log that is durable as a whole."""
        self.number = 1
        """The number of the next ``Ready``."""
        self.synced_number = 0
        """The last ``Ready`` whose writes are durable."""
        self.durable_index = durable_index
        self.hard_state_number = 0
        """The ``Ready`` that writes, or wrote, the present hard state."""
        self._has_hard_state = False
        self._dirty_from: int | None = None  # first index to be written
        self._handed_out: deque[tuple[int, int]] = deque()  # (number, last index it wrote that still stands)

    @property
    def are_pending(self) -> bool:
        """Whether ``hand_out`` has anything to write."""
        return self._has_hard_state or self._dirty_from is not None

    @property
    def is_hard_state_durable(self) -> bool:
        """Whether epoch and vote are durable."""
        return self.hard_state_number <= self.synced_number

    def hard_state_changed(self) -> None:
        """Notes that epoch or vote have changed and must be written."""
        self._has_hard_state = True
        self.hard_state_number = self.number

    def entries_changed(self, first_index: int) -> None:
        """Notes that the entries from ``first_index`` on must be written."""
        if self._dirty_from is None or self._dirty_from > first_index:
            self._dirty_from = first_index

    def truncated(self, last_index: int) -> None:
        """Forgets the entries after ``last_index``, which were cut off, durable or not."""
        self.durable_index = min(self.durable_index, last_index)
        self._handed_out = deque((number, min(index, last_index)) for number, index in self._handed_out)
        self.entries_changed(last_index + 1)

    def reset(self, index: int) -> None:
        """Starts again behind ``index``, where the log on disk begins, with nothing to write."""
        self.durable_index = index
        self._handed_out.clear()
        self._dirty_from = None

    def covered(self, index: int) -> None:
        """Counts the log up to ``index`` as durable, because a durable snapshot covers it."""
        self.durable_index = max(self.durable_index, index)

    def hand_out(self, last_index: int) -> HandedOut:
        """Returns what must be written; the log ends with ``last_index``."""
        handed_out = HandedOut(self.number, self._dirty_from, self._has_hard_state)
        if self._dirty_from is not None:
            self._handed_out.append((self.number, last_index))
            self._dirty_from = None
        self._has_hard_state = False
        self.number += 1
        return handed_out

    def synced(self, number: int) -> None:
        """Records that all writes up to and including those of ``number`` are durable."""
        assert number < self.number, "only what was handed out can be durable"
        self.synced_number = max(self.synced_number, number)
        while self._handed_out and self._handed_out[0][0] <= number:
            self.durable_index = max(self.durable_index, self._handed_out.popleft()[1])
