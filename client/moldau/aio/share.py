"""The share consumer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Generic, Self

from moldau.aio.portal import AioClient, AioPortal
from moldau.blocking.share_calls import ShareCalls
from moldau.cluster import arguments
from moldau.serialization.core.values import KeyOut, ValueOut
from moldau.share import ShareConsumer as TrioShareConsumer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from uuid import UUID

    from moldau.cluster.metadata import TopicPartition
    from moldau.protocol.errors import KafkaError
    from moldau.runtime.config import Config
    from moldau.serialization.core.values import DeserializerLike
    from moldau.share import ShareRecord

    Callback = Callable[[TopicPartition, list[int], KafkaError | None], object]


class ShareConsumer(ShareCalls, AioClient, Generic[KeyOut, ValueOut]):
    """A share consumer for asyncio; see ``moldau.share.ShareConsumer``. One task at a time uses it.

    Closing sends the acknowledgements, releases all other records, leaves the group and ends the thread.
    """

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        on_acknowledged: Callback | None = None,
        key_deserializer: DeserializerLike[KeyOut] | None = None,
        value_deserializer: DeserializerLike[ValueOut] | None = None,
    ) -> None:
        """Takes Kafka's configuration keys of share consumers, a callback and deserializers.

        The callback, an ordinary function, runs in the event loop, whose exception handler receives its errors. The
        deserializers run in the trio thread.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed, or ``group.id`` is not set.
        """
        self._consumer: TrioShareConsumer[KeyOut, ValueOut] = TrioShareConsumer(
            config,
            on_acknowledged=None if on_acknowledged is None else self._in_loop(on_acknowledged),
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
        )
        self._portal: AioPortal[TrioShareConsumer[KeyOut, ValueOut]] = AioPortal(
            "moldau-share-consumer", self._consumer
        )
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        await self._portal.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Sends the acknowledgements, releases all other records, leaves the group and ends the thread.

        After an exception pending work is dropped; it leaves the group even then.
        """
        self._begin_close()
        await super().__aexit__(kind, error, traceback)

    async def close(self, timeout_ms: float = 30_000) -> None:
        """Sends the acknowledgements, releases all other records and leaves the group; idempotent.

        Takes at most ``timeout_ms``.
        """
        limit_ms = arguments.milliseconds("close", timeout_ms)
        self._begin_close()
        await self._portal.shut(gives_up=False, closing=lambda opened: opened.close(limit_ms))

    async def unsubscribe(self) -> None:
        """Sends the acknowledgements, releases all other records and leaves the group."""
        await self._portal.call_async(self._consumer.unsubscribe)

    async def poll(
        self, timeout_ms: float = 1000, max_records: int | None = None
    ) -> list[ShareRecord[KeyOut, ValueOut]]:
        """Returns records that this member has acquired, or nothing after ``timeout_ms``.

        Accepts the records of the poll before in the mode ``implicit``. Records that a cancellation keeps from the
        caller are released.

        Raises:
            RuntimeError: in the mode ``explicit``, records of earlier polls are not acknowledged.
            KafkaError: the brokers refuse the member, or a batch is damaged.
            RecordDeserializationError: a deserializer refuses a record, which is released.
            RegistryError: the schema registry does not answer.
        """
        return await self._portal.call_async_or_undo(
            self._consumer.put_back, self._consumer.poll, timeout_ms, max_records
        )

    def __aiter__(self) -> Self:
        """Iterates over records, without end until the consumer is closed.

        In the mode ``implicit`` asking for the next record accepts the one before.
        """
        return self

    async def __anext__(self) -> ShareRecord[KeyOut, ValueOut]:
        while not self._is_closed:
            try:
                records = await self.poll(1000, 1)
            except RuntimeError:
                if not self._closed_elsewhere():
                    raise
                break
            if records:
                return records[0]
            await asyncio.sleep(0)
        raise StopAsyncIteration

    async def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns the id under which brokers keep this client's metrics (KIP-714).

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        return await self._portal.call_async(self._consumer.client_instance_id, timeout_ms)

    async def commit(self, timeout_ms: float | None = None) -> dict[TopicPartition, KafkaError | None]:
        """Sends the acknowledgements and waits until the brokers have stored them; returns the outcome by partition.

        Raises:
            TimeoutError: the brokers did not answer within ``timeout_ms``.
        """
        return await self._portal.call_async(self._consumer.commit, timeout_ms)

    def _in_loop(self, callback: Callback) -> Callback:
        def call(partition: TopicPartition, offsets: list[int], error: KafkaError | None) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._portal.loop.call_soon_threadsafe(callback, partition, offsets, error)

        return call
