"""The clients for ordinary threads: the same calls, blocking.

    with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        delivery = producer.send("flights", b"value", key=b"key")
        print(delivery.result())

Theory of operation: each client has one thread of its own that runs trio and, in it, the trio client; calls are handed
over to that thread and wait for its answer. It is the only thread that Moldau starts besides those for disks, and it
is needed because heartbeats, fetching ahead and deliveries must go on while the caller's thread does something else.
Any number of threads may share a producer or an admin client; a consumer belongs to one thread at a time. Records
handed to ``send`` wait in a bounded queue until the trio thread takes them, many at a time: a hand-over for each would
cost more than the record itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, ParamSpec, Self, TypeVar

import trio

from moldau.admin import Admin as TrioAdmin
from moldau.consumer import Consumer as TrioConsumer
from moldau.producer import AbortableTransactionError, TransactionError
from moldau.producer import Producer as TrioProducer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.sync import Signal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from moldau.admin import (
        ClusterDescription,
        ConfigAlteration,
        ConfigEntry,
        ConfigResource,
        CreatedTopic,
        FeatureDescription,
        GroupDescription,
        GroupListing,
        LogDirDescription,
        NewTopic,
        PartitionReassignment,
        ProducerDescription,
        QuorumDescription,
        TopicDescription,
        TopicListing,
        TransactionDescription,
        TransactionListing,
    )
    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.cluster.metadata import PartitionInfo, TopicPartition
    from moldau.consumer import CommittedOffset, ConsumedBatch, ConsumedColumns
    from moldau.consumer.values import RebalanceCallback
    from moldau.producer import Delivery, PartitionerFunction, RecordMetadata
    from moldau.runtime.config import Config

Buffer = bytes | bytearray | memoryview
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

HANDOVER_RECORDS_MAX = 10_000
"""Records that wait for the trio thread of a producer; ``send`` blocks above it."""


class _Portal(Generic[C]):
    """A thread that runs trio with one client open in it."""

    def __init__(self, name: str, client: AbstractAsyncContextManager[C]) -> None:
        self._opening = client
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._started = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._gives_up = False
        self._failure: BaseException | None = None
        self._client: C | None = None

    def start(self) -> C:
        """Starts the thread and opens the client. Raises what opening it raises."""
        self._thread.start()
        self._started.wait()
        if self._client is None:
            self._thread.join()
            assert self._failure is not None
            raise self._failure
        return self._client

    def _main(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that closes the client
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        stop = self._stop = trio.Event()
        with trio.CancelScope() as scope:
            async with self._opening as client:
                self._client = client
                self._token = trio.lowlevel.current_trio_token()
                self._started.set()
                await stop.wait()
                if self._gives_up:
                    scope.cancel()
                    await trio.lowlevel.checkpoint()

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """The way into the thread. Raises ``RuntimeError`` when the client is not open."""
        if self._token is None or not self._thread.is_alive():
            raise RuntimeError("the client is not open; use it as `with ... as ...`")
        return self._token

    def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a coroutine function in the thread and returns what it returns."""
        token = self.token

        async def run() -> R:
            return await function(*args, **kwargs)

        try:
            return trio.from_thread.run(run, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled) as error:
            raise RuntimeError("the client was closed during the call") from error

    def call_sync(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs a function in the thread and returns what it returns."""
        token = self.token
        try:
            return trio.from_thread.run_sync(lambda: function(*args, **kwargs), trio_token=token)
        except trio.RunFinishedError as error:
            raise RuntimeError("the client was closed during the call") from error

    def stop(self, *, gives_up: bool) -> None:
        """Closes the client and ends the thread. Raises what closing it raises."""
        if self._thread.is_alive() and self._token is not None and self._stop is not None:
            stop = self._stop
            self._gives_up = gives_up
            # It may have ended by itself; the failure below then says why.
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(stop.set)
            self._thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


class BlockingDelivery:
    """The fate of one record handed to a blocking producer."""

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
        """Called in the trio thread when the record was taken, or could not be."""
        self._delivery = delivery
        self._error = error

    def result(self, timeout_ms: float = 120_000) -> RecordMetadata:
        """Waits for the outcome. Raises the record's error, and ``TimeoutError`` after ``timeout_ms``."""
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


class Producer:
    """A producer for ordinary threads; see ``moldau.producer.Producer``. Threads may share it."""

    def __init__(
        self, config: Mapping[str, object] | Config, *, partitioner: PartitionerFunction | None = None
    ) -> None:
        """Raises ``ConfigError``."""
        self._trio_producer = TrioProducer(config, partitioner=partitioner)
        self._portal: _Portal[_Handover] = _Portal("moldau-producer", _handed_over(self._trio_producer))
        self._handover: _Handover | None = None

    def __enter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        self._handover = self._portal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Delivers what is left; after an exception gives it up."""
        self._portal.stop(gives_up=kind is not None)

    def close(self) -> None:
        """Delivers what is left and ends the thread; idempotent."""
        self._portal.stop(gives_up=False)

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
        """Hands a record over; blocks only while ``HANDOVER_RECORDS_MAX`` records wait. Buffers must not change until
        then.

        Errors of every kind come from the delivery's ``result``.
        """
        token = self._portal.token
        assert self._handover is not None
        delivery = BlockingDelivery(self)
        self._handover.put((topic, value, key, tuple(headers), partition, timestamp, delivery), token)
        return delivery

    def wait_delivery(self, delivery: BlockingDelivery, timeout_ms: float) -> None:
        """Waits until a delivery is done. Raises ``TimeoutError``."""
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
        """Waits until every record handed over before is delivered or failed. Raises ``TimeoutError``."""
        assert self._handover is not None
        try:
            self._portal.call(self._handover.flush, timeout_ms)
        except trio.TooSlowError as error:
            raise TimeoutError(str(error)) from error

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic. Raises ``KafkaError``."""
        return self._portal.call(self._trio_producer.partitions_for, topic)

    # Transactions: see ``moldau.producer.Producer`` for what each call waits for and raises. Records handed over before
    # a commit belong to it.

    def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Takes over the transactional id. Raises ``FatalTransactionError``, ``KafkaError`` (REQUEST_TIMED_OUT)."""
        self._portal.call(self._trio_producer.init_transactions, timeout_ms)

    def begin_transaction(self) -> None:
        """Begins a transaction. Raises ``TransactionError``, ``RuntimeError`` where one is open."""
        assert self._handover is not None
        self._portal.call(self._handover.begin_transaction)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[tuple[str, int], int | CommittedOffset],
        group: GroupMetadata | str,
        timeout_ms: float | None = None,
    ) -> None:
        """Commits a consumer's offsets with the transaction. Raises ``TransactionError``, ``KafkaError``."""
        self._portal.call(self._trio_producer.send_offsets_to_transaction, offsets, group, timeout_ms)

    def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Delivers and commits. Raises ``AbortableTransactionError`` (abort it), ``FatalTransactionError``,
        ``KafkaError`` (REQUEST_TIMED_OUT: call again).
        """
        assert self._handover is not None
        self._portal.call(self._handover.commit_transaction, timeout_ms)

    def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Aborts the transaction. Raises ``FatalTransactionError``, ``KafkaError`` (REQUEST_TIMED_OUT)."""
        assert self._handover is not None
        self._portal.call(self._handover.abort_transaction, timeout_ms)


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
        self._refused: Exception | None = None  # why a record of the present transaction was not taken

    def end(self) -> None:
        """Refuses further records and fails those that wait."""
        with self._room:
            self._is_ended = True
            self._room.notify_all()
        closed = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, "the producer was closed before it took the record")
        while self._queue:
            self._queue.popleft()[6].resolve(None, closed)
        self.taken.notify()

    def put(self, record: _Handed, token: trio.lowlevel.TrioToken) -> None:
        """Called in any thread."""
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
        """Hands records to the trio producer until cancelled."""
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
        """Waits until the queue is empty and everything is delivered. Raises ``trio.TooSlowError``."""
        with trio.fail_after(timeout_ms / 1000):
            await self.wait_empty()
            await self._producer.flush()

    async def begin_transaction(self) -> None:
        """Begins a transaction once the records before it are taken."""
        await self.wait_empty()
        self._producer.begin_transaction()
        self._refused = None

    async def commit_transaction(self, timeout_ms: float | None) -> None:
        """Commits once the records handed over before are taken; not without a record that could not be."""
        await self.wait_empty()
        if self._refused is not None and not isinstance(self._refused, TransactionError):
            code = self._refused.code if isinstance(self._refused, KafkaError) else ErrorCode.INVALID_RECORD
            why = f"a record of the transaction could not be sent: {self._refused}"
            raise AbortableTransactionError(code, why) from self._refused
        await self._producer.commit_transaction(timeout_ms)

    async def abort_transaction(self, timeout_ms: float | None) -> None:
        """Aborts once the records handed over before are taken."""
        await self.wait_empty()
        self._refused = None
        await self._producer.abort_transaction(timeout_ms)


