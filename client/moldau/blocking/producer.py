"""The producer for ordinary threads."""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, Self, cast

import trio
from sniffio import thread_local as running

from moldau.blocking.handover import HANDOVER_RECORDS_MAX, LARGE_BYTES, Handover, PendingDelivery, handed_over
from moldau.blocking.portal import Portal, PortalClient
from moldau.cluster import arguments
from moldau.cluster.background import FAREWELL_MS
from moldau.cluster.interceptors import ProducerInterceptor, on_acknowledgement, on_send
from moldau.producer import AbortableTransactionError, FatalTransactionError, OutputRecord
from moldau.producer import Producer as TrioProducer
from moldau.producer.steps import Steps, note_abort_failure, offsets_behind, output_of, rewind
from moldau.protocol.errors import KafkaError
from moldau.serialization.core.records import RecordEncoder
from moldau.serialization.core.values import KeyIn, SchemaNeeded, ValueIn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from uuid import UUID

    from moldau.blocking.consumer import Consumer
    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.cluster.metadata import PartitionInfo
    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.consumer import CommittedOffset, ConsumedRecord
    from moldau.producer import PartitionerFunction, PreparedTransaction, RecordMetadata
    from moldau.producer.core.statistics import ProducerStatistics
    from moldau.runtime.config import Config
    from moldau.runtime.tasks.sync import Signal
    from moldau.serialization.core.values import Headers, SerializerLike
    from moldau.values import Buffer


class BlockingDelivery(PendingDelivery["Producer[Any, Any]"]):
    """The outcome of one record passed to a blocking producer."""

    __slots__ = ()

    def result(self, timeout_ms: float = 120_000) -> RecordMetadata:
        """Waits for the outcome and returns it, or raises the record's error.

        Raises:
            TimeoutError: the outcome is unknown after ``timeout_ms``.
        """
        limit_ms = arguments.milliseconds("result", timeout_ms)
        if not self.is_done:
            self._owner.wait_delivery(self, limit_ms)
        return self.outcome()

    async def wait(self, resolved: Signal) -> None:
        """Waits in the trio thread until the outcome is known."""
        await resolved.wait_until(lambda: self.is_resolved)
        if self.taken is not None:
            with suppress(KafkaError):  # ``outcome`` raises it
                await self.taken.wait()


