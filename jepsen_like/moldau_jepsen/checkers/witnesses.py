"""Finds the operations behind an anomaly that the checker does not know when it finds the anomaly.

A checker sees that a value has two offsets when it reads the second one. It does not store which operation reported the
first one, because that would take eight bytes for every record of every history. So it adds a ``WitnessQuery``, and one
more pass over the history answers the query: only over a history with anomalies, and only for those that are kept with
details.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.history import Kind, Send, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_jepsen.checkers.anomalies import Findings
    from moldau_jepsen.history import Operation, TopicPartition

ANY = -1
TAKEN_MAX = 5


class WitnessKind(enum.Enum):
    """The relation of an operation to a record."""

    SEEN = "seen"  # it polled the record, or its send got the offset
    SENT = "sent"  # it sent the value
    POLLED = "polled"  # a poll returned it
    READ = "read"  # a poll of the final phase returned it
    PASSED = "passed"  # the first poll of the final phase that went past the offset; the last one, if none did
    TAKEN = "taken"  # transactions polled it: the first ``TAKEN_MAX`` of them


class WitnessQuery(NamedTuple):
    """A query for the first operation with a relation to a record. One of offset and value may be ``ANY``."""

    how: WitnessKind
    partition: TopicPartition
    offset: int = ANY
    value: int = ANY
    group: str = ""
    """Polls only: restricts the query to members of this group."""


class _Search:
    """One query and its answers."""

    __slots__ = ("anomaly", "ended", "found", "sought")

    def __init__(self, anomaly: int, sought: WitnessQuery) -> None:
        self.anomaly = anomaly
        self.sought = sought
        self.found: list[int] = []
        self.ended = False

    def answer(self, operation: Operation) -> None:
        how = self.sought.how
        if how is WitnessKind.TAKEN:
            if operation.kind is Kind.TRANSACTION and operation.index not in self.found:
                self.found.append(operation.index)
            self.ended = len(self.found) == TAKEN_MAX
        elif (how is not WitnessKind.READ or operation.final) and self.sought.group in ("", operation.group):
            self.found.append(operation.index)
            self.ended = True

    def passes(self, operation: Operation, highest: int) -> None:
        if not self.ended:
            self.found = [operation.index]
            self.ended = ANY < self.sought.offset < highest


class _Partition:
    """The searches in one partition, indexed by offset and by value."""

    __slots__ = ("offsets", "passed", "sent", "values")

    def __init__(self) -> None:
        self.sent: dict[int, list[_Search]] = {}
        self.offsets: dict[int, list[_Search]] = {}
        self.values: dict[int, list[_Search]] = {}
        self.passed: list[_Search] = []

    def add(self, search: _Search) -> None:
        sought = search.sought
        if sought.how is WitnessKind.PASSED:
            self.passed.append(search)
        elif sought.how is WitnessKind.SENT:
            self.sent.setdefault(sought.value, []).append(search)
        elif sought.offset != ANY:
            self.offsets.setdefault(sought.offset, []).append(search)
        else:
            self.values.setdefault(sought.value, []).append(search)

    def saw_send(self, operation: Operation, send: Send) -> None:
        for search in self.sent.get(send.value, ()):
            if not search.ended:
                search.answer(operation)
        if operation.status is not Status.OK or operation.aborted:
            return
        for search in self.offsets.get(send.offset, ()) if send.offset is not None else ():
            if search.sought.how is WitnessKind.SEEN and search.sought.value in (ANY, send.value) and not search.ended:
                search.answer(operation)

    def saw_poll(self, operation: Operation, pairs: Iterable[tuple[int, int]]) -> None:
        highest = ANY
        for offset, value in pairs:
            highest = max(highest, offset)
            for search in self.offsets.get(offset, ()):
                if search.sought.value in (ANY, value) and not search.ended:
                    search.answer(operation)
            for search in self.values.get(value, ()):
                if not search.ended:
                    search.answer(operation)
        if operation.final and highest != ANY:
            for search in self.passed:
                search.passes(operation, highest)


def name_witnesses(history: Iterable[Operation], findings: Findings) -> None:
    """Adds to the kept anomalies the operations that their checkers asked for.

    It reads the history once more, or not at all if there is no query. Memory grows with the number of queries, which
    is bounded.
    """
    if not findings.sought:
        return
    partitions: dict[TopicPartition, _Partition] = {}
    searches = [_Search(place, sought) for place, each in findings.sought for sought in each]
    for search in searches:
        partitions.setdefault(search.sought.partition, _Partition()).add(search)
    for operation in history:
        for part in operation.operations:
            if isinstance(part, Send):
                asked = partitions.get(part.partition)
                if asked is not None:
                    asked.saw_send(operation, part)
                continue
            for partition, pairs in part.records:
                asked = partitions.get(partition)
                if asked is not None:
                    asked.saw_poll(operation, pairs)
    for search in searches:
        anomaly = findings.kept[search.anomaly]
        operations = tuple(sorted({*anomaly.operations, *search.found}))
        findings.kept[search.anomaly] = replace(anomaly, operations=operations)
    findings.sought.clear()
