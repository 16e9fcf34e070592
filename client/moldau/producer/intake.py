"""The intake of a producer: where records pass the checks, get their partitions and enter the batches.

The ``appender`` takes most records: those without headers that go into a batch which is open and does not become full.
It runs in compiled code and returns None for every other record. ``append`` takes these. It never waits: it raises
``LookupError`` while the topic's metadata is missing and ``BufferExhaustedError`` while the memory is full.
``append_waiting`` and ``append_columns`` wait for both, at most ``max.block.ms``.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, NoReturn

import trio

from moldau.cluster import arguments
from moldau.producer.columns import RowAppender, check_columns, partitions_of
from moldau.producer.core.limits import Limits, record_size_bound
from moldau.producer.core.partitioner import PartitionerFunction, partition_for_key
from moldau.producer.delivery import ColumnsDelivery, Delivery
from moldau.producer.topics import LOAD_INTERVAL_RECORDS, ProducerTopics
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import (
    EMPTY_RECORD_BYTES,
    Compression,
    CorruptRecordError,
    InvalidRecordError,
    RecordAppender,
    TimestampType,
    check_batch_crc,
    parse_batch_header,
)
from moldau.runtime.config.client_schemas import idempotence_enabled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau.cluster.caller import Caller
    from moldau.cluster.client import ClusterClient
    from moldau.producer.core.accumulator import Accumulator
    from moldau.producer.core.partition_queue import PartitionQueue
    from moldau.producer.sender import Sender
    from moldau.producer.transactions import Transactions
    from moldau.records import BatchHeader, RowColumns
    from moldau.runtime.config import Config
    from moldau.values import Buffer


TIMESTAMP_MS_MAX = (1 << 63) - 1
PAUSE_INTERVAL_RECORDS = 256
"""Records after which ``send`` executes a checkpoint, so that other tasks have their turn."""


class BufferExhaustedError(KafkaError):
    """Reports that the records waiting to be sent fill ``buffer.memory``."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, detail)


def limits_of(config: Config) -> Limits:
    """Returns the accumulator's limits from a producer configuration."""
    compression = Compression.from_config_name(config.get_str("compression.type"))
    level_key = f"compression.{compression.config_name}.level"
    return Limits(
        batch_size=max(config.get_int("batch.size"), 1),
        linger_ms=config.get_int("linger.ms"),
        buffer_memory=config.get_int("buffer.memory"),
        delivery_timeout_ms=max(
            config.get_int("delivery.timeout.ms"), config.get_int("linger.ms") + config.get_int("request.timeout.ms")
        ),
        in_flight_max=config.get_int("max.in.flight.requests.per.connection"),
        request_size_max=config.get_int("max.request.size"),
        retries=config.get_int("retries"),
        retry_backoff_ms=config.get_int("retry.backoff.ms"),
        retry_backoff_max_ms=config.get_int("retry.backoff.max.ms"),
        compression=compression,
        compression_level=config.get_int(level_key) if config.is_set(level_key) else None,
        is_idempotent=idempotence_enabled(config),
        is_transactional=config.get_str_or_none("transactional.id") is not None,
    )


def checked_batch(data: Buffer, bytes_max: int) -> BatchHeader:
    """Returns the header of a record batch that a producer may send as it is.

    Raises:
        InvalidRecordError: it is no whole batch, its CRC is wrong, or a broker would refuse it from any producer.
        KafkaError: MESSAGE_TOO_LARGE.
    """
    try:
        header = parse_batch_header(data)
        if header.size_bytes != len(data):
            raise InvalidRecordError(f"{len(data)} bytes are not one batch of {header.size_bytes} bytes")
        check_batch_crc(data, 0, header)
    except CorruptRecordError as error:
        raise InvalidRecordError(f"not a record batch: {error}") from error
    if header.is_control or header.timestamp_type is not TimestampType.CREATE_TIME:
        raise InvalidRecordError("a producer sends no markers, and no timestamps of a broker")
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecordError(
            f"{header.record_count} records over {header.last_offset_delta + 1} offsets: the offsets must have no gaps"
        )
    if len(data) > bytes_max:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(data)} bytes exceeds buffer.memory")
    return header


