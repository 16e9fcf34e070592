"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, Self, cast

import trio

from moldau.aio.portal import AioClient, AioPortal, LoopEvent
from moldau.blocking.handover import Handover, PendingDelivery, handed_over
from moldau.cluster import arguments
from moldau.cluster.interceptors import ProducerInterceptor, on_acknowledgement, on_send
from moldau.cluster.reports import check_callback
from moldau.producer import OutputRecord
from moldau.producer import Producer as TrioProducer
from moldau.producer.delivery import wait_settled
from moldau.producer.steps import Steps, transaction
from moldau.serialization.core.records import RecordEncoder
from moldau.serialization.core.values import KeyIn, SchemaNeeded, ValueIn

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager
    from uuid import UUID

    from moldau.aio.consumer import Consumer
    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.cluster.metadata import PartitionInfo
    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.consumer import CommittedOffset
    from moldau.producer import Delivery, PartitionerFunction, PreparedTransaction, RecordMetadata
    from moldau.producer.core.statistics import ProducerStatistics
    from moldau.producer.steps import Transform
    from moldau.runtime.config import Config
    from moldau.serialization.core.values import Headers, SerializerLike
    from moldau.values import Buffer

_SENDS_PER_STEP = 256
"""Records after which ``send`` lets other tasks of the event loop run."""


class AioDelivery(PendingDelivery["Producer[Any, Any]"]):
    """The outcome of one record: ``await delivery`` returns its ``RecordMetadata`` or raises its error.

    Several tasks may await it, any number of times, or drop it. Cancelling the wait does not recall the record.
    """

    __slots__ = ()

    def result(self) -> RecordMetadata:
        """Returns the outcome, or raises the record's error.

        Raises:
            RuntimeError: the outcome is not known yet.
        """
        if not self.is_done:
            raise RuntimeError("the record has not been delivered yet; await the delivery")
        return self.outcome()

    async def wait(self) -> RecordMetadata:
        """Waits for the outcome, at most ``delivery.timeout.ms`` after ``send``."""
        if not self.is_done:
            await self._owner.wait_delivery(self)
        return self.outcome()

    def __await__(self) -> Generator[object, object, RecordMetadata]:
        return self.wait().__await__()


