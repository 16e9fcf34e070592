"""Records what a pipeline under test sent, read and did, and finds violations of its guarantees.

    history = PipelineHistory()
    history.sent("orders", metadata.partition, metadata.offset, "order-17")
    history.read("worker-1", "orders", record.partition, record.offset, "order-17")
    history.took_effect("order-17")
    history.check().raise_if_wrong()

A unique string or number names each record. ``check`` judges the log with the checkers of the kit (lost, duplicated,
reordered records, two values at one offset) and the effects by count: an exactly-once pipeline gives each acknowledged
record one effect. A record that was read must have been sent to that partition.

When the application sends a record again after a failure, it makes another attempt under the same name. The log may
hold one copy for each attempt that is not certain to have failed. A read is matched with the attempt that was
acknowledged at its offset, else with one whose outcome is open, else with one that can never appear.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, Verdict, check_history
from moldau_jepsen.history import Kind, MicroOperation, Operation, Poll, Send, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

Token = str | int | bytes
SHOWN_MAX = 10


class UnknownRead(NamedTuple):
    """A record that was read from a partition to which it was never sent."""

    token: Token
    partition: TopicPartition
    offset: int


class PipelineError(AssertionError):
    """The pipeline violated its guarantees; the message names records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineVerdict:
    """The findings of ``check``."""

    log: Verdict
    """Judgement of the log: what was sent against what was read."""
    lost_effects: tuple[Token, ...]
    """Records that were acknowledged and had no effect."""
    repeated_effects: tuple[tuple[Token, int], ...]
    """Records that took effect more than once, with the number of times."""
    unknown_effects: tuple[Token, ...]
    """Records that took effect and were never sent."""
    failed_effects: tuple[Token, ...] = ()
    """Records that took effect, although every attempt to send them failed for certain."""
    unknown_reads: tuple[UnknownRead, ...] = ()
    """Records that were read from a partition to which they were never sent."""

    def raise_if_wrong(self, *, at_least_once: bool = False, at_most_once: bool = False) -> None:
        """Requires that each acknowledged record took effect exactly once and that the log has no anomalies.

        ``at_least_once`` allows repeated effects, ``at_most_once`` allows lost ones. A record that no reader received
        is such a loss: its reader may have committed it before it ``restarted``. A reader that skipped it otherwise is
        an anomaly of its own.

        Raises:
            PipelineError: A requirement is not met.
        """
        excused = {AnomalyKind.LOST_WRITE} if at_most_once else set()
        found = [one for one in self.log.anomalies if not one.allowed and one.kind not in excused]
        wrong = [f"{one.kind.value}: {one.text}" for one in found]
        if self.lost_effects and not at_most_once:
            wrong.append(f"{len(self.lost_effects)} acknowledged without effect: {_some(self.lost_effects)}")
        if self.repeated_effects and not at_least_once:
            shown = ", ".join(f"{token!r} {count} times" for token, count in self.repeated_effects[:SHOWN_MAX])
            wrong.append(f"{len(self.repeated_effects)} with repeated effects: {shown}")
        if self.unknown_effects:
            wrong.append(
                f"{len(self.unknown_effects)} effects of records that were never sent: {_some(self.unknown_effects)}"
            )
        if self.failed_effects:
            wrong.append(f"{len(self.failed_effects)} effects of records that failed: {_some(self.failed_effects)}")
        if self.unknown_reads:
            shown = ", ".join(
                f"{one.token!r} at offset {one.offset} of {one.partition.topic}-{one.partition.partition}"
                for one in self.unknown_reads[:SHOWN_MAX]
            )
            wrong.append(f"{len(self.unknown_reads)} records read that were never sent there: {shown}")
        if wrong:
            raise PipelineError("; ".join(wrong[:SHOWN_MAX]))


UNASSIGNED = -1
"""Partition that librdkafka reports for a record that failed before it had one."""


def _number(what: str, value: object, token: Token, least: int = 0) -> int:
    """Returns a partition or an offset, checked where the user's own call is still in the traceback.

    Raises:
        TypeError: It is no integer, as a text from a file is not.
        ValueError: It is below ``least``, as the offsets by which some clients say that they do not know it.
    """
    if not isinstance(value, SupportsIndex):
        raise TypeError(f"the {what} of record {token!r} is a number, not {value!r}")
    number = index(value)
    if number < least:
        hint = "; say None for a sent record whose offset is unknown" if what == "offset" else ""
        raise ValueError(f"the {what} of record {token!r} is {number}, and must be 0 or more{hint}")
    return number


