"""Arithmetic on offsets: limits of a micro-batch, ranges for tasks, the format of the checkpoint.

The module is pure. Offsets of a query map topic and partition to an offset; ends are exclusive. The checkpoint has the
format of Spark's Kafka source, ``{topic: {partition: offset}}`` with partitions as strings, so that a person can read
the offsets of either source.
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
    """Returns the form that Spark writes into the checkpoint, sorted by topic and partition."""
    document: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return document


def from_checkpoint(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Reads the result of ``to_checkpoint``."""
    return {
        (topic, int(partition)): offset
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }


def limit_rows(start: Mapping[Partition, int], end: Mapping[Partition, int], rows_max: int) -> Offsets:
    """Limits ``end`` so that about ``rows_max`` offsets lie between ``start`` and the result.

    Each partition gets a share in proportion to its waiting records. A partition with records gets at least one offset,
    so that it always makes progress; the sum may exceed ``rows_max`` by less than the number of partitions.
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
    """Divides ranges into about ``partitions_min`` parts of at most ``records_max`` records.

    Parts of a range have equal length; larger ranges get more parts.
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
