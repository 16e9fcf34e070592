"""Runs the exactly-once pipe: read, transform, write, with the group's offsets in the transaction (KIP-98, KIP-447).

A feeder sends unique values to the source. Workers share the source in a group. A worker polls, sends one record to the
target for each polled record, and commits the group's offsets in the same transaction. Workers crash and leave their
transaction open; a successor with the same transactional id ends it. A worker that was removed from its group must not
commit, because another worker owns its partitions by then.

In the history a worker's transaction is one operation: the poll, then one send per polled record in the same order.
So the checker (``checkers.pipe``) knows the source record of each target record: each committed record of the source
must have exactly one in the target, in order.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from moldau.consumer import CommittedOffset, Consumer
from moldau.producer import Producer
from moldau.producer.core.transaction_errors import FatalTransactionError, TransactionError
from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers.log.reach import has_reached
from moldau_jepsen.history import Kind, Send, Status, TopicPartition
from moldau_jepsen.workloads.crashes import mortal
from moldau_jepsen.workloads.phases.final_read import (
    POLL_TIMEOUT_MS,
    RETRY_S,
    end_offsets,
    polled,
    read_everything,
)
from moldau_jepsen.workloads.recording.payload import number_of, send_payload
from moldau_jepsen.workloads.recording.recorder import Rebalances, Recorder, acknowledgements
from moldau_jepsen.workloads.recording.transaction_recorder import (
    Content,
    OpenTransaction,
    TransactionRecorder,
    persist,
    transactional_config,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence

    from moldau.consumer import ConsumedBatch
    from moldau.producer import Delivery
    from moldau.records import Record
    from moldau.runtime.ports.environment import Environment

DRAIN_FACTOR_MAX = 20
"""How many times ``drain_seconds`` the end may take in all while it gets on."""
_FLUSH_SHARE = 0.5
"""Of the aborted transactions: their records are in the logs when the abort comes, not dropped before they are sent."""

_COMMIT_SHARE = 0.3
"""Of the transactions whose offsets are committed on their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeOptions:
    """The options of the workload."""

    source: str = "pipe-source"
    target: str = "pipe-target"
    partitions: int = 2
    """Of each of the two topics."""
    group: str = "pipe"
    workers: int = 2
    records_per_second: float = 30.0
    records_max: int = 8
    """Of one transaction."""
    abort_share: float = 0.1
    crash_every_s: float = 8.0
    """Mean time until a worker is abandoned; 0 for never. No worker crashes after ``stop``."""
    drain_seconds: float = 60.0
    """How long the pipe may stand still after ``stop`` before all of the source is through."""
    offsets_in_transaction: bool = True
    """False commits the group's offsets on their own now and then: a negative control, which repeats records whenever
    a partition changes hands in between."""
    id_prefix: str = "pipe"
    producer: Mapping[str, object] = field(default_factory=dict)
    consumer: Mapping[str, object] = field(default_factory=dict)

    @property
    def source_partitions(self) -> list[TopicPartition]:
        """Returns all partitions of the source."""
        return [TopicPartition(self.source, number) for number in range(self.partitions)]

    @property
    def target_partitions(self) -> list[TopicPartition]:
        """Returns all partitions of the target."""
        return [TopicPartition(self.target, number) for number in range(self.partitions)]


class Passage(Protocol):
    """The content of a pipe: the feeder's records, and the records that workers make of them."""

    def feed(self, partition: TopicPartition) -> Content:
        """Returns the next record for a partition of the source."""
        ...

    def make(self, partition: TopicPartition, number: int, record: Record) -> Iterable[Content]:
        """Returns the target records for the source record with this number; they share a transaction."""
        ...


