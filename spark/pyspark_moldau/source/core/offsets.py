"""Arithmetic on offsets: limits of a micro-batch, ranges for tasks, the format of the checkpoint.

The module is pure. Offsets of a query map topic and partition to an offset; ends are exclusive. The checkpoint has the
format of Spark's Kafka source, ``{topic: {partition: offset}}`` with partitions as strings, so that a query can move
from that source to this one and back. The ids of the topics stand beside them as ``{topic#id: {}}``: no topic can have
such a name, and that source takes it for a topic without partitions. A checkpoint without ids is valid too.

The end of a query's first micro-batch also says where the query started, as ``{topic#from:0=23,1=7: {}}``. Spark asks
for the start again when it runs that micro-batch, also after a restart, and "latest" is another offset by then; so is
"earliest" if the log has lost its beginning. ``{#from:: {}}`` says that there was no partition yet.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from moldau.runtime.config.declaration import LONG_MAX
from pyspark_moldau.client_options import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Partition = tuple[str, int]
"""Topic and partition number."""

Offsets = dict[Partition, int]

Checkpoint = dict[str, dict[str, int]]
"""Offsets and topic ids as Spark keeps them, in JSON."""

Means = dict[Partition, float]
"""Mean bytes of an offset."""

ID_MARK: Final = "#"
"""Stands between a topic and its id; no topic has it in its name."""

START_MARK: Final = "#from:"
"""Stands between a topic and the offsets at which the query started. No topic id has a colon."""

_PARTITION: Final = re.compile(r"[0-9]{1,10}")
_OFFSET: Final = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records ``start <= offset < end`` of one partition: the work of one task."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""  # of the topic that the offsets are of; empty where it is not known
    leader_epoch: int = -1  # of a leader whose log reached ``end``; -1 where it is not known


def to_checkpoint(offsets: Mapping[Partition, int], topic_ids: Mapping[str, str] | None = None) -> Checkpoint:
    """Returns the form that Spark writes into the checkpoint, sorted by topic and partition."""
    document: Checkpoint = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    known = [f"{topic}{ID_MARK}{topic_ids[topic]}" for topic in document if topic_ids and topic in topic_ids]
    return document | {name: {} for name in known}


def from_checkpoint(document: Mapping[str, object]) -> Offsets:
    """Reads the offsets of ``to_checkpoint``, or of Spark's Kafka source.

    Raises:
        OptionError: the document is of another source.
    """
    offsets: Offsets = {}
    for topic, partitions in _entries(document):
        if ID_MARK in topic:
            continue
        for partition, offset in partitions.items() if isinstance(partitions, dict) else ((None, None),):
            if not isinstance(partition, str) or type(offset) is not int:
                raise _foreign(document)
            _put(offsets, topic, partition, offset, document)
    return offsets


def _put(offsets: Offsets, topic: str, partition: str, offset: int, document: object) -> None:
    """Takes the offset of a partition.

    Raises:
        OptionError: the partition is no number or has an offset already, or the offset is out of range.
    """
    if not _PARTITION.fullmatch(partition) or not 0 <= offset <= LONG_MAX:
        raise _foreign(document)
    if (topic, int(partition)) in offsets:
        raise OptionError(
            f"checkpointLocation: its offsets name partition {int(partition)} of {topic} twice; put the file back as "
            "Spark wrote it, or give the query a checkpoint of its own"
        )
    offsets[topic, int(partition)] = offset


def _entries(document: object) -> Iterable[tuple[str, object]]:
    """Returns the entries of a checkpoint; other sources keep numbers or lists there.

    Raises:
        OptionError: the document is of another source.
    """
    if not isinstance(document, dict):
        raise _foreign(document)
    return document.items()


def _foreign(document: object) -> OptionError:
    return OptionError(
        f"checkpointLocation: its offsets are {str(document)[:200]!r}, and not of the form "
        '{"topic": {"0": 23}} of this source and of Spark\'s Kafka source; '
        "give the query a checkpoint of its own"
    )


def topic_ids_of(document: Mapping[str, object]) -> dict[str, str]:
    """Reads the topic ids of ``to_checkpoint``; empty for a checkpoint without them."""
    names = (name.partition(ID_MARK) for name in document if ID_MARK in name and START_MARK not in name)
    return {topic: found for topic, _, found in names}


def with_start(document: Checkpoint, start: Mapping[Partition, int]) -> Checkpoint:
    """Returns the document with the offsets at which the query started."""
    lists: dict[str, list[str]] = {}
    for topic, partition in sorted(start):
        lists.setdefault(topic, []).append(f"{partition}={start[topic, partition]}")
    if not lists:
        return document | {START_MARK: {}}
    return document | {f"{topic}{START_MARK}{','.join(each)}": {} for topic, each in lists.items()}


def start_of(document: Mapping[str, object]) -> Offsets | None:
    """Reads the offsets of ``with_start``; None for a document without them.

    Raises:
        OptionError: they are damaged, or the document is of another source.
    """
    found: Offsets = {}
    has_start = False
    for name, _ in _entries(document):
        topic, mark, text = name.partition(START_MARK)
        has_start = has_start or bool(mark)
        for pair in text.split(",") if text else ():
            partition, _, offset = pair.partition("=")
            if not _OFFSET.fullmatch(offset):
                raise _foreign(document)
            _put(found, topic, partition, int(offset), document)
    return found if has_start else None


def mean_bytes(sizes: Mapping[Partition, int], first: Mapping[Partition, int], end: Mapping[Partition, int]) -> Means:
    """Returns the mean bytes of an offset of each partition of size ``sizes`` between ``first`` and ``end``."""
    return {
        partition: sizes[partition] / max(1, end[partition] - first.get(partition, 0))
        for partition in sizes
        if partition in end
    }


def limit_bytes(start: Mapping[Partition, int], end: Mapping[Partition, int], means: Means, bytes_max: int) -> Offsets:
    """Limits ``end`` so that about ``bytes_max`` bytes lie between ``start`` and the result.

    Each partition gets the same part of what waits there, and at least one offset, so that it makes progress.
    """
    assert bytes_max > 0, f"bytes_max is {bytes_max}"
    waiting = {partition: max(0, end[partition] - start.get(partition, 0)) for partition in end}
    total = sum(count * means.get(partition, 0.0) for partition, count in waiting.items())
    if total <= bytes_max:
        return dict(end)
    return {
        partition: start.get(partition, 0) + max(1, int(count * bytes_max / total)) if count else end[partition]
        for partition, count in waiting.items()
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


def group_ranges(ranges: Sequence[OffsetRange], rows: int) -> list[tuple[OffsetRange, ...]]:
    """Puts ranges that follow each other into groups of about ``rows`` records, in the same order.

    A range with as many records stands alone. No group has more than ``rows`` records and those of one range.
    """
    groups: list[tuple[OffsetRange, ...]] = []
    current: list[OffsetRange] = []
    held = 0
    for one in ranges:
        length = one.end - one.start
        if current and (length >= rows or held >= rows):
            groups.append(tuple(current))
            current, held = [], 0
        current.append(one)
        held += length
    return [*groups, tuple(current)] if current else groups


def split_ranges(
    ranges: Sequence[OffsetRange],
    *,
    partitions_min: int | None,
    records_max: int | None,
    bytes_max: int | None = None,
    means: Mapping[Partition, float] | None = None,
) -> list[OffsetRange]:
    """Divides ranges into about ``partitions_min`` parts of at most ``records_max`` records and ``bytes_max`` bytes.

    Bytes are counted by the mean of each partition in ``means``. Parts of a range have equal length; larger ranges get
    more parts.
    """
    ranges = [one for one in ranges if one.end > one.start]
    total = sum(one.end - one.start for one in ranges)
    result = []
    for one in ranges:
        length = one.end - one.start
        parts = 1
        if records_max is not None:
            parts = max(parts, -(-length // records_max))
        if bytes_max is not None:
            parts = max(parts, math.ceil(length * (means or {}).get((one.topic, one.partition), 0.0) / bytes_max))
        if partitions_min is not None and partitions_min > len(ranges):
            parts = max(parts, round(length * partitions_min / total))
        parts = min(parts, length)
        bounds = [one.start + length * index // parts for index in range(parts + 1)]
        for low, high in itertools.pairwise(bounds):
            result.append(replace(one, start=low, end=high))
    return result
