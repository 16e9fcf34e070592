"""Runs the transaction workload: clients send and poll unique values in transactions, and abort some of them.

Each client has a producer and a reader of committed data for the same partitions. A transaction is a few steps, each a
send or a poll, in any order. So a transaction could read its own records before they are committed, and two
transactions could read each other's records, which the checkers would find. The reader belongs to no group; the client
keeps its position. After some aborts the client seeks back to the position before the transaction, as an application
that reads, writes and aborts does; after others it continues, and then it must not skip a record.

Each client owns a transactional id. A client that crashes leaves its transaction open; its successor takes the same id
over, which fences the old one and aborts what it left (KIP-98). A transaction is one operation of the history: its
sends are seen together by readers of committed data, or never.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.producer.core.transaction_errors import FatalTransactionError, TransactionError
from moldau.protocol.errors import KafkaError
from moldau_jepsen.history import Kind, Seek, Status, TopicPartition
from moldau_jepsen.workloads.crashes import mortal
from moldau_jepsen.workloads.phases.final_read import polled
from moldau_jepsen.workloads.recording.transaction_recorder import (
    Content,
    OpenTransaction,
    TransactionRecorder,
    persist,
    transactional_config,
)

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Mapping

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.recording.recorder import Recorder

_FLUSH_SHARE = 0.8
"""Of the aborted transactions: their records are in the logs when the abort comes, not dropped before they are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """The options of the workload."""

    topic: str = "queue"
    partitions: int = 4
    clients: int = 2
    """Two transactions can read each other's records only where two are open at once."""
    transactions_per_second: float = 2.5
    """Of each client, on average."""
    steps_max: int = 4
    """Sends and polls of one transaction."""
    poll_share: float = 0.4
    """Of the steps; 0 for clients that only send, and have no reader."""
    poll_timeout_ms: float = 50.0
    """The transaction stays open meanwhile, and all readers of committed data wait for its end."""
    abort_share: float = 0.3
    rewind_share: float = 0.5
    """Of the aborted transactions that polled: the client reads again what it had read in them."""
    crash_every_s: float = 8.0
    """Mean time until a client is abandoned; 0 for never."""
    id_prefix: str = "transfer"
    producer: Mapping[str, object] = field(default_factory=dict)
    consumer: Mapping[str, object] = field(default_factory=dict)

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """All partitions of the topic."""
        return [TopicPartition(self.topic, number) for number in range(self.partitions)]


@dataclass(slots=True)
class _Transaction(OpenTransaction):
    """The open transaction of a client."""

    read_from: dict[TopicPartition, int] = field(default_factory=dict)
    """Where the reader stood when the transaction began, as far as that was known."""


class _Client:
    """The parts of one life of a client."""

    __slots__ = ("consumer", "draw", "process", "producer")

    def __init__(self, process: int, producer: Producer, consumer: Consumer | None, draw: random.Random) -> None:
        self.process = process
        self.producer = producer
        self.consumer = consumer
        self.draw = draw


