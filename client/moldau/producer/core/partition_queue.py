"""The batches of one partition that a producer has not delivered. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moldau.producer.core.batches import NO_PRODUCER_ID
from moldau.records import PartitionSlot

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition
    from moldau.producer.core.batches import ProducerBatch


SIZE_FIRST = 4096
"""Bytes of memory with which the first batch of a partition begins."""


class PartitionQueue(PartitionSlot):
    """The batches of one partition.

    Invariant: ``open_batch`` is the last batch while that takes records one by one; sending it ends this.
    """

    __slots__ = (
        "batches",
        "known_producer_id",
        "last_size",
        "needs_new_epoch",
        "next_ordinal",
        "next_sequence",
        "outstanding",
        "partition",
        "stamp",
    )

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__()
        self.partition = partition
        self.batches: deque[ProducerBatch] = deque()
        self.outstanding: list[ProducerBatch] = []  # sent at least once, not settled
        self.next_sequence = 0
        self.next_ordinal = 0
        self.stamp = (NO_PRODUCER_ID, -1)  # producer id and epoch that next_sequence belongs to
        self.needs_new_epoch = False
        self.known_producer_id = NO_PRODUCER_ID  # the producer id of which the leader has acknowledged a batch
        self.last_size = SIZE_FIRST

    @property
    def in_flight(self) -> int:
        """Batches whose answer has not arrived yet."""
        return sum(batch.is_in_flight for batch in self.outstanding)
