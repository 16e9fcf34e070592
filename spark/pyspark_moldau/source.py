"""The data source: reads a log in micro-batches and in batches.

The stream reader exists in one Python process while the query runs; every task gets another, pickled copy. So ``read``
cannot use state that ``latestOffset`` has set: a task finds everything it needs in its ``InputRange``. Offsets are kept
only in Spark's checkpoint; consumer groups are not used, and ``commit`` does nothing.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_moldau.offsets import (
    OffsetRange,
    Offsets,
    Partition,
    from_checkpoint,
    limit_rows,
    split_ranges,
    to_checkpoint,
)
from pyspark_moldau.options import (
    EARLIEST,
    LATEST,
    ClientOptions,
    OptionError,
    Position,
    SourceOptions,
    check_names,
    parse_options,
    wants_headers,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_moldau.reader import LogReader

logger = logging.getLogger(__name__)

Checkpoint = dict[str, dict[str, int]]

SETTLE_S = 10.0
SETTLE_POLL_S = 0.1


class Connect(Protocol):
    """A function that creates or finds the reader of a log. It must be picklable: a function of a module."""

    def __call__(self, client: ClientOptions) -> LogReader:
        """Returns a reader for this process."""
        ...


def connect_cluster(client: ClientOptions) -> LogReader:
    """Returns the reader of a real cluster."""
    from pyspark_moldau.reader import shared_reader

    return shared_reader(client)


@dataclass
class InputRange(InputPartition):
    """The work of one task. It is picklable and contains everything that the task needs."""

    work: OffsetRange


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
        named = {(topic, number): value for topic, numbers in given.items() for number, value in numbers.items()}
        unlike = sorted(set(named).symmetric_difference(partitions))
        if unlike:
            topic, number = unlike[0]
            problem = "names a partition that is not subscribed" if unlike[0] in named else "leaves out a partition"
            raise OptionError(f"{name} {problem}: {topic}-{number}")
        by_time = position.timestamps is not None
        asked = {partition: value for partition, value in named.items() if by_time or value < 0}
        fixed = {partition: value for partition, value in named.items() if partition not in asked}
    found = reader.offsets(asked) if asked else {}
    none = [partition for partition, offset in found.items() if offset is None]
    if none and not position.latest_if_no_match:
        topic, number = none[0]
        raise OptionError(
            f"{name}: no record of {topic}-{number} is that late; "
            "startingOffsetsByTimestampStrategy latest starts at the end"
        )
    ends = reader.offsets(dict.fromkeys(none, LATEST)) if none else {}
    return fixed | {
        partition: offset if offset is not None else ends[partition] or 0 for partition, offset in found.items()
    }


def read_chunks(connect: Connect, options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yields the records of a range; runs in a task."""
    from pyspark_moldau.arrow import to_record_batch

    assert isinstance(partition, InputRange), f"not a partition of this source: {partition!r}"
    work = partition.work
    reader = connect(options.client)
    for chunk in reader.read(work, fail_on_data_loss=options.fail_on_data_loss):
        yield to_record_batch(
            chunk.columns, work.topic, work.partition, chunk.timestamp_type, headers=options.include_headers
        )


def plan(reader: LogReader, options: SourceOptions, start: Offsets, end: Offsets) -> list[InputRange]:
    """Divides the records between two offsets into tasks; partitions without a start begin at their earliest offset."""
    earliest = reader.offsets(dict.fromkeys(sorted(end), EARLIEST)) if end else {}
    ranges = []
    for partition in sorted(end):
        topic, number = partition
        first = earliest[partition] or 0
        low = start.get(partition, first)
        if low < first:
            report_loss(
                f"records {low}..{min(first, end[partition]) - 1} of {topic}-{number} are gone "
                f"(the log now starts at {first})",
                options,
            )
            low = first
        if end[partition] < low and partition in start and end[partition] < start[partition]:
            report_loss(f"{topic}-{number} ends at {end[partition]}, before the position {low} of this query", options)
        ranges.append(OffsetRange(topic=topic, partition=number, start=low, end=max(low, end[partition])))
    for topic, number in sorted(set(start).difference(end)):
        report_loss(f"{topic}-{number} is gone", options)
    divided = split_ranges(ranges, partitions_min=options.min_partitions, records_max=options.max_records_per_partition)
    return [InputRange(work) for work in divided]


def report_loss(text: str, options: SourceOptions) -> None:
    """Reports lost records; logs a warning if ``failOnDataLoss`` is false.

    Raises:
        DataLossError: ``failOnDataLoss`` is true.
    """
    from pyspark_moldau.reader import DataLossError

    if options.fail_on_data_loss:
        raise DataLossError(f"{text}; set failOnDataLoss to false to continue without them")
    logger.warning("data-loss %s", text)


class MoldauStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log in micro-batches."""

    def __init__(self, options: SourceOptions, connect: Connect = connect_cluster) -> None:
        self._options = options
        self._connect = connect
        self._target: Offsets | None = None

    def initialOffset(self) -> Checkpoint:
        """Returns the offsets at which a query without a checkpoint starts."""
        reader = self._connect(self._options.client)
        partitions = reader.partitions(self._options.subscription)
        name = "startingOffsets" if self._options.starting.offsets is not None else "the starting timestamp"
        return to_checkpoint(resolve(reader, partitions, self._options.starting, name))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit of ``maxOffsetsPerTrigger``, or no limit."""
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query at the present end of the log."""
        self._target = self._ends({})

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:
        """Returns the end offsets of the next micro-batch."""
        begin = from_checkpoint(start)
        if self._target is None:
            target = self._ends(begin)
        else:  # measured once, perhaps just after a leader changed, so it must not fall behind the query's position
            target = {partition: max(end, begin.get(partition, 0)) for partition, end in self._target.items()}
        if isinstance(limit, ReadMaxRows):
            fresh = sorted(target.keys() - begin.keys())
            if fresh:
                reader = self._connect(self._options.client)
                begin |= {key: offset or 0 for key, offset in reader.offsets(dict.fromkeys(fresh, EARLIEST)).items()}
            target = limit_rows(begin, target, limit.max_rows)
        return to_checkpoint(target)

    def reportLatestOffset(self) -> Checkpoint:
        """Returns the end of the log, for the query's progress report."""
        return to_checkpoint(self._ends({}))

    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        """Returns the tasks of a micro-batch."""
        return plan(self._connect(self._options.client), self._options, from_checkpoint(start), from_checkpoint(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_chunks(self._connect, self._options, partition)

    def commit(self, end: Checkpoint) -> None:
        """Does nothing, because Spark keeps the checkpoint."""

    def stop(self) -> None:
        """Does nothing, because connections end with the process."""

    def _ends(self, at_least: Offsets) -> Offsets:
        """Returns end offsets; while one is below ``at_least``, asks again for up to ``SETTLE_S``.

        A new leader may report a lower high watermark until its followers have fetched from it; only an end that stays
        low means that records are gone.
        """
        reader = self._connect(self._options.client)
        deadline = time.monotonic() + SETTLE_S
        while True:
            found = reader.offsets(dict.fromkeys(reader.partitions(self._options.subscription), LATEST))
            ends = {partition: offset or 0 for partition, offset in found.items()}
            low = any(ends[partition] < at_least.get(partition, 0) for partition in ends)
            if not low or time.monotonic() >= deadline:
                return ends
            time.sleep(SETTLE_POLL_S)


class MoldauBatchReader(DataSourceReader):
    """Reads a log, or a part of it, as a table."""

    def __init__(self, options: SourceOptions, connect: Connect = connect_cluster) -> None:
        self._options = options
        self._connect = connect

    def partitions(self) -> Sequence[InputPartition]:
        """Returns the tasks of the query, from the starting to the ending offsets."""
        reader = self._connect(self._options.client)
        partitions = reader.partitions(self._options.subscription)
        start = resolve(reader, partitions, self._options.starting, "startingOffsets")
        end = resolve(reader, partitions, self._options.ending, "endingOffsets")
        for topic, number in partitions:
            if end[topic, number] < start[topic, number]:
                raise OptionError(
                    f"endingOffsets: {topic}-{number} ends at {end[topic, number]}, "
                    f"before its start {start[topic, number]}"
                )
        return plan(reader, self._options, start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_chunks(self._connect, self._options, partition)


class DefaultSource(DataSource):
    """The data source of format ``moldau``."""

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "moldau"

    def schema(self) -> str:
        """Returns the columns of Spark's Kafka source; ``headers`` only with ``includeHeaders``.

        Spark calls this method first, so it also checks the options.
        """
        from pyspark_moldau.arrow import DDL, DDL_HEADERS

        check_names(self._given())
        return DDL_HEADERS if wants_headers(self._given()) else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Returns the reader for ``spark.read``."""
        return MoldauBatchReader(parse_options(self._given(), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Returns the reader for ``spark.readStream``."""
        return MoldauStreamReader(parse_options(self._given(), streaming=True))

    def _given(self) -> Mapping[str, str]:
        return dict(self.options)
