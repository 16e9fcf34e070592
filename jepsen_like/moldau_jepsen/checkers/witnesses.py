"""The operations behind an anomaly that no checker has at hand when it finds it.

That a value lies at two offsets is seen at the second of them; who told of the first was not written down, for it would
take eight bytes of every record of every history. So a checker says what it wants to know (``Sought``), and one more
pass over the history finds it: only over a history that has anomalies, and only for those that are kept with details.
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


class How(enum.Enum):
    """What an operation did with a record."""

    TOLD = "told"  # it polled it, or was told where it landed
    SENT = "sent"  # it sent the value
    POLLED = "polled"  # a poll returned it
    READ = "read"  # a poll of the final phase returned it
    PASSED = "passed"  # the first poll of the final phase that went past the offset; the last one, if none did
    TAKEN = "taken"  # transactions polled it: the first ``TAKEN_MAX`` of them


class Sought(NamedTuple):
    """The first operation that did this. One of offset and value may be ``ANY``."""

    how: How
    partition: TopicPartition
    offset: int = ANY
    value: int = ANY
    group: str = ""
    """Of polls: of this group's members."""


class _Search:
    """One question and its answers."""

    __slots__ = ("anomaly", "ended", "found", "sought")

    def __init__(self, anomaly: int, sought: Sought) -> None:
        self.anomaly = anomaly
        self.sought = sought
        self.found: list[int] = []
        self.ended = False

    def answer(self, operation: Operation) -> None:
        how = self.sought.how
        if how is How.TAKEN:
            if operation.kind is Kind.TRANSACTION and operation.index not in self.found:
                self.found.append(operation.index)
            self.ended = len(self.found) == TAKEN_MAX
        elif (how is not How.READ or operation.final) and self.sought.group in ("", operation.group):
            self.found.append(operation.index)
            self.ended = True

    def passes(self, operation: Operation, highest: int) -> None:
        if not self.ended:
            self.found = [operation.index]
            self.ended = ANY < self.sought.offset < highest


class _Partition:
    """Searches in one partition, by what they can be recognized by."""

    __slots__ = ("offsets", "passed", "sent", "values")

    def __init__(self) -> None:
        self.sent: dict[int, list[_Search]] = {}
        self.offsets: dict[int, list[_Search]] = {}
        self.values: dict[int, list[_Search]] = {}
        self.passed: list[_Search] = []

    def add(self, search: _Search) -> None:
        sought = search.sought
        if sought.how is How.PASSED:
            self.passed.append(search)
        elif sought.how is How.SENT:
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
            if search.sought.how is How.TOLD and search.sought.value in (ANY, send.value) and not search.ended:
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
    """Adds to the anomalies that are kept the operations that their checkers asked for.

    Reads the history once more, or not at all if nothing was asked. Memory follows what was asked, which is bounded.
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