@asynccontextmanager
async def _handed_over(producer: TrioProducer) -> AsyncIterator[_Handover]:
    """Opens the producer with the task that empties the hand-over. Leaving hands over and delivers what is left."""
    handover = _Handover(producer)
    async with producer, trio.open_nursery() as nursery:
        nursery.start_soon(handover.empty_forever)
        try:
            yield handover
            await handover.wait_empty()
        finally:
            handover.end()
            nursery.cancel_scope.cancel()


class Consumer:
    """A consumer for ordinary threads; see ``moldau.consumer.Consumer``. One thread at a time uses it.

    Rebalance callbacks are ordinary functions; they run in the trio thread while ``poll`` waits and must be short.
    """

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        on_assigned: Callable[[list[TopicPartition]], None] | None = None,
        on_revoked: Callable[[list[TopicPartition]], None] | None = None,
        on_lost: Callable[[list[TopicPartition]], None] | None = None,
    ) -> None:
        """Raises ``ConfigError``."""
        self._consumer = TrioConsumer(
            config,
            on_assigned=_as_async(on_assigned),
            on_revoked=_as_async(on_revoked),
            on_lost=_as_async(on_lost),
        )
        self._portal: _Portal[TrioConsumer] = _Portal("moldau-consumer", self._consumer)

    def __enter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        self._portal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits positions (where that is on), leaves the group and ends the thread; after an exception just ends."""
        self._portal.stop(gives_up=kind is not None)

    def close(self) -> None:
        """As leaving the ``with`` block; idempotent."""
        self._portal.stop(gives_up=False)

    def assign(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Reads exactly these partitions."""
        self._portal.call_sync(self._consumer.assign, list(partitions))

    def subscribe(self, topics: Iterable[str] = (), *, pattern: str | None = None) -> None:
        """Joins the group for these topics, or for all that match ``pattern``, at the next ``poll``."""
        self._portal.call_sync(self._consumer.subscribe, list(topics), pattern=pattern)

    def unsubscribe(self) -> None:
        """Reads nothing any more, and leaves the group."""
        self._portal.call(self._consumer.unsubscribe)

    def group_metadata(self) -> GroupMetadata:
        """This member's place in its group, for ``Producer.send_offsets_to_transaction``. Raises ``ConfigError``."""
        return self._portal.call_sync(self._consumer.group_metadata)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._portal.call_sync(lambda: self._consumer.assignment)

    def poll(self, timeout_ms: float = 1000, *, max_records: int | None = None) -> list[ConsumedBatch]:
        """Returns records, or nothing after ``timeout_ms``. Raises ``KafkaError``."""
        return self._portal.call(self._consumer.poll, timeout_ms, max_records=max_records)

    def poll_columns(self, timeout_ms: float = 1000, *, max_bytes: int = 16 * 1024 * 1024) -> list[ConsumedColumns]:
        """Like ``poll``, but as columns in Arrow's layout."""
        return self._portal.call(self._consumer.poll_columns, timeout_ms, max_bytes=max_bytes)

    def __iter__(self) -> Iterator[ConsumedBatch]:
        """Iterates over batches without end."""
        while True:
            try:
                yield self._portal.call(self._consumer.__anext__)
            except StopAsyncIteration:
                return

    def seek(self, partition: tuple[str, int], offset: int, *, leader_epoch: int = -1) -> None:
        """Goes to ``offset``. Raises ``LookupError`` for a partition that is not assigned."""
        self._portal.call_sync(self._consumer.seek, partition, offset, leader_epoch=leader_epoch)

    def seek_to_beginning(self, *partitions: tuple[str, int]) -> None:
        """Goes to the log start offset of the partitions (all by default)."""
        self._portal.call_sync(self._consumer.seek_to_beginning, *partitions)

    def seek_to_end(self, *partitions: tuple[str, int]) -> None:
        """Goes to the high watermark of the partitions (all by default)."""
        self._portal.call_sync(self._consumer.seek_to_end, *partitions)

    def position(self, partition: tuple[str, int]) -> int:
        """Returns the offset of the next record; waits until it is known."""
        return self._portal.call(self._consumer.position, partition)

    def pause(self, *partitions: tuple[str, int]) -> None:
        """Stops reading the partitions; they stay assigned."""
        self._portal.call_sync(self._consumer.pause, *partitions)

    def resume(self, *partitions: tuple[str, int]) -> None:
        """Reads paused partitions again."""
        self._portal.call_sync(self._consumer.resume, *partitions)

    def commit(self, offsets: Mapping[tuple[str, int], int | CommittedOffset] | None = None) -> None:
        """Commits offsets, by default the present positions. Raises ``CommitFailedError``, ``KafkaError``."""
        self._portal.call(self._consumer.commit, offsets)

    def committed(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, CommittedOffset]:
        """Returns the group's committed offsets; partitions without one are left out."""
        return self._portal.call(self._consumer.committed, list(partitions))

    def beginning_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the log start offset of each partition."""
        return self._portal.call(self._consumer.beginning_offsets, list(partitions))

    def end_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
        """Returns the high watermark of each partition."""
        return self._portal.call(self._consumer.end_offsets, list(partitions))

    def offsets_for_times(self, times: Mapping[tuple[str, int], int]) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of the first record at or after each time."""
        return self._portal.call(self._consumer.offsets_for_times, dict(times))

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic."""
        return self._portal.call(self._consumer.partitions_for, topic)


def _as_async(callback: Callable[[list[TopicPartition]], None] | None) -> RebalanceCallback | None:
    if callback is None:
        return None

    async def run(partitions: list[TopicPartition]) -> None:
        callback(partitions)
        await trio.lowlevel.checkpoint()

    return run


class Admin:
    """An admin client for ordinary threads; see ``moldau.admin.Admin``. Threads may share it."""

    def __init__(self, config: Mapping[str, object] | Config) -> None:
        """Raises ``ConfigError``."""
        self._admin = TrioAdmin(config)
        self._portal: _Portal[TrioAdmin] = _Portal("moldau-admin", self._admin)

    def __enter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        self._portal.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the thread."""
        self._portal.stop(gives_up=kind is not None)

    def close(self) -> None:
        """Ends the thread; idempotent."""
        self._portal.stop(gives_up=False)

    def create_topics(self, topics: Iterable[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic]:
        """Creates topics. Raises ``AdminError``."""
        return self._portal.call(self._admin.create_topics, topics, validate_only=validate_only)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Deletes topics. Raises ``AdminError``."""
        self._portal.call(self._admin.delete_topics, names)

    def create_partitions(self, counts: Mapping[str, int]) -> None:
        """Raises the number of partitions of topics. Raises ``AdminError``."""
        self._portal.call(self._admin.create_partitions, counts)

    def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        """Returns all topics, by name."""
        return self._portal.call(self._admin.list_topics, include_internal=include_internal)

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        """Returns topics with their partitions. Raises ``AdminError``."""
        return self._portal.call(self._admin.describe_topics, names)

    def describe_configs(self, resources: Iterable[ConfigResource]) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Returns configurations. Raises ``AdminError``."""
        return self._portal.call(self._admin.describe_configs, resources)

    def alter_configs(
        self, changes: Mapping[ConfigResource, Sequence[ConfigAlteration]], *, validate_only: bool = False
    ) -> None:
        """Changes single keys. Raises ``AdminError``."""
        self._portal.call(self._admin.alter_configs, changes, validate_only=validate_only)

    def describe_cluster(self) -> ClusterDescription:
        """Returns id, controller and live brokers."""
        return self._portal.call(self._admin.describe_cluster)

    def describe_quorum(self) -> QuorumDescription:
        """Returns the state of the metadata quorum."""
        return self._portal.call(self._admin.describe_quorum)

    def add_voter(self, voter_id: int, host: str, port: int) -> None:
        """Lets a running controller vote; committed on return. Raises ``KafkaError``."""
        self._portal.call(self._admin.add_voter, voter_id, host, port)

    def remove_voter(self, voter_id: int) -> None:
        """Takes a voter's vote away; committed on return. Raises ``KafkaError``."""
        self._portal.call(self._admin.remove_voter, voter_id)

    def describe_features(self) -> list[FeatureDescription]:
        """Returns the features that a broker supports, with the levels in force."""
        return self._portal.call(self._admin.describe_features)

    def update_features(
        self, levels: Mapping[str, int], *, allow_downgrade: bool = False, unsafe: bool = False
    ) -> None:
        """Puts feature levels into force, all or none; see ``Admin``. Raises ``KafkaError``, ``AdminError``."""
        self._portal.call(self._admin.update_features, levels, allow_downgrade=allow_downgrade, unsafe=unsafe)

    def list_offsets(self, wanted: Mapping[tuple[str, int], int]) -> dict[TopicPartition, tuple[int, int]]:
        """Returns (offset, timestamp) of each partition at EARLIEST, LATEST, MAX_TIMESTAMP or a time."""
        return self._portal.call(self._admin.list_offsets, wanted)

    def list_transactions(
        self, *, states: Sequence[str] = (), producer_ids: Sequence[int] = (), min_duration_ms: int = -1
    ) -> list[TransactionListing]:
        """Returns the transactional ids of all coordinators. Raises ``KafkaError``."""
        return self._portal.call(
            self._admin.list_transactions, states=states, producer_ids=producer_ids, min_duration_ms=min_duration_ms
        )

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """Returns transactional ids with what their transactions include. Raises ``AdminError``."""
        return self._portal.call(self._admin.describe_transactions, transactional_ids)

    def describe_producers(self, partition: tuple[str, int]) -> list[ProducerDescription]:
        """Returns the producers that the leader of a partition remembers. Raises ``KafkaError``."""
        return self._portal.call(self._admin.describe_producers, partition)

    def abort_transaction(
        self, partition: tuple[str, int], *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Ends a transaction that hangs in one partition. Raises ``KafkaError``."""
        self._portal.call(
            self._admin.abort_transaction,
            partition,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
        )

    def terminate_transaction(self, transactional_id: str) -> None:
        """Fences the producer of a transactional id and aborts what it left open. Raises ``KafkaError``."""
        self._portal.call(self._admin.terminate_transaction, transactional_id)

    def list_groups(self) -> list[GroupListing]:
        """Returns the groups of all coordinators."""
        return self._portal.call(self._admin.list_groups)

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Returns classic groups with their members. Raises ``AdminError``."""
        return self._portal.call(self._admin.describe_groups, group_ids)

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes empty groups. Raises ``AdminError``."""
        self._portal.call(self._admin.delete_groups, group_ids)

    def list_group_offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Returns every committed offset of a group."""
        return self._portal.call(self._admin.list_group_offsets, group_id)

    def alter_group_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Sets committed offsets of a group without members."""
        self._portal.call(self._admin.alter_group_offsets, group_id, offsets)

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Deletes the records before the offsets; returns log start offsets. Raises ``AdminError``."""
        return self._portal.call(self._admin.delete_records, before)

    def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> list[TopicPartition]:
        """Elects preferred leaders; returns the partitions that changed. Raises ``AdminError``."""
        return self._portal.call(self._admin.elect_leaders, partitions, unclean=unclean)

    def alter_partition_reassignments(self, targets: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        """Moves replicas; None cancels a move. Raises ``AdminError``."""
        self._portal.call(self._admin.alter_partition_reassignments, targets)

    def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """Returns the moves of replicas that are under way."""
        return self._portal.call(self._admin.list_partition_reassignments)

    def describe_log_dirs(self, broker_ids: Iterable[int]) -> dict[int, list[LogDirDescription]]:
        """Returns the log directories of brokers."""
        return self._portal.call(self._admin.describe_log_dirs, broker_ids)
