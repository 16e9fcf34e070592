"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Generic, Self

import trio

from moldau.aio.portal import AioClient, AioPortal
from moldau.blocking.consumer_calls import ConsumerCalls
from moldau.cluster import arguments
from moldau.cluster.arguments import shown
from moldau.cluster.reports import check_callback
from moldau.consumer import Consumer as TrioConsumer
from moldau.consumer.core.unread import Unread
from moldau.consumer.iteration import Iteration
from moldau.serialization.core.values import KeyOut, ValueOut

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from types import TracebackType
    from uuid import UUID

    from moldau.cluster.interceptors import ConsumerInterceptor
    from moldau.cluster.metadata import PartitionInfo, TopicPartition
    from moldau.consumer import CommittedOffset, ConsumedBatch, ConsumedColumns, ConsumedRecord, RebalanceCallback
    from moldau.consumer.core.statistics import ConsumerStatistics
    from moldau.runtime.config import Config
    from moldau.serialization.core.values import DeserializerLike


class Consumer(ConsumerCalls, AioClient, Generic[KeyOut, ValueOut]):
    """A consumer for asyncio; see ``moldau.consumer.Consumer``. One task at a time uses it.

    Closing commits positions (with ``enable.auto.commit``), leaves the group and ends the thread. After an exception
    the consumer leaves the group without a commit.

    Rebalance callbacks are coroutine functions. They run in the event loop while ``poll`` waits, and may commit.
    """

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
        key_deserializer: DeserializerLike[KeyOut] | None = None,
        value_deserializer: DeserializerLike[ValueOut] | None = None,
        interceptors: Iterable[ConsumerInterceptor] = (),
        on_statistics: Callable[[ConsumerStatistics], object] | None = None,
    ) -> None:
        """Takes Kafka's consumer configuration keys, rebalance callbacks and deserializers.

        Deserializers and interceptors run in the trio thread. Without a deserializer, keys or values are bytes.
        ``on_statistics`` receives ``statistics()`` every ``statistics.interval.ms``, in the event loop.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        check_callback("Consumer", on_statistics)
        self._consumer: TrioConsumer[KeyOut, ValueOut] = TrioConsumer(
            config,
            on_assigned=self._in_loop("on_assigned", on_assigned),
            on_revoked=self._in_loop("on_revoked", on_revoked),
            on_lost=self._in_loop("on_lost", on_lost),
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            interceptors=interceptors,
            on_statistics=None if on_statistics is None else self._reporting(on_statistics),
        )
        self._portal: AioPortal[TrioConsumer[KeyOut, ValueOut]] = AioPortal("moldau-consumer", self._consumer)
        self._unread: Unread[KeyOut, ValueOut] = Unread()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        await self._portal.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits positions (with ``enable.auto.commit``), leaves the group and ends the thread.

        After an exception it commits nothing.
        """
        self._end_iteration(gives_up=kind is not None)
        await super().__aexit__(kind, error, traceback)

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Closes the client as leaving the block without an exception does; idempotent.

        Takes at most ``timeout_ms``. An error of a rebalance callback is raised once the consumer is closed.
        """
        limit_ms = arguments.milliseconds("close", timeout_ms)
        self._end_iteration(gives_up=False)
        await self._portal.shut(gives_up=False, closing=lambda opened: opened.close(limit_ms))

    async def unsubscribe(self) -> None:
        """Gives up all partitions and leaves the group."""
        self._return_unread()
        await self._portal.call_async(self._consumer.unsubscribe)

    async def poll(
        self, timeout_ms: float = 1000, max_records: int | None = None
    ) -> list[ConsumedBatch[KeyOut, ValueOut]]:
        """Returns records, or nothing after ``timeout_ms``.

        An interrupt (Ctrl-C, a signal handler that raises) loses no records: the next poll returns them again, and
        positions do not cover them until then.

        Raises:
            KafkaError: the brokers refused to serve a partition.
            RecordDeserializationError: a deserializer refuses a record; ``seek`` skips it.
            RegistryError: the schema registry does not answer; the next poll asks again.
        """
        self._return_unread()
        return await self._portal.call_async_or_undo(
            self._put_back, self._consumer.poll, timeout_ms, max_records=max_records
        )

    async def poll_columns(
        self, timeout_ms: float = 1000, *, max_bytes: int = 16 * 1024 * 1024
    ) -> list[ConsumedColumns]:
        """Returns records as columns in Arrow's layout; otherwise works like ``poll``."""
        self._return_unread()
        return await self._portal.call_async_or_undo(
            self._put_back_columns, self._consumer.poll_columns, timeout_ms, max_bytes=max_bytes
        )

    def __aiter__(self) -> Self:
        """Iterates over records, without end until the consumer is closed.

        Up to ``max.poll.records`` are fetched at a time. Positions and commits cover only those the loop has received.
        """
        return self

    async def __anext__(self) -> ConsumedRecord[KeyOut, ValueOut]:
        while not self._is_closed:
            record = self._unread.take()
            if record is not None:
                return record
            try:
                await self._portal.call_async_or_undo(lambda _: self._seek_back(), self._fill_unread)
            except RuntimeError:
                if not self._closed_elsewhere():
                    raise
                break
            if not self._unread:
                await asyncio.sleep(0)
        raise StopAsyncIteration

    def batches(self) -> AsyncIterator[ConsumedBatch[KeyOut, ValueOut]]:
        """Iterates over the records of one partition at a time, without end until the consumer is closed."""
        return Iteration(self._next_batch)

    async def _next_batch(self) -> ConsumedBatch[KeyOut, ValueOut]:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            self._return_unread()
            return await self._portal.call_async_or_undo(
                lambda batch: self._put_back([batch]), lambda: self._consumer.batches().__anext__()
            )
        except RuntimeError:
            if not self._closed_elsewhere():
                raise
            raise StopAsyncIteration from None

    async def position(self, partition: tuple[str, int], timeout_ms: float | None = None) -> int:
        """Returns the offset of the next record; waits until it is known."""
        found = await self._portal.call_async(self._consumer.position, partition, timeout_ms)
        return self._first_unread(partition, found)

    async def commit(
        self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None, *, cluster: int | None = None
    ) -> None:
        """Commits offsets, by default the present positions; ``cluster`` is that of the batches that had the offsets.

        Raises:
            CommitFailedError: this member no longer belongs to the group's generation, or has left ``cluster``.
            KafkaError: the broker or the client reports an error.
        """
        if offsets is None and self._unread:
            await self._portal.call_async(self._commit_received)
        else:
            await self._portal.call_async(self._consumer.commit, offsets, cluster=cluster)

    async def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, CommittedOffset]:
        """Returns the group's committed offsets; partitions without one are left out."""
        return await self._portal.call_async(self._consumer.committed, arguments.partitions("committed", partitions))

    async def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        wanted = arguments.partitions("beginning_offsets", partitions)
        return await self._portal.call_async(self._consumer.beginning_offsets, wanted)

    async def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the high watermark of each partition."""
        return await self._portal.call_async(
            self._consumer.end_offsets, arguments.partitions("end_offsets", partitions)
        )

    async def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of the first record at or after each time."""
        return await self._portal.call_async(self._consumer.offsets_for_times, times)

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic."""
        return await self._portal.call_async(self._consumer.partitions_for, topic)

    async def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns the id under which brokers keep this client's metrics (KIP-714).

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        return await self._portal.call_async(self._consumer.client_instance_id, timeout_ms)

    def _reporting(self, callback: Callable[[ConsumerStatistics], object]) -> Callable[[ConsumerStatistics], object]:
        def call(statistics: ConsumerStatistics) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._portal.loop.call_soon_threadsafe(callback, statistics)

        return call

    def _in_loop(self, name: str, callback: RebalanceCallback | None) -> RebalanceCallback | None:
        """Returns a callback for the trio thread that runs ``callback`` in the event loop and waits for it."""
        if callback is None:
            return None
        wanted = f"moldau.aio.Consumer: {name} must be a coroutine function that takes a list of partitions"
        if not callable(callback):
            raise TypeError(f"{wanted}, not {shown(callback)}")

        async def call(partitions: list[TopicPartition]) -> None:
            awaited = callback(partitions)
            if not inspect.isawaitable(awaited):
                raise TypeError(f"{wanted}; an ordinary function belongs to moldau.blocking.Consumer")
            await awaited

        async def run(partitions: list[TopicPartition]) -> None:
            token = trio.lowlevel.current_trio_token()
            ended = trio.Event()

            def end(_: object) -> None:
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(ended.set)

            future = asyncio.run_coroutine_threadsafe(call(partitions), self._portal.loop)
            future.add_done_callback(end)
            try:
                await ended.wait()
            except trio.Cancelled:
                future.cancel()
                raise
            future.result()

        return run
