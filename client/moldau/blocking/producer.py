"""The producer for ordinary threads, and the queue between them and the trio thread."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import trio

from moldau.blocking.portal import Portal, PortalClient
from moldau.cluster import arguments
from moldau.producer import AbortableTransactionError, TransactionError
from moldau.producer import Producer as TrioProducer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.tasks.sync import Signal
from moldau.values import Buffer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.cluster.metadata import PartitionInfo
    from moldau.consumer import CommittedOffset
    from moldau.producer import Delivery, PartitionerFunction, PreparedTransaction, RecordMetadata
    from moldau.runtime.config import Config


HANDOVER_RECORDS_MAX = 10_000
"""Records that wait for the trio thread of a producer; ``send`` blocks above it."""


class BlockingDelivery:
    """The outcome of one record passed to a blocking producer."""

    __slots__ = ("_delivery", "_error", "_producer")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._delivery: Delivery | None = None
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._error is not None or (self._delivery is not None and self._delivery.is_done)

    def resolve(self, delivery: Delivery | None, error: BaseException | None) -> None:
        """Notes that the trio producer took or refused the record; the trio thread calls it."""
        self._delivery = delivery
        self._error = error

    def result(self, timeout_ms: float = 120_000) -> RecordMetadata:
        """Waits for the outcome and returns it, or raises the record's error.

        Raises:
            TimeoutError: the outcome is unknown after ``timeout_ms``.
        """
        arguments.milliseconds("result", timeout_ms)
        if not self.is_done:
            self._producer.wait_delivery(self, timeout_ms)
        if self._error is not None:
            raise self._error
        assert self._delivery is not None
        return self._delivery.result()

    async def wait(self, taken: Signal) -> None:
        """Waits in the trio thread until the outcome is known."""
        await taken.wait_until(lambda: self._delivery is not None or self._error is not None)
        if self._delivery is not None:
            try:
                await self._delivery.wait()
            except KafkaError as error:
                self._error = error


class Producer(PortalClient):
    """A producer for ordinary threads; see ``moldau.producer.Producer``. Threads may share it.

    Closing delivers pending records. After an exception it drops them and aborts an open transaction.
    """

    def __init__(
        self, config: Mapping[str, object] | Config, *, partitioner: PartitionerFunction | None = None
    ) -> None:
        """Takes Kafka's producer configuration keys.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._trio_producer = TrioProducer(config, partitioner=partitioner)
        self._portal: Portal[_Handover] = Portal("moldau-producer", _handed_over(self._trio_producer))
        self._handover: _Handover | None = None

    def __enter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        self._handover = self._portal.start()
        return self

    def send(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> BlockingDelivery:
        """Queues a record and returns its delivery; blocks only while ``HANDOVER_RECORDS_MAX`` records wait.

        Buffers must not change until the trio thread has taken the record. ``send`` itself raises only ``TypeError``
        and ``ValueError``, for invalid arguments; the delivery's ``result`` raises all other errors.
        """
        token = self._portal.token
        assert self._handover is not None
        delivery = BlockingDelivery(self)
        given, partition, timestamp = arguments.record("send", topic, value, key, headers, partition, timestamp)
        self._handover.put((topic, value, key, tuple(given), partition, timestamp, delivery), token)
        return delivery

    def wait_delivery(self, delivery: BlockingDelivery, timeout_ms: float) -> None:
        """Waits until a delivery is done.

        Raises:
            TimeoutError: the time is over.
        """
        assert self._handover is not None
        taken = self._handover.taken

        async def wait() -> bool:
            with trio.move_on_after(timeout_ms / 1000):
                await delivery.wait(taken)
                return True
            return False

        if not self._portal.call(wait):
            raise TimeoutError(f"the record was not delivered within {timeout_ms:g} ms")

    def flush(self, timeout_ms: float = 120_000) -> None:
        """Waits until every record sent before is delivered or failed.

        Raises:
            TimeoutError: records are pending after ``timeout_ms``.
        """
        assert self._handover is not None
        arguments.milliseconds("flush", timeout_ms)
        try:
            self._portal.call(self._handover.flush, timeout_ms)
        except trio.TooSlowError as error:
            raise TimeoutError(str(error)) from error

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        return self._portal.call(self._trio_producer.partitions_for, topic)

    # Transactions: ``moldau.producer.Producer`` documents what each call waits for and raises. Records sent before a
    # commit belong to it.

    def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Takes over the transactional id.

        Raises:
            FatalTransactionError: the coordinator refuses.
            KafkaError: REQUEST_TIMED_OUT.
        """
        self._portal.call_or_undo(self._undeliver, self._trio_producer.init_transactions, timeout_ms)

    def _undeliver(self, _: None) -> None:
        """Keeps the outcome of a transaction call whose thread was interrupted."""
        self._trio_producer.undeliver_outcome()

    def begin_transaction(self) -> None:
        """Begins a transaction.

        Raises:
            RuntimeError: a transaction is open.
            TransactionError: the producer has failed.
        """
        assert self._handover is not None
        self._portal.call(self._handover.begin_transaction)

    def send_offsets_to_transaction(
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
        self._portal.call(self._trio_producer.send_offsets_to_transaction, offsets, group, timeout_ms)

    def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Delivers the transaction's records and commits it.

        Raises:
            AbortableTransactionError: the transaction must be aborted.
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again, also after an interrupt, to learn whether it is committed.
        """
        assert self._handover is not None
        self._portal.call_or_undo(self._undeliver, self._handover.commit_transaction, timeout_ms)

    def prepare_transaction(self, timeout_ms: float | None = None) -> PreparedTransaction:
        """Delivers the transaction's records and hands it over to ``Admin.end_transaction``; the producer is closed.

        Raises:
            AbortableTransactionError: the transaction must be aborted.
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again.
        """
        assert self._handover is not None
        return self._portal.call(self._handover.prepare_transaction, timeout_ms)

    def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Aborts the transaction.

        Raises:
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again.
            RuntimeError: an earlier commit without a known outcome has committed the transaction.
        """
        assert self._handover is not None
        self._portal.call_or_undo(self._undeliver, self._handover.abort_transaction, timeout_ms)


_Handed = tuple[
    str,
    Buffer | None,
    Buffer | None,
    tuple[tuple[str, Buffer | None], ...],
    int | None,
    int | None,
    BlockingDelivery,
]


class _Handover:
    """The queue between the callers' threads and the producer, and the task that empties it."""

    def __init__(self, producer: TrioProducer) -> None:
        self._producer = producer
        self._queue: deque[_Handed] = deque()
        self._room = threading.Condition()
        self._is_ended = False
        self._is_called = False
        self._wanted = Signal()
        self.taken = Signal()
        self._is_busy = False
        self._refused: Exception | None = None  # why the trio producer refused a record of this transaction

    def end(self) -> None:
        """Refuses further records and fails the queued ones."""
        with self._room:
            self._is_ended = True
            self._room.notify_all()
        closed = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the producer was closed before it took the record")
        while self._queue:
            self._queue.popleft()[6].resolve(None, closed)
        self.taken.notify()

    def put(self, record: _Handed, token: trio.lowlevel.TrioToken) -> None:
        """Adds a record to the queue; any thread may call it."""
        with self._room:
            while len(self._queue) >= HANDOVER_RECORDS_MAX and not self._is_ended:
                self._room.wait()
            if self._is_ended:
                raise RuntimeError("the producer is closed")
            self._queue.append(record)
            if self._is_called:
                return
            self._is_called = True
        try:
            token.run_sync_soon(self._wanted.notify)
        except trio.RunFinishedError as error:
            raise RuntimeError("the producer is closed") from error

    async def empty_forever(self) -> None:
        """Passes records to the trio producer until cancelled."""
        while True:
            with self._room:
                handed = list(self._queue)
                self._queue.clear()
                self._is_called = bool(handed)
                self._room.notify_all()
            if not handed:
                self.taken.notify()
                await self._wanted.wait()
                continue
            self._is_busy = True
            for topic, value, key, headers, partition, timestamp, delivery in handed:
                try:
                    taken = await self._producer.send(
                        topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
                    )
                except Exception as error:  # noqa: BLE001 - it belongs to the record and is raised by its delivery
                    delivery.resolve(None, error)
                    self._refused = error
                else:
                    delivery.resolve(taken, None)
            self._is_busy = False
            self.taken.notify()
            await trio.lowlevel.checkpoint()

    async def wait_empty(self) -> None:
        """Waits until the producer has taken every record."""
        await self.taken.wait_until(lambda: not self._queue and not self._is_busy)

    async def flush(self, timeout_ms: float) -> None:
        """Waits until the queue is empty and all records are delivered.

        Raises:
            trio.TooSlowError: records are pending after ``timeout_ms``.
        """
        with trio.fail_after(timeout_ms / 1000):
            await self.wait_empty()
            await self._producer.flush()

    async def begin_transaction(self) -> None:
        """Begins a transaction once the queue is empty."""
        await self.wait_empty()
        self._producer.begin_transaction()
        self._refused = None

    async def commit_transaction(self, timeout_ms: float | None) -> None:
        """Commits once the queue is empty; refuses if the producer refused a record of the transaction."""
        await self._check_taken()
        await self._producer.commit_transaction(timeout_ms)

    async def prepare_transaction(self, timeout_ms: float | None) -> PreparedTransaction:
        """Hands the transaction over once the queue is empty; refuses as ``commit_transaction``."""
        await self._check_taken()
        return await self._producer.prepare_transaction(timeout_ms)

    async def _check_taken(self) -> None:
        await self.wait_empty()
        if self._refused is not None and not isinstance(self._refused, TransactionError):
            code = self._refused.code if isinstance(self._refused, KafkaError) else ErrorCode.INVALID_RECORD
            why = f"a record of the transaction could not be sent: {self._refused}"
            raise AbortableTransactionError(code, why) from self._refused

    async def abort_transaction(self, timeout_ms: float | None) -> None:
        """Aborts once the queue is empty."""
        await self.wait_empty()
        self._refused = None
        await self._producer.abort_transaction(timeout_ms)


@asynccontextmanager
async def _handed_over(producer: TrioProducer) -> AsyncIterator[_Handover]:
    """Opens the producer with the task that empties the queue; leaving delivers pending records."""
    handover = _Handover(producer)
    async with producer, trio.open_nursery() as nursery:
        nursery.start_soon(handover.empty_forever)
        try:
            yield handover
            await handover.wait_empty()
        finally:
            handover.end()
            nursery.cancel_scope.cancel()
