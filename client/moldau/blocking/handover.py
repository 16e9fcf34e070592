"""The queue between callers and the trio thread of a producer, which the blocking and the asyncio producer share."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from moldau.cluster import arguments
from moldau.cluster.interceptors import on_acknowledgement
from moldau.producer import (
    AbortableTransactionError,
    BufferExhaustedError,
    TransactionAbortedError,
    TransactionError,
)
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records.codec import PendingRecord
from moldau.runtime.tasks.sync import Signal
from moldau.values import Buffer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from moldau.producer import Delivery, PreparedTransaction, RecordMetadata
    from moldau.producer import Producer as TrioProducer
    from moldau.producer.core.output import OutputRecord

OwnerT = TypeVar("OwnerT")

HANDOVER_RECORDS_MAX = 10_000
"""Records that wait for the trio thread of a producer; ``send`` blocks above it."""
HANDOVER_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of large records that wait for the trio thread; ``send`` blocks above it. They lie beside ``buffer.memory``."""
LARGE_BYTES = 4096
"""Records from this size on are large; all others of a full queue have about ``HANDOVER_BYTES_MAX``."""
_ROOM_RECORDS = HANDOVER_RECORDS_MAX // 2
"""Blocked callers go on when the queue is as short, because each change between threads costs time."""
_RECORDS_PER_STEP = 256
"""Records after which the trio thread's other tasks run, which send the batches."""


class PendingDelivery(PendingRecord, Generic[OwnerT]):
    """The outcome of one record that waits for the trio thread, or that the trio producer has taken."""

    __slots__ = ()
    _owner: OwnerT
    taken: Delivery | None
    intercepted: OutputRecord[Any, Any] | None
    _error: BaseException | None

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
    PendingDelivery[Any],
]


