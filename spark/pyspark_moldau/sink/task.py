"""Writes the rows of a task: at least once, or exactly once in a transaction that is left open for the driver.

Each call is one ``trio.run`` in the thread that Spark gives it. Another thread fetches blocks of rows from Spark, so
that batches go out meanwhile.
"""

from __future__ import annotations

import uuid
import zlib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import trio

from moldau import KafkaError, Producer
from moldau.consumer import CommittedOffset
from moldau.producer import TransactionError
from moldau.protocol.errors import ErrorCode
from pyspark_moldau.sink.cluster import (
    MARKER_PARTITION,
    ONGOING,
    admin_of,
    job_topic,
    perform_shared,
    run_explained,
    wait_reachable,
    wall_ms,
)
from pyspark_moldau.sink.core.effects import (
    EndDecided,
    Entry,
    Fence,
    HandOver,
    NoteBegun,
    ReadDecision,
    ReadMarker,
    ReadNotes,
    SkipRows,
    StageMarker,
    WriteRows,
)
from pyspark_moldau.sink.core.protocol import TaskCore
from pyspark_moldau.sink.explanations import explained
from pyspark_moldau.sink.rows import split_topics, to_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from moldau.producer import Delivery
    from pyspark_moldau.sink.core.effects import Effect, Report
    from pyspark_moldau.sink.core.sink_options import SinkOptions
    from pyspark_moldau.sink.names import Attempt

UNDELIVERED_MAX: Final = 4096
"""Batches whose outcome a task has not looked at yet."""


class RowWriter:
    """Writes a task's blocks of rows with one producer, and counts them."""

    def __init__(self, options: SinkOptions, producer: Producer) -> None:
        self._options = options
        self._producer = producer
        self._undelivered: list[Delivery] = []
        self.rows = 0
        self.fingerprint = 0

    async def write(self, batch: pa.RecordBatch, *, fingerprints: bool) -> None:
        """Writes one block.

        Raises:
            SinkError: the topic does not exist, or a row is too large.
            RowError: a row names no topic, or a partition that cannot be.
        """
        for topic, part in split_topics(batch, self._options.topic):
            columns, partitions = to_columns(part)
            try:
                deliveries = await self._producer.send_columns(topic, columns, partitions=partitions)
            except (KafkaError, ValueError) as error:
                raise explained(error, topic, self._options) from error
            self.rows += columns.length
            if fingerprints:
                factor = 2 * zlib.crc32(topic.encode()) + 1
                self.fingerprint = (self.fingerprint + columns.fingerprint() * factor) & 0xFFFFFFFFFFFFFFFF
            self._undelivered += deliveries
            if len(self._undelivered) > UNDELIVERED_MAX:
                self._look(wants_all=False)

    def _look(self, *, wants_all: bool) -> None:
        pending = []
        for delivery in self._undelivered:
            if wants_all or delivery.is_done:
                try:
                    delivery.result()
                except KafkaError as error:
                    raise explained(error, delivery.topic, self._options) from error
            else:
                pending.append(delivery)
        self._undelivered = pending

    async def finish(self) -> None:
        """Waits until all rows are delivered.

        Raises:
            SinkError: a row was not delivered.
        """
        await self._producer.flush()
        self._look(wants_all=True)


async def _blocks(batches: Iterator[pa.RecordBatch], writer: RowWriter, *, fingerprints: bool) -> None:
    while True:
        batch = await trio.to_thread.run_sync(next, batches, None, abandon_on_cancel=True)
        if batch is None:
            return
        if batch.num_rows:
            await writer.write(batch, fingerprints=fingerprints)


def write_at_least_once(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """Writes a task's rows and returns their number once all are delivered."""

    async def main() -> int:
        async with Producer(dict(options.producer)) as producer:
            writer = RowWriter(options, producer)
            await _blocks(batches, writer, fingerprints=False)
            await writer.finish()
            return writer.rows

    return run_explained(options, main)


class _Task:
    """Carries out the effects of one attempt."""

    def __init__(self, options: SinkOptions, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> None:
        self._options = options
        self._attempt = attempt
        self._batches = batches

    async def run(self) -> Report:
        core = TaskCore(
            batch=self._attempt.batch,
            partition=self._attempt.partition,
            has_notes=self._attempt.names.has_notes,
            topic=job_topic(self._options),
            now_ms=wall_ms(),
        )
        async with AsyncExitStack() as stack:
            self._stack = stack
            self._admin = await stack.enter_async_context(admin_of(self._options))
            await wait_reachable(self._admin, self._options)
            while core.effect is not None:
                core = core.on(await self._perform(core.effect))
        assert core.report is not None, "a task without an effect has a report"
        return core.report

    async def _perform(self, effect: Effect) -> object:
        attempt = self._attempt
        match effect:
            case ReadDecision() | ReadMarker() | ReadNotes() | NoteBegun() | EndDecided():
                return await perform_shared(self._admin, self._options, attempt.names, effect)
            case SkipRows():
                while await trio.to_thread.run_sync(next, self._batches, None, abandon_on_cancel=True) is not None:
                    pass
                return None
            case Fence():
                self._id = await self._free_id()
                given = dict(self._options.producer) | {"transactional.id": self._id}
                self._producer = await self._stack.enter_async_context(Producer(given))
                await self._producer.init_transactions()
                return None
            case WriteRows():
                self._producer.begin_transaction()
                writer = RowWriter(self._options, self._producer)
                await _blocks(self._batches, writer, fingerprints=True)
                return writer.rows, writer.fingerprint
            case StageMarker(batch):
                await self._producer.send_offsets_to_transaction(
                    {MARKER_PARTITION: CommittedOffset(offset=batch)}, self._id
                )
                return None
            case HandOver(rows, fingerprint):
                prepared = await self._producer.prepare_transaction()
                return Entry(
                    transactional_id=prepared.transactional_id,
                    producer_id=prepared.producer_id,
                    producer_epoch=prepared.producer_epoch,
                    rows=rows,
                    fingerprint=fingerprint,
                )
        raise AssertionError(f"{effect} is not a task's")

    async def _free_id(self) -> str:
        """Returns a transactional id for this attempt that has no open transaction.

        If Spark runs a stage again because an executor was lost, it counts attempts from 0 again. A task of the first
        run may have handed its transaction over by then, and taking over its id would abort that.
        """
        attempt = self._attempt
        name = attempt.names.task(attempt.run, attempt.partition, attempt.attempt)
        try:
            found = await self._admin.describe_transactions([name])
        except KafkaError as error:
            if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            return name
        return f"{name}-{uuid.uuid4().hex[:8]}" if found[name].state == ONGOING else name


def write_exactly_once(options: SinkOptions, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Report:
    """Writes a task's rows in a transaction that stays open for the driver."""
    try:
        return run_explained(options, _Task(options, attempt, batches).run)
    except TransactionError as error:
        raise explained(error, options.topic or "(of column topic)", options) from error
