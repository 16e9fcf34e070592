"""Exactly once through a pipe: each record of the source has one record in the target, in order.

A worker's transaction polls records of the source and sends one record to the target for each, in the same order; so
the history itself says from which record each one was made. What counts is what the final phase reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.anomalies import AnomalyKind, Findings
from moldau_jepsen.history import Kind, Send, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau_jepsen.history import Operation

Place = tuple[TopicPartition, int]
"""A partition and a value in it; values are unique per partition."""


def check_pipe(history: Iterable[Operation], source: str, target: str, findings: Findings) -> None:
    """Finds records of the source that have no record, or several, in the target, and records out of order.

    Memory follows the number of records of both topics.
    """
    made_from: dict[Place, Place] = {}  # record of the target to record of the source
    offset_of: dict[Place, int] = {}  # of the source's records in the final read
    read: dict[TopicPartition, list[tuple[int, int]]] = {}  # of the target in the final read: offset and value
    writer: dict[Place, int] = {}
    for operation in history:
        if operation.kind is Kind.TRANSACTION:
            _add_transaction(operation, source, target, made_from, writer)
        if not operation.final:
            continue
        for poll in operation.polls:
            for partition, pairs in poll.records:
                if partition.topic == source:
                    offset_of.update({(partition, value): offset for offset, value in pairs})
                elif partition.topic == target:
                    read.setdefault(partition, []).extend(pairs)
    made: dict[Place, list[int]] = {}
    for partition, found in sorted(read.items()):
        last: dict[TopicPartition, int] = {}
        for offset, value in found:
            origin = made_from.get((partition, value))
            if origin is None or origin not in offset_of:
                findings.add(
                    AnomalyKind.PIPE_UNKNOWN,
                    f"value {value} at offset {offset} of the target was made from no record of the source",
                    partition=partition,
                )
                continue
            made.setdefault(origin, []).append(writer[partition, value])
            before = last.get(origin[0], -1)
            if offset_of[origin] <= before and len(made[origin]) == 1:
                findings.add(
                    AnomalyKind.PIPE_DISORDER,
                    f"what was made from offset {offset_of[origin]} of {_name(origin[0])} lies at offset {offset}, "
                    f"behind what was made from offset {before}",
                    partition=partition,
                    operations=(writer[partition, value],),
                )
            last[origin[0]] = max(before, offset_of[origin])
    for place, offset in offset_of.items():
        operations = tuple(made.get(place, ()))
        if len(operations) != 1:
            findings.add(
                AnomalyKind.PIPE_DUPLICATE if operations else AnomalyKind.PIPE_LOST,
                f"value {place[1]} at offset {offset} of the source has {len(operations)} records in the target",
                partition=place[0],
                operations=operations,
            )


def _add_transaction(
    operation: Operation, source: str, target: str, made_from: dict[Place, Place], writer: dict[Place, int]
) -> None:
    taken: list[Place] = []
    sent = 0
    for part in operation.operations:
        if isinstance(part, Send):
            if part.partition.topic == target and sent < len(taken):
                made_from[part.partition, part.value] = taken[sent]
                writer[part.partition, part.value] = operation.index
                sent += 1
            continue
        for partition, pairs in part.records:
            if partition.topic == source:
                taken.extend((partition, value) for _, value in pairs)


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"