class RecordIntake:
    """Takes the records of one producer. It refuses all of them before ``open`` and while ``is_closed`` is set."""

    def __init__(
        self,
        config: Config,
        limits: Limits,
        accumulator: Accumulator,
        caller: Caller,
        partitioner: PartitionerFunction | None,
    ) -> None:
        """``partitioner`` chooses the partition of each record that names none."""
        self.topics = ProducerTopics(config, accumulator, batch_size=limits.batch_size)
        self._is_closed = False
        self._limits = limits
        self._accumulator = accumulator
        self._caller = caller
        self._partitioner = partitioner
        self._record_bytes_max = min(limits.request_size_max, limits.buffer_memory)
        self._max_block_ms = config.get_int("max.block.ms")
        self._ignores_keys = config.get_bool("partitioner.ignore.keys")
        self._client: ClusterClient | None = None
        self._sender: Sender | None = None
        self._transactions: Transactions | None = None
        self.wall_ms: Callable[[], int] = self._no_time
        self.appender: RecordAppender[Delivery] = RecordAppender(
            Delivery,
            self.topics.known,
            record_bytes_max=self._record_bytes_max,
            interval=PAUSE_INTERVAL_RECORDS,
            ignores_keys=self._ignores_keys,
            is_custom=partitioner is not None,
        )

    @property
    def is_closed(self) -> bool:
        """Whether the producer takes no more records."""
        return self._is_closed

    @property
    def max_block_ms(self) -> int:
        """How long a record may wait for metadata and memory."""
        return self._max_block_ms

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to transactions."""
        return self._transactions is not None

    @property
    def is_in_transaction(self) -> bool:
        """Whether a record that is sent now belongs to a transaction; none does while one is committed or aborted."""
        return self._transactions is not None and self._transactions.is_in_transaction

    def close(self) -> None:
        """Refuses further records."""
        self._is_closed = True
        self._shut()

    def _shut(self) -> None:
        """Makes every record pass through ``append``, which knows why it must be refused."""
        self.appender.is_open = False

    @staticmethod
    def _no_time() -> NoReturn:
        raise RuntimeError("the producer is not open")

    def open(self, client: ClusterClient, sender: Sender, transactions: Transactions | None) -> None:
        """Begins to take records; ``sender`` delivers them, ``transactions`` admits them."""
        self._client = client
        self._sender = sender
        self._transactions = transactions
        self.wall_ms = client.environment.clock.wall_ms
        if transactions is not None:
            self.appender.check = transactions.check_sending
        self.appender.open(client.cluster_metadata, client.environment.clock.wall_ns, get_ident, self._caller)
        sender.on_failure = self._shut

    def opened(self) -> tuple[ClusterClient, Sender]:
        """Returns the client and the sender of an open producer.

        Raises:
            RuntimeError: the producer is not open, or another thread calls.
        """
        self._caller.check()
        if self._client is None or self._sender is None:
            self._caller.refuse()
        return self._client, self._sender

    def append(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None = None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Appends a record to a batch without waiting; ``Producer.send_nowait`` documents the errors."""
        client, sender = self._client, self._sender
        if client is None or sender is None or get_ident() != self._caller.thread_id:
            self._caller.refuse()
        if self.is_closed:
            raise RuntimeError("the producer is closed")
        if sender.fatal_error is not None:
            raise sender.fatal_error
        # Fast path: exact classes cover most records, and a known topic is already a str.
        if (
            (value.__class__ is not bytes and value is not None)
            or (key is not None and key.__class__ is not bytes)
            or headers
            or (partition is not None and partition.__class__ is not int)
            or (timestamp is not None and timestamp.__class__ is not int)
        ):
            headers, partition, timestamp = arguments.record("send", topic, value, key, headers, partition, timestamp)
        if timestamp is not None and not 0 <= timestamp <= TIMESTAMP_MS_MAX:
            why = "negative" if timestamp < 0 else "above 2**63 - 1"
            raise InvalidRecordError(f"timestamp {timestamp} is {why}")
        try:
            state = self.topics.known.get(topic)
        except TypeError:
            arguments.text("send", "topic", topic)
            raise
        transactions = self._transactions
        if transactions is not None:
            transactions.check_sending()
        if state is None or self.topics.version != client.cluster_metadata.version:
            state = self.topics.look_up(client, topic)
        self.appender.version = self.topics.version
        is_keyless = False
        if partition is not None:
            if not 0 <= partition < len(state.queues):
                arguments.at_least("send", "partition", partition, 0, bits=arguments.INT32_BITS)
                raise LookupError(f"{topic} has partitions 0 to {len(state.queues) - 1}, not {partition}")
            queue = state.queues[partition]
        elif self._partitioner is not None:
            queue = state.queues[self._custom(topic, key, value, len(state.queues))]
        elif key is not None and not self._ignores_keys:
            queue = state.queues[partition_for_key(key, len(state.queues))]
        else:
            is_keyless = True
            queue = state.choose(self._draw) if state.kept is None else state.kept
        if timestamp is None:
            timestamp = self.wall_ms()
        size = (0 if key is None else len(key)) + (0 if value is None else len(value))
        if size + 128 > self._record_bytes_max or headers:
            self._check_size(key, value, headers)
        batch = queue.open_batch
        index = -1
        if batch is not None and batch.data is None:
            index = batch.write(timestamp, key, value, headers, batch.size_granted)
        if batch is None or index < 0:
            if transactions is not None:
                transactions.admit(queue.partition)  # the queue holds no record of an earlier transaction
            appended = self._accumulator.append_growing(queue, timestamp, key, value, headers, client.now_ms)
            if appended is None:
                raise BufferExhaustedError(f"{topic}: buffer.memory = {self._limits.buffer_memory} bytes are full")
            batch, index, is_news = appended
        else:
            # ``BatchBuilder.is_full``, without the two calls
            is_news = batch.writer.size + EMPTY_RECORD_BYTES > batch.size_limit
        state.sent += 1
        self.appender.counted()
        if is_keyless:
            state.kept_bytes += size + 16
            if is_news or state.kept_bytes >= state.kept_bytes_max:
                state.report(began_batch=index == 0, is_full=is_news and index > 0)
            if state.sent >= state.load_at:
                state.load_at = state.sent + LOAD_INTERVAL_RECORDS
                self.topics.refresh_load(topic, state, sender)
        if is_news:
            sender.wake()
        return Delivery(batch, index, timestamp)

    async def append_soon(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        partition: int | None,
        timestamp: int | None,
    ) -> Delivery:
        """Appends a record that the appender has left; waits for metadata and memory if needed."""
        if headers.__class__ is not tuple:
            headers = arguments.headers("send", headers)  # an iterator would be empty at the second attempt
        if self.appender.take_turn():  # not after the record: a task that is cancelled here has sent nothing
            await trio.lowlevel.checkpoint()
        try:
            return self.append(topic, value, key, headers, partition, timestamp)
        except (LookupError, BufferExhaustedError):
            return await self.append_waiting(topic, value, key, headers, partition, timestamp)

    async def append_waiting(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        partition: int | None,
        timestamp: int | None,
    ) -> Delivery:
        """Appends a record; waits for metadata and memory, together at most ``max.block.ms``."""
        client = self.opened()[0]
        deadline_ms = client.now_ms + self._max_block_ms
        while True:
            # Also after each wait for memory: the metadata may have lost the topic meanwhile.
            await self.topics.wait_for(client, topic, partition, deadline_ms)
            try:
                return self.append(topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp)
            except BufferExhaustedError:
                await self._wait_memory(topic, deadline_ms)

    async def append_columns(self, topic: str, columns: RowColumns, partitions: Buffer | None) -> tuple[Delivery, ...]:
        """Appends rows of columns as records; ``Producer.send_columns`` documents the arguments and the errors."""
        client, sender = self.opened()
        check_columns(topic, columns, partitions)
        if self._partitioner is not None:
            raise ValueError("send_columns: a producer with a partitioner function takes no columns")
        if self.is_closed:
            raise RuntimeError("the producer is closed")
        await trio.lowlevel.checkpoint()  # not after the rows: a task that is cancelled there has sent them
        deadline_ms = client.now_ms + self._max_block_ms
        await self.topics.wait_for(client, topic, None, deadline_ms)
        state = self.topics.look_up(client, topic)
        largest = columns.largest_bound()
        if largest > self._record_bytes_max:
            self._refuse_size(largest)
        chosen = partitions_of(columns, len(state.queues), partitions, ignores_keys=self._ignores_keys)
        state.report(began_batch=False, is_full=False)
        appender = RowAppender(self._accumulator, columns, state.queues, state.keyless, state.available, self._draw)
        transactions = self._transactions

        def admit(queue: PartitionQueue) -> None:
            if self.is_closed:  # meanwhile: nothing would settle the rows
                raise RuntimeError("the producer is closed")
            if sender.fatal_error is not None:
                raise sender.fatal_error
            if transactions is not None:
                transactions.admit(queue.partition)

        steps = appender.append(chosen, client.environment.clock.wall_ms(), lambda: client.now_ms, admit, sender.wake)
        for _ in steps:
            await self._wait_memory(topic, client.now_ms + self._max_block_ms)
        state.sent += columns.length
        self.topics.refresh_load(topic, state, sender)
        return tuple(ColumnsDelivery(batch, *last) for batch, last in appender.batches.items())

    async def append_encoded(self, topic: str, partition: int, data: Buffer) -> Delivery:
        """Appends a whole record batch; ``Producer.send_encoded`` documents the arguments and the errors."""
        client, sender = self.opened()
        arguments.batch("send_encoded", data)
        header = checked_batch(data, self._limits.buffer_memory)
        await trio.lowlevel.checkpoint()  # not after the batch: a task that is cancelled there has sent it
        deadline_ms = client.now_ms + self._max_block_ms
        while True:
            await self.topics.wait_for(client, topic, partition, deadline_ms)
            if self.is_closed:
                raise RuntimeError("the producer is closed")
            if sender.fatal_error is not None:
                raise sender.fatal_error
            state = self.topics.look_up(client, topic)
            queue = state.queues[partition]
            if self._transactions is not None:
                self._transactions.check_sending()
                self._transactions.admit(queue.partition)
            batch = self._accumulator.append_encoded(queue, data, header.record_count, client.now_ms)
            if batch is not None:
                state.sent += header.record_count
                sender.wake()
                return Delivery(batch, 0, header.base_timestamp)
            await self._wait_memory(topic, deadline_ms)

    async def _wait_memory(self, topic: str, deadline_ms: float) -> None:
        """Waits until a batch is settled, because ``buffer.memory`` is full."""
        client, sender = self.opened()
        self._accumulator.memory_waiters += 1
        try:
            with trio.move_on_after(max(deadline_ms - client.now_ms, 0) / 1000):
                sender.wake()
                await sender.memory_freed.wait()
                return
        finally:
            self._accumulator.memory_waiters -= 1
        self._raise_exhausted(topic)

    def _raise_exhausted(self, topic: str) -> NoReturn:
        raise BufferExhaustedError(
            f"{topic}: buffer.memory = {self._limits.buffer_memory} stayed full for max.block.ms = {self._max_block_ms}"
        )

    def _draw(self) -> int:
        return self.opened()[0].environment.random.getrandbits(31)

    def _custom(self, topic: str, key: Buffer | None, value: Buffer | None, count: int) -> int:
        assert self._partitioner is not None
        chosen = self._partitioner(
            topic, None if key is None else bytes(key), None if value is None else bytes(value), count
        )
        if not 0 <= arguments.integer("the partitioner", "its result", chosen) < count:
            raise ValueError(f"the partitioner chose {chosen}, but {topic} has partitions 0 to {count - 1}")
        return chosen

    def _check_size(self, key: Buffer | None, value: Buffer | None, headers: Iterable[arguments.Header]) -> None:
        size = record_size_bound(key, value, headers)
        if size > self._record_bytes_max:
            self._refuse_size(size)

    def _refuse_size(self, size: int) -> NoReturn:
        name = "max.request.size" if self._limits.request_size_max <= self._limits.buffer_memory else "buffer.memory"
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a record of {size} bytes is larger than {name} = {self._record_bytes_max}",
        )
