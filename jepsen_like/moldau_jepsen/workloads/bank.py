"""Runs the bank workload: transfers between accounts whose records are in several partitions of two topics.

A transfer is a debit and a credit, written in one transaction; an account's balance is the sum of its records. There
are two kinds of writers. *Tellers* draw transfers, up to three in a transaction. *Clerks* share a topic of requests
in a group, write the two records of each request that they take, and commit the group's offsets in the same
transaction (``workloads.pipe``). Clerks try aborted transfers again; tellers do not.

Some transactions are aborted by choice, some because their client was abandoned, and some because another client took
over the transactional id while the former one, a zombie, continued: the zombie must be fenced, and its records must not
become visible.

*Readers* of committed data add up all records from the beginning, and sometimes record their positions and the
balances. ``checkers.transaction.bank`` defines which balances are correct.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.producer.core.transaction_errors import FatalTransactionError, TransactionError
from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers import Bank
from moldau_jepsen.history import Audit, Kind, Status, TopicPartition
from moldau_jepsen.workloads.crashes import mortal
from moldau_jepsen.workloads.phases.final_read import POLL_TIMEOUT_MS, RETRY_S, polled, read_everything
from moldau_jepsen.workloads.pipe import PipeOptions, PipeWorkload
from moldau_jepsen.workloads.recording.payload import says_of
from moldau_jepsen.workloads.recording.transaction_recorder import (
    Content,
    OpenTransaction,
    TransactionRecorder,
    persist,
    transactional_config,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping

    from moldau.consumer import ConsumedBatch
    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.recording.recorder import Recorder

_LEG = struct.Struct(">QIq")
_REQUEST = struct.Struct(">QIIq")
_FLUSH_SHARE = 0.8
"""Of the aborted transactions: their records are in the logs when the abort comes, not dropped before they are sent."""
_AMOUNT_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class BankOptions:
    """The options of the workload."""

    topics: tuple[str, ...] = ("bank-east", "bank-west")
    partitions: int = 2
    """Of each of these."""
    accounts: int = 10
    opening: int = 100
    """The balance of each account before the first record."""
    tellers: int = 2
    transactions_per_second: float = 4.0
    """Of each teller, on average."""
    transfers_max: int = 3
    """Of one transaction."""
    abort_share: float = 0.2
    crash_every_s: float = 5.0
    """Mean time until a teller, or a reader, is abandoned; 0 for never."""
    usurp_share: float = 0.5
    """Of the tellers that would be abandoned: they go on, as zombies, and their successor fences them."""
    readers: int = 1
    audit_every_s: float = 0.5
    clerks: PipeOptions = field(
        default_factory=lambda: PipeOptions(
            source="bank-requests",
            group="bank-clerks",
            id_prefix="clerk",
            records_per_second=8.0,
            records_max=4,
            consumer={"session.timeout.ms": 2_000, "heartbeat.interval.ms": 500},
        )
    )
    """The topic of requests and the processes that carry them out; the target is not used."""
    id_prefix: str = "teller"
    producer: Mapping[str, object] = field(default_factory=dict)
    """Of tellers."""
    consumer: Mapping[str, object] = field(default_factory=dict)
    """Of readers."""

    @property
    def bank(self) -> Bank:
        """Returns the description of the bank for the checker."""
        return Bank(self.topics, self.clerks.source, self.accounts, self.opening)

    @property
    def account_partitions(self) -> list[TopicPartition]:
        """Returns all partitions that hold accounts."""
        return [TopicPartition(topic, number) for topic in self.topics for number in range(self.partitions)]

    @property
    def sizes(self) -> dict[str, int]:
        """Returns the topics and their numbers of partitions."""
        return {**dict.fromkeys(self.topics, self.partitions), self.clerks.source: self.clerks.partitions}

    def place_of(self, account: int) -> TopicPartition:
        """Returns the partition of an account's records; accounts with adjacent numbers are in different topics."""
        topic = self.topics[account % len(self.topics)]
        return TopicPartition(topic, account // len(self.topics) % self.partitions)


class Counter:
    """Transfers of one bank: numbers, accounts and amounts; and the passage from requests to their records."""

    def __init__(self, options: BankOptions, draw: random.Random) -> None:
        """``draw`` is that of the machine on which requests are made up."""
        self._options = options
        self._draw = draw
        self._next = 0

    def transfer(self, draw: random.Random) -> tuple[int, int, int, int]:
        """Returns a new transfer: number, debited account, credited account, amount."""
        self._next += 1
        loser, gainer = draw.sample(range(self._options.accounts), 2)
        return self._next - 1, loser, gainer, draw.randint(1, _AMOUNT_MAX)

    def legs(self, number: int, loser: int, gainer: int, amount: int) -> list[Content]:
        """Returns the two records of a transfer."""
        legs = ((number, loser, -amount), (number, gainer, amount))
        return [Content(self._options.place_of(leg[1]), _LEG.pack(*leg), leg) for leg in legs]

    def feed(self, partition: TopicPartition) -> Content:
        """Returns a request; see ``Passage``."""
        request = self.transfer(self._draw)
        return Content(partition, _REQUEST.pack(*request), request)

    def make(self, partition: TopicPartition, number: int, record: Record) -> Iterable[Content]:
        """Returns the records that a clerk writes for a request; see ``Passage``."""
        return self.legs(*_REQUEST.unpack_from(says_of(record.value)))


class BankWorkload:
    """Tellers, clerks and readers of one run."""

    def __init__(self, environment: Environment, bootstrap: str, options: BankOptions, recorder: Recorder) -> None:
        """``environment`` is that of the machine of readers, and of the client that makes requests."""
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._recorder = recorder
        self._recording = TransactionRecorder(recorder)
        self._counter = Counter(options, environment.random)
        self._clerks = PipeWorkload(environment, bootstrap, options.clerks, recorder, self._counter)
        self._stopping = trio.Event()

    def stop(self) -> None:
        """Ends tellers and readers after their open operations, and clerks after all requests."""
        self._stopping.set()
        self._clerks.stop()

    async def run(self) -> None:
        """Runs all clients on one machine until ``stop``; returns when the last outcome is known."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._clerks.run)
            nursery.start_soon(self.read)
            for slot in range(self._options.tellers):
                nursery.start_soon(self.report, slot, self._environment)

    # -- tellers -----------------------------------------------------------------------------------------------------

    async def report(self, slot: int, environment: Environment) -> None:
        """Runs tellers in turn with the same transactional id, sometimes two of them at once."""
        draw = environment.random
        crash_every_s = self._options.crash_every_s
        async with trio.open_nursery() as nursery:
            while not self._stopping.is_set():
                scope, ended = trio.CancelScope(), trio.Event()
                nursery.start_soon(self._live, f"{self._options.id_prefix}-{slot}", environment, scope, ended)
                with trio.move_on_after(draw.expovariate(1 / crash_every_s) if crash_every_s > 0 else float("inf")):
                    await ended.wait()
                if not ended.is_set() and draw.random() >= self._options.usurp_share:
                    scope.cancel()
                    await ended.wait()

    async def _live(
        self, transactional_id: str, environment: Environment, scope: trio.CancelScope, ended: trio.Event
    ) -> None:
        """Runs one teller; sets ``ended`` at its end, whatever ended it."""
        process = self._recorder.new_process()
        config = transactional_config(transactional_id, self._bootstrap, self._options.producer)
        why = "the client crashed"
        under_way: list[OpenTransaction] = []
        try:
            with scope:
                try:
                    async with mortal(Producer(config, environment=environment), environment.random) as producer:
                        await persist(producer.init_transactions, self._stopping.is_set)
                        await self._transact(process, producer, environment, under_way)
                except KafkaError as error:  # fenced, or hopeless: a successor with the same id goes on
                    why = f"{error.code.name}: {error}"
                finally:
                    self._recording.record_unfinished(process, under_way, why)
                await trio.sleep(RETRY_S)
        finally:
            ended.set()
        if scope.cancelled_caught:
            self._recorder.operation(process, Kind.CRASH, Status.INFO, self._recorder.now_ms(), error="abandoned")

    async def _transact(
        self, process: int, producer: Producer, environment: Environment, under_way: list[OpenTransaction]
    ) -> None:
        draw, options = environment.random, self._options
        while not self._stopping.is_set():
            transaction = OpenTransaction(self._recorder.now_ms())
            under_way[:] = [transaction]
            producer.begin_transaction()
            try:
                for _ in range(draw.randint(1, options.transfers_max)):
                    for content in self._counter.legs(*self._counter.transfer(draw)):
                        await self._recording.send(producer, transaction, content)
                if draw.random() < options.abort_share:
                    if draw.random() < _FLUSH_SHARE:
                        await producer.flush()
                    await self._recording.abort(process, producer, transaction, "")
                else:
                    transaction.committing = True
                    await persist(producer.commit_transaction)
                    self._recording.report(process, transaction, Status.OK)
            except FatalTransactionError:
                raise
            except (TransactionError, KafkaError) as error:
                await self._recording.abort(process, producer, transaction, f"{error.code.name}: {error}")
            under_way.clear()
            await trio.sleep(draw.expovariate(options.transactions_per_second))

    # -- clerks ------------------------------------------------------------------------------------------------------

    async def request(self) -> None:
        """Makes requests until ``stop``; returns when all of them are carried out. Clerks must work beside it."""
        await self._clerks.feed()

    async def carry_out(self, slot: int, environment: Environment) -> None:
        """Runs clerks in turn with the same transactional id, until all requests are carried out."""
        await self._clerks.work(slot, environment)

    # -- readers -----------------------------------------------------------------------------------------------------

    def _consumer(self, **more: object) -> Consumer:
        config = {
            "isolation.level": "read_committed",
            **self._options.consumer,
            "auto.offset.reset": "earliest",  # balances are sums of all records from the first one on
            "enable.auto.commit": False,
            **more,
            "bootstrap.servers": self._bootstrap,
        }
        return Consumer(config, environment=self._environment)

    async def read(self) -> None:
        """All readers, until ``stop``."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._options.readers):
                nursery.start_soon(self._readers)

    async def _readers(self) -> None:
        """Runs one reader after the other."""
        crash_every_s = self._options.crash_every_s
        while not self._stopping.is_set():
            process = self._recorder.new_process()
            span = self._environment.random.expovariate(1 / crash_every_s) if crash_every_s > 0 else float("inf")
            with trio.move_on_after(span) as scope:
                await self._read(process)
            if scope.cancelled_caught:
                now = self._recorder.now_ms()
                self._recorder.operation(process, Kind.CRASH, Status.INFO, now, error="abandoned")

    async def _read(self, process: int) -> None:
        recorder, partitions = self._recorder, self._options.account_partitions
        books = _Books(self._options)
        async with self._consumer() as consumer:
            begun = recorder.now_ms()
            consumer.assign(partitions)
            recorder.operation(process, Kind.ASSIGN, Status.OK, begun, partitions=tuple(partitions))
            next_audit_ms = begun
            while not self._stopping.is_set():
                begun = recorder.now_ms()
                try:
                    batches = await consumer.poll(POLL_TIMEOUT_MS)
                except KafkaError as error:
                    text = f"{error.code.name}: {error}"
                    recorder.operation(process, Kind.POLL, Status.FAIL, begun, error=text)
                    await trio.sleep(RETRY_S)
                    continue
                if batches:
                    books.add(batches)
                    part = polled(batches, timed=recorder.timed)
                    recorder.operation(process, Kind.POLL, Status.OK, begun, part)
                if batches and begun >= next_audit_ms:
                    next_audit_ms = begun + 1000 * self._options.audit_every_s
                    recorder.operation(process, Kind.AUDIT, Status.OK, begun, audit=books.audit())

    # -- the end -----------------------------------------------------------------------------------------------------

    async def final_read(self, timeout_s: float) -> None:
        """Reads all accounts and requests from their beginnings; see ``read_everything``."""
        self._clerks.note_unfinished()
        partitions = [*self._options.account_partitions, *self._options.clerks.source_partitions]
        asked = str(self._options.consumer.get("isolation.level", "read_committed"))
        await read_everything(
            lambda isolation: self._consumer(**{"isolation.level": isolation}),
            asked,
            partitions,
            self._recorder,
            timeout_s,
        )


class _Books:
    """The balances that one reader has added up."""

    def __init__(self, options: BankOptions) -> None:
        self._balances = [options.opening] * options.accounts
        self._positions = dict.fromkeys(options.account_partitions, 0)

    def add(self, batches: Iterable[ConsumedBatch]) -> None:
        """Adds the records of a poll."""
        for batch in batches:
            for record in batch.records:
                _, account, amount = _LEG.unpack_from(says_of(record.value))
                self._balances[account] += amount
                self._positions[TopicPartition(batch.topic, batch.partition)] = record.offset + 1

    def audit(self) -> Audit:
        """Returns the balances up to the reader's positions."""
        return Audit(tuple(self._positions.items()), tuple(self._balances))
