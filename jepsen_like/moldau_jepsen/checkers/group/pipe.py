"""Checks an exactly-once pipe: each record of the source has one record in the target, in order.

A worker's transaction polls records of the source and sends one record to the target for each, in the same order; so
the history shows the source record of each target record. Only records that the final phase reads count.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.checkers.log.orders import AHEAD_MAX, NUMBER_MAX
from moldau_jepsen.checkers.log.reach import Reach
from moldau_jepsen.checkers.witnesses import ANY, WitnessKind, WitnessQuery
from moldau_jepsen.history import Kind, Operation, Send, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

NOTHING = -1
SOMEWHERE = -2
"""Place of a record that was read at an impossible offset only."""


@dataclass(slots=True)
class _Source:
    """A partition of the source; arrays are indexed by value."""

    number: int
    partition: TopicPartition
    reach: Reach
    offset_of: array[int] = field(default_factory=lambda: array("q"))
    """Offset in the final read, ``NOTHING`` if it was not read, or ``SOMEWHERE``."""
    made: array[int] = field(default_factory=lambda: array("q"))
    """The operation that made its first record in the target."""
    highest_sent: int = NOTHING
    """Value."""
    copies: bytearray = field(default_factory=bytearray)
    """Number of its records in the target, at most 255."""


@dataclass(slots=True)
class _Target:
    """A partition of the target; the first three arrays are indexed by value, the others hold the final read."""

    reach: Reach
    source: array[int] = field(default_factory=lambda: array("i"))
    origin: array[int] = field(default_factory=lambda: array("q"))
    writer: array[int] = field(default_factory=lambda: array("q"))
    read_offsets: array[int] = field(default_factory=lambda: array("q"))
    read_values: array[int] = field(default_factory=lambda: array("q"))
    misplaced: dict[int, int] = field(default_factory=dict)
    """Values that the final read returned at impossible offsets."""

    def add(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Takes offsets and values of the final read."""
        for offset, value in pairs:
            if self.reach.admits(offset):
                self.read_offsets.append(offset)
                self.read_values.append(min(value, NUMBER_MAX))
            else:
                self.misplaced[min(value, NUMBER_MAX)] = offset

    def records(self) -> Iterable[tuple[int, int]]:
        """Returns offsets and values of the final read, in its order.

        A reader that was given an impossible offset is sent back, so that it reads other records twice.
        """
        records = zip(self.read_offsets, self.read_values, strict=True)
        if not self.misplaced:
            return records
        ascending = sorted(set(records))
        placed = {value for _, value in ascending}
        return [*ascending, *((offset, value) for value, offset in self.misplaced.items() if value not in placed)]


