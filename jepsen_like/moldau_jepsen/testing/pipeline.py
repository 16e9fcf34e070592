"""A history for tests of one's own pipeline: what was sent, what was read, what took effect, and what is wrong with it.

    history = PipelineHistory()
    history.sent("orders", metadata.partition, metadata.offset, "order-17")
    history.read("worker-1", "orders", record.partition, record.offset, "order-17")
    history.took_effect("order-17")
    history.check().raise_if_wrong()

Records are named by any text or number that is unique. ``check`` judges the log with the checkers of the kit (lost,
duplicated, reordered records, two values at one offset) and the effects by count: an exactly-once pipeline gives each
acknowledged record one effect.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.checkers import CheckOptions, Verdict, check_history
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

Token = str | int | bytes
SHOWN_MAX = 10


class PipelineError(AssertionError):
    """The pipeline did not keep its promise; the text names records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineVerdict:
    """What ``check`` found."""

    log: Verdict
    """Judgement of the log: what was sent against what was read."""
    lost_effects: tuple[Token, ...]
    """Acknowledged, and without effect."""
    repeated_effects: tuple[tuple[Token, int], ...]
    """Took effect more than once, with the number of times."""
    unknown_effects: tuple[Token, ...]
    """Took effect, and were never sent."""

    def raise_if_wrong(self, *, at_least_once: bool = False, at_most_once: bool = False) -> None:
        """Raises ``PipelineError`` unless each acknowledged record took effect exactly once and the log is sound.

        ``at_least_once`` allows repeated effects, ``at_most_once`` allows lost ones.
        """
        wrong = [f"{one.kind.value}: {one.text}" for one in self.log.anomalies if not one.allowed]
        if self.lost_effects and not at_most_once:
            wrong.append(f"{len(self.lost_effects)} acknowledged without effect: {_some(self.lost_effects)}")
        if self.repeated_effects and not at_least_once:
            shown = ", ".join(f"{token!r} {count} times" for token, count in self.repeated_effects[:SHOWN_MAX])
            wrong.append(f"{len(self.repeated_effects)} with repeated effects: {shown}")
        if self.unknown_effects:
            wrong.append(
                f"{len(self.unknown_effects)} effects of records that were never sent: {_some(self.unknown_effects)}"
            )
        if wrong:
            raise PipelineError("; ".join(wrong[:SHOWN_MAX]))


def _some(tokens: tuple[Token, ...]) -> str:
    shown = ", ".join(repr(token) for token in tokens[:SHOWN_MAX])
    return shown if len(tokens) <= SHOWN_MAX else f"{shown} ..."


class PipelineHistory:
    """Gathers what a test's clients did. Any thread may add to it."""

    def __init__(self, on_acknowledged: Callable[[str, int, int], None] | None = None) -> None:
        """Nothing has happened. ``on_acknowledged`` hears of topic, partition and offset of records with acks=all."""
        self._on_acknowledged = on_acknowledged
        self._lock = threading.Lock()
        self._operations: list[Operation] = []
        self._values: dict[tuple[TopicPartition, Token], int] = {}
        self._next_value: dict[TopicPartition, int] = {}
        self._processes: dict[str, int] = {}
        self._acknowledged: dict[Token, None] = {}
        self._sent: dict[Token, None] = {}
        self._effects: dict[Token, int] = {}

    def sent(
        self,
        topic: str,
        partition: int,
        offset: int | None,
        token: Token,
        *,
        sender: str = "sender",
        acks: str | int = "all",
    ) -> None:
        """A record was acknowledged at ``offset`` (None where the client was not told it).

        ``acks`` is what its producer waited for. In the simulation a record with ``all`` must be committed already.
        """
        self._send(topic, partition, offset, token, sender, Status.OK)
        if self._on_acknowledged is not None and offset is not None and str(acks) in ("all", "-1"):
            self._on_acknowledged(topic, partition, offset)

    def send_failed(
        self, topic: str, partition: int, token: Token, *, sender: str = "sender", certain: bool = False
    ) -> None:
        """A record was not acknowledged; ``certain`` if it can never appear (an aborted transaction)."""
        self._send(topic, partition, None, token, sender, Status.FAIL if certain else Status.INFO)

    def read(self, reader: str, topic: str, partition: int, offset: int, token: Token) -> None:
        """A reader was given a record. Readers that are rebalanced or restarted are told by ``restarted``."""
        place = TopicPartition(topic, partition)
        with self._lock:
            part = Poll(((place, ((offset, self._value(place, token)),)),))
            self._add(reader, Kind.POLL, Status.OK, (part,))

    def restarted(self, reader: str) -> None:
        """A reader crashed, was rebalanced or sought: its position may have moved."""
        with self._lock:
            self._add(reader, Kind.ASSIGN, Status.OK, ())

    def took_effect(self, token: Token) -> None:
        """The record did what the pipeline is for: a row, a mail, a record in another topic."""
        with self._lock:
            self._effects[token] = self._effects.get(token, 0) + 1

    def check(self, *, idempotent: bool = True) -> PipelineVerdict:
        """Judges all that was added; ``idempotent`` False allows the log to hold a record twice."""
        with self._lock:
            log = check_history(self._operations, CheckOptions(idempotent=idempotent, final_phase=False))
            return PipelineVerdict(
                log=log,
                lost_effects=tuple(token for token in self._acknowledged if token not in self._effects),
                repeated_effects=tuple((token, count) for token, count in self._effects.items() if count > 1),
                unknown_effects=tuple(token for token in self._effects if token not in self._sent),
            )

    # -- inside -------------------------------------------------------------------------------------------------------

    def _send(self, topic: str, partition: int, offset: int | None, token: Token, sender: str, status: Status) -> None:
        place = TopicPartition(topic, partition)
        with self._lock:
            self._sent[token] = None
            if status is Status.OK:
                self._acknowledged[token] = None
            self._add(sender, Kind.SEND, status, (Send(place, self._value(place, token), offset),))

    def _value(self, place: TopicPartition, token: Token) -> int:
        """Checkers want dense numbers per partition."""
        value = self._values.get((place, token))
        if value is None:
            value = self._next_value.get(place, 0)
            self._next_value[place] = value + 1
            self._values[place, token] = value
        return value

    def _add(self, name: str, kind: Kind, status: Status, parts: tuple[Send | Poll, ...]) -> None:
        index = len(self._operations)
        self._operations.append(
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
