"""Sends batches of a source to the target, for both modes of delivery."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from moldau.cluster.metadata import TopicPartition
from moldau.mirror.core.batches import JOINED_BYTES_MAX, groups, target_batches
from moldau.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.consumer.core.values import EncodedBatch
    from moldau.mirror.core.batches import Provenance, Run, TargetBatch
    from moldau.mirror.core.progress import Progress, Span
    from moldau.mirror.core.settings import SourceSettings
    from moldau.mirror.reading import Part
    from moldau.mirror.statistics import SourceStatistics
    from moldau.producer import Delivery, Producer
    from moldau.values import Buffer

TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
UNLIMITED: Final = 2**31 - 1
TARGET_WAIT_S: Final = 5.0
"""For metadata of a partition of the target. ``max.block.ms`` is a minute, for which no other partition is copied."""


class Sent(NamedTuple):
    """A span on its way, its batch's delivery (None if it holds nothing to copy), and the batch's size."""

    span: Span
    delivery: Delivery | None
    size_bytes: int


class TargetSender:
    """Sends what was read from a source."""

    def __init__(
        self,
        producer: Producer,
        progress: Progress,
        settings: SourceSettings,
        provenance: Provenance | None,
        statistics: SourceStatistics,
    ) -> None:
        self._producer = producer
        self._progress = progress
        self._policy = settings.policy
        self._alias = settings.alias
        self._provenance = provenance
        self._statistics = statistics
        self._bytes_max: dict[TopicPartition, int] = {}

    async def send(self, part: Part, sent: list[Sent], *, batches_max: int = UNLIMITED) -> bool:
        """Sends the batches of a part and adds each to ``sent`` as soon as the producer has it.

        Stops early if the partition begins again meanwhile. Returns whether ``batches_max`` left something out.

        Raises:
            KafkaError: the target's topic is missing, the producer has failed, and the like.
            CorruptRecordError: the source's records are damaged.
            InvalidRecordError: a batch cannot be sent.
        """
        read = part.batches
        remote = self.copy_of(part.partition).topic
        bytes_max = min(self._bytes_max.get(part.partition, UNLIMITED), JOINED_BYTES_MAX)
        for batch, *following in groups(read.batches, bytes_max=bytes_max):
            for one in self._built(part.partition, batch, following):
                span = self._span(part, one.runs, one.next_offset, batch.header.partition_leader_epoch)
                if span is None:
                    return False
                delivery = await self._send(remote, read.partition, one.data)
                sent.append(Sent(span, delivery, len(one.data)))
                if one.data is batch.data:
                    self._statistics.batches_passed += 1
                else:
                    self._statistics.batches_encoded += 1
                batches_max -= 1
                if batches_max <= 0 and span.after.offset < read.next_offset:
                    return True
        found = self._progress.by_partition.get(part.partition)
        if found is not None and found.sent_offset < read.next_offset:
            span = self._span(part, (), read.next_offset, read.leader_epoch)
            if span is not None:
                sent.append(Sent(span, None, 0))
        return False

    def copy_of(self, partition: TopicPartition) -> TopicPartition:
        """Returns the partition of the target that a partition of the source is copied to."""
        return TopicPartition(self._policy.remote_topic(self._alias, partition.topic), partition.partition)

    async def _send(self, remote: str, partition: int, data: Buffer) -> Delivery:
        """Sends a batch; waits as long as it takes for memory, and for a moment only for a partition of the target.

        Raises:
            KafkaError: the target has no such partition, because an operator has deleted the topic for example.
        """
        with trio.move_on_after(TARGET_WAIT_S) as limit:
            if len(await self._producer.partitions_for(remote)) > partition:
                limit.deadline = math.inf
            return await self._producer.send_encoded(remote, partition, data)
        text = f"the target does not show partition {remote}-{partition} within {TARGET_WAIT_S:g} s"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    def _built(
        self, partition: TopicPartition, batch: EncodedBatch, following: Sequence[EncodedBatch]
    ) -> list[TargetBatch]:
        bytes_max = self._bytes_max.get(partition, UNLIMITED)
        built = target_batches(batch, self._provenance, bytes_max=bytes_max, following=following)
        if self._provenance is not None:
            copied = sum(run.count for one in built for run in one.runs)
            read = sum(each.header.record_count for each in (batch, *following))
            self._statistics.records_refused += max(read - copied, 0)
        return built

    def _span(self, part: Part, runs: tuple[Run, ...], next_offset: int, leader_epoch: int) -> Span | None:
        return self._progress.sent(
            part.partition,
            part.generation,
            runs,
            next_offset,
            topic_id=part.batches.topic_id,
            leader_epoch=leader_epoch,
        )

    def shrinks(self, one: Sent, error: KafkaError) -> bool:
        """Returns whether sending a refused batch again in smaller parts may help, and makes later batches smaller."""
        records = sum(run.count for run in one.span.runs)
        if error.code not in TOO_LARGE or records < 2:
            return False
        partition = one.span.partition
        self._bytes_max[partition] = max(min(self._bytes_max.get(partition, UNLIMITED), one.size_bytes) // 2, 1)
        return True

    @property
    def limits(self) -> Mapping[TopicPartition, int]:
        """Sizes of batches, in bytes, for partitions whose larger batches the target has refused."""
        return dict(self._bytes_max)