def _put(values: array[int], index: int, value: int) -> None:
    missing = index + 1 - len(values)
    if missing > 0:
        values.extend([NOTHING] * max(missing, len(values) // 4))
    values[index] = value


def _at(values: array[int], index: int) -> int:
    return values[index] if 0 <= index < len(values) else NOTHING


class PipeChecker:
    """Finds records of the source that have no record, or several, in the target, and records out of order.

    Memory is about 17 bytes per record of the source and 36 per record of the target.
    """

    def __init__(self, source: str, target: str, findings: Findings) -> None:
        """``source`` and ``target`` are topics."""
        self._source = source
        self._target = target
        self._findings = findings
        self._sources: dict[TopicPartition, _Source] = {}
        self._targets: dict[TopicPartition, _Target] = {}
        self._is_stuck = False

    def add(self, operation: Operation) -> None:
        """Reads the next operation."""
        if operation.kind is Kind.TRANSACTION:
            self._add_transaction(operation)
        for send in operation.sends:
            if send.partition.topic == self._source:
                source = self._source_of(send.partition)
                source.highest_sent = max(source.highest_sent, send.value)
        if not operation.final:
            return
        self._is_stuck |= operation.status is not Status.OK
        for poll in operation.polls:
            for partition, pairs in poll.records:
                if partition.topic == self._source:
                    source = self._source_of(partition)
                    offsets = source.offset_of
                    end = max(source.highest_sent + 1, len(offsets)) + AHEAD_MAX
                    for offset, value in pairs:
                        if not 0 <= value < end:
                            continue  # It was never sent; another checker finds it.
                        if source.reach.admits(offset):
                            _put(offsets, value, offset)
                        elif _at(offsets, value) == NOTHING:
                            _put(offsets, value, SOMEWHERE)
                elif partition.topic == self._target:
                    self._target_of(partition).add(pairs)

    def _source_of(self, partition: TopicPartition) -> _Source:
        found = self._sources.get(partition)
        if found is None:
            found = self._sources[partition] = _Source(len(self._sources), partition, self._reach())
        return found

    def _target_of(self, partition: TopicPartition) -> _Target:
        return self._targets.setdefault(partition, _Target(self._reach()))

    def _reach(self) -> Reach:
        return Reach(self._findings.options.offset_gap_max)

    def _add_transaction(self, operation: Operation) -> None:
        taken: list[tuple[_Source, int]] = []
        sent = 0
        for part in operation.operations:
            if isinstance(part, Send):
                if part.partition.topic == self._target and sent < len(taken):
                    target = self._target_of(part.partition)
                    source, value = taken[sent]
                    _put(target.source, part.value, source.number)
                    _put(target.origin, part.value, value)
                    _put(target.writer, part.value, operation.index)
                    sent += 1
                continue
            for partition, pairs in part.records:
                if partition.topic == self._source:
                    source = self._source_of(partition)
                    taken.extend((source, min(value, NUMBER_MAX)) for _, value in pairs)

    def finish(self) -> None:
        """Compares the target with the source."""
        sources = list(self._sources.values())
        for source in sources:
            source.made = array("q", [NOTHING]) * len(source.offset_of)
            source.copies = bytearray(len(source.offset_of))
        more: dict[tuple[int, int], list[int]] = {}  # the further operations of records with several
        for partition, target in sorted(self._targets.items(), key=lambda item: item[0]):
            self._compare(partition, target, sources, more)
        for source in sources:
            for value, offset in enumerate(source.offset_of):
                if offset == NOTHING or source.copies[value] == 1:
                    continue
                first = source.made[value]
                if first == NOTHING and self._is_stuck:
                    continue  # The final read may have ended before the record.
                others = more.get((source.number, value), [])
                operations = () if first == NOTHING else (first, *others)
                place = ANY if offset == SOMEWHERE else offset
                where = "an impossible offset" if offset == SOMEWHERE else f"offset {offset}"
                self._findings.add(
                    AnomalyKind.PIPE_DUPLICATE if operations else AnomalyKind.PIPE_LOST,
                    f"value {value} at {where} of the source has {len(operations)} records in the target",
                    partition=source.partition,
                    operations=operations,
                    offsets=() if offset == SOMEWHERE else (offset,),
                    sought=(
                        WitnessQuery(WitnessKind.SENT, source.partition, value=value),
                        WitnessQuery(WitnessKind.READ, source.partition, place, value),
                        WitnessQuery(WitnessKind.TAKEN, source.partition, place, value),
                    ),
                )

    def _compare(
        self,
        partition: TopicPartition,
        target: _Target,
        sources: list[_Source],
        more: dict[tuple[int, int], list[int]],
    ) -> None:
        last: dict[int, tuple[int, int]] = {}  # per source partition: the highest offset so far and its operation
        for offset, value in target.records():
            number, origin = _at(target.source, value), _at(target.origin, value)
            origin_offset = NOTHING if number == NOTHING else _at(sources[number].offset_of, origin)
            if origin_offset == NOTHING:
                if self._is_stuck:
                    continue  # The final read may have ended before the source record.
                self._findings.add(
                    AnomalyKind.PIPE_UNKNOWN,
                    f"value {value} at offset {offset} of the target was made from no record of the source",
                    partition=partition,
                    offsets=(offset,),
                    sought=(
                        WitnessQuery(WitnessKind.SENT, partition, value=value),
                        WitnessQuery(WitnessKind.READ, partition, offset, value),
                    ),
                )
                continue
            source, writer = sources[number], target.writer[value]
            source.copies[origin] = min(255, source.copies[origin] + 1)
            if source.copies[origin] == 1:
                source.made[origin] = writer
            else:
                more.setdefault((number, origin), []).append(writer)
            if origin_offset == SOMEWHERE or offset not in target.reach:
                continue  # An impossible offset says nothing about the order.
            before, before_by = last.get(number, (NOTHING, NOTHING))
            if origin_offset <= before and source.copies[origin] == 1:
                self._findings.add(
                    AnomalyKind.PIPE_DISORDER,
                    f"what was made from offset {origin_offset} of {_name(source.partition)} lies at offset {offset}, "
                    f"behind what was made from offset {before}",
                    partition=partition,
                    operations=(before_by, writer),
                    offsets=(offset,),
                    sought=(WitnessQuery(WitnessKind.READ, partition, offset, value),),
                )
            last[number] = max((before, before_by), (origin_offset, writer))


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