class Handover:
    """The queue between the callers' threads and the producer, and the task that empties it.

    Callers append to a deque, which is atomic, so that a record takes no lock. A caller wakes the task only while
    ``is_called`` is not set. The task clears the flag before its last look at the queue: either this look sees a
    record, or the caller of that record sees the cleared flag. ``end`` and late callers agree in the same way.
    Invariant: the queue holds at most ``HANDOVER_RECORDS_MAX`` records, and large ones of ``HANDOVER_BYTES_MAX``, and
    one more for each calling thread.

    Records are passed on in order, so one that waits for metadata or memory holds up all behind it. If it waits in
    vain, those that were queued all that time do not wait for the same any more.
    """

    def __init__(self, producer: TrioProducer) -> None:
        self._producer = producer
        self.queue: deque[Handed] = deque()
        """Hot paths append to it while it has room, and call ``appended`` if they must, as ``put`` does."""
        self._room = threading.Condition()
        self._waiting = 0  # threads that wait for room; changed under the lock, as are the large records
        self._large: deque[tuple[PendingDelivery[Any], int]] = deque()  # with their sizes; some are resolved
        self._large_bytes = 0
        self.is_ended = False
        self.is_called = False
        """Whether the trio thread is going to look at the queue."""
        self._wanted = Signal()
        self.taken = Signal()
        self._passed = 0  # records that were passed on, refused, or dropped by an abort
        self._in_hand: trio.CancelScope | None = None  # of the record that waits for metadata or memory
        self._metadata_until = math.inf  # trio's time, after which no record waits for metadata: the producer closes
        self._given_up: dict[tuple[str, int | None] | None, tuple[int, Exception]] = {}
        self._on_room: Callable[[], None] | None = None
        self._refused: Exception | None = None  # why the trio producer refused a record of this transaction

    # --- any thread

    def put(self, record: Handed, token: trio.lowlevel.TrioToken) -> None:
        """Adds a record to the queue; blocks while it is full.

        Raises:
            RuntimeError: the producer is closed.
        """
        size = _size(record)
        if self._is_full(size):
            self._wait_room(size)
        self._check_open()
        self.queue.append(record)
        if size >= LARGE_BYTES:
            with self._room:
                self._large.append((record[6], size))
                self._large_bytes += size
        if not self.is_called or self.is_ended:
            self.appended(token)

    def appended(self, token: trio.lowlevel.TrioToken) -> None:
        """Wakes the trio thread after a record was appended; to be called if it is not called, or has ended.

        Raises:
            RuntimeError: the producer is closed.
        """
        if not self.is_called:
            self._call(token)
        if self.is_ended:  # meanwhile, and ``end`` may not have seen the record
            self._fail_queued()

    def put_nowait(self, record: Handed, token: trio.lowlevel.TrioToken, on_room: Callable[[], None]) -> bool:
        """Adds a record, or returns False if the queue is full; the trio thread then calls ``on_room`` once.

        Only one thread may use it. ``on_room`` may also be called after the record was added.

        Raises:
            RuntimeError: the producer is closed.
        """
        size = _size(record)
        if self._is_full(size):
            self._on_room = on_room
            if self._is_full(size):  # the trio thread makes room first and looks for ``on_room`` afterwards
                return False
        self.put(record, token)
        return True

    def _check_open(self) -> None:
        if self.is_ended:
            raise RuntimeError("the producer is closed")

    def _is_full(self, size: int) -> bool:
        """Returns whether a record of this size must wait."""
        if self.is_ended or len(self.queue) >= HANDOVER_RECORDS_MAX:
            return not self.is_ended
        if size < LARGE_BYTES:
            return False
        with self._room:
            while self._large and self._large[0][0].is_resolved:
                self._large_bytes -= self._large.popleft()[1]
            return self._large_bytes >= HANDOVER_BYTES_MAX

    def _wait_room(self, size: int) -> None:
        with self._room:
            self._waiting += 1  # before the look at the queue; the trio thread makes room before it looks here
            try:
                while self._is_full(size):
                    self._room.wait()
            finally:
                self._waiting -= 1

    def _call(self, token: trio.lowlevel.TrioToken) -> None:
        self.is_called = True
        try:
            token.run_sync_soon(self._wanted.notify)
        except trio.RunFinishedError as error:
            raise RuntimeError("the producer is closed") from error
        except BaseException:  # an interrupt of the calling thread, which may have come before the call
            self.is_called = False
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._wanted.notify)  # for threads that have relied on this call meanwhile
            raise

    def _fail_queued(self, error: KafkaError | None = None) -> int:
        """Fails the records that the trio thread will not take any more; returns their number."""
        count = 0
        while True:
            try:
                record = self.queue.popleft()
            except IndexError:
                return count
            if error is None:
                self._refuse(record[6], _closed())
            else:
                self._fail(record[6], error)
            count += 1

    def _fail(self, delivery: PendingDelivery[Any], error: Exception) -> None:
        delivery.resolve(None, error)
        if delivery.intercepted is not None:
            on_acknowledgement(self._producer.interceptors, delivery.intercepted, None, error)

    # --- the trio thread

    def end(self) -> None:
        """Refuses further records and fails the queued ones, and with them a commit that waits for them."""
        self.is_ended = True
        if self._in_hand is not None:
            if self._producer.intake.is_in_transaction:
                self._refused = _closed()
            self._in_hand.cancel()
        with self._room:
            self._room.notify_all()
        self._call_on_room()
        self._fail_queued()
        self.taken.notify()

    def _announce_room(self) -> None:
        """Wakes callers that wait for room once there is room for many records."""
        if len(self.queue) > _ROOM_RECORDS:
            return
        if self._waiting:
            with self._room:
                self._room.notify_all()
        self._call_on_room()

    def _call_on_room(self) -> None:
        on_room, self._on_room = self._on_room, None
        if on_room is not None:
            on_room()

    async def empty_forever(self) -> None:
        """Passes records to the trio producer until cancelled."""
        while True:
            self.is_called = bool(self.queue)
            if not self.queue:
                self.taken.notify()
                await self._wanted.wait()
                self.is_called = True
            await self._pass_on()
            self._announce_room()
            self.taken.notify()
            await trio.lowlevel.checkpoint()

    async def _pass_on(self) -> None:
        """Passes records of the queue, at most ``_RECORDS_PER_STEP``, to the trio producer."""
        intake = self._producer.intake
        popleft = self.queue.popleft
        now_ms = intake.wall_ms()  # once for records that do not wait: these take less than a millisecond
        left = _RECORDS_PER_STEP
        while left := min(left, len(self.queue)):  # an abort may empty the queue while a record waits
            count, record = intake.appender.append_handed(popleft, left, now_ms)
            left -= count
            if record is None:
                self._passed += count
                return
            self._passed += count - 1
            topic, value, key, headers, partition, timestamp, delivery = record
            if timestamp is None:
                timestamp = now_ms
            try:
                taken = intake.append(topic, value, key, headers, partition, timestamp)
            except (LookupError, BufferExhaustedError) as error:
                await self._pass_on_waiting(record, None if isinstance(error, KafkaError) else (topic, partition))
                now_ms = intake.wall_ms()  # the records behind it are not older than the record that waited
            except Exception as error:  # noqa: BLE001 - it belongs to the record and is raised by its delivery
                self._refuse(delivery, error)
            else:
                self._take(delivery, taken)
            self._passed += 1

    def _take(self, delivery: PendingDelivery[Any], taken: Delivery) -> None:
        delivery.taken = taken
        if delivery.intercepted is not None:
            self._producer.watch(taken, delivery.intercepted)

    async def _pass_on_waiting(self, record: Handed, wanted: tuple[str, int | None] | None) -> None:
        """Passes a record on that waits for metadata of ``wanted``, or for memory (None)."""
        topic, value, key, headers, partition, timestamp, delivery = record
        last, reason = self._given_up.get(wanted, (0, None))
        if reason is not None and self._passed < last:
            self._refuse(delivery, reason)
            return
        last = self._passed + 1 + len(self.queue)  # the records behind wait as long as this one
        self._announce_room()
        self.taken.notify()  # the records before it do not wait for it
        until = math.inf if wanted is None else self._metadata_until
        try:
            with trio.CancelScope(deadline=until) as scope:
                self._in_hand = scope
                taken = await self._producer.send_bytes(
                    topic, value, key, headers=headers, partition=partition, timestamp=timestamp
                )
        except trio.Cancelled:
            self._fail(delivery, _closed())
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the record and is raised by its delivery
            self._refuse(delivery, error)
            if isinstance(error, KafkaError) and error.code.retriable:
                self._given_up = {key: each for key, each in self._given_up.items() if each[0] > self._passed}
                self._given_up[None if isinstance(error, BufferExhaustedError) else (topic, partition)] = last, error
            return
        finally:
            self._in_hand = None
        if scope.cancelled_caught:
            self._fail(delivery, _closed() if self.is_ended or trio.current_time() >= until else _aborted())
        else:
            self._take(delivery, taken)

    def _refuse(self, delivery: PendingDelivery[Any], error: Exception) -> None:
        if self._producer.intake.is_in_transaction:  # a record that was sent during a commit is no part of it
            self._refused = error
        self._fail(delivery, error)

    async def wait_empty(self) -> None:
        """Waits until the producer has taken or refused every record that was queued before the call."""
        self._wanted.notify()  # an interrupted caller may have added a record without a call
        last = self._passed + (self._in_hand is not None) + len(self.queue)
        await self.taken.wait_until(lambda: self._passed >= last or self.is_ended)

    async def drain(self) -> None:
        """Passes the queued records on before the producer closes.

        Records of unknown topics wait for metadata at most ``max.block.ms``, all of them together; the rest then fails.
        """
        self._metadata_until = trio.current_time() + self._producer.intake.max_block_ms / 1000
        await self.wait_empty()

    async def close(self, timeout_ms: float) -> None:
        """Closes the producer as its own ``close`` does; the queued records count as pending."""
        until = trio.current_time() + timeout_ms / 1000
        with trio.CancelScope(deadline=until):
            await self.drain()
        self.end()
        await self._producer.close(max(0.0, 1000 * (until - trio.current_time())))

    async def _wait_taken(self, call: str, timeout_ms: float | None) -> float | None:
        """Waits until the records before are taken; returns the time that is left of ``timeout_ms``.

        Raises:
            KafkaError: REQUEST_TIMED_OUT; by default after ``max.block.ms``.
            ValueError: the time limit is negative.
        """
        limit_ms = arguments.time_limit(call, timeout_ms, self._producer.intake.max_block_ms)
        began = trio.current_time()
        with trio.move_on_after(limit_ms / 1000) as scope:
            await self.wait_empty()
        if scope.cancelled_caught:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"records that were sent before wait for metadata or memory after {limit_ms:g} ms; call again",
            )
        return None if timeout_ms is None else max(0.0, timeout_ms - 1000 * (trio.current_time() - began))

    async def flush(self, timeout_ms: float) -> None:
        """Waits until the queue is empty and all records are delivered.

        Raises:
            trio.TooSlowError: records are pending after ``timeout_ms``.
        """
        began = trio.current_time()
        with trio.move_on_after(timeout_ms / 1000) as scope:
            await self.wait_empty()
        if scope.cancelled_caught:
            raise trio.TooSlowError(f"records wait for metadata or memory after {timeout_ms:g} ms")
        await self._producer.flush(max(0.0, timeout_ms - 1000 * (trio.current_time() - began)))

    async def begin_transaction(self) -> None:
        """Begins a transaction once the records before it are taken."""
        await self._wait_taken("begin_transaction", None)
        self._producer.begin_transaction()
        self._refused = None

    async def commit_transaction(self, timeout_ms: float | None) -> None:
        """Commits once its records are taken; refuses if the producer refused a record of the transaction."""
        left_ms = await self._check_taken("commit_transaction", timeout_ms)
        await self._producer.commit_transaction(left_ms)

    async def prepare_transaction(self, timeout_ms: float | None) -> PreparedTransaction:
        """Hands the transaction over once its records are taken; refuses as ``commit_transaction``."""
        left_ms = await self._check_taken("prepare_transaction", timeout_ms)
        return await self._producer.prepare_transaction(left_ms)

    async def _check_taken(self, call: str, timeout_ms: float | None) -> float | None:
        left_ms = await self._wait_taken(call, timeout_ms)
        if self._refused is not None and not isinstance(self._refused, TransactionError):
            code = self._refused.code if isinstance(self._refused, KafkaError) else ErrorCode.INVALID_RECORD
            why = f"a record of the transaction could not be sent: {self._refused}"
            raise AbortableTransactionError(code, why) from self._refused
        return left_ms

    async def abort_transaction(self, timeout_ms: float | None) -> None:
        """Aborts the transaction; its records that wait in the queue fail, because they were never sent."""
        arguments.time_limit("abort_transaction", timeout_ms, self._producer.intake.max_block_ms)
        if self._producer.intake.is_transactional:
            if self._in_hand is not None:
                self._in_hand.cancel()
            self._passed += self._fail_queued(_aborted())
            self._announce_room()
            self.taken.notify()
        self._refused = None
        await self._producer.abort_transaction(timeout_ms)


def _size(record: Handed) -> int:
    _, value, key, headers, *_ = record
    size = _length(value) + _length(key)
    return size + sum(len(name) + _length(content) for name, content in headers) if headers else size


def _length(part: object) -> int:
    if isinstance(part, memoryview):
        return part.nbytes
    return len(part) if isinstance(part, bytes | bytearray) else 0


def _closed() -> KafkaError:
    return KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the producer was closed before it took the record")


def _aborted() -> KafkaError:
    return TransactionAbortedError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the record's transaction was aborted")


@asynccontextmanager
async def handed_over(producer: TrioProducer) -> AsyncIterator[Handover]:
    """Opens the producer with the task that empties the queue; leaving delivers pending records."""
    handover = Handover(producer)
    async with producer, trio.open_nursery() as nursery:
        nursery.start_soon(handover.empty_forever)
        try:
            yield handover
            await handover.drain()
        finally:
            handover.end()
            nursery.cancel_scope.cancel()
