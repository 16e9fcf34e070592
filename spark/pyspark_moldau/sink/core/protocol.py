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
    """The transactions of a batch by partition; None for a partition without rows.

    ``decided_ms`` is the driver's wall clock when it decided the batch first; 0 if an earlier release decided it.
    ``topic`` is that of a job, empty if its rows name theirs; None for a query, whose batches no other write shares.
    ``plan`` tells the batch from another one of the same number; empty where it is not known.
    """

    batch: int
    run: str
    entries: tuple[Entry | None, ...]
    amendments: int = 0
    decided_ms: int = 0
    topic: str | None = None
    plan: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The notes of a query: the last batch whose commits were begun, and the last whose commits are done.

    ``begun_group`` is the consumer group that holds the first.
    """

    begun: int = -1
    done: int = -1
    begun_group: str = ""


MARKER_AGE_MAX_MS: Final = 12 * 3_600_000
"""How old a decision may be for the absence of a marker to mean that its transaction was not committed.

Markers are written up to ``transaction.timeout.ms`` before the decision, so they expire before it. Twelve hours are far
below Kafka's default of seven days, and below the day that was the default before.
"""


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
class ReadNotes:
    """Reads the notes of the query. Result: ``Notes``."""


@dataclass(frozen=True, slots=True)
class NoteBegun:
    """Notes that the commits of a batch begin; durable on return, and it does not expire. Result: None."""

    batch: int


@dataclass(frozen=True, slots=True)
class NoteDone:
    """Notes that all commits of a batch are done; durable on return, and it does not expire. Result: None."""

    batch: int


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
    """Takes over a transactional id of the task that has no open transaction. Result: None."""


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
class FindEnded:
    """Looks which transactions are not open any more. Result: their entries, a tuple."""

    decision: Decision


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
    | ReadNotes
    | NoteBegun
    | NoteDone
    | EndDecided
    | Fence
    | WriteRows
    | StageMarker
    | HandOver
    | SkipRows
    | FenceDriver
    | FindEnded
    | WriteDecision
    | AbortOrphans
)


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
    effect: Effect | None = ReadDecision()
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
    effect: Effect | None = FenceDriver()
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


def check_topic(topic: str | None, decision: Decision) -> None:
    """Checks that a batch which is decided already was decided for the topic of this write.

    Raises:
        ProtocolRefusedError: two jobs with the same name and version write to different topics.
    """
    if topic is not None and decision.topic is not None and topic != decision.topic:
        here, there = (f"topic {name}" if name else "the column topic" for name in (topic, decision.topic))
        raise ProtocolRefusedError(
            f"batch {decision.batch}: this txnAppId has written this txnVersion to {there} already, so nothing would "
            f"be written to {here}; give each of these writes a txnAppId of its own (an export: a name)"
        )


def is_done(batch: int, notes: Notes) -> bool:
    """Returns whether all rows of a batch are written, from what does not expire.

    Raises:
        ProtocolRefusedError: a later batch was begun.
    """
    last = max(notes.begun, notes.done)
    if last > batch:
        raise outdated(batch, last, "")
    return notes.done == batch


def expired(batch: int, notes: Notes) -> ProtocolRefusedError:
    """Returns the error of a batch whose commits were begun, and nothing says any more which of them are done."""
    return ProtocolRefusedError(
        f"batch {batch}: the query stopped while it committed this batch, and rested until the brokers had forgotten "
        "how far it was (offsets.retention.minutes): some of its rows may be in the topic, and would come twice. "
        "Compare the topic with the batch, and start with a new checkpoint behind it (a job: with the next "
        f"txnVersion); or delete the consumer group {notes.begun_group} to have the whole batch written again"
    )


def ended_early(decision: Decision, entry: Entry) -> str:
    """Returns why a batch is not decided one of whose transactions is not open any more."""
    return (
        f"batch {decision.batch}: the transaction of partition {decision.entries.index(entry)} was aborted before all "
        "tasks had written their rows, so none of the batch is visible. If writing takes longer than "
        "kafka.transaction.timeout.ms, raise it, and transaction.max.timeout.ms of the brokers, or write fewer rows at "
        "a time; or another run of the query has aborted it"
    )


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
    return outdated(batch, decision.batch, f" (by run {decision.run})")


def planned_again(batch: int, decision: Decision) -> ProtocolRefusedError:
    """Returns the error of a batch that is decided, but with other offsets."""
    rows = sum(entry.rows for entry in decision.entries if entry is not None)
    return ProtocolRefusedError(
        f"batch {batch} of this query is written already, with {rows} rows and other offsets: its checkpoint was set "
        "back, and what the batch has in addition now would be lost; start the query with a new checkpoint behind the "
        "rows that are written (startingOffsets)"
    )


def outdated(batch: int, last: int, run: str) -> ProtocolRefusedError:
    """Returns the error of a batch that is older than the last one that is known."""
    return ProtocolRefusedError(
        f"batch {batch}: batch {last} of this query is decided already{run}; another driver has taken over the query, "
        f"or its checkpoint was set back: start it with a new checkpoint. A job needs a txnVersion above {last}"
    )


PROTOCOL_VERSION: Final = 1
