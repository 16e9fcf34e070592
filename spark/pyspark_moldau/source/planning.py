"""From positions and options to the tasks of a query; the same for batches and micro-batches.

A task gets everything that it needs in its ``InputRanges``, because it runs in another process than the planner.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql.datasource import InputPartition

from pyspark_moldau.errors import DataLossError
from pyspark_moldau.source.core.offsets import OffsetRange, group_ranges, mean_bytes, split_ranges
from pyspark_moldau.source.core.options import EARLIEST, LATEST, ClientOptions, OptionError, Position, SourceOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from pyspark_moldau.source.core.offsets import Offsets, Partition
    from pyspark_moldau.source.reader import LogReader

logger = logging.getLogger(__name__)


class Connect(Protocol):
    """A function that creates or finds the reader of a log. It must be picklable: a function of a module."""

    def __call__(self, client: ClientOptions) -> LogReader:
        """Returns a reader for this process."""
        ...


def connect_cluster(client: ClientOptions) -> LogReader:
    """Returns the reader of a real cluster."""
    from pyspark_moldau.source.reader import shared_reader

    return shared_reader(client)


SETTLE_S = 10.0
"""How long an end that is missing or too low is asked for again, before its records are taken for lost."""
SETTLE_POLL_S: Final = 0.1
GROUP_ROWS: Final = 2000
"""Partitions with fewer waiting records share a task: a task costs as much as reading tens of thousands of records."""


@dataclass
class InputRanges(InputPartition):
    """The work of one task. It is picklable and contains everything that the task needs."""

    ranges: tuple[OffsetRange, ...]


def resolve(reader: LogReader, partitions: Sequence[Partition], position: Position, name: str) -> Offsets:
    """Turns a starting or ending position into an offset for each partition.

    ``name`` is the name of the option, for errors.

    Raises:
        OptionError: the position names other partitions than ``partitions``, or no record is as late as a timestamp.
    """
    given = position.offsets if position.offsets is not None else position.timestamps
    if given is None:
        timestamp = position.timestamp_ms if position.everywhere is None else position.everywhere
        assert timestamp is not None, "a position has one of its fields"
        asked = dict.fromkeys(partitions, timestamp)
        fixed: Offsets = {}
    else:
        by_time = position.timestamps is not None
        named = {(topic, number): value for topic, numbers in given.items() for number, value in numbers.items()}
        unlike = sorted(set(named).symmetric_difference(partitions))
        if unlike:
            topic, number = unlike[0]
            problem = "names a partition that is not subscribed" if unlike[0] in named else "leaves out a partition"
            remedy = "-1 means latest" if name.startswith("ending") else "-2 means earliest and -1 latest"
            if by_time:
                remedy = "name a timestamp for each partition of the query"
            raise OptionError(f"{name} {problem}: {topic}-{number}; {remedy}")
        asked = {partition: value for partition, value in named.items() if by_time or value < 0}
        fixed = {partition: value for partition, value in named.items() if partition not in asked}
    found = reader.offsets(asked) if asked else {}
    none = [partition for partition, offset in found.items() if offset is None]
    ends = reader.offsets(dict.fromkeys(none, LATEST)) if none else {}
    if none and not position.latest_if_no_match:
        # Where a partition has no record at all, its end is the right start for any time.
        firsts = reader.offsets(dict.fromkeys(none, EARLIEST))
        filled = [partition for partition in none if firsts[partition] != ends[partition]]
        if filled:
            topic, number = filled[0]
            raise OptionError(
                f"{name}: no record of {topic}-{number} is that late; "
                "startingOffsetsByTimestampStrategy latest starts at the end"
            )
    return fixed | {
        partition: offset if offset is not None else ends[partition] or 0 for partition, offset in found.items()
    }


def ends_of(reader: LogReader, options: SourceOptions, at_least: Mapping[Partition, int | None]) -> Offsets:
    """Returns the ends of partitions; one that only open transactions hold back below ``at_least`` counts as that.

    A query that is started again with ``read_committed`` may be past the beginning of a transaction that is open.
    """
    ends = {key: at or 0 for key, at in reader.offsets(dict.fromkeys(at_least, LATEST)).items()} if at_least else {}
    wanted = {key: at for key, at in at_least.items() if at is not None and ends[key] < at}
    if wanted and options.client.read_committed:
        whole = reader.offsets(dict.fromkeys(wanted, LATEST), uncommitted=True)
        ends |= {key: at for key, at in wanted.items() if (whole[key] or 0) >= at}
    return ends


def read_chunks(connect: Connect, options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yields the records of a task's ranges; runs in a task."""
    from pyspark_moldau.source.arrow import to_record_batch

    if not isinstance(partition, InputRanges):
        # Spark puts a partition of its own in the place of an empty list of partitions.
        assert partition.value is None, f"not a partition of this source: {partition!r}"
        return
    reader = connect(options.client)
    for work in partition.ranges:
        for chunk in reader.read(work, fail_on_data_loss=options.fail_on_data_loss):
            yield to_record_batch(
                chunk.columns, work.topic, work.partition, chunk.timestamp_type, names=options.columns
            )


