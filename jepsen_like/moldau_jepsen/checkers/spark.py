"""Runs the checkers as a Spark job, for histories that are too large for one process, with the same verdicts.

The job has three stages. The first reads the frames of the history file in parallel to find the partitions. The second
reads them again and cuts them into shards (``shards``), which Spark sorts by shard and operation, on disk if necessary.
The third writes each shard to a local file of the worker and judges it with the ordinary checkers. The driver joins the
results. No stage holds more than the checkers' arrays of one shard per worker, so the longest partition and the number
of dependencies between transactions limit a job.

The file must be readable under the same path on the driver and all workers.
"""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_jepsen.checkers.shards import ShardPlan, ShardResult, check_shard, merge, plan_shards, split, touched
from moldau_jepsen.history import (
    HistoryFile,
    HistoryWriter,
    TopicPartition,
    frame_positions,
    pack_operation,
    read_frames,
    unpack_operation,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from moldau_jepsen.checkers.anomalies import CheckOptions, Verdict

Frame = tuple[int, int]
"""Position and length in the history file."""
Row = tuple[tuple[int, int], bytes]
"""Shard and index of an operation, and the operation as a frame holds it."""

FRAMES_PER_TASK_MAX = 64


def check_history_with_spark(session: SparkSession, path: Path, options: CheckOptions) -> Verdict:
    """Judges the history file at ``path``.

    An error of a worker ends the job with Spark's own error, which names it.

    Raises:
        HistoryError: The driver found damage in the file.
        OSError: The driver cannot read the file.
    """
    context = session.sparkContext
    positions = frame_positions(path)
    tasks = max(1, context.defaultParallelism, -(-len(positions) // FRAMES_PER_TASK_MAX))
    frames = context.parallelize(positions, tasks)
    found = frames.mapPartitions(partial(_survey, path)).collect()
    plan = plan_shards((partition for _, partitions in found for partition in partitions), options)
    rows = frames.mapPartitions(partial(_split, path, plan))
    lowest = plan.numbers.start
    shards = rows.repartitionAndSortWithinPartitions(len(plan.numbers), lambda key: key[0] - lowest)
    results = shards.mapPartitions(partial(_check, plan, options)).collect()
    return merge(results, sum(count for count, _ in found), options)


def _survey(path: Path, frames: Iterable[Frame]) -> Iterator[tuple[int, list[TopicPartition]]]:
    """Yields the number of operations, and the partitions that they touched."""
    partitions: dict[TopicPartition, None] = {}
    count = 0
    for operation in read_frames(path, frames):
        count += 1
        partitions.update(dict.fromkeys(touched(operation)))
    yield count, list(partitions)


def _split(path: Path, plan: ShardPlan, frames: Iterable[Frame]) -> Iterator[Row]:
    numbers = {partition: number for number, partition in enumerate(plan.partitions)}
    for operation in read_frames(path, frames):
        for number, part in split(operation, plan, numbers):
            yield (number, operation.index), pack_operation(part)


def _check(plan: ShardPlan, options: CheckOptions, rows: Iterable[Row]) -> Iterator[ShardResult]:
    """Judges the shards of one Spark partition, whose rows come sorted."""
    for number, group in groupby(rows, key=lambda row: row[0][0]):
        with tempfile.TemporaryDirectory(prefix="moldau-shard-") as directory:
            path = Path(directory) / "history"
            with path.open("wb") as stream:
                writer = HistoryWriter(stream)
                for packed in map(itemgetter(1), group):
                    writer.add(unpack_operation(packed))
                writer.flush()
            yield check_shard(number, plan, HistoryFile(path), options)
