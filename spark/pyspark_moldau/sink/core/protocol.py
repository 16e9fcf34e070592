"""The protocol that writes each row exactly once. Pure: results of effects go in, the next effect comes out.

Theory of operation (docs/internals/spark-sink.md has the crash table). A *task* writes its rows in a transaction of its
own, adds a *marker* (an offset, committed with the transaction, that names the batch), and leaves the transaction open.
The *driver* gets one message from every task, writes the *decision* (which transactions belong to the batch) in one
transaction of its own, and then commits the transactions of the decision.

Safety rests on five facts:

- A transaction of a task is committed only if a decision names it. A decision names only transactions that were open
  just before, so that a batch that took too long stays invisible as a whole.
- There is one decision for a batch: the driver takes over its transactional id before it reads the last decision, so of
  two drivers only the last can write. A replayed batch that is decided is not written again, only finished.
- A decided transaction is committed, or it is dead for good (its epoch is over). The marker shows which.
- Rows of a dead transaction are written again only by an *amended* decision, and only if the replayed task has the same
  rows (number and fingerprint) in the same partition of as many partitions.
- Decisions and markers expire while a query rests. Two *notes* do not: that the commits of a batch begin (written
  before the first of them), and that they are done (written after the last). A batch whose decision has expired is
  skipped if it is done, and refused if it was only begun.

The states are frozen, so that a test can explore every interleaving (``tests/pyspark_moldau/sink``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark_moldau.sink.core.effects import (
    AbortOrphans,
    Decision,
    EndDecided,
    Ended,
    Entry,
    Fence,
    FenceDriver,
    FindEnded,
    HandOver,
    Kind,
    NoteBegun,
    NoteDone,
    Notes,
    ReadDecision,
    ReadMarker,
    ReadNotes,
    Report,
    SkipRows,
    StageMarker,
    WriteDecision,
    WriteRows,
)
from pyspark_moldau.sink.core.refusals import (
    ProtocolRefusedError,
    TryAgainError,
    check_topic,
    ended_early,
    expired,
    is_done,
    not_the_same,
    planned_again,
    stale,
)

if TYPE_CHECKING:
    from pyspark_moldau.sink.core.effects import Effect

FIRST_OF_TASK: Final = ReadDecision()
FIRST_OF_DRIVER: Final = FenceDriver()

MARKER_AGE_MAX_MS: Final = 12 * 3_600_000
"""How old a decision may be for the absence of a marker to mean that its transaction was not committed.