def plan(
    reader: LogReader,
    options: SourceOptions,
    start: Offsets,
    end: Offsets,
    *,
    start_ids: Mapping[str, str] | None = None,
    end_ids: Mapping[str, str] | None = None,
) -> list[InputRanges]:
    """Divides the records between two offsets into tasks; partitions without a start begin at their earliest offset.

    ``start_ids`` and ``end_ids`` are the ids that the topics had when the offsets were taken, as far as known.
    """
    start, end = dict(start), dict(end)
    now = reader.topic_ids(sorted({topic for topic, _ in end}), end_ids)
    for topic in _replaced(start_ids or {}, end_ids or {}):
        report_replaced(topic, options)
        start = {partition: at for partition, at in start.items() if partition[0] != topic}
    for topic in sorted({topic for topic, _ in end}):
        planned = (end_ids or {}).get(topic, now.get(topic))
        if topic not in now or planned != now[topic]:
            what = "was deleted" if topic not in now else "was deleted and created again"
            report_loss(f"topic {topic} {what} before its records up to the end of this batch were read", options)
            end = {partition: at for partition, at in end.items() if partition[0] != topic}
            start = {partition: at for partition, at in start.items() if partition[0] != topic}
    ranges = _confirmed(reader, options, _ranges(reader, options, start, end, now))
    sizes = None
    if options.max_bytes_per_partition is not None and ranges:
        sizes = _means(reader, end)
    divided = split_ranges(
        ranges,
        partitions_min=options.min_partitions,
        records_max=options.max_records_per_partition,
        bytes_max=options.max_bytes_per_partition,
        means=sizes,
    )
    limits = (options.min_partitions, options.max_records_per_partition, options.max_bytes_per_partition)
    rows = GROUP_ROWS if all(limit is None for limit in limits) else 0
    return [InputRanges(ranges) for ranges in group_ranges(divided, rows)]


def _ranges(
    reader: LogReader, options: SourceOptions, start: Offsets, end: Offsets, topic_ids: Mapping[str, str]
) -> list[OffsetRange]:
    earliest = reader.offsets(dict.fromkeys(sorted(end), EARLIEST)) if end else {}
    known = {topic for topic, _ in start}
    ranges = []
    for partition in sorted(end):
        topic, number = partition
        first = earliest[partition] or 0
        # What a restarted query names in addition may be old; other partitions, and topics of a pattern, came since.
        is_found = options.subscription.assignment is None and topic in known
        is_found = is_found or options.subscription.pattern is not None
        if partition not in start and is_found and first > 0:
            report_loss(
                f"{topic}-{number} came while the query ran or rested, and its records 0..{first - 1} are gone "
                f"(the log now starts at {first})",
                options,
            )
        low = start.get(partition, first)
        if low < first and low < end[partition]:
            report_loss(
                f"records {low}..{min(first, end[partition]) - 1} of {topic}-{number} are gone "
                f"(the log now starts at {first})",
                options,
            )
            low = first
        if end[partition] < low and partition in start and end[partition] < start[partition]:
            report_loss(f"{topic}-{number} ends at {end[partition]}, before the position {low} of this query", options)
        ranges.append(
            OffsetRange(
                topic=topic,
                partition=number,
                start=low,
                end=max(low, end[partition]),
                topic_id=topic_ids.get(topic, ""),
            )
        )
    for topic, number in sorted(set(start).difference(end)):
        report_loss(f"{topic}-{number} is gone", options)
    return ranges


