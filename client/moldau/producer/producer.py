"""The producer: ``send`` puts records into batches, a background task delivers them.

    async with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        delivery = await producer.send("flights", b"value", key=b"key")
        metadata = await delivery

``send`` waits only for metadata of a new topic and for memory (both at most ``max.block.ms``), so one task can hand
over hundreds of thousands of records a second; ``send_nowait`` never waits. By default a record counts as delivered
when all in-sync replicas have it, retries write nothing twice and keep the order (idempotence), and a record that is
not delivered within ``delivery.timeout.ms`` fails with an error of its own. Leaving the ``async with`` block delivers
what is left first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

import trio

from moldau.cluster.background import Background
from moldau.cluster.client import ClusterClient
from moldau.cluster.group_metadata import GroupMetadata
from moldau.cluster.metadata import NO_LEADER, PartitionInfo, TopicInfo, TopicPartition
from moldau.producer.accumulator import Accumulator, Limits, PartitionQueue, record_size_bound
from moldau.producer.delivery import Delivery, wait_settled
from moldau.producer.partitioner import KeylessPartitioner, PartitionerFunction, make_keyless, partition_for_key
from moldau.producer.sender import Sender
from moldau.producer.transaction_core import TransactionManager
from moldau.producer.transaction_values import OffsetToCommit
from moldau.producer.transactions import Transactions
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import Compression, InvalidRecordError
from moldau.runtime.config import PRODUCER_CONFIG, Config, ConfigError
from moldau.runtime.config.schemas import idempotence_enabled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from moldau.consumer.fetcher import CommittedOffset
    from moldau.runtime.environment import Environment

Buffer = bytes | bytearray | memoryview

_LOAD_INTERVAL_RECORDS = 256
"""Records of a topic after which the loads of its partitions are looked at again."""


class BufferExhaustedError(KafkaError):
    """The records that wait to be sent fill ``buffer.memory``."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, detail)


class _TopicState:
    """What ``send`` looks up for each record of a topic. Rebuilt when the topic's metadata changes."""

    __slots__ = ("available", "info", "keyless", "queues", "sent")

    def __init__(self, info: TopicInfo, queues: list[PartitionQueue], keyless: KeylessPartitioner) -> None:
        self.info = info
        self.queues = queues
        self.keyless = keyless
        self.available = info.available_partitions
        self.sent = 0


def limits_of(config: Config) -> Limits:
    """Returns the accumulator's limits of a producer configuration."""
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


