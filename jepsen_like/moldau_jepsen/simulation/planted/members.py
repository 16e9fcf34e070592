"""Bugs of the client library: in what it hands out, commits, and sends again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer.chunk import FetchedChunk
from moldau.consumer.consumer import Consumer
from moldau.consumer.fetcher import CommittedOffset
from moldau.producer.accumulator import Accumulator
from moldau.records import Record

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition
    from moldau.producer.accumulator import PartitionQueue, ProducerBatch
    from moldau_jepsen.simulation.planted import Patch


def commits_what_was_fetched() -> list[Patch]:
    """What is committed is how far the consumer has fetched, not how far the application has read."""

    def consumed(self: Consumer) -> dict[TopicPartition, CommittedOffset]:
        return {
            position.partition: CommittedOffset(offset=position.fetch_offset, leader_epoch=position.offset_epoch)
            for position in self._positions.by_partition.values()
            if position.has_position
        }

    return [(Consumer, "_consumed", consumed)]


def consumer_repeats() -> list[Patch]:
    """The last record is handed out once more now and then."""
    original = FetchedChunk.take
    calls = [0]

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        records = original(self, limit)
        calls[0] += 1
        return [*records, records[-1]] if records and calls[0] % 10 == 0 else records

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


def retries_numbered_anew() -> list[Patch]:
    """A batch that is sent again goes behind the others, and gets the sequence number that is next then."""

    def requeue(self: Accumulator, queue: PartitionQueue, batch: ProducerBatch) -> None:
        queue.outstanding.remove(batch)
        queue.outstanding.append(batch)
        batch.base_sequence = -1
        queue.batches.append(batch)
        self._renumber_if_drained(queue)

    return [(Accumulator, "_requeue", requeue)]


def empty_keys_lost() -> list[Patch]:
    """An empty key is taken for none."""
    original = FetchedChunk.take

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        return [
            Record(record.offset, record.timestamp, record.key or None, record.value, record.headers)
            for record in original(self, limit)
        ]

    return [(FetchedChunk, "take", take)]