def _confirmed(reader: LogReader, options: SourceOptions, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Returns the ranges with the leader epochs of their ends, as far as the logs still have them.

    A query that starts again repeats its last batch, whose end only the checkpoint knows; logs may be shorter by now.

    Raises:
        DataLossError: records are gone, and ``failOnDataLoss`` is true.
    """
    ends: dict[Partition, int] = {}
    deadline = time.monotonic() + SETTLE_S
    while True:
        unseen = {
            (one.topic, one.partition): one.end
            for one in ranges
            if one.start < one.end and reader.end_epoch((one.topic, one.partition), one.end) is None
        }
        ends = ends_of(reader, options, unseen)
        short = [one for one in ranges if ends.get((one.topic, one.partition), one.end) < one.end]
        if not short or time.monotonic() >= deadline:
            break
        time.sleep(SETTLE_POLL_S)
    for one in short:
        latest = ends[one.topic, one.partition]
        report_loss(
            f"{one.topic}-{one.partition} was cut at offset {latest}: its records {max(one.start, latest)}.."
            f"{one.end - 1} are gone",
            options,
        )
    confirmed = []
    for one in ranges:
        key = one.topic, one.partition
        end = max(one.start, min(one.end, ends.get(key, one.end)))
        epoch = reader.end_epoch(key, end)
        confirmed.append(replace(one, end=end, leader_epoch=-1 if epoch is None else epoch))
    return confirmed


def _means(reader: LogReader, end: Offsets) -> dict[Partition, float]:
    """Returns the mean bytes of an offset for each partition."""
    partitions = sorted(end)
    first = {partition: at or 0 for partition, at in reader.offsets(dict.fromkeys(partitions, EARLIEST)).items()}
    last = {partition: at or 0 for partition, at in reader.offsets(dict.fromkeys(partitions, LATEST)).items()}
    return mean_bytes(reader.sizes(partitions), first, last)


def mean_sizes(reader: LogReader, partitions: Offsets) -> dict[Partition, float]:
    """Returns the mean bytes of an offset for each partition, by the size of its log on disk."""
    return _means(reader, partitions) if partitions else {}


def _replaced(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Returns the topics whose id is another one; a topic without a known id is not among them."""
    return sorted(topic for topic in before if topic in after and before[topic] != after[topic])


def replaced_topics(before: Mapping[str, str], after: Mapping[str, str], options: SourceOptions) -> list[str]:
    """Returns the topics that were deleted and created again, and reports them as data loss."""
    topics = _replaced(before, after)
    for topic in topics:
        report_replaced(topic, options)
    return topics


def report_replaced(topic: str, options: SourceOptions) -> None:
    """Reports that a topic is another one than the one that the query has read."""
    report_loss(
        f"topic {topic} was deleted and created again while the query read it; "
        "records that it had not read are gone, and the new topic is read from its beginning",
        options,
    )


def report_loss(text: str, options: SourceOptions) -> None:
    """Reports lost records; logs a warning if ``failOnDataLoss`` is false.

    Raises:
        DataLossError: ``failOnDataLoss`` is true.
    """
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}; set failOnDataLoss to false to continue without them")
    logger.warning("data-loss %s", text)
