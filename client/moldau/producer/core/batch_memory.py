"""The memory of the producer's batches: ``buffer.memory``, and how batches begin, grow and give back. Pure.

Theory of operation: a batch reserves the bytes to which its records may grow at present (``size_granted``). It begins
with little, and grows when these are full, until it has its ``size_limit``. So partitions with few records do not use
up the memory, however many they are. Once a batch is closed, it reserves the size of its bytes until it is settled.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from moldau.producer.core.batch_sizes import BatchSizes
from moldau.producer.core.batches import ProducerBatch
from moldau.producer.core.partition_queue import SIZE_FIRST, PartitionQueue
from moldau.records import BatchBuilder

if TYPE_CHECKING:
    from moldau.producer.core.limits import Limits
    from moldau.records import RowColumns

GROWTH = 4
"""Each step costs some calls: from ``SIZE_FIRST`` to 64 KiB there are two."""


class BatchMemory:
    """Counts the memory of all batches. ``used`` may exceed ``buffer.memory`` by a single batch of one record."""

    def __init__(self, limits: Limits) -> None:
        self.used = 0
        self.sizes = BatchSizes(limits.batch_size)
        self._limits = limits

    def fits(self, size: int) -> bool:
        """Returns whether a new batch may reserve ``size`` bytes; the first one may have any size."""
        return not self.used or self.used + size <= self._limits.buffer_memory

    def first_batch(self, queue: PartitionQueue, size: int, now_ms: float) -> ProducerBatch | None:
        """Makes a batch whose first record has ``size`` bytes; returns None if there is no memory for it."""
        # Half of the memory serves partitions whose batches become as large as their last one. From then on a batch
        # begins with its record, so that this guess never keeps other partitions from sending.
        reserved = max(size, min(queue.last_size, self.sizes.limit(queue.partition.topic)))
        if 2 * (self.used + reserved) > self._limits.buffer_memory:
            reserved = size
            if not self.fits(reserved):
                return None
        return self.new_batch(queue, reserved, now_ms)

    def new_batch(self, queue: PartitionQueue, reserved: int, now_ms: float) -> ProducerBatch:
        """Makes an empty batch that reserves ``reserved`` bytes once it is in the queue."""
        limits = self._limits
        builder = BatchBuilder(
            self.sizes.limit(queue.partition.topic),
            compression=limits.compression,
            compression_level=limits.compression_level,
            is_transactional=limits.is_transactional,
            initial_capacity=min(reserved, queue.last_size),
        )
        return ProducerBatch(queue.partition, builder, now_ms, reserved)

    def grow(self, queue: PartitionQueue, batch: ProducerBatch, size: int) -> bool:
        """Reserves memory for ``size`` more bytes of the open batch; returns False if there is none.

        If possible, the batch gets ``GROWTH`` times the memory that it had.
        """
        needed = batch.builder.size_bytes + size
        free = self._limits.buffer_memory - self.used
        granted = min(max(GROWTH * batch.size_granted, needed), batch.size_limit)
        if granted - batch.reserved_bytes > free:
            # Half of the rest, so that the records of an almost full memory do not come here one by one.
            needed = min(needed, batch.size_limit)
            granted = min(granted, needed + max(free - (needed - batch.reserved_bytes), 0) // 2)
            if granted - batch.reserved_bytes > free:
                return False
        self.used += granted - batch.reserved_bytes
        batch.reserved_bytes = batch.size_granted = granted
        queue.open(batch, batch.writer, granted)
        return True

    def fill(
        self, queue: PartitionQueue, batch: ProducerBatch, columns: RowColumns, rows: bytes, start: int, timestamp: int
    ) -> int:
        """Adds rows until the batch is full or has no more memory; returns how many it took."""
        at, end = start, len(rows) // 4
        while True:
            at += batch.writer.append_rows(columns, rows, at, timestamp, batch.size_granted)
            if at == end or batch.size_granted == batch.size_limit:
                return at - start
            if not self.grow(queue, batch, columns.size_bound(row_at(rows, at))):
                return at - start

    def close(self, queue: PartitionQueue, batch: ProducerBatch) -> bytearray:
        """Builds the bytes of a batch, and gives back the memory that it does not need."""
        if batch.data is not None:
            return batch.data
        data = batch.close()
        queue.last_size = max(SIZE_FIRST, min(batch.builder.size_bytes, self._limits.batch_size))
        unused = max(batch.reserved_bytes - len(data), 0)
        batch.reserved_bytes -= unused
        self.used -= unused
        return data


def row_at(rows: bytes, index: int) -> int:
    """Returns element ``index`` of row numbers (int32 each)."""
    return int.from_bytes(rows[4 * index : 4 * index + 4], sys.byteorder)