def _some(tokens: tuple[Token, ...]) -> str:
    shown = ", ".join(repr(token) for token in tokens[:SHOWN_MAX])
    return shown if len(tokens) <= SHOWN_MAX else f"{shown} ..."


class PipelineHistory:
    """Gathers what a test's clients did. Any thread may add to it."""

    def __init__(self, on_acknowledged: Callable[[str, int, int], None] | None = None) -> None:
        """Creates an empty history.

        ``on_acknowledged`` is called with topic, partition and offset of each record acknowledged with acks=all.
        """
        self._on_acknowledged = on_acknowledged
        self._lock = threading.Lock()
        self._reported: list[_Attempt | _Read | str] = []
        """Reports in the order of their arrival; a string names a reader that restarted."""
        self._effects: dict[Token, int] = {}

    def sent(
        self,
        topic: str,
        partition: int,
        offset: int | None,
        token: Token,
        *,
        sender: str | None = None,
        acks: str | int = "all",
    ) -> None:
        """Adds a record that was acknowledged at ``offset`` (None if the client did not learn it).

        ``sender`` names a producer whose records must be in the log in the order of these calls; without a name no
        order is expected. ``acks`` is the producer's setting. In the simulation a record with ``all`` must be committed
        already.

        Raises:
            TypeError: Partition or offset is no integer.
            ValueError: One is negative.
        """
        if offset is not None:
            offset = _number("offset", offset, token)
        self._send(topic, partition, offset, token, sender, Status.OK)
        if self._on_acknowledged is not None and offset is not None and str(acks) in ("all", "-1"):
            self._on_acknowledged(topic, partition, offset)

    def send_failed(
        self, topic: str, partition: int, token: Token, *, sender: str | None = None, certain: bool = False
    ) -> None:
        """Adds a record that was not acknowledged; ``certain`` if it can never appear (an aborted transaction).

        The application may send it again under the same name.
        """
        self._send(topic, partition, None, token, sender, Status.FAIL if certain else Status.INFO)

    def read(self, reader: str, topic: str, partition: int, offset: int, token: Token) -> None:
        """Adds a record that a reader received. Call ``restarted`` when a reader is rebalanced or restarted.

        Raises:
            TypeError: Partition or offset is no integer.
            ValueError: One is negative.
        """
        place = TopicPartition(topic, _number("partition", partition, token))
        offset = _number("offset", offset, token)
        with self._lock:
            self._reported.append(_Read(reader, place, offset, token))

    def restarted(self, reader: str) -> None:
        """Notes that a reader crashed, was rebalanced or sought, so that its position may have moved."""
        with self._lock:
            self._reported.append(reader)

    def took_effect(self, token: Token) -> None:
        """Adds one effect of a record: a row, a mail, a record in another topic."""
        with self._lock:
            self._effects[token] = self._effects.get(token, 0) + 1

    def copy(self) -> PipelineHistory:
        """Returns a history with the present reports."""
        copied = PipelineHistory(self._on_acknowledged)
        with self._lock:
            copied._reported, copied._effects = list(self._reported), dict(self._effects)
        return copied

    def go_back(self, earlier: PipelineHistory) -> None:
        """Takes back all reports since ``earlier`` was copied from this history."""
        with self._lock:
            self._reported, self._effects = list(earlier._reported), dict(earlier._effects)

    def check(self, *, idempotent: bool = True) -> PipelineVerdict:
        """Judges the history; ``idempotent`` False allows the log to hold a record twice, and out of order."""
        with self._lock:
            reported, effects = list(self._reported), dict(self._effects)
        log = _Log(reported)
        sent: dict[Token, bool] = {}  # The value says whether an attempt may have been written.
        for one in log.attempts:
            sent[one.token] = sent.get(one.token, False) or one.status is not Status.FAIL
        acknowledged = dict.fromkeys(one.token for one in log.attempts if one.status is Status.OK)
        promised = CheckOptions(idempotent=idempotent, final_phase=False, new_topics=False)
        return PipelineVerdict(
            log=check_history(log.operations, promised),
            lost_effects=tuple(token for token in acknowledged if token not in effects),
            repeated_effects=tuple((token, count) for token, count in effects.items() if count > 1),
            unknown_effects=tuple(token for token in effects if token not in sent),
            failed_effects=tuple(token for token in effects if not sent.get(token, True)),
            unknown_reads=tuple(log.unknown_reads),
        )

    def _send(
        self, topic: str, partition: int, offset: int | None, token: Token, sender: str | None, status: Status
    ) -> None:
        least = 0 if status is Status.OK else UNASSIGNED
        place = TopicPartition(topic, _number("partition", partition, token, least))
        with self._lock:
            self._reported.append(_Attempt(place, offset, token, sender, status))


