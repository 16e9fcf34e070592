"""Reads a log in micro-batches.

The stream reader exists in one Python process while the query runs; every task gets another, pickled copy. Offsets are
kept in Spark's checkpoint; ``publishOffsetsToGroup`` also shows them to tools, and nothing reads them back.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_moldau.errors import message_first, message_first_while_read
from pyspark_moldau.source import planning
from pyspark_moldau.source.core.offsets import (
    START_MARK,
    Checkpoint,
    Offsets,
    from_checkpoint,
    limit_bytes,
    limit_rows,
    start_of,
    to_checkpoint,
    topic_ids_of,
    with_start,
)
from pyspark_moldau.source.core.options import EARLIEST, LATEST, OptionError, SourceOptions
from pyspark_moldau.source.planning import (
    Connect,
    connect_cluster,
    ends_of,
    mean_sizes,
    plan,
    read_chunks,
    replaced_topics,
    report_loss,
    resolve,
)
from pyspark_moldau.wire.reach import FIRST_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from pyspark_moldau.source.core.options import Subscription
    from pyspark_moldau.wire.group_offsets import GroupOffsets

logger = logging.getLogger(__name__)

UNLIMITED_ROWS: Final = 2**62


class MoldauStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log in micro-batches."""

    def __init__(self, options: SourceOptions, connect: Connect = connect_cluster) -> None:
        self._options = options
        self._connect = connect
        self._target: Offsets | None = None
        self._is_target_due = False
        self._last_batch_s: float | None = None
        self._group: GroupOffsets | None = None
        self._initial: Checkpoint | None = None
        self._problem: OptionError | None = None  # why there is no start; a query that goes on needs none
        self._has_begun = False  # the first micro-batch is planned, by this process or an earlier one
        self._seen: Offsets | None = None

    @message_first
    def initialOffset(self) -> Checkpoint:
        """Returns the offsets at which a query without a checkpoint starts.

        Spark asks before it plans the first micro-batch and again when it runs it; the answer stays the same. A wrong
        address is as likely as an outage of the cluster then, so the query ends soon if no broker answers.

        Spark also asks a query that was started again in its first micro-batch. Its checkpoint knows the start, and the
        options may not fit the topics any more, for example because one has more partitions. So a wrong option comes
        to light at the next call.
        """
        if self._initial is None:
            self._connect(self._options.client).reach(FIRST_MS)
            self._fix_target()
            try:
                self._initial = self._first_offsets()
            except OptionError as error:
                self._initial, self._problem = {}, error
        return self._initial

    def _check_start(self, start: Checkpoint) -> None:
        """Checks that the start of the query was found, if it is the start that Spark was given.

        Raises:
            OptionError: An option is wrong.
        """
        if self._problem is not None and start == self._initial:
            raise self._problem

    def _first_offsets(self) -> Checkpoint:
        reader = self._connect(self._options.client)
        partitions = reader.partitions(self._options.subscription)
        position = self._options.starting
        start = resolve(reader, partitions, position, position.option("starting"))
        if position.offsets is not None:
            ends = reader.offsets(dict.fromkeys(partitions, LATEST))
            for (topic, number), at in sorted(start.items()):
                if at > (ends[topic, number] or 0):
                    raise OptionError(
                        f"startingOffsets: {topic}-{number} ends at {ends[topic, number]}, before {at}; "
                        "-1 starts at the end"
                    )
        return to_checkpoint(start, reader.topic_ids(sorted({topic for topic, _ in partitions})))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns a limit if an option sets one, or no limit.

        Spark passes it to ``latestOffset``, except with the trigger ``once``, which has no limits.
        """
        options = self._options
        limits = (options.max_offsets_per_trigger, options.min_offsets_per_trigger, options.max_bytes_per_trigger)
        if all(limit is None for limit in limits):
            return ReadAllAvailable()
        return ReadMaxRows(options.max_offsets_per_trigger or UNLIMITED_ROWS)

    @message_first
    def prepareForTriggerAvailableNow(self) -> None:
        """Ends the query at the end that the log has at the next call.

        Spark calls this first, for new queries as for others. The next call tells them apart, and with them how long
        the query waits for the cluster.
        """
        self._is_target_due = True

    @message_first
    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:
        """Returns the end offsets of the next micro-batch."""
        options = self._options
        self._check_start(start)
        self._fix_target()
        begin = from_checkpoint(start)
        self._publish(begin)
        ends, topic_ids = self._ends(begin, topic_ids_of(start))
        self._seen = dict(ends)
        self._check_topics(begin, topic_ids)
        for topic, number in sorted(begin.keys() - ends.keys()):
            report_loss(_missing(topic, number, options.subscription), options)
        replaced = replaced_topics(topic_ids_of(start), topic_ids, options)
        begin = {partition: at for partition, at in begin.items() if partition[0] not in replaced}
        if self._target is not None:
            # Measured once, perhaps just after a leader changed, so it must not fall behind the query's position.
            self._target |= {key: min(end, ends.get(key, 0)) for key, end in self._target.items() if key[0] in replaced}
            fixed = {key: end for key, end in self._target.items() if key in ends}
            ends = {key: min(max(end, begin.get(key, 0)), ends[key]) for key, end in fixed.items()} | {
                key: begin[key] for key in begin if key in ends and key not in fixed
            }
        if isinstance(limit, ReadAllAvailable):
            return self._end_of_batch(start, ends, topic_ids)
        fresh = sorted(ends.keys() - begin.keys())
        if fresh:
            reader = self._connect(options.client)
            begin |= {key: at or 0 for key, at in reader.offsets(dict.fromkeys(fresh, EARLIEST)).items()}
        if self._waits_for_more(begin, ends):
            return start
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else UNLIMITED_ROWS
        target = limit_rows(begin, ends, rows)
        if options.max_bytes_per_trigger is not None:
            means = mean_sizes(self._connect(options.client), ends)
            by_size = limit_bytes(begin, ends, means, options.max_bytes_per_trigger)
            target = {key: min(end, by_size[key]) for key, end in target.items()}
        return self._end_of_batch(start, target, topic_ids)

    def _end_of_batch(self, start: Checkpoint, ends: Offsets, topic_ids: Mapping[str, str]) -> Checkpoint:
        """Returns the document of an end; that of the first micro-batch says where the query started.

        Spark runs the first micro-batch even if it is empty. After that, an end at the start is the same document,
        because Spark compares documents to see whether there are new rows.
        """
        document = to_checkpoint(ends, topic_ids)
        self._has_begun = self._has_begun or start != self._initial
        if not self._has_begun:
            return with_start(document, from_checkpoint(start))
        if document == {name: each for name, each in start.items() if START_MARK not in name}:
            return start
        return document

    @message_first
    def reportLatestOffset(self) -> Checkpoint:
        """Returns the end of the log, for the query's progress report.

        Spark asks right after ``latestOffset``, so the ends found there serve once more.
        """
        ends, self._seen = self._seen, None
        return to_checkpoint(self._ends({}, {})[0] if ends is None else ends)

    @message_first
    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        """Returns the tasks of a micro-batch; its end knows the start of the first one, also after a restart."""
        self._fix_target()
        noted = start_of(end)
        if noted is None:
            self._check_start(start)
        return plan(
            self._connect(self._options.client),
            self._options,
            from_checkpoint(start) if noted is None else noted,
            from_checkpoint(end),
            start_ids=topic_ids_of(start),
            end_ids=topic_ids_of(end),
        )

    @message_first_while_read
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        yield from read_chunks(self._connect, self._options, partition)

    def commit(self, end: Checkpoint) -> None:
        """Publishes the offsets of a finished micro-batch, if an option asks for it. Spark keeps the checkpoint."""
        self._publish(from_checkpoint(end))

    def stop(self) -> None:
        """Does nothing, because connections end with the process."""

    def _publish(self, offsets: Offsets) -> None:
        """Publishes the offsets up to which all is done.

        ``latestOffset`` calls it too, since Spark need not call ``commit`` for the last micro-batch.
        """
        group = self._options.publish_to_group
        if group is None:
            return
        if self._group is None:
            from pyspark_moldau.wire.group_offsets import GroupOffsets

            self._group = GroupOffsets(self._options.client, group)
        self._group.publish(offsets)

    def _fix_target(self) -> None:
        if self._is_target_due:
            self._target = self._ends({}, {})[0]
            self._is_target_due = False

    def _waits_for_more(self, begin: Mapping[tuple[str, int], int], ends: Offsets) -> bool:
        """Returns whether ``minOffsetsPerTrigger`` are not there yet and ``maxTriggerDelay`` is not over."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        now_s = time.monotonic()
        waiting = sum(max(0, end - begin.get(key, 0)) for key, end in ends.items())
        is_late = self._last_batch_s is None or now_s - self._last_batch_s > self._options.max_trigger_delay_ms / 1000
        if waiting < least and not is_late:
            return True
        self._last_batch_s = now_s
        return False

    def _check_topics(self, begin: Offsets, topic_ids: Mapping[str, str]) -> None:
        """Checks that topics which the query has never seen exist."""
        seen = {topic for topic, _ in begin}
        for topic in self._options.subscription.topics or ():
            if topic not in topic_ids and topic not in seen:
                if self._options.fail_on_data_loss:
                    raise OptionError(f"subscribe: topic {topic} does not exist; create it, or correct its name")
                logger.warning("topic-missing topic=%s: it is read from its beginning once it exists", topic)

    def _ends(self, at_least: Offsets, topic_ids_before: Mapping[str, str]) -> tuple[Offsets, dict[str, str]]:
        """Returns end offsets and topic ids; asks again for up to ``SETTLE_S`` while an end is missing or too low.

        A new leader may report a lower high watermark until its followers have fetched from it, and a broker that has
        just started may not know all topics; only what stays so means that records are gone.
        """
        reader = self._connect(self._options.client)
        deadline = time.monotonic() + planning.SETTLE_S
        while True:
            partitions = reader.partitions(self._options.subscription, missing_ok=True, expected=topic_ids_before)
            ends = ends_of(reader, self._options, {partition: at_least.get(partition) for partition in partitions})
            topic_ids = reader.topic_ids(sorted({topic for topic, _ in partitions}), topic_ids_before)
            replaced = {name for name, found in topic_ids.items() if topic_ids_before.get(name, found) != found}
            settled = all(
                ends.get(partition, -1) >= offset or partition[0] in replaced for partition, offset in at_least.items()
            )
            if settled or time.monotonic() >= deadline:
                return ends, topic_ids
            time.sleep(planning.SETTLE_POLL_S)


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for a reader whose options are wrong, and says so at its first use.

    If ``streamReader`` itself raises, Spark's runner fails on its own clean-up and shows that failure instead.
    """

    def __init__(self, problem: str) -> None:
        self._problem = problem

    @message_first
    def _refuse(self) -> NoReturn:
        raise OptionError(self._problem)

    def initialOffset(self) -> Checkpoint:
        """Refuses the query.

        Raises:
            OptionError: Always.
        """
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Refuses the query.

        Raises:
            OptionError: Always.
        """
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:
        """Refuses the query.

        Raises:
            OptionError: Always.
        """
        self._refuse()

    def latestOffset(self, start: Checkpoint, limit: ReadLimit) -> Checkpoint:
        """Refuses the query.

        Raises:
            OptionError: Always.
        """
        self._refuse()

    def partitions(self, start: Checkpoint, end: Checkpoint) -> Sequence[InputPartition]:
        """Refuses the query.

        Raises:
            OptionError: Always.
        """
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Refuses the query.

        Raises:
            OptionError: Always.
        """
        self._refuse()


def _missing(topic: str, number: int, subscription: Subscription) -> str:
    """Returns why a partition of the checkpoint is not among those of the query."""
    named = subscription.topics if subscription.topics is not None else subscription.assignment
    if named is None:
        return f"{topic}-{number} was deleted while the query read it, or the query no longer names it"
    numbers = None if subscription.assignment is None else subscription.assignment.get(topic)
    if topic in named and (numbers is None or number in numbers):
        return f"{topic}-{number} was deleted while the query read it"
    return (
        f"{topic}-{number} is in the checkpoint, and the query does not name it; give a query of other topics a "
        "checkpoint of its own"
    )
