"""The consumer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Self

import trio

from moldau.aio.portal import AioClient, AioPortal
from moldau.cluster import arguments
from moldau.cluster.arguments import shown
from moldau.cluster.metadata import TopicPartition
from moldau.consumer import Consumer as TrioConsumer
from moldau.consumer.core.positions import Lag
from moldau.consumer.core.unread import Unread
from moldau.consumer.iteration import Iteration

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from types import TracebackType

    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.cluster.metadata import PartitionInfo
    from moldau.consumer import CommittedOffset, ConsumedBatch, ConsumedColumns, ConsumedRecord, RebalanceCallback
    from moldau.runtime.config import Config


class Consumer(AioClient):
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
    ) -> None:
        """Takes Kafka's consumer configuration keys and rebalance callbacks.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._consumer = TrioConsumer(
            config,
            on_assigned=self._in_loop("on_assigned", on_assigned),
            on_revoked=self._in_loop("on_revoked", on_revoked),
            on_lost=self._in_loop("on_lost", on_lost),
        )
        self._portal: AioPortal[TrioConsumer] = AioPortal("moldau-consumer", self._consumer)
        self._unread = Unread()
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

    async def close(self) -> None:
        """Closes the client as leaving the block without an exception does; idempotent."""
        self._end_iteration(gives_up=False)
        await super().close()

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Assigns exactly these partitions, without a group."""
        self._return_unread()
        self._portal.call_sync(self._consumer.assign, arguments.partitions("assign", partitions))

    def subscribe(self, topics: Iterable[str] = (), *, pattern: str | None = None) -> None:
        """Joins the group for these topics, or for all that match ``pattern``, at the next ``poll``."""
        self._return_unread()
        names = arguments.texts("subscribe", "topics", topics)
        self._portal.call_sync(self._consumer.subscribe, names, pattern=pattern)

    async def unsubscribe(self) -> None:
        """Gives up all partitions and leaves the group."""
        self._return_unread()
        await self._portal.call_async(self._consumer.unsubscribe)

    def group_metadata(self) -> GroupMetadata:
        """Returns this member's group metadata, for ``Producer.send_offsets_to_transaction``.

        Raises:
            ConfigError: ``group.id`` is not set.
        """
        return self._portal.call_sync(self._consumer.group_metadata)

    @property
    def subscription(self) -> list[str]:
        """The topics that the consumer is subscribed to."""
        return self._portal.call_sync(lambda: self._consumer.subscription)

    @property
    def paused(self) -> list[TopicPartition]:
        """Assigned partitions that ``pause`` holds back."""
        return self._portal.call_sync(lambda: self._consumer.paused)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The assigned partitions."""
        return self._portal.call_sync(lambda: self._consumer.assignment)

    async def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[ConsumedBatch]:
        """Returns records, or nothing after ``timeout_ms``.

        An interrupt (Ctrl-C, a signal handler that raises) loses no records: the next poll returns them again, and
        positions do not cover them until then.

        Raises:
            KafkaError: the brokers refused to serve a partition.
        """
        self._return_unread()
        return await self._portal.call_async_or_undo(
            self._put_back, self._consumer.poll, timeout_ms, max_records=max_records
        )

    async def poll_columns(
        self, timeout_ms: float = 1000, *, max_bytes: int = 16 * 1024 * 1024
    ) -> list[ConsumedColumns]:
        """Like ``poll``, but as columns in Arrow's layout."""
        self._return_unread()
        return await self._portal.call_async_or_undo(
            self._put_back_columns, self._consumer.poll_columns, timeout_ms, max_bytes=max_bytes
        )

    def _put_back(self, batches: Iterable[ConsumedBatch]) -> None:
        """Sets positions back before records that were taken but did not reach the caller."""
        for batch in batches:
            with contextlib.suppress(LookupError):  # a partition that is no longer assigned has no position to set back
                self._consumer.seek(batch.topic_partition, batch.records[0].offset, leader_epoch=batch.leader_epoch)

    def _put_back_columns(self, taken: Iterable[ConsumedColumns]) -> None:
        for each in taken:
            with contextlib.suppress(LookupError):
                self._consumer.seek((each.topic, each.partition), memoryview(each.columns.offsets).cast("q")[0])

    def __aiter__(self) -> Self:
        """Iterates over records, without end until the consumer is closed.

        Up to ``max.poll.records`` are fetched at a time. Positions and commits cover only those the loop has received.
        """
        return self

    async def __anext__(self) -> ConsumedRecord:
        while not self._is_closed:
            record = self._unread.take()
            if record is not None:
                return record
            fetched = await self._portal.call_async_or_undo(self._put_back, self._consumer.poll, 1000)
            self._unread.fill(fetched)
            if not fetched:
                await asyncio.sleep(0)
        raise StopAsyncIteration

    def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Iterates over the records of one partition at a time, without end until the consumer is closed."""
        return Iteration(self._next_batch)

    async def _next_batch(self) -> ConsumedBatch:
        self._return_unread()
        return await self._portal.call_async_or_undo(
            lambda batch: self._put_back([batch]), lambda: self._consumer.batches().__anext__()
        )

    def _end_iteration(self, *, gives_up: bool) -> None:
        self._is_closed = True
        if gives_up:
            self._unread.clear()
        else:
            self._return_unread()

    def _return_unread(self) -> None:
        """Sets positions back before the records that iteration has fetched and the loop has not received."""
        if self._unread:
            starts = self._unread.starts()
            self._unread.clear()
            self._portal.call_sync(self._seek_all, starts)

    def _seek_all(self, starts: Mapping[TopicPartition, tuple[int, int]]) -> None:
        for partition, (offset, leader_epoch) in starts.items():
            with contextlib.suppress(LookupError):  # a partition that is no longer assigned has no position to set back
                self._consumer.seek(partition, offset, leader_epoch=leader_epoch)

    def seek(self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1) -> None:
        """Moves the position of a partition to ``offset``.

        Raises:
            LookupError: the partition is not assigned.
        """
        self._return_unread()
        self._portal.call_sync(self._consumer.seek, partition, offset, leader_epoch=leader_epoch)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Goes to the log start offset of the partitions (all by default)."""
        self._return_unread()
        self._portal.call_sync(self._consumer.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Goes to the high watermark of the partitions (all by default)."""
        self._return_unread()
        self._portal.call_sync(self._consumer.seek_to_end, *partitions)

    async def position(self, partition: tuple[str, int], timeout_ms: float | None = None) -> int:
        """Returns the offset of the next record; waits until it is known."""
        found = await self._portal.call_async(self._consumer.position, partition, timeout_ms)
        return self._first_unread(partition, found)

    def position_nowait(self, partition: tuple[str, int]) -> int | None:
        """Returns the position, or None while it is unknown."""
        found = self._portal.call_sync(self._consumer.position_nowait, partition)
        return None if found is None else self._first_unread(partition, found)

    def _first_unread(self, partition: tuple[str, int], position: int) -> int:
        return self._unread.starts().get(TopicPartition(*partition), (position, -1))[0]

    def lag(self, partition: tuple[str, int]) -> Lag:
        """Returns how far the consumer is behind the end of the partition, as of the last fetch."""
        found = self._portal.call_sync(self._consumer.lag, partition)
        return Lag(position=self._first_unread(partition, found.position), end_offset=found.end_offset)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Stops reading the partitions; they stay assigned."""
        self._return_unread()
        self._portal.call_sync(self._consumer.pause, *partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Reads paused partitions again."""
        self._portal.call_sync(self._consumer.resume, *partitions)

    async def commit(self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None) -> None:
        """Commits offsets, by default the present positions.

        Raises:
            CommitFailedError: this member no longer belongs to the group's generation.
            KafkaError: the broker or the client reports an error.
        """
        if offsets is None and self._unread:
            await self._portal.call_async(self._consumer.commit, self.offsets_to_commit())
        else:
            await self._portal.call_async(self._consumer.commit, offsets)

    @property
    def commits_automatically(self) -> bool:
        """Whether the consumer commits positions by itself (``enable.auto.commit`` with a group)."""
        return self._consumer.commits_automatically

    def offsets_to_commit(self) -> dict[tuple[str, int], CommittedOffset]:
        """Returns what ``commit`` commits by default: the positions of the assigned partitions.

        Pass it to ``Producer.send_offsets_to_transaction``.
        """
        return self._portal.call_sync(self._consumer.offsets_to_commit, self._unread.starts())

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
