"""The protocol that writes each row exactly once. Pure: results of effects go in, the next effect comes out.

Theory of operation (docs/internals/spark-sink.md has the crash table). A *task* writes its rows in a transaction of its
own, adds a *marker* (an offset, committed with the transaction, that names the batch), and leaves the transaction open.
The *driver* gets one message from every task, writes the *decision* (which transactions belong to the batch) in one
transaction of its own, and then commits the transactions of the decision.

Safety rests on four facts:

- A transaction of a task is committed only if a decision names it.
- There is one decision for a batch: the driver takes over its transactional id before it reads the last decision, so of
  two drivers only the last can write. A replayed batch that is decided is not written again, only finished.
- A decided transaction is committed, or it is dead for good (its epoch is over). The marker shows which.
- Rows of a dead transaction are written again only by an *amended* decision, and only if the replayed task has the same
  rows (number and fingerprint) in the same partition of as many partitions.

The states are frozen, so that a test can explore every interleaving (``tests/pyspark_moldau/sink``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence


class ProtocolRefusedError(RuntimeError):
    """The protocol cannot continue without breaking its promise; the text says what to do."""


class TryAgainError(RuntimeError):
    """This attempt cannot continue; a replay of the batch can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A prepared transaction of one task: what ends it, and what it holds."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    rows: int
    fingerprint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The transactions of a batch by partition; None for a partition without rows."""

    batch: int
    run: str
    entries: tuple[Entry | None, ...]
    amendments: int = 0


class Kind(enum.Enum):
    """A task's report on its rows."""

    PREPARED = "prepared"
    EMPTY = "empty"
    DECIDED = "decided"  # the batch was decided before; the task wrote nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The report of a task to the driver."""

    batch: int
    partition: int
    kind: Kind
    entry: Entry | None = None


# --- effects, and their results


@dataclass(frozen=True, slots=True)
class ReadDecision:
    """Reads the last decision. Result: ``Decision`` or None.

    A task may overlook a decision that is being committed, because the driver looks again; ``is_final`` must not. The
    driver reads after ``FenceDriver``, when none can be under way.
    """

    is_final: bool = False


@dataclass(frozen=True, slots=True)
class ReadMarker:
    """Reads the batch that a transactional id committed last, once none of its transactions is open.

    Result: int, -1 for none.
    """

    transactional_id: str


@dataclass(frozen=True, slots=True)
class EndDecided:
    """Commits a decided transaction. Result: ``Ended``."""

    entry: Entry


class Ended(enum.Enum):
    """How a transaction ended."""

    COMMITTED = "committed"
    DEAD = "dead"  # it has ended before; the marker shows how


@dataclass(frozen=True, slots=True)
class Fence:
    """Takes over the task's transactional id; its open transaction is aborted. Result: None."""


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Writes the task's rows in a transaction. Result: (number of rows, fingerprint)."""


@dataclass(frozen=True, slots=True)
class StageMarker:
    """Adds the marker of the batch to the transaction. Result: None."""

    batch: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Waits until everything is delivered and leaves the transaction open. Result: ``Entry``."""

    rows: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class SkipRows:
    """Reads the task's rows and drops them, because the batch is decided. Result: None."""


@dataclass(frozen=True, slots=True)
class FenceDriver:
    """Takes over the driver's transactional id. Result: None."""


@dataclass(frozen=True, slots=True)
class WriteDecision:
    """Writes the decision in a transaction of the driver's id, and commits it. Result: None.

    It fails if another driver has taken over the id since ``FenceDriver``.
    """

    decision: Decision


@dataclass(frozen=True, slots=True)
class AbortOrphans:
    """Aborts the open transactions of tasks that are not among ``kept`` (transactional ids). Result: None."""

    kept: frozenset[str]


Effect: TypeAlias = (
    ReadDecision
    | ReadMarker
    | EndDecided
    | Fence
    | WriteRows
    | StageMarker
    | HandOver
    | SkipRows
    | FenceDriver
    | WriteDecision
    | AbortOrphans
)


# --- the task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCore:
    """One attempt of a task. ``effect`` is due; ``on`` takes its result and returns the next state.

    Invariant: exactly one of ``effect`` and ``report`` is set.
    """

    batch: int
    partition: int
    effect: Effect | None = ReadDecision()
    report: Report | None = None
    rows: int = 0
    fingerprint: int = 0

    def on(self, result: object) -> TaskCore:
        """Takes the result of the effect.

        Raises:
            ProtocolRefusedError: a later batch is decided already.
        """
        match self.effect:
            case ReadDecision():
                assert result is None or isinstance(result, Decision)
                return self._on_decision(result)
            case EndDecided(entry):
                if result is Ended.COMMITTED:
                    return self._do(SkipRows())
                return self._do(ReadMarker(entry.transactional_id))
            case ReadMarker():
                assert isinstance(result, int)
                return self._do(SkipRows() if result >= self.batch else Fence())
            case SkipRows():
                return self._tell(Kind.DECIDED)
            case Fence():
                return self._do(WriteRows())
            case WriteRows():
                assert isinstance(result, tuple)
                rows, fingerprint = result
                if rows == 0:
                    return self._tell(Kind.EMPTY)
                marker = StageMarker(self.batch)
                return replace(self, effect=marker, rows=rows, fingerprint=fingerprint)
            case StageMarker():
                return self._do(HandOver(self.rows, self.fingerprint))
            case HandOver():
                assert isinstance(result, Entry)
                return self._tell(Kind.PREPARED, result)
        raise AssertionError(f"{self.effect} has no result here")

    def _on_decision(self, decision: Decision | None) -> TaskCore:
        if decision is None or decision.batch < self.batch:
            return self._do(Fence())
        if decision.batch > self.batch:
            raise stale(self.batch, decision)
        entry = decision.entries[self.partition] if self.partition < len(decision.entries) else None
        return self._do(SkipRows() if entry is None else EndDecided(entry))

    def _do(self, effect: Effect) -> TaskCore:
        return replace(self, effect=effect)

    def _tell(self, kind: Kind, entry: Entry | None = None) -> TaskCore:
        report = Report(batch=self.batch, partition=self.partition, kind=kind, entry=entry)
        return replace(self, effect=None, report=report)


