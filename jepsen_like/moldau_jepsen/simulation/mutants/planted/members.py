"""Bugs of the client library: in what it hands out, commits and sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.cluster.committed import CommittedOffset
from moldau.consumer.consumer import Consumer
from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.offsets import ConsumerOffsets
from moldau.producer.core.accumulator import Accumulator
from moldau.records import Record

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition
    from moldau.producer.core.batches import ProducerBatch
    from moldau.producer.core.partition_queue import PartitionQueue
    from moldau_jepsen.planted_bug import Patch


def commits_fetch_position() -> list[Patch]:
    """A consumer commits how far it has fetched, not how far the application has read."""

    def consumed(self: ConsumerOffsets) -> dict[TopicPartition, CommittedOffset]:
        return {
            position.partition: CommittedOffset(offset=position.fetch_offset, leader_epoch=position.offset_epoch)
            for position in self._positions.by_partition.values()
            if position.has_position
        }

    return [(ConsumerOffsets, "consumed", consumed)]


def consumer_repeats() -> list[Patch]:
    """The last record is handed out once more now and then."""
    original = FetchedChunk.take
    calls = [0]

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        records = original(self, limit)
        calls[0] += 1
        return [*records, records[-1]] if records and calls[0] % 10 == 0 else records

    return [(FetchedChunk, "take", take)]


def offset_bit_flipped() -> list[Patch]:
    """A record is handed out, now and then, with an offset of which one high bit is wrong."""
    original = FetchedChunk.take
    calls = [0]

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        records = original(self, limit)
        calls[0] += 1
        if not records or calls[0] % 10:
            return records
        last = records[-1]
        flipped = Record(last.offset ^ 1 << 49, last.timestamp, last.key, last.value, last.headers)
        return [*records[:-1], flipped]

    return [(FetchedChunk, "take", take)]


def partial_chunk_repeats() -> list[Patch]:
    """A chunk that the application has read in part goes on, now and then, with the record that was read last."""
    original = FetchedChunk.take
    calls = [0]

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        records = original(self, limit)
        if records and 0 < self._decoded_next < len(self._decoded):
            calls[0] += 1
            if calls[0] % 5 == 0:
                self._decoded_next -= 1
                self.offset = self._decoded[self._decoded_next].offset
        return records

    return [(FetchedChunk, "take", take)]


def newest_batch_first() -> list[Patch]:
    """Of the batches that wait for a partition, the one that was begun last is sent first."""
    original = Accumulator.drain

    def drain(self: Accumulator, queues: list[PartitionQueue], now_ms: float) -> list[ProducerBatch]:
        for queue in queues:
            if not any(batch.has_sequence for batch in queue.batches):
                queue.batches.rotate(1)
        return original(self, queues, now_ms)

    return [(Accumulator, "drain", drain)]


def empty_keys_lost() -> list[Patch]:
    """An empty key is taken for none."""
    original = FetchedChunk.take

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        return [
            Record(record.offset, record.timestamp, record.key or None, record.value, record.headers)
            for record in original(self, limit)
        ]

    return [(FetchedChunk, "take", take)]


def seek_skips_target() -> list[Patch]:
    """An offset that is sought is taken for the last one that was read."""
    original = Consumer.seek

    def seek(
        self: Consumer,
        partition: tuple[str, int],
        offset: int,
        *,
        leader_epoch: int = -1,
        cluster: int | None = None,
    ) -> None:
        original(self, partition, offset + 1, leader_epoch=leader_epoch, cluster=cluster)

    return [(Consumer, "seek", seek)]
