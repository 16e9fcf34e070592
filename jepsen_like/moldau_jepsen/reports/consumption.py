"""The observations of readers in groups: how soon they had what was acknowledged, and how often they were given it.

The realtime lag of a record is the time from its acknowledgement at its sender to the first poll by a member
of any group that returned it; where the poll came first, it is 0. A rebalance sets a group
back to what it has committed, so its members may be given records again: that is allowed, and a figure.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from moldau_jepsen.history import Status
from moldau_jepsen.reports.page import table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from moldau_jepsen.history import Operation, TopicPartition

VALUE_MAX = 1 << 31
"""The checkers refuse a history with other values than those below it; here such a record is passed over."""
TICKS_PER_MS = 10
TICKS_MAX = (1 << 32) - 1
"""Some 119 hours."""
MORE = 3

_NOTHING = 0
_POLLED_FIRST = 1  # by a group, before its acknowledgement
_COUNTED = 2
_ACKNOWLEDGED = 3  # at this number of ticks and more: from 0 on


class Times(Protocol):
    """Takes times, as ``Latencies`` and the histograms of simulated runs do."""

    def add(self, ms: float, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReads:
    """How many records the members of a group were given how often."""

    group: str
    once: int
    twice: int
    more: int

    def plus(self, other: GroupReads) -> GroupReads:
        """Both together: of the same group in another run."""
        return GroupReads(
            group=self.group, once=self.once + other.once, twice=self.twice + other.twice, more=self.more + other.more
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """The observations of the groups of a run."""

    lag_ms: Mapping[str, float]
    """p50, p99, p99.9 and max of the realtime lags."""
    lags: int
    """How many records have one: acknowledged, and polled by a group."""
    groups: tuple[GroupReads, ...]
    unread: int
    """As of ``Consumption``."""


class Consumption:
    """Follows a history, whose operations are in the order of their ends.

    Memory is 4 bytes per record, and one more for each group that reads it. The final phase does not count.
    """

    def __init__(self, lag: Times) -> None:
        """Nothing was read; ``lag`` takes the lag of each record that was acknowledged and polled, in milliseconds."""
        self._lag = lag
        self._known: dict[TopicPartition, array[int]] = {}
        """Per value: what is known of it."""
        self._given: dict[str, dict[TopicPartition, bytearray]] = {}
        """By group, per value: how often it was polled, ``MORE`` for more than twice."""

    def passing(self, history: Iterable[Operation]) -> Iterator[Operation]:
        """Yields a history, and reads what passes."""
        for operation in history:
            self.add(operation)
            yield operation

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.status is not Status.OK or operation.final:
            return
        if not operation.aborted:
            for send in operation.sends:
                self._add_acknowledgement(send.partition, send.value, operation.ended_ms)
        if operation.group:
            given = self._given.setdefault(operation.group, {})
            for poll in operation.polls:
                for partition, pairs in poll.records:
                    counts = given.setdefault(partition, bytearray())
                    for _, value in pairs:
                        self._add_poll(partition, counts, value, operation.ended_ms)

    def _place(self, partition: TopicPartition, value: int) -> array[int]:
        known = self._known.get(partition)
        if known is None:
            known = self._known[partition] = array("I")
        missing = value + 1 - len(known)
        if missing > 0:
            known.frombytes(bytes(known.itemsize * max(missing, len(known) // 4)))
        return known

    def _add_acknowledgement(self, partition: TopicPartition, value: int, at_ms: float) -> None:
        if not 0 <= value < VALUE_MAX:
            return
        known = self._place(partition, value)
        if known[value] == _POLLED_FIRST:
            known[value] = _COUNTED
            self._lag.add(0.0)
        elif known[value] == _NOTHING:
            known[value] = min(_ACKNOWLEDGED + int(at_ms * TICKS_PER_MS), TICKS_MAX)

    def _add_poll(self, partition: TopicPartition, counts: bytearray, value: int, at_ms: float) -> None:
        if not 0 <= value < VALUE_MAX:
            return
        known = self._place(partition, value)
        if known[value] >= _ACKNOWLEDGED:
            self._lag.add(max(at_ms - (known[value] - _ACKNOWLEDGED) / TICKS_PER_MS, 0.0))
            known[value] = _COUNTED
        elif known[value] == _NOTHING:
            known[value] = _POLLED_FIRST
        missing = value + 1 - len(counts)
        if missing > 0:
            counts.extend(bytes(max(missing, len(counts) // 4)))
        counts[value] = min(counts[value] + 1, MORE)

    def groups(self) -> tuple[GroupReads, ...]:
        """Returns the records that each group was given, by its name."""
        return tuple(
            GroupReads(
                group=group,
                once=sum(counts.count(1) for counts in given.values()),
                twice=sum(counts.count(2) for counts in given.values()),
                more=sum(counts.count(MORE) for counts in given.values()),
            )
            for group, given in sorted(self._given.items())
        )

    def unread(self) -> int:
        """Returns acknowledged records that no group was given, of partitions of which a group was given any."""
        partitions = sorted({partition for given in self._given.values() for partition in given})
        return sum(sum(1 for known in self._known.get(one, ()) if known >= _ACKNOWLEDGED) for one in partitions)


def groups_table(groups: Sequence[GroupReads], unread: int) -> str:
    """HTML: how often groups were given records; ``unread`` as of ``Consumption``."""
    if not groups:
        return "<p class='hint'>No group read anything.</p>"
    rows = [(one.group, f"{one.once:,}", f"{one.twice:,}", f"{one.more:,}") for one in groups]
    return (
        table(("group", "records given once", "twice", "more often"), rows)
        + "<p class='hint'>After a rebalance or a seek the members of a group are given records again: that is "
        f"allowed. Acknowledged, and not given to any group before the final phase: {unread:,}.</p>"
    )