# --- the driver


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCore:
    """The end of a batch on the driver. ``effect`` is due; ``on`` takes its result; ``effect`` None: it is done.

    ``reports`` is by partition. ``ended`` partitions of ``decision`` are settled, ``lost`` ones are known to be dead.
    """

    batch: int
    run: str
    reports: tuple[Report, ...]
    effect: Effect | None = FenceDriver()
    decision: Decision | None = None
    ended: int = 0
    lost: tuple[int, ...] = ()

    def on(self, result: object) -> DriverCore:
        """Takes the result of the effect.

        Raises:
            ProtocolRefusedError: rows are lost and the replayed tasks have others, or a later batch is decided.
            TryAgainError: rows are lost, and no task has written them again.
        """
        match self.effect:
            case FenceDriver():
                return replace(self, effect=ReadDecision(is_final=True))
            case ReadDecision():
                assert result is None or isinstance(result, Decision)
                return self._on_decision(result)
            case WriteDecision(decision):
                return self._finish(decision)
            case EndDecided(entry):
                if result is Ended.COMMITTED:
                    return self._next()
                return replace(self, effect=ReadMarker(entry.transactional_id))
            case ReadMarker():
                assert isinstance(result, int)
                if result >= self.batch:
                    return self._next()
                return replace(self, lost=(*self.lost, self.ended))._next()
            case AbortOrphans():
                return replace(self, effect=None)
        raise AssertionError(f"{self.effect} has no result here")

    def _on_decision(self, last: Decision | None) -> DriverCore:
        if last is not None and last.batch > self.batch:
            raise stale(self.batch, last)
        if last is not None and last.batch == self.batch:
            return self._finish(last)
        if any(report.kind is Kind.DECIDED for report in self.reports):
            raise ProtocolRefusedError(
                f"batch {self.batch}: tasks found it decided, and the driver finds no decision; were offsets of the "
                "groups of this query deleted?"
            )
        decision = Decision(batch=self.batch, run=self.run, entries=tuple(report.entry for report in self.reports))
        if not any(decision.entries):
            return replace(self, effect=AbortOrphans(frozenset()))
        return replace(self, effect=WriteDecision(decision))

    def _finish(self, decision: Decision) -> DriverCore:
        """Commits the transactions of a decision that is written, from the first."""
        return replace(self, decision=decision, ended=-1, lost=())._next()

    def _next(self) -> DriverCore:
        assert self.decision is not None, "a decision is finished after it was read or written"
        entries = self.decision.entries
        for number in range(self.ended + 1, len(entries)):
            entry = entries[number]
            if entry is not None:
                return replace(self, ended=number, effect=EndDecided(entry))
        if self.lost:
            return replace(self, effect=WriteDecision(self._amended()))
        kept = frozenset(entry.transactional_id for entry in entries if entry is not None)
        return replace(self, ended=len(entries), effect=AbortOrphans(kept))

    def _amended(self) -> Decision:
        """Returns the decision with the transactions that replace the dead ones.

        Raises:
            TryAgainError: As ``on``.
            ProtocolRefusedError: As ``on``.
        """
        decision = self.decision
        assert decision is not None, "only a decision is amended"
        entries = list(decision.entries)
        for number in self.lost:
            dead = entries[number]
            assert dead is not None, "an empty partition is never dead"
            report = self.reports[number] if number < len(self.reports) else None
            if report is not None and (report.kind is Kind.DECIDED or report.entry == dead):
                raise TryAgainError(
                    f"batch {self.batch}: the transaction of partition {number} was aborted before it was committed; "
                    "the replay of the batch writes its rows again"
                )
            again = None if report is None else report.entry
            if again is None or not is_same_work(dead, again) or len(self.reports) != len(entries):
                raise ProtocolRefusedError(not_the_same(self.batch, number, dead, again, len(entries), self.reports))
            entries[number] = again
        return replace(decision, entries=tuple(entries), run=self.run, amendments=decision.amendments + 1)


def is_same_work(one: Entry, other: Entry) -> bool:
    """Returns whether two transactions hold the same rows."""
    return (one.rows, one.fingerprint) == (other.rows, other.fingerprint)


def not_the_same(
    batch: int, number: int, dead: Entry, again: Entry | None, partitions: int, reports: Sequence[Report]
) -> str:
    """Returns why a replayed batch cannot replace rows that are lost."""
    rows = 0 if again is None else again.rows
    return (
        f"batch {batch}: {dead.rows} rows of partition {number} of {partitions} are missing, because their transaction "
        f"was aborted after the batch was decided, and the replay has {rows} other rows there, in {len(reports)} "
        "partitions; restart the query with the plan and the options it had, so that the replay has the same rows"
    )


def stale(batch: int, decision: Decision) -> ProtocolRefusedError:
    """Returns the error of a batch that is older than the last decision."""
    return ProtocolRefusedError(
        f"batch {batch}: batch {decision.batch} of this query is decided already (by run {decision.run}); another "
        "driver has taken over the query, or its checkpoint was set back: start it with a new checkpoint"
    )


PROTOCOL_VERSION: Final = 1