class _Attempt(NamedTuple):
    """One attempt to send a record."""

    partition: TopicPartition
    offset: int | None
    token: Token
    sender: str | None
    status: Status


class _Read(NamedTuple):
    reader: str
    partition: TopicPartition
    offset: int
    token: Token


@dataclass(slots=True)
class _Tries:
    """The attempts of one record, by their values; the first read claims an attempt whose offset is unknown."""

    acknowledged: list[int] = field(default_factory=list)
    unplaced: list[int] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)

    def take(self) -> int:
        """Returns the value for a read at an offset at which no attempt was acknowledged."""
        for candidates in (self.unplaced, self.open):
            if candidates:
                self.acknowledged.append(candidates.pop(0))
                return self.acknowledged[-1]
        return (self.failed or self.acknowledged)[0]


class _Log:
    """The reports in the form that checkers judge: each attempt has a dense number per partition."""

    def __init__(self, reported: list[_Attempt | _Read | str]) -> None:
        self.operations: list[Operation] = []
        self.attempts = [one for one in reported if isinstance(one, _Attempt)]
        self.unknown_reads: list[UnknownRead] = []
        self._next_value: dict[TopicPartition, int] = {}
        self._processes: dict[str | int, int] = {}
        self._tries: dict[tuple[TopicPartition, Token], _Tries] = {}
        self._at: dict[tuple[TopicPartition, Token, int], int] = {}
        """Values of the attempts that were acknowledged or read, by offset."""
        values = [self._enter(attempt) for attempt in self.attempts]
        sends = iter(values)
        for number, one in enumerate(reported):
            if isinstance(one, _Attempt):
                send = Send(one.partition, next(sends), one.offset)
                self._add(number if one.sender is None else one.sender, Kind.SEND, one.status, send)
            elif isinstance(one, _Read):
                poll = Poll(((one.partition, ((one.offset, self._value(one)),)),))
                self._add(one.reader, Kind.POLL, Status.OK, poll)
            else:
                self._add(one, Kind.ASSIGN, Status.OK)

    def _enter(self, attempt: _Attempt) -> int:
        """Returns the attempt's value. A repeated report of one acknowledgement counts as the same attempt."""
        tries = self._tries.setdefault((attempt.partition, attempt.token), _Tries())
        if attempt.offset is not None:  # only an acknowledgement has one
            place = (attempt.partition, attempt.token, attempt.offset)
            if place not in self._at:
                self._at[place] = self._new_value(attempt.partition)
                tries.acknowledged.append(self._at[place])
            return self._at[place]
        value = self._new_value(attempt.partition)
        {Status.OK: tries.unplaced, Status.INFO: tries.open, Status.FAIL: tries.failed}[attempt.status].append(value)
        return value

    def _value(self, read: _Read) -> int:
        place = (read.partition, read.token, read.offset)
        value = self._at.get(place)
        if value is None:
            tries = self._tries.get(place[:2])
            if tries is None:
                self.unknown_reads.append(UnknownRead(read.token, read.partition, read.offset))
                value = self._new_value(read.partition)
            else:
                value = tries.take()
            self._at[place] = value
        return value

    def _new_value(self, partition: TopicPartition) -> int:
        value = self._next_value.get(partition, 0)
        self._next_value[partition] = value + 1
        return value

    def _add(self, name: str | int, kind: Kind, status: Status, *parts: MicroOperation) -> None:
        """Adds an operation of the client ``name``; a number stands for a sender without a name."""
        index = len(self.operations)
        self.operations.append(
            Operation(
                index=index,
                process=self._processes.setdefault(name, len(self._processes)),
                kind=kind,
                status=status,
                begun_ms=float(index),
                ended_ms=float(index),
                operations=parts,
            )
        )
