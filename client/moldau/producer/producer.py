"""The producer: ``send`` appends records to batches, and a background task delivers them.

    async with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        delivery = await producer.send("flights", b"value", key=b"key")
        metadata = await delivery

``send`` waits only for metadata of a new topic and for memory (both at most ``max.block.ms``), so one task can send
hundreds of thousands of records a second; ``send_nowait`` never waits. By default a record counts as delivered when all
in-sync replicas have it, retries write no duplicates and keep the order (idempotence), and a record that is not
delivered within ``delivery.timeout.ms`` fails with its own error. Leaving the ``async with`` block first delivers
pending records.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Self

import trio

from moldau.cluster import arguments
from moldau.cluster.background import FAREWELL_MS, Background, Closing
from moldau.cluster.bootstrap import environment_or_real
from moldau.cluster.caller import AsyncOnly, Caller
from moldau.cluster.client import ClusterClient
from moldau.cluster.interceptors import ProducerInterceptor, checked
from moldau.cluster.metadata import NO_LEADER, PartitionInfo, TopicPartition
from moldau.cluster.reports import Reports
from moldau.producer.core.accumulator import Accumulator
from moldau.producer.core.output import OutputRecord
from moldau.producer.delivery import Delivery, wait_settled
from moldau.producer.encoding import Encoding
from moldau.producer.intake import PAUSE_INTERVAL_RECORDS, RecordIntake, limits_of
from moldau.producer.sender import Sender
from moldau.producer.steps import Steps, transaction
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import PRODUCER_CONFIG, Config, ConfigError
from moldau.serialization.core.records import RecordEncoder
from moldau.serialization.core.values import KeyIn, SchemaNeeded, ValueIn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from uuid import UUID

    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.group_metadata import GroupMetadata
    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.consumer import Consumer
    from moldau.producer.core.partitioner import PartitionerFunction
    from moldau.producer.core.statistics import ProducerStatistics
    from moldau.producer.core.transaction_values import PreparedTransaction
    from moldau.producer.steps import Transform
    from moldau.producer.transactions import Transactions
    from moldau.records import RowColumns
    from moldau.runtime.ports.environment import Environment
    from moldau.serialization.core.values import SerializerLike
    from moldau.values import Buffer


class Producer(AsyncOnly, Generic[KeyIn, ValueIn]):
    """Sends records. Use it as an async context manager; all methods belong to the trio thread that opened it."""

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        environment: Environment | None = None,
        partitioner: PartitionerFunction | None = None,
        key_serializer: SerializerLike[KeyIn] | None = None,
        value_serializer: SerializerLike[ValueIn] | None = None,
        interceptors: Iterable[ProducerInterceptor] = (),
        on_statistics: Callable[[ProducerStatistics], object] | None = None,
    ) -> None:
        """Takes Kafka's producer configuration keys.

        ``environment`` is by default that of the operating system. ``partitioner`` chooses the partition of each
        record that names none. Without a serializer, keys or values are bytes. ``on_statistics`` receives
        ``statistics()`` every ``statistics.interval.ms``.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._config = arguments.configuration("Producer", config, PRODUCER_CONFIG)
        if partitioner is not None and not callable(partitioner):
            raise TypeError(f"Producer: partitioner must be a function, not {arguments.shown(partitioner)}")
        self._environment = environment
        encoder = RecordEncoder.of(key_serializer, value_serializer)
        self.interceptors = checked("Producer", interceptors, ProducerInterceptor)
        self._is_plain = encoder is None and not self.interceptors
        self._reports = Reports("Producer", self._config, on_statistics)
        self._limits = limits_of(self._config)
        self._max_block_ms = self._config.get_int("max.block.ms")
        self._encoding = Encoding(encoder, self.interceptors, self._max_block_ms)
        self._accumulator = Accumulator(self._limits)
        self._caller = Caller("Producer")
        self._intake = RecordIntake(self._config, self._limits, self._accumulator, self._caller, partitioner)
        self._append = self._intake.appender.append if self._is_plain else _leave
        self._background = Background()
        self._client: ClusterClient | None = None
        self._sender: Sender | None = None
        self._transactions: Transactions | None = None
        self._steps = Steps()
        self._closing = Closing()

    # --- life

    async def __aenter__(self) -> Self:
        """Starts the background tasks. Does not wait for a broker."""
        if self._client is not None:
            raise RuntimeError("a producer can be opened only once")
        self._caller.enter()
        environment = environment_or_real(self._environment)
        self._client = ClusterClient(environment, self._config, "producer")
        self._client.allow_auto_create = True
        self._client.on_other_cluster = self._accumulator.leave_cluster
        transactional_id = self._config.get_str_or_none("transactional.id")
        acks = {"all": -1, "-1": -1, "0": 0, "1": 1}[self._config.get_str("acks")]
        self._sender = Sender(self._client, self._accumulator, acks=acks, transactional_id=transactional_id)
        if transactional_id is not None:
            from moldau.producer.transactions import Transactions  # not loaded by producers without transactions

            self._transactions = Transactions.of(
                self._config, transactional_id, self._client, self._accumulator, self._sender
            )
        self._intake.open(self._client, self._sender, self._transactions)
        last = () if self._transactions is None else (self._transactions.run,)
        await self._background.open(self._client.run, self._sender.run, *last)
        self._background.nursery.start_soon(self._intake.topics.forget_idle, self._client)
        self._reports.start(self._background.nursery, self._client, self.statistics)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Delivers pending records, for at most ``delivery.timeout.ms``, and stops.

        After an exception or a cancellation it drops pending records and aborts an open transaction, for at most
        ``FAREWELL_MS``. If that fails, the coordinator aborts the transaction after its timeout.
        """
        return await self._background.close(
            kind, error, traceback, closing=self.close, departing=self._depart, ended=self.abandon
        )

    async def close(self, timeout_ms: float = math.inf) -> None:
        """Delivers pending records for at most ``timeout_ms``, fails the rest, and stops; idempotent.

        It aborts an open transaction, and waits for a commit under way. Calls of other tasks that wait then end. A
        second call waits for the first.
        """
        timeout_ms = arguments.milliseconds("close", timeout_ms)
        if self._intake.is_closed or self._closing.is_under_way:
            await self._closing.wait(timeout_ms)
            self.abandon()  # what is left when the time is over
            return
        accumulator, (client, sender) = self._accumulator, self._intake.opened()
        with self._closing.carried_out(), trio.move_on_after(timeout_ms / 1000):
            await self._leave_transaction(timeout_ms)
            self._intake.close()
            accumulator.is_closing = True
            sender.wake()
            for batch in [each.delivered for each in accumulator.incomplete]:
                await wait_settled(batch)
            await client.telemetry.farewell()
        self.abandon()

    async def _depart(self) -> None:
        """Ends the open transaction, so that consumers of its partitions need not wait for its timeout."""
        client = self._client
        if client is None or client.is_closed:
            return
        try:
            await self._leave_transaction(self._max_block_ms)
            await client.telemetry.farewell()
        except trio.Cancelled:
            client.logger.info("abort-unanswered", transactional_id=self._config.get_str_or_none("transactional.id"))
            raise

    def abandon(self) -> None:
        """Closes the connections at once and sends nothing more, as if the process had died.

        Pending records fail; an open transaction stays open until its timeout. Leave the block afterwards.
        """
        self._intake.close()
        closed = KafkaError(
            ErrorCode.OPERATION_NOT_ATTEMPTED, "the producer was closed before the record was delivered"
        )
        dropped = self._accumulator.abort(closed)
        if self._sender is not None:
            self._sender.dropped(dropped)
        if self._transactions is not None:
            self._transactions.close()
        if self._client is not None:
            self._client.close()
        self._background.cancel()

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
    ) -> Delivery:
        """Appends a record to a batch and returns its delivery; waits only for metadata and memory.

        The record is copied. ``timestamp`` is in milliseconds since the Unix epoch, by default now. ``send`` executes a
        checkpoint at least once per batch.

        Raises:
            KafkaError: the topic or partition does not exist, the record is too large, metadata or memory did not
                become available within ``max.block.ms``, or the producer has failed.
            InvalidRecordError: the record cannot be encoded.
            SerializationError: a serializer refuses key or value, or the registry its schema.
            RegistryError: the schema registry does not answer within ``max.block.ms``.
            TypeError: an argument is of a wrong type.
        """
        delivery = self._append(topic, value, key, headers, partition, timestamp)
        if delivery is not None:
            return delivery
        if not self._is_plain:
            self._intake.opened()
            record: OutputRecord[Any, Any] = OutputRecord(topic, value, key, headers, partition, timestamp)
            return await self._encoding.send(record, self.send_bytes)
        return await self._intake.append_soon(topic, value, key, headers, partition, timestamp)  # type: ignore[arg-type]  # bytes

    def watch(self, delivery: Delivery, record: OutputRecord[Any, Any]) -> None:
        """Reports to interceptors the outcome of a record that they saw in ``on_send``."""
        self._encoding.watch(delivery, record)

    async def fetch_schema(self, topic: str, needed: SchemaNeeded) -> None:
        """Fetches from a schema registry what a serializer needs for a record of ``topic``."""
        await self._encoding.fetch_schema(topic, needed)

    async def send_bytes(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        *,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Sends a record whose key and value are serialized already; otherwise works like ``send``."""
        delivery = self._intake.appender.append(topic, value, key, headers, partition, timestamp)
        if delivery is not None:
            return delivery
        return await self._intake.append_soon(topic, value, key, headers, partition, timestamp)

    @property
    def intake(self) -> RecordIntake:
        """The intake of serialized records, for loops that execute checkpoints themselves."""
        return self._intake

    def send_nowait(
        self,
        topic: str,
        value: ValueIn | None,
        key: KeyIn | None = None,
        *,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Appends a record to a batch without waiting; a caller that loops must execute checkpoints itself.

        Raises:
            LookupError: the topic's metadata is missing (await ``partitions_for`` first), or the schema's id (await
                ``send`` for one record first).
            BufferExhaustedError: ``buffer.memory`` is full.
            SerializationError: a serializer refuses key or value.
            KafkaError: as for ``send``.
        """
        delivery = self._append(topic, value, key, headers, partition, timestamp)
        if delivery is not None:
            return delivery
        if self._is_plain:
            return self._intake.append(
                topic,
                value,  # type: ignore[arg-type]  # bytes, which ``append`` checks
                key,  # type: ignore[arg-type]
                headers=headers,
                partition=partition,
                timestamp=timestamp,
            )
        self._intake.opened()
        record: OutputRecord[Any, Any] = OutputRecord(
            topic, value, key, tuple(arguments.headers("send_nowait", headers)), partition, timestamp
        )
        return self._encoding.append(record, self._intake.append)

    async def send_many(
        self,
        topic: str,
        values: Iterable[ValueIn | None],
        *,
        keys: Iterable[KeyIn | None] | None = None,
        partition: int | None = None,
    ) -> list[Delivery]:
        """Sends a record for each value, with the keys in the same order, and returns the deliveries.

        ``send`` documents the errors. Records before the one that raises are sent.

        Raises:
            ValueError: there are more or fewer keys than values.
        """
        if not self._is_plain:
            if keys is None:
                return [await self.send(topic, value, partition=partition) for value in values]
            pairs = zip(values, keys, strict=True)
            return [await self.send(topic, value, key, partition=partition) for value, key in pairs]
        self._intake.opened()
        deliveries: list[Delivery] = []
        rest: Iterator[Any] = iter(values) if keys is None else zip(values, keys, strict=True)
        is_over = False
        while not is_over:
            block: list[Any] = []
            try:
                block.extend(islice(rest, PAUSE_INTERVAL_RECORDS))
                is_over = len(block) < PAUSE_INTERVAL_RECORDS
            finally:  # also when the iterator raises: the records before are sent
                await self._send_block(topic, block, partition, deliveries, has_keys=keys is not None)
        return deliveries

    async def _send_block(
        self, topic: str, block: list[Any], partition: int | None, deliveries: list[Delivery], *, has_keys: bool
    ) -> None:
        values = [value for value, _ in block] if has_keys else block
        keys = [key for _, key in block] if has_keys else None
        sent: list[Delivery] = []
        while len(sent) < len(values):
            self._intake.appender.append_many(topic, values, keys, partition, sent)
            at = len(sent)
            if at < len(values):
                key = None if keys is None else keys[at]
                sent.append(await self._intake.append_soon(topic, values[at], key, (), partition, None))
        deliveries += sent

    async def send_columns(
        self, topic: str, columns: RowColumns, *, partitions: Buffer | None = None
    ) -> tuple[Delivery, ...]:
        """Appends rows of columns (Arrow's layout) as records; waits for metadata and memory as ``send`` does.

        No Python object is made for a row. The rows are copied. ``partitions`` names a partition for each row (int32,
        -1 for none); rows without one go by their key, or where the keyless partitioner says, as with ``send``. A
        custom partitioner cannot choose for columns. Returns one delivery for each batch that took rows, in no order.

        Rows with a given partition or a key stay in order within their partition, and so do rows that the keyless
        partitioner places; within one call these two kinds may change places in a partition.

        Raises:
            KafkaError: as for ``send``.
            InvalidRecordError: a row cannot be encoded; rows before it were taken.
            TypeError: an argument is of a wrong type.
            ValueError: ``partitions`` does not name one that exists for each row, or a custom partitioner is set.
        """
        self._intake.opened()
        return await self._intake.append_columns(topic, columns, partitions)

    async def send_encoded(self, topic: str, partition: int, batch: Buffer) -> Delivery:
        """Sends a record batch (format v2) as it is, with its compression; waits for metadata and memory.

        The bytes are copied. Only the producer's own fields of the header change, and the CRC with them. Returns the
        delivery of the batch's first record; the others have the offsets after it. ``Consumer.poll_encoded`` gives such
        batches. Serializers and interceptors see nothing of it.

        Raises:
            KafkaError: as for ``send``; MESSAGE_TOO_LARGE for a batch larger than ``buffer.memory``.
            InvalidRecordError: the bytes are no batch, its CRC is wrong, or its offsets have gaps.
            ValueError: the partition is negative.
        """
        self._intake.opened()
        arguments.text("send_encoded", "topic", topic)
        number = arguments.at_least("send_encoded", "partition", partition, 0, bits=arguments.INT32_BITS)
        return await self._intake.append_encoded(topic, number, batch)

    # --- metadata

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic; waits for its metadata, at most ``max.block.ms``.

        Raises:
            KafkaError: the topic does not exist, or its metadata did not arrive in time.
        """
        client = self._intake.opened()[0]
        arguments.text("partitions_for", "topic", topic)
        info = await self._intake.topics.wait_for(client, topic, None, client.now_ms + self._max_block_ms)
        return info.partitions

    # --- transactions

    def _transactional(self) -> Transactions:
        self._intake.opened()
        if self._transactions is None:
            raise ConfigError(["transactional.id: needed for transactions"])
        if self._intake.is_closed:
            raise RuntimeError("the producer is closed")
        return self._transactions

    async def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Takes over the transactional id: fences its earlier producers and ends their open transaction.

        Call it once, before the first transaction. It waits at most ``timeout_ms`` (by default ``max.block.ms``), like
        the other calls. After REQUEST_TIMED_OUT the same call resumes waiting.

        Raises:
            FatalTransactionError: the coordinator refuses.
            KafkaError: REQUEST_TIMED_OUT.
        """
        await self._transactional().init(timeout_ms)

    def begin_transaction(self) -> None:
        """Begins a transaction: its records become visible together or not at all.

        Raises:
            TransactionError: the producer has failed.
            RuntimeError: another transaction is open.
        """
        self._transactional().begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[tuple[str, int], int | CommittedOffset],
        group: GroupMetadata | str,
        timeout_ms: float | None = None,
    ) -> None:
        """Commits a consumer's offsets (of the next records to read) with the transaction (KIP-447).

        ``group`` comes from ``Consumer.group_metadata``.

        Raises:
            AbortableTransactionError: the member no longer belongs to the group's generation.
            TransactionAbortedError: the transaction was aborted during the call.
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT.
        """
        await self._transactional().send_offsets(offsets, group, timeout_ms)

    async def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Delivers the transaction's records, then commits it; read_committed consumers then see them.

        Raises:
            AbortableTransactionError: a record or offset could not be written; call ``abort_transaction``.
            FatalTransactionError: the producer is fenced or broken; close it.
            KafkaError: REQUEST_TIMED_OUT; the outcome is unknown, and the producer continues the commit. Call again to
                learn the outcome, also after a cancellation. Until the next transaction begins, the first call that
                waits long enough returns it.
        """
        await self._transactional().commit(timeout_ms)

    async def prepare_transaction(self, timeout_ms: float | None = None) -> PreparedTransaction:
        """Delivers the transaction's records and offsets, and hands the transaction over to be ended elsewhere.

        The producer is closed afterwards and leaves the transaction open. ``Admin.end_transaction`` commits or aborts
        it, in any process, before ``transaction.timeout.ms`` is over and no other producer has taken over the
        transactional id; either aborts it. The names are those of KIP-939.

        Raises:
            AbortableTransactionError: a record or offset could not be written; call ``abort_transaction``.
            FatalTransactionError: the producer is fenced or broken; close it.
            KafkaError: REQUEST_TIMED_OUT; call again.
        """
        transactions = self._transactional()
        prepared = await transactions.prepare(timeout_ms)
        self.abandon()
        return prepared

    async def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Aborts the transaction; records that were not sent yet fail with ``TransactionAbortedError``.

        Raises:
            FatalTransactionError: the producer must be closed.
            KafkaError: REQUEST_TIMED_OUT; call again.
            RuntimeError: an earlier commit without a known outcome has committed the transaction.
        """
        await self._transactional().abort(timeout_ms)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """Begins a transaction for a block: ``async with producer.transaction():``.

        The end of the block commits it. An exception aborts it and goes on, also one that the commit raises because
        a record could not be written. Call ``init_transactions`` once before.

        Raises:
            KafkaError: REQUEST_TIMED_OUT; the outcome is unknown, and ``commit_transaction`` returns it.
        """
        return transaction(self, _farewell)

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
        return await self._steps.run(self, consumer, function, timeout_ms, max_records, _farewell)

    def undeliver_outcome(self, *, of_begin: bool = False) -> None:
        """Keeps the last outcome of an init, commit or abort for a repetition of the same call; takes back a begin.

        The producers for threads and asyncio call it if an interrupt kept the outcome from its caller.
        """
        if self._transactions is not None:
            self._transactions.manager.undeliver(of_begin=of_begin)

    async def _leave_transaction(self, timeout_ms: float) -> None:
        if self._transactions is not None:
            self._intake.opened()
            await self._transactions.leave(timeout_ms)

    # --- flushing

    async def flush(self, timeout_ms: float = math.inf) -> None:
        """Sends all records now and waits until each is delivered or failed.

        The deliveries report the errors of records.

        Raises:
            trio.TooSlowError: records are pending after ``timeout_ms``.
        """
        sender = self._intake.opened()[1]
        timeout_ms = arguments.milliseconds("flush", timeout_ms)
        accumulator = self._accumulator
        accumulator.flushes += 1
        sender.wake()
        try:
            await trio.lowlevel.checkpoint()
            with trio.move_on_after(timeout_ms / 1000) as scope:
                for batch in [each.delivered for each in accumulator.incomplete]:
                    await wait_settled(batch)
        finally:
            accumulator.flushes -= 1
        if scope.cancelled_caught:
            raise trio.TooSlowError(f"{len(accumulator.incomplete)} batches are not delivered after {timeout_ms:g} ms")

    def statistics(self) -> ProducerStatistics:
        """Returns the producer's numbers, under the names of Kafka's producer metrics."""
        client, sender = self._intake.opened()
        return sender.counters.statistics(
            client.now_ms,
            total=self._limits.buffer_memory,
            used=self._accumulator.memory_used,
            waiting=self._accumulator.memory_waiters,
        )

    async def client_instance_id(self, timeout_ms: float | None = None) -> UUID:
        """Returns the id under which brokers keep this client's metrics (KIP-714); waits until one has assigned it.

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        return await self._intake.opened()[0].telemetry.client_instance_id(timeout_ms)

    @property
    def application_metrics(self) -> ApplicationMetrics:
        """The application's own metrics, which this client pushes to brokers that want them (KIP-1076)."""
        return self._intake.opened()[0].telemetry.application

    @property
    def failure(self) -> KafkaError | None:
        """The error after which the producer takes no records any longer; None while it works."""
        return self._intake.opened()[1].fatal_error

    @property
    def pending_bytes(self) -> int:
        """Bytes of ``buffer.memory`` in use."""
        return self._accumulator.memory_used

    def has_leader(self, topic: str, partition: int) -> bool:
        """Returns whether the partition's leader is known now."""
        info = self._intake.opened()[0].cluster_metadata.partition_info(TopicPartition(topic, partition))
        return info is not None and info.leader != NO_LEADER


def _leave(*_: object) -> None:
    """Takes no record: with serializers or interceptors all pass through ``Encoding``."""


def _farewell() -> trio.CancelScope:
    """Makes the scope in which a transaction is aborted after an exception or a cancellation."""
    return trio.move_on_after(FAREWELL_MS / 1000, shield=True)
