"""Arithmetic on offsets: limits of a micro-batch, ranges for tasks, the form in the checkpoint.

Pure functions. Offsets of a query are ``{topic: {partition: offset}}`` with exclusive ends; the checkpoint holds
Spark's Kafka form, with partitions as strings, so that offsets of either source can be read by eye.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Partition = tuple[str, int]
"""Topic and partition number."""

Offsets = dict[Partition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records ``start <= offset < end`` of one partition: the work of one task."""

    topic: str
    partition: int
    start: int
    end: int


def to_checkpoint(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """The form that Spark writes into the checkpoint, in the order of names and numbers."""
    document: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return document


def from_checkpoint(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Reads what ``to_checkpoint`` wrote."""
    return {
        (topic, int(partition)): offset
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }


def limit_rows(start: Mapping[Partition, int], end: Mapping[Partition, int], rows_max: int) -> Offsets:
    """Cuts ``end`` so that about ``rows_max`` offsets lie between, shared among partitions in proportion to what
    they have.

    Every partition that has records gets at least one offset, so the sum may pass ``rows_max`` by less than the
    number of partitions; it never stands still while records are there.
    """
    assert rows_max > 0, f"rows_max is {rows_max}"
    waiting = {partition: max(0, end[partition] - start.get(partition, 0)) for partition in end}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(end)
    limited = {}
    for partition, count in waiting.items():
        taken = min(count, max(1, count * rows_max // total)) if count else 0
        limited[partition] = start.get(partition, 0) + taken if count else end[partition]
    return limited


def split_ranges(
    ranges: Sequence[OffsetRange], *, partitions_min: int | None, records_max: int | None
) -> list[OffsetRange]:
    """Divides ranges evenly, larger ones into more parts, until there are about ``partitions_min`` and none is too
    long.
    """
    ranges = [one for one in ranges if one.end > one.start]
    total = sum(one.end - one.start for one in ranges)
    result = []
    for one in ranges:
        length = one.end - one.start
        parts = 1
        if records_max is not None:
            parts = max(parts, -(-length // records_max))
        if partitions_min is not None and partitions_min > len(ranges):
            parts = max(parts, round(length * partitions_min / total))
        parts = min(parts, length)
        bounds = [one.start + length * index // parts for index in range(parts + 1)]
        for low, high in itertools.pairwise(bounds):
            result.append(OffsetRange(topic=one.topic, partition=one.partition, start=low, end=high))
    return result
