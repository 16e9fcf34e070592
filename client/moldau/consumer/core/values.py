"""The results of the consumer, and a helper for its callbacks. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple

from moldau.cluster.arguments import shown
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.serialization.core.values import KeyOut, ValueOut

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from moldau.records import BatchHeader, Columns, Record

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None]]
"""A callback that receives the partitions that a rebalance assigns or revokes."""


class PartitionError(KafkaError):
    """Reports that one partition cannot be read; the others can."""

    def __init__(self, code: ErrorCode, partition: TopicPartition, text: str) -> None:
        super().__init__(code, text)
        self.partition = partition


class ConsumedRecord(NamedTuple, Generic[KeyOut, ValueOut]):
    """One record with its place. Iteration over a consumer returns these.

    Key and value are bytes, or what the consumer's deserializers return.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: KeyOut | None
    value: ValueOut | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)


class DeserializedRecord(NamedTuple):
    """A record of a batch whose key and value a consumer's deserializers have returned; the fields are ``Record``'s."""

    offset: int
    timestamp: int
    key: object
    value: object
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedBatch(Generic[KeyOut, ValueOut]):
    """Records of one partition, in order. ``next_offset`` is the position behind them.

    ``cluster`` is the consumer's ``clusters_left`` when it read them: in another cluster their offsets mean others.
    """

    topic: str
    partition: int
    records: list[Record[KeyOut, ValueOut]]
    next_offset: int
    leader_epoch: int
    high_watermark: int
    cluster: int = 0

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)

    def with_partition(self) -> Iterator[ConsumedRecord[KeyOut, ValueOut]]:
        """Returns the records, each with topic and partition."""
        topic, partition = self.topic, self.partition
        for each in self.records:
            yield ConsumedRecord(topic, partition, each.offset, each.timestamp, each.key, each.value, each.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedColumns:
    """Records of one partition as columns in Arrow's layout (see ``moldau.records.columns``).

    ``cluster`` is as in ``ConsumedBatch``.
    """

    topic: str
    partition: int
    columns: Columns
    next_offset: int
    high_watermark: int
    cluster: int = 0


class EncodedBatch(NamedTuple):
    """A record batch as it was fetched. Its records before ``first_offset`` were returned already."""

    header: BatchHeader
    data: memoryview
    """The whole batch, whose CRC was checked; borrowed from the answer of the fetch."""
    first_offset: int

    @property
    def new_records(self) -> int:
        """How many records were not returned before; more where compaction has removed some of them."""
        return min(self.header.record_count, self.header.next_offset - self.first_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatches:
    """Batches of one partition, in order; none if the position only moved past markers and aborted records.

    ``topic_id`` is that of the fetch that brought them, zero if the broker is too old for topic ids. ``leader_epoch``
    is that of the last batch. ``end_offset`` is the end of what the consumer may read, as in ``Lag``.
    """

    topic: str
    partition: int
    topic_id: UUID
    batches: list[EncodedBatch]
    next_offset: int
    leader_epoch: int
    high_watermark: int
    end_offset: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)


class RebalanceCallbacks(NamedTuple):
    """The application's functions that a rebalance calls."""

    on_assigned: RebalanceCallback | None
    on_revoked: RebalanceCallback | None
    on_lost: RebalanceCallback | None  # as a rule that for revoked partitions

    @classmethod
    def of(
        cls,
        on_assigned: RebalanceCallback | None,
        on_revoked: RebalanceCallback | None,
        on_lost: RebalanceCallback | None,
    ) -> RebalanceCallbacks:
        """Returns checked callbacks.

        Raises:
            TypeError: a callback is no async function.
        """
        revoked = checked_callback("on_revoked", on_revoked)
        return cls(
            checked_callback("on_assigned", on_assigned), revoked, checked_callback("on_lost", on_lost) or revoked
        )


def checked_callback(name: str, callback: RebalanceCallback | None) -> RebalanceCallback | None:
    """Returns a rebalance callback that raises ``TypeError`` where it is no async function."""
    wanted = f"Consumer: {name} must be an async function that takes a list of partitions"
    if callback is None or inspect.iscoroutinefunction(callback):
        return callback
    if not callable(callback):
        raise TypeError(f"{wanted}, not {shown(callback)}")

    async def run(partitions: list[TopicPartition]) -> None:
        awaited = callback(partitions)
        if not inspect.isawaitable(awaited):
            raise TypeError(f"{wanted}; an ordinary function belongs to moldau.blocking.Consumer")
        await awaited

    return run
