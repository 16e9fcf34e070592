"""Copies records at least once: many batches on their way, positions stored when the target has acknowledged them.

Each batch that is on its way has a task that waits for its outcome. The number of batches and the bytes of a partition
on their way are bounded, so that a partition whose leader is gone does not stop the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import TRANSPORT_ERRORS
from moldau.mirror.reading import FIRST_STORE_MS
from moldau.mirror.sending import UNLIMITED
from moldau.producer import FatalTransactionError
from moldau.protocol.errors import KafkaError
from moldau.records import CorruptRecordError, InvalidRecordError

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition
    from moldau.mirror.positions import PositionStore
    from moldau.mirror.reading import SourceReader
    from moldau.mirror.sending import Sent, TargetSender
    from moldau.mirror.statistics import SourceStatistics
    from moldau.mirror.syncs import SyncWriter
    from moldau.producer import Producer
    from moldau.runtime.telemetry.log import EventLogger

POLL_MS = 200.0
POLL_BYTES = 4 * 1024 * 1024
BATCHES_MAX = 2_000
"""Batches on their way, of all partitions; each has a task."""
PARTITION_BYTES_MAX = 4 * 1024 * 1024
"""Bytes on their way after which a partition is not read; a quarter of it makes it be read again."""
CLOSING_MS = 8_000.0
"""For the last outcomes and positions of a mirror that ends in order."""


class AtLeastOnce:
    """Copies one source."""

    def __init__(
        self,
        reader: SourceReader,
        sender: TargetSender,
        producer: Producer,
        store: PositionStore,
        syncs: SyncWriter,
        syncs_producer: Producer,
        *,
        flush_ms: float,
        statistics: SourceStatistics,
        logger: EventLogger,
    ) -> None:
        self._reader = reader
        self._sender = sender
        self._producer = producer
        self._store = store
        self._syncs = syncs
        self._syncs_producer = syncs_producer
        self._flush_ms = flush_ms
        self._statistics = statistics
        self._logger = logger
        self._slots = trio.CapacityLimiter(BATCHES_MAX)
        self._bytes: dict[TopicPartition, int] = {}
        self._outcomes = 0

    async def run(self, stop: trio.Event) -> None:
        """Copies until ``stop`` is set; then it waits for outcomes and stores the last positions.

        Raises:
            KafkaError: the source or the target cannot be used.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush_forever)
            async with trio.open_nursery() as batches:
                while not stop.is_set():
                    await self._step(batches)
                batches.cancel_scope.deadline = trio.current_time() + CLOSING_MS / 1000
            nursery.cancel_scope.cancel()
        with trio.move_on_after(CLOSING_MS / 1000):
            await self.flush()

    async def _step(self, nursery: trio.Nursery) -> None:
        for part in await self._reader.poll(POLL_MS, POLL_BYTES):
            sent: list[Sent] = []
            # After a failure one batch goes alone: those behind it would be written again with each attempt.
            is_alone = self._reader.is_doubtful(part.partition)
            try:
                has_more = await self._sender.send(part, sent, batches_max=1 if is_alone else UNLIMITED)
            except FatalTransactionError:
                raise
            except (KafkaError, CorruptRecordError, InvalidRecordError) as error:
                self._reader.failed(part.partition, error)
            else:
                # A batch before these may have been refused meanwhile: the position is then before that one, and stays.
                if has_more and part.generation == self._reader.progress.generation(part.partition):
                    self._reader.go_on_at(part.partition, sent[-1].span.after.offset)
                if is_alone and sent:
                    self._reader.hold(part.partition)
            for one in sent:
                await self._watch(nursery, one)

    async def _watch(self, nursery: trio.Nursery, one: Sent) -> None:
        """Starts a task that waits for the outcome of a batch."""
        if one.delivery is None:
            self._acknowledged(one, -1)
            self._reader.release([one.span.partition])
            return
        partition = one.span.partition
        await self._slots.acquire_on_behalf_of(one)
        self._bytes[partition] = self._bytes.get(partition, 0) + one.size_bytes
        if self._bytes[partition] > PARTITION_BYTES_MAX:
            self._reader.hold(partition)
        nursery.start_soon(self._settle, one)

    async def _settle(self, one: Sent) -> None:
        assert one.delivery is not None
        try:
            metadata = await one.delivery
        except KafkaError as error:
            self._failed(one, error)
        else:
            self._acknowledged(one, metadata.offset)
        finally:
            self._slots.release_on_behalf_of(one)
            self._left(one)

    def _left(self, one: Sent) -> None:
        partition = one.span.partition
        left = self._bytes[partition] - one.size_bytes
        if left:
            self._bytes[partition] = left
        else:
            del self._bytes[partition]
        if left <= PARTITION_BYTES_MAX // 4:
            self._reader.release([partition])

    def _acknowledged(self, one: Sent, base_offset: int) -> None:
        if not self._reader.progress.acknowledged(one.span):
            return
        self._reader.acknowledged(one.span.partition)
        if one.delivery is not None:
            self._statistics.records += sum(run.count for run in one.span.runs)
            self._statistics.bytes += one.size_bytes
            self._syncs.copied(one.span, base_offset)

    def _failed(self, one: Sent, error: KafkaError) -> None:
        progress, partition = self._reader.progress, one.span.partition
        found = progress.by_partition.get(partition)
        if found is None or found.generation != one.span.generation:
            return  # an earlier failure has set the partition back already
        if self._sender.shrinks(one, error):
            self._logger.info("batch-divided", partition=partition, size_bytes=one.size_bytes)
            self._reader.back_to(partition)
        else:
            self._reader.failed(partition, error)

    # --- positions

    async def _flush_forever(self) -> None:
        wait_ms = min(self._flush_ms, FIRST_STORE_MS)
        while True:
            await trio.sleep(wait_ms / 1000)
            await self.flush()
            wait_ms = self._flush_ms

    async def flush(self) -> None:
        """Stores the positions that moved, and the offset syncs; what fails is stored by a later flush."""
        progress = self._reader.progress
        moved = progress.take_moved()
        try:
            for delivery in await self._store.send(self._producer, moved):
                await delivery
        except (KafkaError, *TRANSPORT_ERRORS) as error:
            progress.keep_moved(moved)
            self._statistics.failures += 1
            self._logger.warning("positions-not-stored", error=error)
        except trio.Cancelled:
            progress.keep_moved(moved)
            raise
        try:
            await self._syncs.flush(self._syncs_producer)
        except (KafkaError, *TRANSPORT_ERRORS) as error:
            self._statistics.failures += 1
            self._logger.warning("offset-syncs-not-written", error=error)
