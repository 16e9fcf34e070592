"""The delivery that ``send`` returns: the outcome of one record, known now or later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.records.codec import RecordPlace

if TYPE_CHECKING:
    from collections.abc import Generator

    from moldau.producer.core.batches import ProducerBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMetadata:
    """The place where a record was written.

    ``offset`` is -1 with acks=0, and if the broker recognised a duplicate of an old batch.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int  # milliseconds since the Unix epoch: the record's, or the broker's with LogAppendTime


class Delivery(RecordPlace):
    """The outcome of one record: ``await delivery`` returns its ``RecordMetadata`` or raises its error.

    Several tasks may await it, any number of times, or drop it. Cancelling the wait does not recall the record.
    """

    __slots__ = ()

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return bool(self._batch.is_settled)

    @property
    def topic(self) -> str:
        """The record's topic."""
        batch: ProducerBatch = self._batch
        return batch.partition.topic

    @property
    def partition(self) -> int:
        """The record's partition."""
        batch: ProducerBatch = self._batch
        return batch.partition.partition

    @property
    def acknowledged_by(self) -> tuple[int, int] | None:
        """The broker that acknowledged the record, and its leader epoch when the record was sent.

        None before the acknowledgement, for a record that failed, with acks=0, and while the producer knows the leader
        but not its epoch.
        """
        batch: ProducerBatch = self._batch.part(self._index)
        return batch.leader if self.is_done and batch.error is None else None

    def result(self) -> RecordMetadata:
        """Returns the outcome, or raises the record's error.

        Raises:
            RuntimeError: the outcome is not known yet.
        """
        if not self.is_done:
            raise RuntimeError("the record has not been delivered yet; await the delivery")
        batch: ProducerBatch = self._batch.part(self._index)
        if batch.error is not None:
            raise batch.error
        return RecordMetadata(
            topic=batch.partition.topic,
            partition=batch.partition.partition,
            offset=-1 if batch.base_offset < 0 else batch.base_offset + self._index - batch.first_index,
            timestamp=self._timestamp if batch.append_timestamp < 0 else batch.append_timestamp,
        )

    async def wait(self) -> RecordMetadata:
        """Waits for the outcome, at most ``delivery.timeout.ms`` after ``send``."""
        batch: ProducerBatch = self._batch
        if batch.is_settled:
            await trio.lowlevel.checkpoint()
        else:
            if not trio.lowlevel.in_trio_run():
                raise RuntimeError("a delivery is awaited under trio, where its producer runs; see moldau.blocking")
            await wait_settled(batch)
        return self.result()

    def __await__(self) -> Generator[object, object, RecordMetadata]:
        return self.wait().__await__()


class ColumnsDelivery(Delivery):
    """The outcome of a batch of rows: the place of its last row, or the first error of the rows."""

    __slots__ = ()

    def result(self) -> RecordMetadata:
        """Returns the outcome of the last row, or raises the error of the first row that failed.

        Raises:
            RuntimeError: the outcome is not known yet.
        """
        batch: ProducerBatch = self._batch
        if batch.is_settled and batch.error is not None:
            raise batch.error
        return super().result()


async def wait_settled(batch: ProducerBatch) -> None:
    """Waits until the outcome of a batch is known."""
    if not batch.is_settled:
        waiter = batch.waiter
        if not isinstance(waiter, trio.Event):
            waiter = batch.waiter = trio.Event()
        await waiter.wait()
