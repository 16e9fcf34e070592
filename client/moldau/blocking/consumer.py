"""The consumer for ordinary threads."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Generic, Self

from moldau.blocking.consumer_calls import ConsumerCalls
from moldau.blocking.portal import Portal, PortalClient
from moldau.cluster import arguments
from moldau.cluster.arguments import shown
from moldau.consumer import Consumer as TrioConsumer
from moldau.consumer.core.unread import Unread
from moldau.serialization.core.values import KeyOut, ValueOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from uuid import UUID

    from moldau.cluster.interceptors import ConsumerInterceptor
    from moldau.cluster.metadata import PartitionInfo, TopicPartition
    from moldau.consumer import CommittedOffset, ConsumedBatch, ConsumedColumns, ConsumedRecord, RebalanceCallback
    from moldau.consumer.core.statistics import ConsumerStatistics
    from moldau.runtime.config import Config
    from moldau.serialization.core.values import DeserializerLike


class Consumer(ConsumerCalls, PortalClient, Generic[KeyOut, ValueOut]):
    """A consumer for ordinary threads; see ``moldau.consumer.Consumer``. One thread at a time uses it.

    Closing commits positions (with ``enable.auto.commit``), leaves the group and ends the thread. After an exception
    the consumer leaves the group without a commit.

    Rebalance callbacks are ordinary functions. They run in a thread of their own while ``poll`` waits, and may commit
    and seek, but neither poll nor close.
    """

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        on_assigned: Callable[[list[TopicPartition]], None] | None = None,
        on_revoked: Callable[[list[TopicPartition]], None] | None = None,
        on_lost: Callable[[list[TopicPartition]], None] | None = None,
        key_deserializer: DeserializerLike[KeyOut] | None = None,
        value_deserializer: DeserializerLike[ValueOut] | None = None,
        interceptors: Iterable[ConsumerInterceptor] = (),
        on_statistics: Callable[[ConsumerStatistics], object] | None = None,
    ) -> None:
        """Takes Kafka's consumer configuration keys, rebalance callbacks and deserializers.

        Deserializers and interceptors run in the trio thread. Without a deserializer, keys or values are bytes.
        ``on_statistics`` receives ``statistics()`` every ``statistics.interval.ms``, in the trio thread.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._consumer: TrioConsumer[KeyOut, ValueOut] = TrioConsumer(
            config,
            on_assigned=self._as_async("on_assigned", on_assigned),
            on_revoked=self._as_async("on_revoked", on_revoked),
            on_lost=self._as_async("on_lost", on_lost),
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            interceptors=interceptors,
            on_statistics=on_statistics,
        )
        self._portal: Portal[TrioConsumer[KeyOut, ValueOut]] = Portal("moldau-consumer", self._consumer)
        self._unread: Unread[KeyOut, ValueOut] = Unread()
        self._is_closed = False

    def __enter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        self._portal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits positions (with ``enable.auto.commit``), leaves the group and ends the thread.

        After an exception it commits nothing.
        """
        self._end_iteration(gives_up=kind is not None)
        super().__exit__(kind, error, traceback)

    def close(self, timeout_ms: float = 30_000) -> None:
        """Closes the client as leaving the block without an exception does; idempotent.

        Takes at most ``timeout_ms``. An error of a rebalance callback is raised once the consumer is closed.
        """
        limit_ms = arguments.milliseconds("close", timeout_ms)
        self._end_iteration(gives_up=False)
        self._portal.stop(gives_up=False, closing=lambda opened: opened.close(limit_ms))

    def unsubscribe(self) -> None:
        """Gives up all partitions and leaves the group."""
        self._return_unread()
        self._portal.call(self._consumer.unsubscribe)

    def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[ConsumedBatch[KeyOut, ValueOut]]:
        """Returns records, or nothing after ``timeout_ms``.

        An interrupt (Ctrl-C, a signal handler that raises) loses no records: the next poll returns them again, and
        positions do not cover them until then.

        Raises:
            KafkaError: the brokers refused to serve a partition.
            RecordDeserializationError: a deserializer refuses a record; ``seek`` skips it.
            RegistryError: the schema registry does not answer; the next poll asks again.
        """
        self._return_unread()
        return self._portal.call_or_undo(self._put_back, self._consumer.poll, timeout_ms, max_records=max_records)

    def poll_columns(self, timeout_ms: float = 1000, *, max_bytes: int = 16 * 1024 * 1024) -> list[ConsumedColumns]:
        """Returns records as columns in Arrow's layout; otherwise works like ``poll``."""
        self._return_unread()
        return self._portal.call_or_undo(
            self._put_back_columns, self._consumer.poll_columns, timeout_ms, max_bytes=max_bytes
        )

    def __iter__(self) -> Iterator[ConsumedRecord[KeyOut, ValueOut]]:
        """Iterates over records, without end until the consumer is closed.

        Up to ``max.poll.records`` are fetched at a time. Positions and commits cover only those the loop has received.
        """
        while not self._is_closed:
            record = self._unread.take()
            if record is not None:
                yield record
                continue
            try:
                self._portal.call_or_undo(lambda _: self._seek_back(), self._fill_unread)
            except RuntimeError:
                if not self._closed_elsewhere():
                    raise

    def batches(self) -> Iterator[ConsumedBatch[KeyOut, ValueOut]]:
        """Iterates over the records of one partition at a time, without end until the consumer is closed."""
        while not self._is_closed:
            try:
                self._return_unread()
                batch = self._portal.call_or_undo(lambda batch: self._put_back([batch]), self._next_batch)
            except StopAsyncIteration:
                return
            except RuntimeError:
                if not self._closed_elsewhere():
                    raise
            else:
                yield batch

    async def _next_batch(self) -> ConsumedBatch[KeyOut, ValueOut]:
        return await self._consumer.batches().__anext__()

    def position(self, partition: tuple[str, int], timeout_ms: float | None = None) -> int:
        """Returns the offset of the next record; waits until it is known."""
        found = self._portal.call(self._consumer.position, partition, timeout_ms)
        return self._first_unread(partition, found)

    def commit(
        self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None, *, cluster: int | None = None
    ) -> None:
        """Commits offsets, by default the present positions; ``cluster`` is that of the batches that had the offsets.

        Raises:
            CommitFailedError: this member no longer belongs to the group's generation, or has left ``cluster``.
            KafkaError: the broker or the client reports an error.
        """
        if offsets is None and self._unread:
            self._portal.call(self._commit_received)
        else:
            self._portal.call(self._consumer.commit, offsets, cluster=cluster)

    def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, CommittedOffset]:
        """Returns the group's committed offsets; partitions without one are left out."""
        return self._portal.call(self._consumer.committed, arguments.partitions("committed", partitions))

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        wanted = arguments.partitions("beginning_offsets", partitions)
        return self._portal.call(self._consumer.beginning_offsets, wanted)

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the high watermark of each partition."""
        return self._portal.call(self._consumer.end_offsets, arguments.partitions("end_offsets", partitions))

    def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of the first record at or after each time."""
        return self._portal.call(self._consumer.offsets_for_times, times)

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic."""
        return self._portal.call(self._consumer.partitions_for, topic)

    def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns the id under which brokers keep this client's metrics (KIP-714).

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        return self._portal.call(self._consumer.client_instance_id, timeout_ms)

    def _as_async(self, name: str, callback: Callable[[list[TopicPartition]], None] | None) -> RebalanceCallback | None:
        """Returns a callback for the trio thread that runs ``callback`` in another thread and waits for it."""
        if callback is None:
            return None
        if inspect.iscoroutinefunction(callback) or not callable(callback):
            wanted = "must be an ordinary function that takes a list of partitions"
            raise TypeError(f"moldau.blocking.Consumer: {name} {wanted}, not {shown(callback)}")

        async def run(partitions: list[TopicPartition]) -> None:
            await self._portal.call_back(callback, partitions)

        return run
