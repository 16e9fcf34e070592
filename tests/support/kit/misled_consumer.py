"""A stub of a consumer that is given impossible offsets, as from a batch whose base offset has rotted on a disk.

Its position is far behind the end then. The broker refuses the next fetch, and the consumer begins again at the
earliest offset, as ``auto.offset.reset`` says.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import trio

from moldau.records import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from moldau_jepsen.history import TopicPartition

ROTTEN_BIT = 1 << 49


class MisledConsumer:
    """Reads the records of one partition. Those at offsets of ``rotten`` have another offset the first time."""

    def __init__(self, partition: TopicPartition, records: Sequence[Record], rotten: set[int]) -> None:
        self.partition, self.records, self.rotten = partition, records, rotten
        self.position = 0
        self.assignment: list[TopicPartition] = []
        self.on_assigned: Callable[[list[TopicPartition]], Awaitable[None]] | None = None

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1 if self.records else 0

    async def __aenter__(self) -> MisledConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self.assignment = list(partitions)

    def subscribe(self, topics: Iterable[str]) -> None:
        assert list(topics) == [self.partition.topic]

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: self.end if partition == self.partition else 0 for partition in partitions}

    def position_nowait(self, partition: TopicPartition) -> int:
        return self.position if partition == self.partition else 0

    async def poll(self, timeout_ms: float = 0.0) -> list[SimpleNamespace]:
        if self.on_assigned is not None and not self.assignment:
            self.assignment = [self.partition]
            await self.on_assigned(self.assignment)
        await trio.sleep(timeout_ms / 1000)
        if self.position > self.end:
            self.position = 0
        found = [record for record in self.records if record.offset >= self.position]
        for place, record in enumerate(found):
            if record.offset in self.rotten:
                self.rotten.remove(record.offset)
                wrong = Record(record.offset ^ ROTTEN_BIT, record.timestamp, record.key, record.value, record.headers)
                found = [*found[:place], wrong]
                break
        if not found:
            return []
        self.position = found[-1].offset + 1
        topic, number = self.partition
        return [SimpleNamespace(topic=topic, partition=number, topic_partition=self.partition, records=found)]
