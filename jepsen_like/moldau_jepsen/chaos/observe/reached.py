"""Counts the state transitions of a chaos run that are visible from outside.

Nothing looks into the processes, so this is less than a simulation knows. Partitions are looked at once a second, and
what happens between two looks and is undone is missed; leaders of the quorum show themselves by what they claim; states
of transactions and members of groups come from answers to clients.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moldau_jepsen.history import Kind, Status
from moldau_jepsen.reports.coverage import MachineRows, TransitionRow
from moldau_jepsen.reports.over_time import Active

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from moldau_jepsen.history import Operation
    from moldau_jepsen.reports.over_time import PartitionSeries, PartitionState

LOOKED = (
    "Seen from outside: partitions once a second, the quorum by what controllers claim, transactions and members of "
    "groups by answers to clients. Changes between two looks are missed; eligible leader replicas and the states "
    "inside of brokers are not observed."
)
NOT_LOOKED = (
    "Seen from outside: transactions and members of groups by answers to clients. Partitions and the quorum are "
    "not observed: the cluster was started elsewhere."
)
QUORUM_TOPIC = "__cluster_metadata"
PARTITION, QUORUM, TRANSACTION, MEMBER = "partition", "quorum", "transaction of a client", "member of a group"
LEADER, LEADERLESS, LED, RENEWED = "leader changes", "loses its leader", "gets a leader", "same leader, new epoch"
SHRINKS, GROWS, REPLICAS = "in-sync set shrinks", "in-sync set grows", "number of replicas changes"
FIRST, OTHER, AGAIN = "first active controller", "another controller becomes active", "same controller, new epoch"
COMMITTED, ABORTED, UNKNOWN, FAILED = "committed", "aborted", "outcome unknown", "failed"
OUTSIDE, OWNER, IDLE = "outside", "owns partitions", "owns none"
POSSIBLE: dict[str, tuple[tuple[str, str], ...]] = {
    PARTITION: tuple(("", each) for each in (LEADER, LEADERLESS, LED, RENEWED, SHRINKS, GROWS, REPLICAS)),
    QUORUM: tuple(("", each) for each in (FIRST, OTHER, AGAIN)),
    TRANSACTION: tuple(("begun", each) for each in (COMMITTED, ABORTED, UNKNOWN, FAILED)),
    MEMBER: (
        (OUTSIDE, OWNER),
        (OUTSIDE, IDLE),
        (OWNER, OWNER),
        (OWNER, IDLE),
        (OWNER, OUTSIDE),
        (IDLE, OWNER),
        (IDLE, OUTSIDE),
    ),
}


def reached_hint(*, has_looked: bool) -> str:
    """Returns the sources from which transitions are known."""
    return LOOKED if has_looked else NOT_LOOKED


def changes(before: PartitionState, after: PartitionState) -> list[str]:
    """Returns the changes of a partition between two samples."""
    found: list[str] = []
    if after.leader != before.leader:
        found.append(LEADERLESS if after.leader < 0 else LED if before.leader < 0 else LEADER)
    elif after.leader_epoch != before.leader_epoch:
        found.append(RENEWED)
    if set(before.isr) - set(after.isr):
        found.append(SHRINKS)
    if set(after.isr) - set(before.isr):
        found.append(GROWS)
    if after.replicas != before.replicas:
        found.append(REPLICAS)
    return found


class Reached:
    """Counts transitions while a history is read. Memory follows the number of clients and of quorum epochs."""

    def __init__(self) -> None:
        """Starts without lines."""
        self._taken: Counter[tuple[str, str, str]] = Counter()
        self._members: dict[int, str] = {}
        self._claims: dict[int, tuple[float, int]] = {}  # by quorum epoch: when it was first claimed, and by whom

    def passing(self, history: Iterable[Operation]) -> Iterator[Operation]:
        """Yields a history, and counts what passes."""
        for operation in history:
            self.add(operation)
            yield operation

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        for lead in operation.leads:
            if lead.partition.topic == QUORUM_TOPIC:
                self._claims.setdefault(lead.epoch, (operation.ended_ms / 1000, lead.leader))
        if operation.kind is Kind.TRANSACTION:
            if operation.status is Status.OK:
                outcome = ABORTED if operation.aborted else COMMITTED
            else:
                outcome = UNKNOWN if operation.status is Status.INFO else FAILED
            self._taken[TRANSACTION, "begun", outcome] += 1
        elif operation.kind is Kind.SUBSCRIBE and operation.status is Status.OK:
            self._member(operation.process, OWNER if operation.partitions else IDLE)
        elif operation.kind is Kind.CRASH and operation.process in self._members:
            self._member(operation.process, OUTSIDE)

    def _member(self, process: int, now: str) -> None:
        before = self._members.get(process, OUTSIDE)
        if now != before or now == OWNER:
            self._taken[MEMBER, before, now] += 1
        if now == OUTSIDE:
            self._members.pop(process, None)
        else:
            self._members[process] = now

    @property
    def active(self) -> tuple[Active, ...]:
        """The active controllers that were seen; a late claim of an old epoch does not count."""
        found: list[Active] = []
        for epoch, (at_s, controller) in sorted(self._claims.items(), key=lambda claim: (claim[1][0], claim[0])):
            if not found or epoch > found[-1].epoch:
                found.append(Active(at_s, controller, epoch))
        return tuple(found)

    def machines(self, partitions: Sequence[PartitionSeries], *, has_looked: bool = True) -> tuple[MachineRows, ...]:
        """Returns all counts; those of partitions and controllers are missing unless they were observed."""
        taken = self._taken.copy()
        for one in partitions:
            for before, after in zip(one.states, one.states[1:], strict=False):
                for change in changes(before, after):
                    taken[PARTITION, "", change] += 1
        last: Active | None = None
        for active in self.active:
            how = FIRST if last is None else AGAIN if active.controller == last.controller else OTHER
            taken[QUORUM, "", how] += 1
            last = active
        shown = (PARTITION, QUORUM, TRANSACTION, MEMBER) if has_looked else (TRANSACTION, MEMBER)
        return tuple(
            MachineRows(
                name=machine,
                transitions=tuple(
                    TransitionRow(before=before, after=after, count=taken[machine, before, after])
                    for before, after in POSSIBLE[machine]
                ),
            )
            for machine in shown
        )