class Producer(PortalClient, Generic[KeyIn, ValueIn]):
    """A producer for ordinary threads; see ``moldau.producer.Producer``. Threads may share it.

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

        ``on_statistics`` receives ``statistics()`` every ``statistics.interval.ms``, in the trio thread.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._trio_producer: TrioProducer = TrioProducer(
            config,
            partitioner=partitioner,
            interceptors=interceptors,
            on_statistics=on_statistics,
        )
        self._encoder = RecordEncoder.of(key_serializer, value_serializer)
        self._is_plain = self._encoder is None and not self._trio_producer.interceptors
        self._portal: Portal[Handover] = Portal("moldau-producer", handed_over(self._trio_producer))
        self._handover: Handover | None = None
        self._steps = Steps()

    def __enter__(self) -> Self:
        """Starts the thread. Does not wait for a broker."""
        self._handover = self._portal.start()
        return self

    def close(self, timeout_ms: float = math.inf) -> None:
        """Delivers pending records for at most ``timeout_ms``, fails the rest, and ends the thread; idempotent.

        It aborts an open transaction, and waits for a commit under way. A second call waits for the first.
        """
        timeout_ms = arguments.milliseconds("close", timeout_ms)
        self._portal.stop(gives_up=False, closing=lambda opened: opened.close(timeout_ms))

    def _opened(self) -> Handover:
        """Returns the hand-over to the trio thread.

        Raises:
            RuntimeError: the client is not open.
        """
        _ = self._portal.token  # raises if the client is not open
        assert self._handover is not None
        return self._handover

    def send(
        self,
        topic: str,
        value: ValueIn | None,
        key: KeyIn | None = None,
        *,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> BlockingDelivery:
        """Queues a record and returns its delivery; blocks only while too many records or bytes wait.

        ``HANDOVER_RECORDS_MAX`` bounds the records, ``HANDOVER_BYTES_MAX`` the bytes of large ones.

        Buffers must not change until the trio thread has taken the record. ``send`` itself raises only ``TypeError``
        and ``ValueError``, for
        invalid arguments and values that cannot be serialized, and ``RegistryError``; the delivery's ``result`` raises
        all other errors.
        """
        token, handover = self._portal.open_token, self._handover
        # Fast path: exact classes cover most records. All others pass the checks of arguments and of the portal below.
        if (
            self._is_plain
            and token is not None
            and handover is not None
            and not handover.is_ended
            and topic.__class__ is str
            and topic
            and (value is None or (value.__class__ is bytes and len(value) < LARGE_BYTES))  # type: ignore[arg-type]
            and (key is None or (key.__class__ is bytes and len(key) < LARGE_BYTES))  # type: ignore[arg-type]
            and headers == ()
            and (partition is None or partition.__class__ is int)
            and (timestamp is None or timestamp.__class__ is int)
            and len(handover.queue) < HANDOVER_RECORDS_MAX
            # Trio sets the name while it runs; ``in_trio_run`` is exact, but dear where the answer is no.
            and (running.name is None or not trio.lowlevel.in_trio_run())
        ):
            delivery = BlockingDelivery(self)
            record: Any = (topic, value, key, (), partition, timestamp, delivery)
            handover.queue.append(record)  # what ``put`` does, without its calls
            if not handover.is_called or handover.is_ended:
                handover.appended(token)
            return delivery
        given = tuple(arguments.headers("send", headers))
        if not self._trio_producer.interceptors:
            key_bytes, value_bytes = self._encoded(topic, key, value, given)
            return self.send_bytes(
                topic, value_bytes, key_bytes, headers=given, partition=partition, timestamp=timestamp
            )
        output: OutputRecord[Any, Any] = OutputRecord(topic, value, key, given, partition, timestamp)
        output = on_send(self._trio_producer.interceptors, output)
        try:
            return self._send_intercepted(output)
        except Exception as error:
            on_acknowledgement(self._trio_producer.interceptors, output, None, error)
            raise

    def _send_intercepted(self, record: OutputRecord[Any, Any]) -> BlockingDelivery:
        topic, value, key, given, partition, timestamp = record
        headers = tuple(arguments.headers("send", given))
        key_bytes, value_bytes = self._encoded(topic, key, value, headers)
        return self._put(topic, value_bytes, key_bytes, headers, partition, timestamp, record)

    def send_bytes(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        *,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> BlockingDelivery:
        """Sends a record whose key and value are serialized already; otherwise works like ``send``."""
        return self._put(topic, value, key, headers, partition, timestamp, None)

    def _put(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        partition: int | None,
        timestamp: int | None,
        intercepted: OutputRecord[Any, Any] | None,
    ) -> BlockingDelivery:
        token, handover = self._portal.token, self._handover
        assert handover is not None
        delivery = BlockingDelivery(self)
        delivery.intercepted = intercepted
        given, partition, timestamp = arguments.record("send", topic, value, key, headers, partition, timestamp)
        handover.put((topic, value, key, tuple(given), partition, timestamp, delivery), token)
        return delivery

    def _encoded(
        self, topic: str, key: KeyIn | None, value: ValueIn | None, headers: Headers
    ) -> tuple[Buffer | None, Buffer | None]:
        if self._encoder is None:
            return cast("tuple[Buffer | None, Buffer | None]", (key, value))
        while True:
            try:
                return self._encoder.encode(topic, key, value, headers)
            except SchemaNeeded as needed:
                self._portal.call(self._trio_producer.fetch_schema, topic, needed)

    def send_many(
        self,
        topic: str,
        values: Iterable[ValueIn | None],
        *,
        keys: Iterable[KeyIn | None] | None = None,
        partition: int | None = None,
    ) -> list[BlockingDelivery]:
        """Sends a record for each value, with the keys in the same order, and returns the deliveries.

        ``send`` documents the errors. Records before the one that raises are sent.

        Raises:
            ValueError: there are more or fewer keys than values.
        """
        if keys is None:
            return [self.send(topic, value, partition=partition) for value in values]
        pairs = zip(values, keys, strict=True)
        return [self.send(topic, value, key, partition=partition) for value, key in pairs]

    def wait_delivery(self, delivery: BlockingDelivery, timeout_ms: float) -> None:
        """Waits until a delivery is done.

        Raises:
            TimeoutError: the time is over.
        """
        taken = self._opened().taken

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
        limit_ms = arguments.milliseconds("flush", timeout_ms)
        self._portal.call(self._opened().flush, limit_ms)

    def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        return self._portal.call(self._trio_producer.partitions_for, topic)

    def statistics(self) -> ProducerStatistics:
        """Returns the producer's numbers, under the names of Kafka's producer metrics."""
        return self._portal.call_sync(self._trio_producer.statistics)

    def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns the id under which brokers keep this client's metrics (KIP-714).

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        return self._portal.call(self._trio_producer.client_instance_id, timeout_ms)

    @property
    def application_metrics(self) -> ApplicationMetrics:
        """The application's own metrics, which this client pushes to brokers that want them (KIP-1076)."""
        return self._portal.call_sync(lambda: self._trio_producer.application_metrics)

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
            KafkaError: REQUEST_TIMED_OUT; records that were sent before wait for metadata or memory.
        """
        self._portal.call_or_undo(
            lambda _: self._trio_producer.undeliver_outcome(of_begin=True), self._opened().begin_transaction
        )

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
        self._portal.call_or_undo(self._undeliver, self._opened().commit_transaction, timeout_ms)

    def prepare_transaction(self, timeout_ms: float | None = None) -> PreparedTransaction:
        """Delivers the transaction's records and hands it over to ``Admin.end_transaction``; the producer is closed.

        Raises:
            AbortableTransactionError: the transaction must be aborted.
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again.
        """
        return self._portal.call(self._opened().prepare_transaction, timeout_ms)

    def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Aborts the transaction.

        Raises:
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again.
            RuntimeError: an earlier commit without a known outcome has committed the transaction.
        """
        self._portal.call_or_undo(self._undeliver, self._opened().abort_transaction, timeout_ms)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begins a transaction for a block: ``with producer.transaction():``.

        The end of the block commits it. An exception aborts it and goes on, also one that the commit raises because
        a record could not be written. Call ``init_transactions`` once before.

        Raises:
            KafkaError: REQUEST_TIMED_OUT; the outcome is unknown, and ``commit_transaction`` returns it.
        """
        self.begin_transaction()
        try:
            yield
        except BaseException as error:
            self._abort_after(error)
            raise
        try:
            self.commit_transaction()
        except AbortableTransactionError as error:
            self._abort_after(error)
            raise

    def _abort_after(self, error: BaseException) -> None:
        if isinstance(error, FatalTransactionError):
            return
        try:
            self.abort_transaction(None if isinstance(error, Exception) else FAREWELL_MS)
        except (KafkaError, RuntimeError) as failure:
            note_abort_failure(error, failure)

    def transform(
        self,
        consumer: Consumer[Any, Any],
        function: Callable[[ConsumedRecord[Any, Any]], Iterable[OutputRecord[Any, Any]]],
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
        self._steps.check(consumer)
        batches = consumer.poll(timeout_ms, max_records)
        if not batches:
            return 0
        try:
            self.begin_transaction()
            for batch in batches:
                for record in batch.with_partition():
                    for topic, value, key, headers, partition, timestamp in output_of(function(record)):
                        self.send(topic, value, key, headers=headers, partition=partition, timestamp=timestamp)
            self.send_offsets_to_transaction(offsets_behind(consumer, batches), consumer.group_metadata())
        except BaseException as error:
            rewind(consumer, batches)
            self._abort_after(error)
            raise
        try:
            self.commit_transaction()
        except AbortableTransactionError as error:
            rewind(consumer, batches)
            self._abort_after(error)
            raise
        except BaseException:
            self._steps.is_undecided = True
            raise
        return sum(len(batch.records) for batch in batches)