class Producer:
    """Sends records. Use it as an async context manager; all methods belong to the trio thread that opened it."""

    def __init__(
        self,
        config: Mapping[str, object] | Config,
        *,
        environment: Environment | None = None,
        partitioner: PartitionerFunction | None = None,
    ) -> None:
        """Takes Kafka's producer configuration keys; raises ``ConfigError`` for what is wrong with them.

        ``environment`` is that of the operating system by default. ``partitioner`` chooses partitions of all records
        that do not name one.
        """
        self._config = config if isinstance(config, Config) else PRODUCER_CONFIG.parse(config)
        if self._config.schema is not PRODUCER_CONFIG:
            raise ConfigError([f"a producer cannot use a {self._config.schema.name} configuration"])
        self._environment = environment
        self._partitioner = partitioner
        self._limits = limits_of(self._config)
        self._record_bytes_max = min(self._limits.request_size_max, self._limits.buffer_memory)
        self._batch_size = self._limits.batch_size
        self._max_block_ms = self._config.get_int("max.block.ms")
        self._ignores_keys = self._config.get_bool("partitioner.ignore.keys")
        self._is_adaptive = self._config.get_bool("partitioner.adaptive.partitioning.enable")
        self._availability_ms = self._config.get_int("partitioner.availability.timeout.ms")
        self._partitioner_name = self._config.get_str_or_none("partitioner.class")
        self._accumulator = Accumulator(self._limits)
        self._topics: dict[str, _TopicState] = {}
        self._topics_version = -1
        self._since_checkpoint = 0
        self._is_closed = False
        self._background = Background()
        self._client: ClusterClient | None = None
        self._sender: Sender | None = None
        self._transactions: Transactions | None = None

    # --- life

    async def __aenter__(self) -> Self:
        """Starts the background tasks. Does not wait for a broker."""
        if self._client is not None:
            raise RuntimeError("a producer can be opened only once")
        environment = self._environment or _real_environment()
        self._client = ClusterClient(environment, self._config, "producer")
        self._client.allow_auto_create = True
        transactional_id = self._config.get_str_or_none("transactional.id")
        acks = {"all": -1, "-1": -1, "0": 0, "1": 1}[self._config.get_str("acks")]
        self._sender = Sender(self._client, self._accumulator, acks=acks, transactional_id=transactional_id)
        if transactional_id is not None:
            self._transactions = self._make_transactions(transactional_id)
        tasks = [self._client.run, self._sender.run]
        if self._transactions is not None:
            tasks.append(self._transactions.run)
        await self._background.open(*tasks)
        self._background.nursery.start_soon(self._forget_idle_topics)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Delivers what is left (at most ``delivery.timeout.ms``); after an exception gives it up at once."""
        return await self._background.close(kind, error, traceback, closing=self.close, ended=self._end)

    async def close(self, timeout_ms: float = math.inf) -> None:
        """Delivers what is left, for at most ``timeout_ms``, fails the rest, and stops; idempotent."""
        if self._is_closed:
            await trio.lowlevel.checkpoint()
            return
        accumulator, sender = self._accumulator, self._opened()[1]
        await self._abort_open_transaction(timeout_ms)
        self._is_closed = True
        accumulator.is_closing = True
        sender.wake()
        with trio.move_on_after(timeout_ms / 1000):
            for batch in list(accumulator.incomplete):
                await wait_settled(batch)
        self._end()

    def _end(self) -> None:
        self._is_closed = True
        closed = KafkaError(
            ErrorCode.OPERATION_NOT_ATTEMPTED, "the producer was closed before the record was delivered"
        )
        for batch in self._accumulator.abort(closed):
            if batch.waiter is not None:
                batch.waiter.set()
        if self._sender is not None:
            self._sender.memory_freed.notify()
        if self._client is not None:
            self._client.close()
        self._background.cancel()

    async def _forget_idle_topics(self) -> None:
        """Stops keeping metadata of topics that nothing was sent to for ``metadata.max.idle.ms``."""
        client = self._opened()[0]
        idle_ms = self._config.get_int("metadata.max.idle.ms")
        counts: dict[str, int] = {}
        while True:
            await trio.sleep(idle_ms / 1000)
            before, counts = counts, {name: state.sent for name, state in self._topics.items()}
            for name, sent in counts.items():
                queues = self._topics[name].queues
                if before.get(name) == sent and not any(queue.batches or queue.outstanding for queue in queues):
                    del self._topics[name]
                    client.forget_topic(name)

    def _opened(self) -> tuple[ClusterClient, Sender]:
        if self._client is None or self._sender is None:
            raise RuntimeError("the producer is not open; use it as `async with Producer(...) as producer`")
        return self._client, self._sender

    # --- sending

    async def send(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Hands a record over and returns its delivery; waits only for metadata and memory. Copies what it is given.

        ``timestamp`` is in milliseconds since the Unix epoch, by default now. A checkpoint at least once for every
        batch.

        Raises:
            KafkaError: the topic or partition does not exist, the record is too large, metadata or memory did not come
                within ``max.block.ms``, or the producer failed for good.
            InvalidRecordError: the record cannot be encoded.
        """
        try:
            delivery = self.send_nowait(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )
        except (LookupError, BufferExhaustedError):
            return await self._send_waiting(topic, value, key, headers, partition, timestamp)
        self._since_checkpoint += 1
        if self._since_checkpoint >= _LOAD_INTERVAL_RECORDS:
            self._since_checkpoint = 0
            await trio.lowlevel.checkpoint()
        return delivery

    async def _send_waiting(
        self,
        topic: str,
        value: Buffer | None,
        key: Buffer | None,
        headers: Iterable[tuple[str, Buffer | None]],
        partition: int | None,
        timestamp: int | None,
    ) -> Delivery:
        client, sender = self._opened()
        headers = list(headers)
        deadline_ms = client.now_ms + self._max_block_ms
        await self._wait_topic(topic, partition, deadline_ms)
        self._accumulator.memory_waiters += 1
        try:
            with trio.move_on_after(max(deadline_ms - client.now_ms, 0) / 1000):
                while True:
                    try:
                        return self.send_nowait(
                            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
                        )
                    except BufferExhaustedError:
                        sender.wake()
                        await sender.memory_freed.wait()
        finally:
            self._accumulator.memory_waiters -= 1
        raise BufferExhaustedError(
            f"{topic}: buffer.memory = {self._limits.buffer_memory} stayed full for max.block.ms = {self._max_block_ms}"
        )

    def send_nowait(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Iterable[tuple[str, Buffer | None]] = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Delivery:
        """Hands a record over without waiting. Callers that loop must call a checkpoint themselves.

        Raises as ``send``, and ``LookupError`` while the topic's metadata is not here (await ``partitions_for`` first),
        ``BufferExhaustedError`` when ``buffer.memory`` is full.
        """
        client, sender = self._client, self._sender
        if client is None or sender is None:
            raise RuntimeError("the producer is not open; use it as `async with Producer(...) as producer`")
        if self._is_closed:
            raise RuntimeError("the producer is closed")
        if sender.fatal_error is not None:
            raise sender.fatal_error
        state = self._topics.get(topic)
        transactions = self._transactions
        if transactions is not None:
            transactions.check_sending()
        if state is None or self._topics_version != client.picture.version:
            state = self._look_up(topic)
        keyless: KeylessPartitioner | None = None
        if partition is not None:
            if not 0 <= partition < len(state.queues):
                raise LookupError(f"{topic} has partitions 0 to {len(state.queues) - 1}, not {partition}")
            queue = state.queues[partition]
        elif self._partitioner is not None:
            queue = state.queues[self._custom(topic, key, value, len(state.queues))]
        elif key is not None and not self._ignores_keys:
            queue = state.queues[partition_for_key(key, len(state.queues))]
        else:
            keyless = state.keyless
            queue = state.queues[keyless.choose(state.available, len(state.queues), self._draw)]
        if timestamp is None:
            timestamp = client.environment.clock.wall_ms()
        elif timestamp < 0:
            raise InvalidRecordError(f"timestamp {timestamp} is negative")
        size = (0 if key is None else len(key)) + (0 if value is None else len(value))
        if size + 128 > self._record_bytes_max or headers:
            headers = list(headers)
            self._check_size(key, value, headers)
        batch = queue.batches[-1] if queue.batches else None
        index = -1
        if batch is not None and batch.data is None:
            index = batch.write(timestamp, key, value, headers, self._batch_size)
        if batch is None or index < 0:
            if transactions is not None:
                transactions.admit(queue.partition)  # nothing of an earlier transaction is left in the queue
            appended = self._accumulator.append_new(queue, timestamp, key, value, headers, client.now_ms)
            if appended is None:
                raise BufferExhaustedError(f"{topic}: buffer.memory = {self._limits.buffer_memory} bytes are full")
            batch, index, is_news = appended
        else:
            is_news = batch.builder.is_full
        state.sent += 1
        if keyless is not None:
            keyless.appended(size + 16, began_batch=index == 0, is_full=is_news and index > 0)
            if not state.sent % _LOAD_INTERVAL_RECORDS:
                self._look_at_load(topic, state)
        if is_news:
            sender.wake()
        return Delivery(batch, index, timestamp)

    def _look_at_load(self, topic: str, state: _TopicState) -> None:
        """Tells the partitioner about queues, and leaves out partitions whose broker takes no batches (KIP-794)."""
        if self._availability_ms > 0:
            stuck = self._opened()[1].stuck_nodes(self._availability_ms)
            parts = state.info.partitions
            usable = [number for number in state.info.available_partitions if parts[number].leader not in stuck]
            state.available = tuple(usable) or state.info.available_partitions
        if self._is_adaptive:
            state.keyless.set_load(self._accumulator.queue_sizes(topic, state.available))

    def _draw(self) -> int:
        return self._opened()[0].environment.random.getrandbits(31)

    def _custom(self, topic: str, key: Buffer | None, value: Buffer | None, count: int) -> int:
        assert self._partitioner is not None
        chosen = self._partitioner(
            topic, None if key is None else bytes(key), None if value is None else bytes(value), count
        )
        if not 0 <= chosen < count:
            raise ValueError(f"the partitioner chose {chosen}, but {topic} has partitions 0 to {count - 1}")
        return chosen

    def _check_size(self, key: Buffer | None, value: Buffer | None, headers: list[tuple[str, Buffer | None]]) -> None:
        size = record_size_bound(key, value, headers)
        if size > self._record_bytes_max:
            name = (
                "max.request.size" if self._limits.request_size_max <= self._limits.buffer_memory else "buffer.memory"
            )
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a record of {size} bytes is larger than {name} = {self._record_bytes_max}",
            )

    # --- metadata

    def _look_up(self, topic: str) -> _TopicState:
        """Returns the state of a topic after metadata changed. Raises ``LookupError`` while there is none."""
        client = self._opened()[0]
        picture = client.picture
        if self._topics_version != picture.version:
            self._topics_version = picture.version
            for name, state in list(self._topics.items()):
                info = picture.topics.get(name)
                if info is None or not info.partitions:
                    del self._topics[name]
                elif info is not state.info:
                    self._topics[name] = self._make_state(info, state.keyless)
        known = self._topics.get(topic)
        if known is not None:
            return known
        found = picture.topics.get(topic)
        if found is None or not found.partitions:
            client.add_topic(topic)
            raise LookupError(f"metadata of topic {topic} is not here yet; await partitions_for({topic!r}) first")
        created = self._make_state(found, make_keyless(self._partitioner_name, self._limits.batch_size))
        self._topics[topic] = created
        return created

    def _make_state(self, info: TopicInfo, keyless: KeylessPartitioner) -> _TopicState:
        queues = [self._accumulator.queue(TopicPartition(info.name, part.partition)) for part in info.partitions]
        return _TopicState(info, queues, keyless)

    async def _wait_topic(self, topic: str, partition: int | None, deadline_ms: float) -> TopicInfo:
        client = self._opened()[0]
        client.add_topic(topic)
        while True:
            info = client.picture.topics.get(topic)
            if info is not None and info.partitions and (partition is None or partition < len(info.partitions)):
                return info
            if info is not None and info.error is not ErrorCode.NONE and not info.error.retriable:
                raise KafkaError(info.error, f"topic {topic}: {info.error.message}")
            try:
                await client.wait_update(deadline_ms)
            except trio.TooSlowError as error:
                if info is not None and info.partitions:
                    reason = f"it has partitions 0 to {len(info.partitions) - 1}, not {partition}"
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic}: {reason}") from None
                if info is not None and info.error is not ErrorCode.NONE:
                    raise KafkaError(info.error, f"topic {topic}: {info.error.message}") from None
                raise KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f"topic {topic}: no metadata within {self._max_block_ms} ms ({error})"
                ) from error

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Returns the partitions of a topic; waits for its metadata, at most ``max.block.ms``. Raises
        ``KafkaError``.
        """
        client = self._opened()[0]
        info = await self._wait_topic(topic, None, client.now_ms + self._max_block_ms)
        return info.partitions

    # --- transactions

    def _make_transactions(self, transactional_id: str) -> Transactions:
        client, sender = self._opened()
        config = self._config
        manager = TransactionManager(
            transactional_id=transactional_id,
            timeout_ms=config.get_int("transaction.timeout.ms"),
            retry_backoff_ms=config.get_int("retry.backoff.ms"),
            retry_backoff_max_ms=config.get_int("retry.backoff.max.ms"),
        )
        transactions = Transactions(client, self._accumulator, sender, manager, self._max_block_ms)
        sender.transactions = transactions
        return transactions

    def _transactional(self) -> Transactions:
        self._opened()
        if self._transactions is None:
            raise ConfigError(["transactional.id: needed for transactions"])
        if self._is_closed:
            raise RuntimeError("the producer is closed")
        return self._transactions

    async def init_transactions(self, timeout_ms: float | None = None) -> None:
        """Takes over the transactional id: fences earlier producers of it and ends what they left open.

        Once, before the first transaction. Waits at most ``timeout_ms`` (``max.block.ms`` by default), as the other
        calls do; after REQUEST_TIMED_OUT the same call goes on waiting.

        Raises:
            FatalTransactionError: the coordinator refuses.
            KafkaError: REQUEST_TIMED_OUT.
        """
        await self._transactional().init(timeout_ms)

    def begin_transaction(self) -> None:
        """Begins a transaction: all records sent from now on are seen together, or not at all.

        Raises ``TransactionError`` after a failure, ``RuntimeError`` where another transaction is open.
        """
        self._transactional().begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[tuple[str, int], int | CommittedOffset],
        group: GroupMetadata | str,
        timeout_ms: float | None = None,
    ) -> None:
        """Commits a consumer's offsets (of the next records to read) with the transaction (KIP-447).

        ``group`` comes from ``Consumer.group_metadata``. Raises ``AbortableTransactionError`` when the group went on
        without that member, ``TransactionAbortedError`` when the transaction is aborted meanwhile,
        ``FatalTransactionError``, ``KafkaError`` (REQUEST_TIMED_OUT).
        """
        given = {
            TopicPartition(*partition): OffsetToCommit(offset=offset)
            if isinstance(offset, int)
            else OffsetToCommit(offset=offset.offset, leader_epoch=offset.leader_epoch, metadata=offset.metadata)
            for partition, offset in offsets.items()
        }
        member = GroupMetadata(group_id=group) if isinstance(group, str) else group
        await self._transactional().send_offsets(given, member, timeout_ms)

    async def commit_transaction(self, timeout_ms: float | None = None) -> None:
        """Delivers what was sent in the transaction, then commits it; afterwards readers of committed data see it.

        Raises:
            AbortableTransactionError: a record or offset could not be written; call ``abort_transaction``.
            FatalTransactionError: fenced, or hopeless; close the producer.
            KafkaError: REQUEST_TIMED_OUT; whether it is committed is open, and the producer goes on with it. Call again
                to know, also after a cancellation: before the next transaction begins, the first call that waits until
                it is known gives the outcome.
        """
        await self._transactional().commit(timeout_ms)

    async def abort_transaction(self, timeout_ms: float | None = None) -> None:
        """Aborts the transaction; records that were not sent yet fail with ``TransactionAbortedError``.

        Raises ``FatalTransactionError``, ``KafkaError`` (REQUEST_TIMED_OUT: call again), and ``RuntimeError`` where a
        commit whose outcome was open has committed it.
        """
        await self._transactional().abort(timeout_ms)

    def untell_outcome(self) -> None:
        """The last init, commit or abort did not return to the application after all: the same call gives its outcome
        again. For those who call for another thread, which may have been interrupted.
        """
        outcome = None if self._transactions is None else self._transactions.manager.outcome
        if outcome is not None:
            outcome.is_told = False

    async def _abort_open_transaction(self, timeout_ms: float) -> None:
        transactions = self._transactions
        if transactions is None or not transactions.is_in_transaction:
            return
        client = self._opened()[0]
        client.logger.info("transaction_aborted_on_close", transactional_id=transactions.manager.transactional_id)
        try:
            await transactions.abort(min(timeout_ms, self._max_block_ms))
        except KafkaError as error:
            client.logger.warning("abort_failed", error=error)  # its coordinator ends it after its timeout

    # --- flushing

    async def flush(self, timeout_ms: float = math.inf) -> None:
        """Sends everything now and waits until each record handed over before is delivered or failed.

        Errors of records are told by their deliveries, not here. Raises ``trio.TooSlowError`` after ``timeout_ms``.
        """
        sender = self._opened()[1]
        accumulator = self._accumulator
        accumulator.flushes += 1
        sender.wake()
        try:
            await trio.lowlevel.checkpoint()
            with trio.move_on_after(timeout_ms / 1000) as scope:
                for batch in list(accumulator.incomplete):
                    await wait_settled(batch)
        finally:
            accumulator.flushes -= 1
        if scope.cancelled_caught:
            raise trio.TooSlowError(f"{len(accumulator.incomplete)} batches are not delivered after {timeout_ms:g} ms")

    @property
    def pending_bytes(self) -> int:
        """Bytes of ``buffer.memory`` in use."""
        return self._accumulator.memory_used

    def has_leader(self, topic: str, partition: int) -> bool:
        """Whether the partition's leader is known right now."""
        info = self._opened()[0].picture.partition_info(TopicPartition(topic, partition))
        return info is not None and info.leader != NO_LEADER


def _real_environment() -> Environment:
    from moldau.runtime.real import real_environment

    return real_environment()
