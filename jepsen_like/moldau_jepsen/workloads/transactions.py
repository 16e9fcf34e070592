"""The transaction workload: unique values are sent in transactions, most of them committed, some aborted.

Each client owns a transactional id. A client that crashes leaves its transaction open; its successor takes the same id
over, which fences the old one and aborts what it left (KIP-98). A transaction is one operation of the history: its
sends are seen together by readers of committed data, or never.

What a client knows of a transaction that it could not finish: before it asked for the commit, nothing of it can ever be
committed (FAIL); afterwards the outcome is open (INFO).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.producer import Producer
from moldau.producer.transaction_values import FatalTransactionError, TransactionError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_jepsen.history import Kind, Send, Status, TopicPartition
from moldau_jepsen.workloads.final_read import VALUE_BYTES

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from moldau.producer import Delivery
    from moldau.runtime.environment import Environment
    from moldau_jepsen.workloads.recorder import Recorder

TRANSACTION_TIMEOUT_MS = 5_000
"""The coordinator ends what a crashed client left open after this time, if no successor does."""

_FLUSH_SHARE = 0.8
"""Of the aborted transactions: their records are in the logs when the abort comes, not dropped before they are sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """How the workload behaves."""

    topic: str = "queue"
    partitions: int = 4
    clients: int = 1
    transactions_per_second: float = 5.0
    """Of each client, on average."""
    sends_max: int = 4
    abort_share: float = 0.3
    crash_every_s: float = 8.0
    """Mean time until a client is abandoned; 0 for never."""
    id_prefix: str = "transfer"
    producer: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class _Transaction:
    """What a client has under way."""

    begun_ms: float
    sends: list[Send] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    committing: bool = False


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
        self._stopping = False

    def stop(self) -> None:
        """Lets all clients end after the transaction that they have under way."""
        self._stopping = True

    async def run(self) -> None:
        """Runs the clients until ``stop``; returns when the last outcome is known or given up."""
        async with trio.open_nursery() as nursery:
            for slot in range(self._options.clients):
                nursery.start_soon(self._lives, slot)

    async def _lives(self, slot: int) -> None:
        """One client after the other with the same transactional id."""
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
        config = {
            "linger.ms": 1,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "max.block.ms": 10_000,
            **self._options.producer,
            "transactional.id": transactional_id,
            "bootstrap.servers": self._bootstrap,
        }
        why = "the client crashed"
        open_transaction: list[_Transaction] = []
        try:
            async with Producer(config, environment=self._environment) as producer:
                await self._take_over(producer)
                while not self._stopping:
                    transaction = _Transaction(self._recorder.now_ms())
                    open_transaction[:] = [transaction]
                    await self._transact(process, producer, draw, transaction)
                    open_transaction.clear()
                    await trio.sleep(draw.expovariate(self._options.transactions_per_second))
        except KafkaError as error:  # fenced, or hopeless: a successor with the same id goes on
            why = f"{error.code.name}: {error}"
        finally:
            self._tell_unfinished(process, open_transaction, why)  # a crash may come as a group of what was cancelled
        await trio.sleep(0.2)

    async def _take_over(self, producer: Producer) -> None:
        while True:
            try:
                await producer.init_transactions()
            except KafkaError as error:
                if isinstance(error, FatalTransactionError) or error.code is not ErrorCode.REQUEST_TIMED_OUT:
                    raise
                if self._stopping:
                    raise
            else:
                return

    async def _transact(self, process: int, producer: Producer, draw: random.Random, transaction: _Transaction) -> None:
        options = self._options
        producer.begin_transaction()
        try:
            for _ in range(draw.randint(1, options.sends_max)):
                partition = TopicPartition(options.topic, draw.randrange(options.partitions))
                value = self._recorder.new_value(partition)
                transaction.sends.append(Send(partition, value, None))
                delivery = await producer.send(
                    partition.topic, value.to_bytes(VALUE_BYTES, "big"), partition=partition.partition
                )
                transaction.deliveries.append(delivery)
            if draw.random() < options.abort_share:
                if draw.random() < _FLUSH_SHARE:
                    await producer.flush()
                await self._abort(process, producer, transaction, "")
                return
            transaction.committing = True
            await self._commit(producer)
        except FatalTransactionError:
            raise
        except (TransactionError, KafkaError) as error:
            await self._abort(process, producer, transaction, f"{error.code.name}: {error}")
            return
        self._tell(process, transaction, Status.OK)

    async def _commit(self, producer: Producer) -> None:
        """Commits; a time-out leaves the outcome open, and the same call goes on waiting for it."""
        while True:
            try:
                await producer.commit_transaction()
            except KafkaError as error:
                if isinstance(error, TransactionError) or error.code is not ErrorCode.REQUEST_TIMED_OUT:
                    raise
            else:
                return

    async def _abort(self, process: int, producer: Producer, transaction: _Transaction, error: str) -> None:
        transaction.committing = False  # an abortable error says that it is not committed
        while True:
            try:
                await producer.abort_transaction()
            except KafkaError as failure:
                if isinstance(failure, TransactionError) or failure.code is not ErrorCode.REQUEST_TIMED_OUT:
                    raise
            else:
                break
        self._tell(process, transaction, Status.FAIL if error else Status.OK, aborted=True, error=error)

    def _tell(
        self, process: int, transaction: _Transaction, status: Status, *, aborted: bool = False, error: str = ""
    ) -> None:
        parts = []
        for number, send in enumerate(transaction.sends):
            offset = None
            if status is Status.OK and number < len(transaction.deliveries):
                delivery = transaction.deliveries[number]
                if delivery.is_done and not aborted:
                    found = delivery.result().offset
                    offset = found if found >= 0 else None
            parts.append(Send(send.partition, send.value, offset))
        self._recorder.operation(
            process, Kind.TRANSACTION, status, transaction.begun_ms, *parts, aborted=aborted, error=error
        )

    def _tell_unfinished(self, process: int, transactions: list[_Transaction], why: str) -> None:
        for transaction in transactions:
            status = Status.INFO if transaction.committing else Status.FAIL
            self._tell(process, transaction, status, aborted=status is Status.FAIL, error=why)
        transactions.clear()
