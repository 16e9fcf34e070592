"""The data source: Spark's view of a log, in micro-batches and in batches.

The stream reader lives in one Python process as long as the query runs; another copy of it is pickled to every task. So
nothing that ``latestOffset`` learns may be kept for ``read``: all a task needs is in its ``InputRange``. Offsets
live in Spark's checkpoint alone; consumer groups are not used, and ``commit`` has nothing to do.
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
    """Makes, or finds, the reader of a log. Must be picklable: a function of a module."""

    def __call__(self, client: ClientOptions) -> LogReader:
        """Returns a reader for this process."""
        ...


def connect_cluster(client: ClientOptions) -> LogReader:
    """The reader of a real cluster."""
    from pyspark_moldau.reader import shared_reader

    return shared_reader(client)


@dataclass
class InputRange(InputPartition):
    """Work of one task; picklable and complete."""

    work: OffsetRange


def resolve(reader: LogReader, partitions: Sequence[Partition], position: Position, name: str) -> Offsets:
    """Turns a starting or ending position into an offset for each partition.

    ``name`` is the option's, for errors. Raises ``OptionError`` when the position names other partitions than there
    are.
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
    """Runs in a task: the records of its range."""
    from pyspark_moldau.arrow import to_record_batch

    assert isinstance(partition, InputRange), f"not a partition of this source: {partition!r}"
    work = partition.work
    reader = connect(options.client)
    for chunk in reader.read(work, fail_on_data_loss=options.fail_on_data_loss):
        yield to_record_batch(
            chunk.columns, work.topic, work.partition, chunk.timestamp_type, headers=options.include_headers
        )


def plan(reader: LogReader, options: SourceOptions, start: Offsets, end: Offsets) -> list[InputRange]:
    """Divides what lies between two offsets into tasks. Partitions without a start begin at their earliest offset."""
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
    """Raises ``DataLossError``, or only warns, as ``failOnDataLoss`` says."""
    from pyspark_moldau.reader import DataLossError

    if options.fail_on_data_loss:
        raise DataLossError(f"{text}; set failOnDataLoss to false to go on without them")
    logger.warning("data-loss %s", text)


class MoldauStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of a log."""

    def __init__(self, options: SourceOptions, connect: Connect = connect_cluster) -> None:
        self._options = options
        self._connect = connect
        self._target: Offsets | None = None

    def initialOffset(self) -> Checkpoint:
        """Where a query without a checkpoint begins."""
        reader = self._connect(self._options.client)
        partitions = reader.partitions(self._options.subscription)
        name = "startingOffsets" if self._options.starting.offsets is not None else "the starting timestamp"
        return to_checkpoint(resolve(reader, partitions, self._options.starting, name))

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``, or all there is."""
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query at the present end of the log."""
        self._target = self._ends({})

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:
        """Where the next micro-batch ends."""
        begin = from_checkpoint(start)
        if self._target is None:
            target = self._ends(begin)
        else:  # measured once, perhaps just after a leader changed: never behind where the query already is
            target = {partition: max(end, begin.get(partition, 0)) for partition, end in self._target.items()}
        if isinstance(limit, ReadMaxRows):
            fresh = sorted(target.keys() - begin.keys())
            if fresh:
                reader = self._connect(self._options.client)
                begin |= {key: offset or 0 for key, offset in reader.offsets(dict.fromkeys(fresh, EARLIEST)).items()}
            target = limit_rows(begin, target, limit.max_rows)
        return to_checkpoint(target)

    def reportLatestOffset(self) -> Checkpoint:
        """The end of the log, for the query's progress report."""
        return to_checkpoint(self._ends({}))

    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        return plan(self._connect(self._options.client), self._options, from_checkpoint(start), from_checkpoint(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        return read_chunks(self._connect, self._options, partition)

    def commit(self, end: Checkpoint) -> None:
        """Nothing to do: the checkpoint is Spark's."""

    def stop(self) -> None:
        """Nothing to do: connections end with the process."""

    def _ends(self, at_least: Offsets) -> Offsets:
        """End offsets; when one lies before ``at_least``, asks again for a while.

        A new leader may tell a lower high watermark until its followers have fetched from it; only an end that stays
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
    """A log, or a part of it, as a table."""

    def __init__(self, options: SourceOptions, connect: Connect = connect_cluster) -> None:
        self._options = options
        self._connect = connect

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the query, from the starting to the ending offsets."""
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
    """Format ``moldau``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "moldau"

    def schema(self) -> str:
        """The columns of Spark's Kafka source; ``headers`` only with ``includeHeaders``.

        Spark asks for it first, so mistakes in the options are told here.
        """
        from pyspark_moldau.arrow import DDL, DDL_HEADERS

        check_names(self._given())
        return DDL_HEADERS if wants_headers(self._given()) else DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        return MoldauBatchReader(parse_options(self._given(), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For ``spark.readStream``."""
        return MoldauStreamReader(parse_options(self._given(), streaming=True))

    def _given(self) -> Mapping[str, str]:
        return dict(self.options)