Markers are written up to ``transaction.timeout.ms`` before the decision, so they expire before it. Twelve hours are far
below Kafka's default of seven days, and below the day that was the default before.
"""


# --- the task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCore:
    """One attempt of a task. ``effect`` is due; ``on`` takes its result and returns the next state.

    ``has_notes`` is False for a job that is never repeated. ``topic`` is that of a job, as a decision has it. ``entry``
    is the decided transaction that is looked at.
    ``begun`` are the notes that say that the commits of the batch were begun, without a decision that says so.

    Invariant: exactly one of ``effect`` and ``report`` is set.
    """

    batch: int
    partition: int
    has_notes: bool = True
    topic: str | None = None
    now_ms: int = 0
    decision: Decision | None = None
    entry: Entry | None = None
    begun: Notes | None = None
    effect: Effect | None = FIRST_OF_TASK
    report: Report | None = None
    rows: int = 0
    fingerprint: int = 0

    def on(self, result: object) -> TaskCore:
        """Takes the result of the effect.

        Raises:
            ProtocolRefusedError: a later batch is decided already, or this one for another topic, or what was decided
                about it has expired.
        """
        match self.effect:
            case ReadDecision():
                assert result is None or isinstance(result, Decision)
                return self._on_decision(result)
            case ReadNotes():
                assert isinstance(result, Notes)
                return self._on_notes(result)
            case NoteBegun():
                assert self.entry is not None, "a task notes that it commits a transaction"
                return self._do(EndDecided(self.entry))
            case EndDecided(entry):
                if result is Ended.COMMITTED:
                    return self._do(SkipRows())
                return self._do(ReadMarker(entry.transactional_id))
            case ReadMarker():
                assert isinstance(result, int)
                assert self.decision is not None, "a marker is read after a decision"
                if may_have_expired(result, self.decision, self.now_ms):
                    return self._do(ReadNotes())
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

    def _on_notes(self, notes: Notes) -> TaskCore:
        if is_done(self.batch, notes):
            return self._do(SkipRows())
        if notes.begun < self.batch:
            return self._do(Fence())
        if self.decision is not None:
            raise expired(self.batch, notes)
        # The batch may have been decided after this task looked; a decision is there before it is begun.
        return replace(self, begun=notes, effect=ReadDecision())

    def _on_decision(self, decision: Decision | None) -> TaskCore:
        if decision is None and self.begun is not None:
            raise expired(self.batch, self.begun)
        if decision is None and self.has_notes:
            return self._do(ReadNotes())
        if decision is None or decision.batch < self.batch:
            return self._do(Fence())
        if decision.batch > self.batch:
            raise stale(self.batch, decision)
        check_topic(self.topic, decision)
        entry = decision.entries[self.partition] if self.partition < len(decision.entries) else None
        if entry is None:
            return self._do(SkipRows())
        effect = NoteBegun(self.batch) if self.has_notes else EndDecided(entry)
        return replace(self, decision=decision, entry=entry, effect=effect)

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
    ``has_notes``, ``topic`` and ``begun`` are those of a task, and ``plan`` is that of a decision.
    """

    batch: int
    run: str
    reports: tuple[Report, ...]
    has_notes: bool = True
    topic: str | None = None
    plan: str = ""
    now_ms: int = 0
    begun: Notes | None = None
    effect: Effect | None = FIRST_OF_DRIVER
    decision: Decision | None = None
    ended: int = 0
    lost: tuple[int, ...] = ()

    def on(self, result: object) -> DriverCore:
        """Takes the result of the effect.

        Raises:
            ProtocolRefusedError: rows are lost and the replayed tasks have others, a later batch is decided, or this
                one for another topic, or what was decided about it has expired.
            TryAgainError: rows are lost, and no task has written them again.
        """
        match self.effect:
            case FenceDriver():
                return replace(self, effect=ReadDecision(is_final=True))
            case FindEnded(decision):
                assert isinstance(result, tuple)
                if result:
                    raise TryAgainError(ended_early(decision, result[0]))
                return replace(self, effect=WriteDecision(decision))
            case ReadDecision():
                assert result is None or isinstance(result, Decision)
                return self._on_decision(result)
            case ReadNotes():
                assert isinstance(result, Notes)
                return self._on_notes(result)
            case WriteDecision(decision):
                return self._finish(decision)
            case NoteBegun():
                return self._next()
            case NoteDone():
                return self._abort_others()
            case EndDecided(entry):
                if result is Ended.COMMITTED:
                    return self._next()
                return replace(self, effect=ReadMarker(entry.transactional_id))
            case ReadMarker():
                assert isinstance(result, int)
                assert self.decision is not None, "a marker is read after a decision"
                if may_have_expired(result, self.decision, self.now_ms):
                    return replace(self, effect=ReadNotes())
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
            check_topic(self.topic, last)
            if self.plan and last.plan and self.plan != last.plan:
                raise planned_again(self.batch, last)
            return self._finish(last)
        if last is None and self.begun is not None:
            raise expired(self.batch, self.begun)
        if last is None and self.has_notes:
            return replace(self, effect=ReadNotes())
        return self._decide()

    def _on_notes(self, notes: Notes) -> DriverCore:
        if is_done(self.batch, notes):
            return self._abort_others()
        if self.decision is not None:
            raise expired(self.batch, notes)
        if notes.begun < self.batch:
            return self._decide()
        # Another driver may have taken over and decided since; a decision is there before it is begun.
        return replace(self, begun=notes, effect=ReadDecision(is_final=True))

    def _decide(self) -> DriverCore:
        if any(report.kind is Kind.DECIDED for report in self.reports):
            raise ProtocolRefusedError(
                f"batch {self.batch}: tasks found it decided, and the driver finds no decision; were offsets of the "
                "groups of this query deleted?"
            )
        entries = tuple(report.entry for report in self.reports)
        decision = Decision(
            batch=self.batch, run=self.run, entries=entries, decided_ms=self.now_ms, topic=self.topic, plan=self.plan
        )
        if not any(decision.entries):
            return self._abort_others()
        return replace(self, effect=FindEnded(decision))

    def _finish(self, decision: Decision) -> DriverCore:
        """Commits the transactions of a decision that is written, from the first."""
        begun = replace(self, decision=decision, ended=-1, lost=())
        return replace(begun, effect=NoteBegun(self.batch)) if self.has_notes else begun._next()

    def _next(self) -> DriverCore:
        assert self.decision is not None, "a decision is finished after it was read or written"
        entries = self.decision.entries
        for number in range(self.ended + 1, len(entries)):
            entry = entries[number]
            if entry is not None:
                return replace(self, ended=number, effect=EndDecided(entry))
        if self.lost:
            return replace(self, effect=WriteDecision(self._amended()))
        done = replace(self, ended=len(entries))
        return replace(done, effect=NoteDone(self.batch)) if self.has_notes else done._abort_others()

    def _abort_others(self) -> DriverCore:
        """Aborts what the decision, if there is one, does not name."""
        entries = () if self.decision is None else self.decision.entries
        kept = frozenset(entry.transactional_id for entry in entries if entry is not None)
        return replace(self, effect=AbortOrphans(kept))

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


def may_have_expired(marker: int, decision: Decision, now_ms: int) -> bool:
    """Returns whether a marker may be absent because it has expired, and not because its transaction was aborted."""
    return marker < 0 and now_ms - decision.decided_ms > MARKER_AGE_MAX_MS