class Producer(AioClient, Generic[KeyIn, ValueIn]):
    """A producer for asyncio; see ``moldau.producer.Producer``. Tasks of one event loop may share it.

    Closing delivers pending records. After an exception it drops them and aborts an open transaction.
    """

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        partitioner: PartitionerFunction | None = None,
        key_serializer: SerializerLike[KeyIn] | None = None,
        value_serializer: SerializerLike[ValueIn] | None = None,
        interceptors: Iterable[ProducerInterceptor] = (),
        on_statistics: Callable[[ProducerStatistics], object] | None = None,
    ) -> None:
        """Takes Kafka's producer configuration keys, and serializers; without one, keys or values are bytes.

        ``on_statistics`` receives ``statistics()`` every ``statistics.interval.ms``, in the event loop.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        check_callback("Producer", on_statistics)
        self._trio_producer: TrioProducer = TrioProducer(
            config,
            partitioner=partitioner,
            interceptors=interceptors,
            on_statistics=None if on_statistics is None else self._in_loop(on_statistics),
        )
        self._encoder = RecordEncoder.of(key_serializer, value_serializer)
        self._portal: AioPortal[Handover] = AioPortal("moldau-producer", handed_over(self._trio_producer))
        self._handover: Handover | None = None
        self._steps = Steps()
        self._since_step = 0
        self._room: LoopEvent | None = None
        self._awaited: deque[tuple[AioDelivery, LoopEvent]] = deque()

    async def __aenter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        self._handover = await self._portal.open()
        return self

    async def close(self, timeout_ms: float = math.inf) -> None:
        """Delivers pending records for at most ``timeout_ms``, fails the rest, and ends the thread; idempotent.

        It aborts an open transaction, and waits for a commit under way. A second call waits for the first.
        """
        timeout_ms = arguments.milliseconds("close", timeout_ms)
        await self._portal.shut(gives_up=False, closing=lambda opened: opened.close(timeout_ms))

    def _opened(self) -> Handover:
        if self._handover is None:
            raise RuntimeError("the client is not open; use it as `async with ... as ...`")
        return self._handover

    # --- sending

    async def send(
        self,
        topic: str,
        value: ValueIn | None,
        key: KeyIn | None = None,
        *,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> AioDelivery:
        """Queues a record and returns its delivery; waits only while too many records or bytes wait.

        ``HANDOVER_RECORDS_MAX`` bounds the records, ``HANDOVER_BYTES_MAX`` the bytes of large ones.

        Buffers must not change until the trio thread has taken the record. ``send`` itself raises only ``TypeError``
        and ``ValueError``, for
        invalid arguments and values that cannot be serialized, and ``RegistryError``; awaiting the delivery raises all
        other errors.
        """
        given = tuple(arguments.headers("send", headers))
        if not self._trio_producer.interceptors:
            key_bytes, value_bytes = await self._encoded(topic, key, value, given)
            return await self.send_bytes(
                topic, value_bytes, key_bytes, headers=given, partition=partition, timestamp=timestamp
            )
        record: OutputRecord[Any, Any] = OutputRecord(topic, value, key, given, partition, timestamp)
        record = on_send(self._trio_producer.interceptors, record)
        try:
            return await self._send_intercepted(record)
        except BaseException as error:  # a cancellation, too: no outcome follows it
            on_acknowledgement(self._trio_producer.interceptors, record, None, error)
            raise

    async def _send_intercepted(self, record: OutputRecord[Any, Any]) -> AioDelivery:
        topic, value, key, given, partition, timestamp = record
        headers = tuple(arguments.headers("send", given))
        key_bytes, value_bytes = await self._encoded(topic, key, value, headers)
        return await self._put(topic, value_bytes, key_bytes, headers, partition, timestamp, record)

    async def send_bytes(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        *,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> AioDelivery:
        """Sends a record whose key and value are serialized already; otherwise works like ``send``."""
        return await self._put(topic, value, key, headers, partition, timestamp, None)

    async def _put(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        partition: int | None,
        timestamp: int | None,
        intercepted: OutputRecord[Any, Any] | None,
    ) -> AioDelivery:
        token = self._portal.token
        handover = self._opened()
        delivery = AioDelivery(self)
        delivery.intercepted = intercepted
        given, partition, timestamp = arguments.record("send", topic, value, key, headers, partition, timestamp)
        record = (topic, value, key, tuple(given), partition, timestamp, delivery)
        self._since_step += 1
        if self._since_step >= _SENDS_PER_STEP:  # before the record is queued: a cancelled call sends nothing
            self._since_step = 0
            await asyncio.sleep(0)
        while not handover.put_nowait(record, token, self._note_room):
            room = self._room
            if room is None:
                self._room = LoopEvent(self._portal.loop)
                continue  # the event must exist before the trio thread is asked to set it
            await room.wait()
            if self._room is room:
                self._room = None
        return delivery

    async def _encoded(
        self, topic: str, key: KeyIn | None, value: ValueIn | None, headers: Headers
    ) -> tuple[Buffer | None, Buffer | None]:
        if self._encoder is None:
            return cast("tuple[Buffer | None, Buffer | None]", (key, value))
        self._opened()
        while True:
            try:
                return self._encoder.encode(topic, key, value, headers)
            except SchemaNeeded as needed:
                await self._portal.call_async(self._trio_producer.fetch_schema, topic, needed)

    async def send_many(
        self,
        topic: str,
        values: Iterable[ValueIn | None],
        *,
        keys: Iterable[KeyIn | None] | None = None,
        partition: int | None = None,
    ) -> list[AioDelivery]:
        """Sends a record for each value, with the keys in the same order, and returns the deliveries.

        ``send`` documents the errors. Records before the one that raises are sent.

        Raises:
            ValueError: there are more or fewer keys than values.
        """
        if keys is None:
            return [await self.send(topic, value, partition=partition) for value in values]
        pairs = zip(values, keys, strict=True)
        return [await self.send(topic, value, key, partition=partition) for value, key in pairs]

    def _in_loop(self, callback: Callable[[ProducerStatistics], object]) -> Callable[[ProducerStatistics], object]:
        def call(statistics: ProducerStatistics) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._portal.loop.call_soon_threadsafe(callback, statistics)

        return call

    def _note_room(self) -> None:
        room = self._room
        if room is not None:
            room.set()

    async def wait_delivery(self, delivery: AioDelivery) -> None:
        """Waits until a delivery is done."""
        token = self._portal.token
        is_settled = LoopEvent(self._portal.loop)
        self._awaited.append((delivery, is_settled))
        if len(self._awaited) == 1:
            try:
                token.run_sync_soon(self._watch)
            except trio.RunFinishedError:  # nothing settles it any more
                self._awaited.clear()
                is_settled.set()
        await is_settled.wait()
        if not delivery.is_done:
            raise RuntimeError("the client was closed during the call")

    def _watch(self) -> None:
        """Starts a task for the deliveries that tasks of the event loop have begun to await."""
        awaited = []
        while self._awaited:
            awaited.append(self._awaited.popleft())
        try:
            trio.lowlevel.spawn_system_task(self._watch_deliveries, awaited)
        except RuntimeError:  # the trio run ends and takes no more tasks
            for _, is_settled in awaited:
                is_settled.set()

    async def _watch_deliveries(self, awaited: list[tuple[AioDelivery, LoopEvent]]) -> None:
        """Waits for records, one batch at a time: records of one batch settle together."""
        try:
            async with trio.open_nursery() as nursery:
                unresolved = awaited
                while unresolved:
                    await self._wait_resolved(unresolved)
                    unresolved = _settle_resolved(unresolved, nursery)
        finally:
            for _, is_settled in awaited:
                is_settled.set()

    async def _wait_resolved(self, awaited: list[tuple[AioDelivery, LoopEvent]]) -> None:
        """Waits until the trio producer took or refused one of the records; others may wait much longer for it."""
        await self._opened().taken.wait_until(lambda: any(delivery.is_resolved for delivery, _ in awaited))

    async def flush(self, timeout_ms: float = 120_000) -> None:
        """Waits until every record sent before is delivered or failed.

        Raises:
            TimeoutError: records are pending after ``timeout_ms``.
        """
        limit_ms = arguments.milliseconds("flush", timeout_ms)
        await self._portal.call_async(lambda: self._opened().flush(limit_ms))

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        return await self._portal.call_async(self._trio_producer.partitions_for, topic)

    def statistics(self) -> ProducerStatistics:
        """Returns the producer's numbers, under the names of Kafka's producer metrics."""
        return self._portal.call_sync(self._trio_producer.statistics)

    async def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns the id under which brokers keep this client's metrics (KIP-714).

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        return await self._portal.call_async(self._trio_producer.client_instance_id, timeout_ms)

    @property
    def application_metrics(self) -> ApplicationMetrics:
        """The application's own metrics, which this client pushes to brokers that want them (KIP-1076)."""
        return self._portal.call_sync(lambda: self._trio_producer.application_metrics)

    # Transactions: ``moldau.producer.Producer`` documents what each call waits for and raises. Records sent before a
    # commit belong to it.

    async def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Takes over the transactional id.

        Raises:
            FatalTransactionError: the coordinator refuses.
            KafkaError: REQUEST_TIMED_OUT.
        """
        await self._portal.call_async_or_undo(self._undeliver, self._trio_producer.init_transactions, timeout_ms)

    def _undeliver(self, _: None) -> None:
        """Keeps the outcome of a transaction call whose task was cancelled."""
        self._trio_producer.undeliver_outcome()

    async def begin_transaction(self) -> None:
        """Begins a transaction.

        Raises:
            RuntimeError: a transaction is open.
            TransactionError: the producer has failed.
            KafkaError: REQUEST_TIMED_OUT; records that were sent before wait for metadata or memory.
        """
        await self._portal.call_async_or_undo(
            lambda _: self._trio_producer.undeliver_outcome(of_begin=True), lambda: self._opened().begin_transaction()
        )

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[tuple[str, int], int | CommittedOffset],
        group: GroupMetadata | str,
        timeout_ms: float | None = None,
    ) -> None:
        """Commits a consumer's offsets with the transaction.

        Raises:
            TransactionError: the producer has failed.
            KafkaError: the broker or the client reports an error.
        """
        await self._portal.call_async(self._trio_producer.send_offsets_to_transaction, offsets, group, timeout_ms)

    async def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Delivers the transaction's records and commits it.

        Raises:
            AbortableTransactionError: the transaction must be aborted.
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again, also after a cancellation, to learn whether it is committed.
        """
        await self._portal.call_async_or_undo(self._undeliver, lambda: self._opened().commit_transaction(timeout_ms))

    async def prepare_transaction(self, timeout_ms: float | None = None) -> PreparedTransaction:
        """Delivers the transaction's records and hands it over to ``Admin.end_transaction``; the producer is closed.

        Raises:
            AbortableTransactionError: the transaction must be aborted.
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again.
        """
        return await self._portal.call_async(lambda: self._opened().prepare_transaction(timeout_ms))

    async def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Aborts the transaction.

        Raises:
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again.
            RuntimeError: an earlier commit without a known outcome has committed the transaction.
        """
        await self._portal.call_async_or_undo(self._undeliver, lambda: self._opened().abort_transaction(timeout_ms))

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Begins a transaction for a block: ``async with producer.transaction():``.

        The end of the block commits it. An exception aborts it and goes on, also one that the commit raises because
        a record could not be written. Call ``init_transactions`` once before.

        Raises:
            KafkaError: REQUEST_TIMED_OUT; the outcome is unknown, and ``commit_transaction`` returns it.
        """
        return transaction(self, contextlib.nullcontext)

    async def transform(
        self,
        consumer: Consumer[Any, Any],
        function: Transform,
        timeout_ms: float = 1000,
        *,
        max_records: int | None = None,
    ) -> int:
        """Polls, sends what ``function`` returns for each record, and commits both in one transaction.

        Returns the number of input records, 0 after ``timeout_ms``. Call it in a loop: each input record has its effect
        exactly once for readers with ``isolation.level=read_committed``. After an exception the transaction is aborted,
        the positions are set back, and the next call reads the records again.

        Raises:
            ConfigError: the consumer has ``enable.auto.commit``.
            KafkaError: REQUEST_TIMED_OUT; the outcome is unknown. Close both clients and open them again.
        """
        return await self._steps.run(self, consumer, function, timeout_ms, max_records, contextlib.nullcontext)


def _settle_resolved(
    awaited: list[tuple[AioDelivery, LoopEvent]], nursery: trio.Nursery
) -> list[tuple[AioDelivery, LoopEvent]]:
    """Settles the records that the trio producer took or refused, in tasks where it must wait; returns the others."""
    unresolved: list[tuple[AioDelivery, LoopEvent]] = []
    batches: dict[int, list[tuple[Delivery, LoopEvent]]] = {}
    for delivery, is_settled in awaited:
        if not delivery.is_resolved:
            unresolved.append((delivery, is_settled))
        elif delivery.taken is None or delivery.is_done:
            is_settled.set()
        else:
            batches.setdefault(id(delivery.taken._batch), []).append((delivery.taken, is_settled))
    for waiting in batches.values():
        nursery.start_soon(_settle, waiting)
    return unresolved


async def _settle(waiting: list[tuple[Delivery, LoopEvent]]) -> None:
    await wait_settled(waiting[0][0]._batch)
    for _, is_settled in waiting:
        is_settled.set()