class TransactionWorkload:
    """All transactional clients of one run."""

    def __init__(
        self, environment: Environment, bootstrap: str, options: TransactionOptions, recorder: Recorder
    ) -> None:
        """``recorder`` is shared with other workloads on the same topic: it gives out the values."""
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._recorder = recorder
        self._recording = TransactionRecorder(recorder)
        self._stopping = False

    def stop(self) -> None:
        """Ends all clients after their open transactions."""
        self._stopping = True

    async def run(self) -> None:
        """Runs the clients until ``stop``; returns when the last outcome is known or given up."""
        async with trio.open_nursery() as nursery:
            for slot in range(self._options.clients):
                nursery.start_soon(self._lives, slot)

    async def _lives(self, slot: int) -> None:
        """Runs clients in turn with the same transactional id."""
        draw = self._environment.random
        while not self._stopping:
            process = self._recorder.new_process()
            crash_every_s = self._options.crash_every_s
            span = draw.expovariate(1 / crash_every_s) if crash_every_s > 0 else float("inf")
            with trio.move_on_after(span) as scope:
                await self._live(process, f"{self._options.id_prefix}-{slot}", draw)
            if scope.cancelled_caught:
                now = self._recorder.now_ms()
                self._recorder.operation(process, Kind.CRASH, Status.INFO, now, error="abandoned")

    async def _live(self, process: int, transactional_id: str, draw: random.Random) -> None:
        config = transactional_config(transactional_id, self._bootstrap, self._options.producer)
        why = "the client crashed"
        open_transaction: list[_Transaction] = []
        try:
            async with (
                mortal(Producer(config, environment=self._environment), draw) as producer,
                self._reader(process) as consumer,
            ):
                await persist(producer.init_transactions, lambda: self._stopping)
                client = _Client(process, producer, consumer, draw)
                while not self._stopping:
                    transaction = _Transaction(self._recorder.now_ms())
                    open_transaction[:] = [transaction]
                    await self._transact(client, transaction)
                    open_transaction.clear()
                    await trio.sleep(draw.expovariate(self._options.transactions_per_second))
        except KafkaError as error:  # fenced, or hopeless: a successor with the same id goes on
            why = f"{error.code.name}: {error}"
        finally:
            self._recording.record_unfinished(
                process, open_transaction, why
            )  # a crash may come as a group of what was cancelled
        await trio.sleep(0.2)

    @contextlib.asynccontextmanager
    async def _reader(self, process: int) -> AsyncIterator[Consumer | None]:
        """Returns the reader of one life, None where the clients only send."""
        options = self._options
        if options.poll_share <= 0:
            yield None
            return
        config = {
            "auto.offset.reset": "latest",  # old records are other readers' work; the present ones are not decided yet
            "isolation.level": "read_committed",
            **options.consumer,
            "enable.auto.commit": False,
            "bootstrap.servers": self._bootstrap,
        }
        async with Consumer(config, environment=self._environment) as consumer:
            begun_ms = self._recorder.now_ms()
            consumer.assign(options.topic_partitions)
            self._record_assigned(process, begun_ms)
            yield consumer

    async def _transact(self, client: _Client, transaction: _Transaction) -> None:
        options, draw, producer = self._options, client.draw, client.producer
        if client.consumer is not None:
            transaction.read_from = _positions(client.consumer, options.topic_partitions)
        producer.begin_transaction()
        try:
            for _ in range(draw.randint(1, options.steps_max)):
                if client.consumer is not None and draw.random() < options.poll_share:
                    await self._poll(client.consumer, transaction)
                else:
                    await self._send(producer, draw, transaction)
            if draw.random() < options.abort_share:
                if draw.random() < _FLUSH_SHARE:
                    await producer.flush()
                await self._abort(client, transaction, "")
                return
            transaction.committing = True
            await persist(producer.commit_transaction)
        except FatalTransactionError:
            raise
        except (TransactionError, KafkaError) as error:
            await self._abort(client, transaction, f"{error.code.name}: {error}")
            return
        self._recording.report(client.process, transaction, Status.OK)

    async def _send(self, producer: Producer, draw: random.Random, transaction: _Transaction) -> None:
        partition = TopicPartition(self._options.topic, draw.randrange(self._options.partitions))
        await self._recording.send(producer, transaction, Content(partition))

    async def _poll(self, consumer: Consumer, transaction: _Transaction) -> None:
        batches = await consumer.poll(self._options.poll_timeout_ms)
        if batches:
            transaction.parts.append(polled(batches, timed=self._recorder.timed))

    async def _abort(self, client: _Client, transaction: _Transaction, error: str) -> None:
        await self._recording.abort(client.process, client.producer, transaction, error)
        if client.consumer is not None and transaction.has_read and client.draw.random() < self._options.rewind_share:
            self._rewind(client.process, client.consumer, transaction.read_from)

    def _rewind(self, process: int, consumer: Consumer, read_from: Mapping[TopicPartition, int]) -> None:
        """Seeks the reader back to its positions before the transaction.

        A partition whose position was not known is left alone.
        """
        begun_ms = self._recorder.now_ms()
        for partition, offset in read_from.items():
            consumer.seek(partition, offset)
        seeks = [Seek(partition, offset) for partition, offset in read_from.items()]
        self._recorder.operation(process, Kind.SEEK, Status.OK, begun_ms, seeks=seeks)

    def _record_assigned(self, process: int, begun_ms: float) -> None:
        """Positions start over."""
        partitions = tuple(self._options.topic_partitions)
        self._recorder.operation(process, Kind.ASSIGN, Status.OK, begun_ms, partitions=partitions)


def _positions(consumer: Consumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the known positions of a reader."""
    found = ((partition, consumer.position_nowait(partition)) for partition in partitions)
    return {partition: offset for partition, offset in found if offset is not None}
