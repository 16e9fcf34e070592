"""Lets readers seek: to the beginning, to an offset that they have read, to the time of a record that they have read.

A reader seeks only to positions that it has read, so every target exists, because polled records are committed. It
remembers the last records that it read. The first one of them that is not earlier than the requested time is an upper
bound for the cluster's answer.

Some seeks are hasty: the reader seeks to the end just before, so that it seeks again while the answer to the first seek
is on its way. That answer must change nothing any more.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import KafkaError
from moldau_jepsen.history import Kind, Seek, Status, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.consumer import ConsumedBatch, Consumer
    from moldau_jepsen.workloads.recording.recorder import Recorder

REMEMBERED = 200
"""Records of each partition: far enough back for targets in older segments."""
NONE_FOUND = -1
BEGINNING_MAX = 20_000
"""A reader above this offset of a partition does not seek to the beginning, because the read would take too long."""
HASTY_SHARE = 0.6
"""Of the seeks to the beginning or to an offset: the reader seeks to the end just before."""
HASTE_S = (0.0, 0.000_2, 0.002, 0.02, 0.2)
"""Pauses between the two seeks: from less than the time of an answer to more."""


class Seeker:
    """The memory of one reader, and its decisions to seek."""

    def __init__(self, recorder: Recorder, process: int, share: float) -> None:
        """``share`` of the polls that returned something are followed by a seek."""
        self._recorder = recorder
        self._process = process
        self._share = share
        self._draw = random.Random(process)  # of its own: whether readers seek shifts no draw of their clients
        self._haste = random.Random(f"haste of {process}")  # likewise
        self._read: dict[TopicPartition, deque[tuple[int, int]]] = {}
        self._at: dict[TopicPartition, int] = {}
        self._reached: dict[TopicPartition, int] = {}

    def is_back(self, consumer: Consumer) -> bool:
        """Returns whether the reader has come as far again as it was before its seeks.

        Until then it must not commit: it would take back what its group has committed.
        """
        return all(self._at[place] >= self._reached[place] for place in consumer.assignment if place in self._at)

    async def saw(self, consumer: Consumer, batches: Sequence[ConsumedBatch]) -> None:
        """Remembers what was read, and perhaps seeks in one of the partitions."""
        if not self._share:
            return
        for batch in batches:
            partition = TopicPartition(batch.topic, batch.partition)
            read = self._read.setdefault(partition, deque(maxlen=REMEMBERED))
            read.extend((record.offset, record.timestamp) for record in batch.records)
            self._at[partition] = read[-1][0]
            self._reached[partition] = max(self._reached.get(partition, 0), read[-1][0])
        if not batches or self._draw.random() >= self._share:
            return
        places = [partition for partition in consumer.assignment if self._read.get(partition)]
        if not places:
            return
        begun_ms = self._recorder.now_ms()
        seek = await self._move(consumer, self._draw.choice(places))
        if seek is not None:
            if seek.offset != NONE_FOUND:
                self._at[seek.partition] = (seek.offset or 0) - 1  # of the record before the next one
            self._recorder.operation(self._process, Kind.SEEK, Status.OK, begun_ms, seeks=[seek])

    async def _move(self, consumer: Consumer, partition: TopicPartition) -> Seek | None:
        offset, timestamp = self._draw.choice(self._read[partition])
        way = self._draw.random()
        if way < 0.6 and self._haste.random() < HASTY_SHARE:
            consumer.seek_to_end(partition)
            await trio.sleep(self._haste.choice(HASTE_S))
            if partition not in consumer.assignment:
                return None  # a rebalance has taken it meanwhile
        if way < 0.2 and offset < BEGINNING_MAX:
            consumer.seek_to_beginning(partition)
            return Seek(partition, None)
        if way < 0.6:
            consumer.seek(partition, offset)
            return Seek(partition, offset)
        bound = min(read for read, time in self._read[partition] if time >= timestamp)
        try:
            found, found_timestamp = (await consumer.offsets_for_times({partition: timestamp}))[partition]
        except (KafkaError, trio.TooSlowError):
            return None
        if partition not in consumer.assignment:
            return None  # a rebalance has taken it meanwhile
        if found != NONE_FOUND:
            consumer.seek(partition, found)
        return Seek(partition, found, timestamp, found_timestamp, bound)
