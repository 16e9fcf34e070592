"""Runs of records in the same state. Pure.

A share-partition knows the state of each record between its start offset and its end offset. Most neighbours have the
same state, so the state is kept as runs, sorted and without gaps. A change of a part of a run splits it; neighbours
that have become equal are joined again. No operation costs time in proportion to the number of records.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

from moldau_broker.server.share.core.values import RecordState

NO_MEMBER = ""
_FIRST = attrgetter("first")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of state that holds once the share coordinator has stored it; until then it can be undone."""

    token: int
    state: RecordState
    delivery_count: int


@dataclass(slots=True)
class Run:
    """Records ``first`` to ``end`` (exclusive) in one state.

    Invariant: ``member`` and ``lock_deadline_ms`` are set if and only if the state is ``ACQUIRED``, and only such a run
    has a ``change``.
    """

    first: int
    end: int
    state: RecordState
    delivery_count: int
    member: str = NO_MEMBER
    lock_deadline_ms: float | None = None
    change: Change | None = None

    @property
    def is_acquirable(self) -> bool:
        """Whether a member may acquire the records."""
        return self.state is RecordState.AVAILABLE

    @property
    def is_terminal(self) -> bool:
        """Whether the records are done, and stored so."""
        return self.state.is_terminal

    def is_held_by(self, member: str) -> bool:
        """Returns whether the member holds the records and has not acknowledged them."""
        return self.state is RecordState.ACQUIRED and self.member == member and self.change is None

    def become(self, state: RecordState, delivery_count: int) -> None:
        """Changes into a state in which no member holds the records."""
        assert state is not RecordState.ACQUIRED
        self.state, self.delivery_count = state, delivery_count
        self.member, self.lock_deadline_ms, self.change = NO_MEMBER, None, None

    def equals(self, other: Run) -> bool:
        """Returns whether both runs are in the same state in every respect."""
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member == other.member
            and self.lock_deadline_ms == other.lock_deadline_ms
            and self.change == other.change
        )


class Runs:
    """The runs of one share-partition. Invariant: sorted, not empty, and each begins where the one before it ends."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def __bool__(self) -> bool:
        return bool(self.runs)

    def index_at(self, offset: int) -> int:
        """Returns the index of the run that holds ``offset``, which must lie between the first and the last run."""
        index = bisect_right(self.runs, offset, key=_FIRST) - 1
        assert index >= 0
        assert offset < self.runs[index].end
        return index

    def overlapping(self, first: int, end: int) -> list[Run]:
        """Returns the runs that hold an offset of ``first`` to ``end`` (exclusive), unchanged."""
        low = max(0, bisect_right(self.runs, first, key=_FIRST) - 1)
        high = bisect_right(self.runs, end - 1, key=_FIRST)
        return [run for run in self.runs[low:high] if run.end > first]

    def cut(self, first: int, end: int) -> list[Run]:
        """Splits runs at both offsets, which the runs must cover; returns the runs between them."""
        self._split(first)
        self._split(end)
        low = self.index_at(first)
        high = bisect_right(self.runs, end - 1, key=_FIRST)
        return self.runs[low:high]

    def _split(self, offset: int) -> None:
        if not self.runs or not self.runs[0].first < offset < self.runs[-1].end:
            return
        index = self.index_at(offset)
        run = self.runs[index]
        if run.first == offset:
            return
        rest = Run(offset, run.end, run.state, run.delivery_count, run.member, run.lock_deadline_ms, run.change)
        run.end = offset
        self.runs.insert(index + 1, rest)

    def append(self, run: Run) -> None:
        """Adds a run after the last one."""
        assert run.first < run.end
        assert not self.runs or self.runs[-1].end == run.first
        self.runs.append(run)

    def drop_before(self, offset: int) -> None:
        """Removes everything below ``offset``."""
        self._split(offset)
        del self.runs[: bisect_right(self.runs, offset - 1, key=_FIRST)]

    def join(self) -> None:
        """Joins neighbours that have become equal."""
        joined: list[Run] = []
        for run in self.runs:
            if joined and joined[-1].equals(run):
                joined[-1].end = run.end
            else:
                joined.append(run)
        self.runs = joined
