"""Records that a face of the consumer has fetched ahead of the loop that reads them one by one. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic

from moldau.cluster.metadata import TopicPartition
from moldau.serialization.core.values import KeyOut, ValueOut

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.consumer.core.values import ConsumedBatch, ConsumedRecord


class Unread(Generic[KeyOut, ValueOut]):
    """The rest of one poll. Positions that count must lie before it: ``starts`` names them.

    ``cluster`` is the consumer's ``clusters_left`` of that poll: the starts mean nothing in another cluster. One thread
    may ``take`` records while another one calls ``give_back``.
    """

    __slots__ = ("_epochs", "_records", "cluster")

    def __init__(self) -> None:
        self._records: deque[ConsumedRecord[KeyOut, ValueOut]] = deque()
        self._epochs: dict[TopicPartition, int] = {}
        self.cluster = 0

    def __len__(self) -> int:
        return len(self._records)

    def fill(self, batches: Iterable[ConsumedBatch[KeyOut, ValueOut]]) -> None:
        """Adds the records of a poll."""
        self._epochs.clear()
        for batch in batches:
            self.cluster = batch.cluster
            self._epochs[batch.topic_partition] = batch.leader_epoch
            self._records.extend(batch.with_partition())

    def take(self) -> ConsumedRecord[KeyOut, ValueOut] | None:
        """Removes the next record and returns it; None if all are read."""
        try:
            return self._records.popleft()
        except IndexError:
            return None

    def starts(self) -> dict[TopicPartition, tuple[int, int]]:
        """Returns offset and leader epoch of the first unread record of each partition."""
        return self._starts_of(self._records)

    def _starts_of(self, records: Iterable[ConsumedRecord[KeyOut, ValueOut]]) -> dict[TopicPartition, tuple[int, int]]:
        found: dict[TopicPartition, tuple[int, int]] = {}
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if partition not in found:
                found[partition] = (record.offset, self._epochs[partition])
        return found

    def give_back(self) -> dict[TopicPartition, tuple[int, int]]:
        """Forgets the records, and returns the ``starts`` that they had."""
        return self._starts_of(list(iter(self.take, None)))

    def clear(self) -> None:
        """Forgets the records."""
        self._records.clear()
