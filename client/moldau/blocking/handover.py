"""The queue between callers and the trio thread of a producer, which the blocking and the asyncio producer share."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import trio

from moldau.cluster.interceptors import on_acknowledgement
from moldau.producer import AbortableTransactionError, TransactionError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.tasks.sync import Signal
from moldau.values import Buffer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from moldau.producer import Delivery, PreparedTransaction, RecordMetadata
    from moldau.producer import Producer as TrioProducer
    from moldau.producer.core.output import OutputRecord


HANDOVER_RECORDS_MAX = 10_000
"""Records that wait for the trio thread of a producer; ``send`` blocks above it."""


class PendingDelivery:
    """The outcome of one record that waits for the trio thread, or that the trio producer has taken."""

    __slots__ = ("_error", "intercepted", "taken")

    def __init__(self) -> None:
        self.taken: Delivery | None = None
        self.intercepted: OutputRecord[Any, Any] | None = None  # as interceptors saw it
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether the outcome is known."""
        return self._error is not None or (self.taken is not None and self.taken.is_done)

    @property
    def is_resolved(self) -> bool:
        """Whether the trio producer took or refused the record."""
        return self.taken is not None or self._error is not None

    def resolve(self, delivery: Delivery | None, error: BaseException | None) -> None:
        """Notes that the trio producer took or refused the record; the trio thread calls it."""
        self.taken = delivery
        self._error = error

    def outcome(self) -> RecordMetadata:
        """Returns the known outcome, or raises the record's error."""
        if self._error is not None:
            raise self._error
        if self.taken is None:
            raise RuntimeError("the record has not been delivered yet")
        return self.taken.result()


Handed = tuple[
    str,
    Buffer | None,
    Buffer | None,
    tuple[tuple[str, Buffer | None], ...],
    int | None,
    int | None,
    PendingDelivery,
]


class Handover:
    """The queue between the callers' threads and the producer, and the task that empties it."""

    def __init__(self, producer: TrioProducer) -> None:
        self._producer = producer
        self._queue: deque[Handed] = deque()
        self._room = threading.Condition()
        self._is_ended = False
        self._is_called = False
        self._wanted = Signal()
        self.taken = Signal()
        self._is_busy = False
        self._on_room: Callable[[], None] | None = None
        self._refused: Exception | None = None  # why the trio producer refused a record of this transaction

    def end(self) -> None:
        """Refuses further records and fails the queued ones."""
        with self._room:
            self._is_ended = True
            self._announce_room()
        closed = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the producer was closed before it took the record")
        while self._queue:
            delivery = self._queue.popleft()[6]
            delivery.resolve(None, closed)
            if delivery.intercepted is not None:
                on_acknowledgement(self._producer.interceptors, delivery.intercepted, None, closed)
        self.taken.notify()

    def put(self, record: Handed, token: trio.lowlevel.TrioToken) -> None:
        """Adds a record to the queue; any thread may call it."""
        with self._room:
            while len(self._queue) >= HANDOVER_RECORDS_MAX and not self._is_ended:
                self._room.wait()
            is_called = self._append(record)
        if not is_called:
            self._call(token)

    def put_nowait(self, record: Handed, token: trio.lowlevel.TrioToken, on_room: Callable[[], None]) -> bool:
        """Adds a record, or returns False if the queue is full; the trio thread then calls ``on_room`` once."""
        with self._room:
            if len(self._queue) >= HANDOVER_RECORDS_MAX and not self._is_ended:
                self._on_room = on_room
                return False
            is_called = self._append(record)
        if not is_called:
            self._call(token)
        return True

    def _append(self, record: Handed) -> bool:
        """Appends under the lock; returns whether the trio thread has been called already."""
        if self._is_ended:
            raise RuntimeError("the producer is closed")
        self._queue.append(record)
        is_called, self._is_called = self._is_called, True
        return is_called

    def _call(self, token: trio.lowlevel.TrioToken) -> None:
        try:
            token.run_sync_soon(self._wanted.notify)
        except trio.RunFinishedError as error:
            raise RuntimeError("the producer is closed") from error

    def _announce_room(self) -> None:
        self._room.notify_all()
        on_room, self._on_room = self._on_room, None
        if on_room is not None:
            on_room()

    async def empty_forever(self) -> None:
        """Passes records to the trio producer until cancelled."""
        while True:
            with self._room:
                handed = list(self._queue)
                self._queue.clear()
                self._is_called = bool(handed)
                self._announce_room()
            if not handed:
                self.taken.notify()
                await self._wanted.wait()
                continue
            self._is_busy = True
            for topic, value, key, headers, partition, timestamp, delivery in handed:
                try:
                    taken = await self._producer.send_bytes(
                        topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
                    )
                except Exception as error:  # noqa: BLE001 - it belongs to the record and is raised by its delivery
                    delivery.resolve(None, error)
                    self._refused = error
                    if delivery.intercepted is not None:
                        on_acknowledgement(self._producer.interceptors, delivery.intercepted, None, error)
                else:
                    delivery.resolve(taken, None)
                    if delivery.intercepted is not None:
                        self._producer.watch(taken, delivery.intercepted)
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
async def handed_over(producer: TrioProducer) -> AsyncIterator[Handover]:
    """Opens the producer with the task that empties the queue; leaving delivers pending records."""
    handover = Handover(producer)
    async with producer, trio.open_nursery() as nursery:
        nursery.start_soon(handover.empty_forever)
        try:
            yield handover
            await handover.wait_empty()
        finally:
            handover.end()
            nursery.cancel_scope.cancel()