class OneToOne:
    """Bare numbers; one record of the target for each of the source, spread over the target's partitions."""

    def __init__(self, options: PipeOptions) -> None:
        """Only the target is looked at."""
        self._targets = options.target_partitions

    def feed(self, partition: TopicPartition) -> Content:
        """See ``Passage``."""
        return Content(partition)

    def make(self, partition: TopicPartition, number: int, record: Record) -> Iterable[Content]:
        """See ``Passage``."""
        return (Content(self._targets[(partition.partition + number) % len(self._targets)]),)


class PipeWorkload:
    """The feeder and the workers of one run."""

    def __init__(
        self,
        environment: Environment,
        bootstrap: str,
        options: PipeOptions,
        recorder: Recorder,
        passage: Passage | None = None,
    ) -> None:
        """``recorder`` may be shared with other workloads. ``passage`` is ``OneToOne`` by default."""
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._recorder = recorder
        self._recording = TransactionRecorder(recorder)
        self._passage: Passage = OneToOne(options) if passage is None else passage
        self._fed = trio.Event()
        self._drained = False

    def stop(self) -> None:
        """Ends the feeding; ``run`` returns when the workers have committed all of the source."""
        self._fed.set()

    async def run(self) -> None:
        """Runs feeder and workers until ``stop`` and until the group has committed the source's end.

        Adds an operation that is not OK if the workers make no progress for ``drain_seconds``.
        """
        async with trio.open_nursery() as nursery:
            for slot in range(self._options.workers):
                nursery.start_soon(self.work, slot, self._environment)
            await self.feed()
            nursery.cancel_scope.cancel()

    async def feed(self) -> None:
        """Runs the feeder's part of ``run`` until all records are through; workers must run beside it."""
        while not self._fed.is_set():
            process = self._recorder.new_process()
            try:
                await self._feed(process)
            except KafkaError:
                await trio.sleep(RETRY_S)  # the producer failed for good; each of its sends has an outcome
        await self._drain()

    async def work(self, slot: int, environment: Environment) -> None:
        """Runs one worker after the other with the same transactional id until all records are through.

        ``environment`` is that of the worker's machine.
        """
        draw = environment.random
        while not self._drained:
            process = self._recorder.new_process()
            crash_every_s = self._options.crash_every_s
            crashes = crash_every_s > 0 and not self._fed.is_set()
            span = draw.expovariate(1 / crash_every_s) if crashes else float("inf")
            with trio.move_on_after(span) as scope:
                await self._live(process, f"{self._options.id_prefix}-{slot}", environment)
            if scope.cancelled_caught:
                now = self._recorder.now_ms()
                self._recorder.operation(process, Kind.CRASH, Status.INFO, now, error="abandoned")

    # -- the feeder --------------------------------------------------------------------------------------------------

    async def _feed(self, process: int) -> None:
        options, recorder = self._options, self._recorder
        draw = self._environment.random
        config = {"acks": "all", "linger.ms": 2, **options.producer, "bootstrap.servers": self._bootstrap}
        under_way: list[tuple[Send, float, Delivery]] = []
        async with Producer(config, environment=self._environment) as producer:
            while not self._fed.is_set():
                for _ in range(draw.randint(1, options.records_max)):
                    partition = draw.choice(options.source_partitions)
                    value, content = recorder.new_value(partition), self._passage.feed(partition)
                    payload = self._recorder.payload(value, content.said)
                    begun = recorder.now_ms()
                    send = Send(partition, value, None, payload.digest, content.says)
                    try:
                        delivery = await send_payload(producer, partition, payload)
                    except KafkaError as error:  # it was never handed over
                        recorder.operation(process, Kind.SEND, Status.FAIL, begun, send, error=error.code.name)
                        continue
                    under_way.append((send, begun, delivery))
                for send, begun, delivery in under_way:
                    try:
                        metadata = await delivery
                    except KafkaError as error:
                        recorder.operation(process, Kind.SEND, Status.INFO, begun, send, error=error.code.name)
                    else:
                        sent = send._replace(offset=metadata.offset if metadata.offset >= 0 else None)
                        led = acknowledgements([delivery])
                        recorder.operation(process, Kind.SEND, Status.OK, begun, sent, leads=led)
                under_way.clear()
                await trio.sleep(draw.expovariate(options.records_per_second / (options.records_max / 2 + 0.5)))

    async def _drain(self) -> None:
        """Waits until the group has committed the end of the source, as long as it makes progress.

        After an hour of faults many records may be left.
        """
        options = self._options
        passed, limit = -1, trio.current_time() + DRAIN_FACTOR_MAX * options.drain_seconds
        process, begun = self._recorder.new_process(), self._recorder.now_ms()
        with trio.move_on_after(options.drain_seconds) as scope:
            async with self._consumer(self._environment) as consumer:
                ends = await end_offsets(consumer, options.source_partitions)
                while True:
                    try:
                        committed = await consumer.committed(options.source_partitions)
                    except (KafkaError, trio.TooSlowError):
                        committed = {}
                    if (now_passed := sum(min(each.offset, ends[part]) for part, each in committed.items())) > passed:
                        passed = now_passed
                        scope.deadline = min(limit, trio.current_time() + options.drain_seconds)
                    left = {
                        str(part): f"{committed[part].offset if part in committed else 'nothing'} of {end}"
                        for part, end in ends.items()
                        if end and (part not in committed or not has_reached(committed[part].offset, end))
                    }
                    if not left:
                        break
                    await trio.sleep(RETRY_S)
        self._drained = True
        if scope.cancelled_caught:
            text = f"the pipe is not through, and has not got on for {options.drain_seconds} s: {left}"
            self._recorder.operation(process, Kind.POLL, Status.INFO, begun, final=True, error=text)

    # -- the workers -------------------------------------------------------------------------------------------------

    def _consumer(self, environment: Environment, rebalances: Rebalances | None = None) -> Consumer:
        config = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "group.id": self._options.group,
            **self._options.consumer,
            "bootstrap.servers": self._bootstrap,
        }
        reported = rebalances.reported if rebalances is not None else None
        return Consumer(config, environment=environment, on_assigned=reported, on_revoked=reported)

    def _producer(self, environment: Environment, transactional_id: str) -> Producer:
        config = transactional_config(transactional_id, self._bootstrap, self._options.producer)
        return Producer(config, environment=environment)

    async def _live(self, process: int, transactional_id: str, environment: Environment) -> None:
        why = "the client crashed"
        under_way: list[OpenTransaction] = []
        rebalances = Rebalances()
        try:
            async with (
                mortal(self._consumer(environment, rebalances), environment.random) as consumer,
                mortal(self._producer(environment, transactional_id), environment.random) as producer,
            ):
                await persist(producer.init_transactions, lambda: self._drained)
                consumer.subscribe([self._options.source])
                await self._transact(process, consumer, rebalances, producer, environment.random, under_way)
        except KafkaError as error:  # fenced, or hopeless: a successor with the same id goes on
            why = f"{error.code.name}: {error}"
        finally:
            self._recording.record_unfinished(
                process, under_way, why
            )  # a crash may come as a group of what was cancelled
        await trio.sleep(RETRY_S)

    async def _transact(
        self,
        process: int,
        consumer: Consumer,
        rebalances: Rebalances,
        producer: Producer,
        draw: random.Random,
        under_way: list[OpenTransaction],
    ) -> None:
        """Carries out transactions until all records are through."""
        seen = (-1, 0)
        rewound = False
        while not self._drained:
            begun = self._recorder.now_ms()
            try:
                batches = await consumer.poll(POLL_TIMEOUT_MS, max_records=draw.randint(1, self._options.records_max))
            except KafkaError:
                await trio.sleep(RETRY_S)
                rewound = True
                continue
            now = (consumer.assignment_generation, rebalances.count)
            moved = now != seen
            if moved:
                seen = now
                owned = tuple(TopicPartition(*partition) for partition in consumer.assignment)
                self._recorder.operation(process, Kind.SUBSCRIBE, Status.OK, begun, partitions=owned, generation=now[0])
            if not batches:
                continue
            part = polled(batches, timed=self._recorder.timed)
            transaction = OpenTransaction(begun, [part], rebalanced=moved or rewound)
            under_way[:] = [transaction]
            committed = await self._pass_on(process, consumer, producer, draw, transaction, batches)
            under_way.clear()
            rewound = not committed
            if rewound:
                _rewind(consumer, batches)

    async def _pass_on(
        self,
        process: int,
        consumer: Consumer,
        producer: Producer,
        draw: random.Random,
        transaction: OpenTransaction,
        batches: list[ConsumedBatch],
    ) -> bool:
        """Carries out one transaction; returns whether it was committed."""
        options = self._options
        producer.begin_transaction()
        try:
            for partition, records in _by_partition(batches).items():
                for record in records:
                    for content in self._passage.make(partition, number_of(record.value), record):
                        await self._recording.send(producer, transaction, content)
            offsets = {
                (batch.topic, batch.partition): CommittedOffset(
                    offset=batch.next_offset, leader_epoch=batch.leader_epoch
                )
                for batch in batches
            }
            member = consumer.group_metadata()
            if options.offsets_in_transaction:
                await persist(lambda: producer.send_offsets_to_transaction(offsets, member))
            if draw.random() < options.abort_share:
                if draw.random() < _FLUSH_SHARE:
                    await producer.flush()
                await self._recording.abort(process, producer, transaction, "")
                return False
            transaction.committing = True
            await persist(producer.commit_transaction)
            if not options.offsets_in_transaction and (self._fed.is_set() or draw.random() < _COMMIT_SHARE):
                with contextlib.suppress(KafkaError, trio.TooSlowError):  # it is read again, then
                    await consumer.commit(offsets)
        except FatalTransactionError:
            raise
        except (TransactionError, KafkaError) as error:
            await self._recording.abort(process, producer, transaction, f"{error.code.name}: {error}")
            return False
        self._recording.report(process, transaction, Status.OK)
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def note_unfinished(self) -> None:
        """Says in the history that the workers were ended before they were through, so nothing is judged as lost."""
        if not self._drained:
            process, text = self._recorder.new_process(), "the pipe was ended before it was through"
            self._recorder.operation(process, Kind.POLL, Status.INFO, self._recorder.now_ms(), final=True, error=text)

    async def final_read(self, timeout_s: float) -> None:
        """Reads source and target from their beginnings; see ``read_everything``."""
        self.note_unfinished()
        partitions = [*self._options.source_partitions, *self._options.target_partitions]

        def make(isolation: str) -> Consumer:
            config = {
                "auto.offset.reset": "earliest",
                **self._options.consumer,
                "isolation.level": isolation,
                "bootstrap.servers": self._bootstrap,
            }
            return Consumer(config, environment=self._environment)

        asked = str(self._options.consumer.get("isolation.level", "read_committed"))
        await read_everything(make, asked, partitions, self._recorder, timeout_s)


def _by_partition(batches: Sequence[ConsumedBatch]) -> dict[TopicPartition, list[Record]]:
    """Returns the records of a poll, in the order in which the history has them."""
    records: dict[TopicPartition, list[Record]] = {}
    for batch in batches:
        records.setdefault(TopicPartition(batch.topic, batch.partition), []).extend(batch.records)
    return records


def _rewind(consumer: Consumer, batches: list[ConsumedBatch]) -> None:
    """Goes back to what the aborted transaction had begun with, where the partition is still this consumer's."""
    first: dict[TopicPartition, int] = {}
    for batch in batches:
        first.setdefault(TopicPartition(batch.topic, batch.partition), batch.records[0].offset)
    owned = consumer.assignment
    for partition, offset in first.items():
        if partition in owned:
            consumer.seek(partition, offset)
