"""Sending rows of columns: the partitions of a block of rows, and their way into batches, without a loop over records.

Theory of operation: ``group`` divides the rows by partition (given, by key, or left to the keyless partitioner) and
checks them. ``append`` puts one group into the batches of its partition and yields when the memory is used up, so the
caller can wait. A keyless partitioner chooses once per batch, not once per record, except that round-robin deals the
rows out evenly.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from moldau.cluster import arguments
from moldau.producer.core.batch_memory import row_at
from moldau.producer.core.partitioner import RoundRobin
from moldau.records import RowColumns, group_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau.producer.core.accumulator import Accumulator
    from moldau.producer.core.batches import ProducerBatch
    from moldau.producer.core.partition_queue import PartitionQueue
    from moldau.producer.core.partitioner import KeylessPartitioner

Buffer = bytes | bytearray | memoryview


def check_columns(topic: object, columns: object, partitions: object) -> None:
    """Checks the arguments of ``send_columns``.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: the topic is empty, or ``partitions`` has no number for each row.
    """
    arguments.text("send_columns", "topic", topic)
    if not isinstance(columns, RowColumns):
        arguments.refuse("send_columns", "columns", "a RowColumns of moldau.records", columns)
    arguments.partitions_of_rows("send_columns", partitions, columns.length)


def partitions_of(columns: RowColumns, count: int, given: Buffer | None, *, ignores_keys: bool) -> Buffer:
    """Returns the partition of each row (int32), -1 where the keyless partitioner chooses.

    ``given`` names a partition for each row, -1 for none.
    """
    if given is None and ignores_keys:
        return array("i", [-1]).tobytes() * columns.length
    by_key = None if ignores_keys else columns.partitions_by_key(count)
    if given is None:
        assert by_key is not None, "keys are ignored above"
        return by_key
    named = array("i")
    named.frombytes(memoryview(given).cast("B"))
    if by_key is not None and -1 in named:
        chosen = array("i", by_key)
        named = array("i", [each if each != -1 else chosen[row] for row, each in enumerate(named)])
    return named.tobytes()


class RowAppender:
    """Appends one block of rows of one topic to the batches of its partitions."""

    def __init__(
        self,
        accumulator: Accumulator,
        columns: RowColumns,
        queues: list[PartitionQueue],
        keyless: KeylessPartitioner,
        available: tuple[int, ...],
        draw: Callable[[], int],
    ) -> None:
        self._accumulator = accumulator
        self._columns = columns
        self._queues = queues
        self._keyless = keyless
        self._available = available
        self._draw = draw
        self.batches: dict[ProducerBatch, tuple[int, int]] = {}
        """The batches that took rows, each with the index and the timestamp of the last one."""

    def append(
        self,
        partitions: Buffer,
        timestamp: int,
        now_ms: Callable[[], float],
        admit: Callable[[PartitionQueue], object],
        begun: Callable[[], object],
    ) -> Iterator[None]:
        """Appends all rows; yields whenever ``buffer.memory`` is full, and continues where it stopped.

        ``admit`` is called before a record goes into a new batch, ``begun`` after each batch that began or filled.
        """
        for partition, rows in group_rows(partitions, len(self._queues)):
            if partition >= 0:
                yield from self._append_group(self._queues[partition], rows, timestamp, now_ms, admit, begun)
            elif isinstance(self._keyless, RoundRobin):
                yield from self._deal(rows, timestamp, now_ms, admit, begun)
            else:
                yield from self._append_group(None, rows, timestamp, now_ms, admit, begun)

    def _deal(
        self,
        rows: bytes,
        timestamp: int,
        now_ms: Callable[[], float],
        admit: Callable[[PartitionQueue], object],
        begun: Callable[[], object],
    ) -> Iterator[None]:
        numbers = array("i")
        numbers.frombytes(rows)
        stride = len(self._available) or len(self._queues)
        assert isinstance(self._keyless, RoundRobin), "only round-robin deals rows out"
        for first in self._keyless.choose_many(self._available, len(self._queues), self._draw, len(numbers)):
            dealt = numbers[first[1] :: stride].tobytes()
            yield from self._append_group(self._queues[first[0]], dealt, timestamp, now_ms, admit, begun)

    def _append_group(
        self,
        queue: PartitionQueue | None,
        rows: bytes,
        timestamp: int,
        now_ms: Callable[[], float],
        admit: Callable[[PartitionQueue], object],
        begun: Callable[[], object],
    ) -> Iterator[None]:
        """Appends rows to one partition, or (``queue`` None) to the one that the keyless partitioner chooses."""
        at, end = 0, len(rows) // 4
        while at < end:
            target = queue
            if target is None:
                chosen = self._keyless.choose(self._available, len(self._queues), self._draw)
                target = self._queues[chosen]
            admit(target)
            last = target.open_batch if target.open_batch is not None and target.open_batch.data is None else None
            before = 0 if last is None else last.builder.size_bytes
            appended = self._accumulator.append_rows(target, self._columns, rows, at, timestamp, now_ms())
            if appended is None:
                yield
                continue
            batch, taken = appended
            at += taken
            moment = self._columns.timestamp(row_at(rows, at - 1))
            self.batches[batch] = batch.builder.record_count - 1, moment if moment >= 0 else timestamp
            is_new = batch is not last
            is_full = at < end or batch.builder.is_full
            if queue is None:
                size = batch.builder.size_bytes - (0 if is_new else before)
                self._keyless.appended(size, began_batch=is_new, is_full=is_full)
            if is_new or is_full:
                begun()
