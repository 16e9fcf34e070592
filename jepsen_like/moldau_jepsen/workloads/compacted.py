"""Runs writers and readers of a compacted topic: transactions, aborts, tombstones, and deletions in small segments.

Some writers use transactions, of which they abort a part; some are idempotent only. All write the same few keys, and a
part of the writes are tombstones. Readers of committed data read a partition from its beginning again and again, while
the cleaner works, and note what they find. With the policy ``compact,delete`` old segments are deleted, too, and a
client deletes records up to a drawn offset. ``checkers.log.compacted`` judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin
from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.producer.core.transaction_errors import FatalTransactionError, TransactionError
from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers.log.compacted import NEVER, Fate, KeyRead, KeyRecord, KeyWrite, check_compacted
from moldau_jepsen.checkers.log.reach import GAP_MAX, end_of, has_reached
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads.crashes import mortal
from moldau_jepsen.workloads.recording.transaction_recorder import persist, transactional_config

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from moldau.producer import Delivery
    from moldau.runtime.ports.environment import Environment

NUMBER_HEADER = "number"
POLL_MS = 200.0
RETRY_S = 0.2
READ_S = 4.0
"""Time limit of a read while faults strike; an unfinished read is not judged."""
LONG_MS = 30 * 24 * 3_600_000
"""A ``delete.retention.ms`` that is longer than any run, however far faults set the wall clocks of brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedOptions:
    """The options of the workload."""

    topic: str = "compacted"
    partitions: int = 2
    keys: int = 10
    """Of each partition; some are written often, others rarely, so that their tombstones grow old."""
    transactional_writers: int = 2
    plain_writers: int = 1
    rounds_per_second: float = 2.5
    """Of each writer: a round is a transaction, or a few single writes."""
    writes_max: int = 4
    """Of one round."""
    tombstone_share: float = 0.25
    abort_share: float = 0.3
    crash_every_s: float = 6.0
    """Mean time until a writer is abandoned; 0 for never."""
    reads_per_second: float = 1.0
    padding_bytes: int = 60
    segment_bytes: int = 1_024
    delete_retention_ms: int = LONG_MS
    deletes: bool = False
    """Whether retention and DeleteRecords work on the topic, too."""
    deletions_per_second: float = 0.3

    @property
    def topic_settings(self) -> dict[str, str]:
        """The configuration of the topic."""
        settings = {
            "cleanup.policy": "compact",
            "segment.bytes": str(self.segment_bytes),
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": str(self.delete_retention_ms),
        }
        if self.deletes:
            settings |= {"cleanup.policy": "compact,delete", "retention.ms": "8000"}
        return settings


CLEANER_SETTINGS = {
    "log.cleaner.backoff.ms": "500",
    "log.retention.check.interval.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.cleaner.dedupe.buffer.size": "1048576",
}
"""Settings of brokers with which the cleaner works within a run of some seconds."""


class CompactedWorkload:
    """The clients and their observations."""

    def __init__(self, environment: Environment, bootstrap: str, options: CompactedOptions) -> None:
        """``environment`` is that of the clients' machine."""
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._stopping = trio.Event()
        self._ticks = 0
        self.writes: list[KeyWrite] = []
        self.reads: list[KeyRead] = []
        self.stuck: str | None = None
        """Why the final read failed, if it did."""

    def stop(self) -> None:
        """Ends all clients after their open operations."""
        self._stopping.set()

    def verdict(self) -> list[str]:
        """Returns what is wrong with the reads so far."""
        stay = self._options.delete_retention_ms >= LONG_MS
        return check_compacted(self.writes, self.reads, tombstones_stay=stay)

    async def run(self) -> None:
        """Runs writers and readers until ``stop``; returns when the last outcome is known or given up."""
        options = self._options
        async with trio.open_nursery() as nursery:
            for slot in range(options.transactional_writers):
                nursery.start_soon(self._lives, self._transact_as, f"compacted-{slot}")
            for slot in range(options.plain_writers):
                nursery.start_soon(self._lives, self._write_as, f"plain-{slot}")
            nursery.start_soon(self._read_again_and_again)
            if options.deletes:
                nursery.start_soon(self._delete_again_and_again)

    async def final_read(self, seconds: float) -> None:
        """Reads each partition from its beginning; sets ``stuck`` when that does not end within ``seconds``."""
        for number in range(self._options.partitions):
            with trio.move_on_after(seconds):
                await self._read_until_it_ends(number)
                continue
            self.stuck = f"partition {number} of {self._options.topic} could not be read within {seconds} s"
            return

    async def _read_until_it_ends(self, number: int) -> None:
        while True:
            if await self._read(number, judges_absence=True):
                return
            await trio.sleep(RETRY_S)

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks

    # --- writers

    async def _lives(self, live: Callable[[str, random.Random], Awaitable[None]], name: str) -> None:
        """Runs writers in turn under one name: each runs until it crashes or the run stops."""
        draw = self._environment.random
        every_s = self._options.crash_every_s
        while not self._stopping.is_set():
            with trio.move_on_after(draw.expovariate(1 / every_s) if every_s > 0 else float("inf")):
                await live(name, draw)

    async def _transact_as(self, name: str, draw: random.Random) -> None:
        config = transactional_config(name, self._bootstrap, {})
        try:
            async with mortal(Producer(config, environment=self._environment), draw) as producer:
                await persist(producer.init_transactions, self._stopping.is_set)
                while not self._stopping.is_set():
                    await self._transact(producer, draw)
                    await trio.sleep(draw.expovariate(self._options.rounds_per_second))
        except KafkaError:
            await trio.sleep(RETRY_S)  # fenced, or hopeless: a successor with the same id goes on

    async def _transact(self, producer: Producer, draw: random.Random) -> None:
        """Runs one transaction; its writes count as aborted until the commit is requested."""
        writes: list[KeyWrite] = []
        deliveries: list[Delivery] = []
        is_committing = False
        try:
            producer.begin_transaction()
            for _ in range(draw.randint(1, self._options.writes_max)):
                delivery = await self._send(producer, draw, writes)
                deliveries.append(delivery)
            if draw.random() >= self._options.abort_share:
                is_committing = True
                await persist(producer.commit_transaction)
                self._committed(writes, deliveries)
                return
            if draw.random() < 0.8:
                await producer.flush()
        except FatalTransactionError:
            raise
        except (TransactionError, KafkaError):
            is_committing = False  # an abortable error says that it is not committed
        finally:
            if not is_committing:
                for write in writes:
                    write.fate = Fate.ABORTED
        await persist(producer.abort_transaction)

    async def _write_as(self, name: str, draw: random.Random) -> None:
        config = {
            "acks": "all",
            "linger.ms": 1,
            "enable.idempotence": True,
            "delivery.timeout.ms": 8_000,
            "request.timeout.ms": 2_000,
            "client.id": name,
            "bootstrap.servers": self._bootstrap,
        }
        try:
            async with Producer(config, environment=self._environment) as producer:
                while not self._stopping.is_set():
                    for _ in range(draw.randint(1, self._options.writes_max)):
                        writes: list[KeyWrite] = []
                        delivery = await self._send(producer, draw, writes)
                        await delivery
                        self._committed(writes, [delivery])
                    await trio.sleep(draw.expovariate(self._options.rounds_per_second))
        except KafkaError:
            await trio.sleep(RETRY_S)  # the outcome of the write is unknown

    async def _send(self, producer: Producer, draw: random.Random, writes: list[KeyWrite]) -> Delivery:
        """Sends a write to a drawn key; it joins ``writes`` before it is handed over."""
        options = self._options
        partition, key = draw.randrange(options.partitions), f"k{int(options.keys * draw.random() ** 3)}"
        number = len(self.writes)
        is_tombstone = draw.random() < options.tombstone_share
        value = None if is_tombstone else b"%d of %s " % (number, key.encode()) + b"." * options.padding_bytes
        write = KeyWrite(partition=partition, key=key, value=value, begun=self._tick())
        self.writes.append(write)
        writes.append(write)
        return await producer.send(
            options.topic,
            value,
            key=key.encode(),
            partition=partition,
            headers=((NUMBER_HEADER, b"%d" % number),),
        )

    def _committed(self, writes: Sequence[KeyWrite], deliveries: Sequence[Delivery]) -> None:
        known_at = self._tick()
        for write, delivery in zip(writes, deliveries, strict=True):
            write.fate, write.known_at = Fate.COMMITTED, known_at
            offset = delivery.result().offset
            write.offset = offset if offset >= 0 else NEVER

    # --- readers

    async def _read_again_and_again(self) -> None:
        draw = self._environment.random
        while not self._stopping.is_set():
            await trio.sleep(draw.expovariate(self._options.reads_per_second))
            with trio.move_on_after(READ_S):
                await self._read(draw.randrange(self._options.partitions), judges_absence=not self._options.deletes)

    async def _read(self, number: int, *, judges_absence: bool) -> bool:
        """Reads a partition from its beginning to its end, which lies behind all that is known of it."""
        partition = TopicPartition(self._options.topic, number)
        begun = self._tick()
        known = [write.offset for write in self.writes if write.partition == number and write.offset != NEVER]
        known += [record.offset for read in self.reads if read.partition == number for record in read.records]
        config = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": self._environment.random.choice((600, 1 << 20)),
            "bootstrap.servers": self._bootstrap,
        }
        records: list[KeyRecord] = []
        try:
            async with Consumer(config, environment=self._environment) as consumer:
                consumer.assign([partition])
                log_start = (await consumer.beginning_offsets([partition]))[partition]
                end = max(end_of(known), (await consumer.end_offsets([partition]))[partition])
                while not has_reached(consumer.position_nowait(partition) or 0, end):
                    for batch in await consumer.poll(POLL_MS):
                        for record in batch.records:
                            content = bytes(dict(record.headers)[NUMBER_HEADER] or b"")
                            key = bytes(record.key or b"").decode()
                            value = None if record.value is None else bytes(record.value)
                            records.append(KeyRecord(record.offset, key, int(content), value))
                    wrong = tuple(record for record in records if record.offset >= end + GAP_MAX)
                    if wrong:  # they are judged alone: the reader is sent back to the beginning now
                        self.reads.append(KeyRead(number, 0, self._tick(), 0, wrong))
                        return False
                log_start = max(log_start, (await consumer.beginning_offsets([partition]))[partition])
        except KafkaError:
            return False
        self.reads.append(KeyRead(number, begun, self._tick(), log_start, tuple(records), end, judges_absence))
        return True

    async def _delete_again_and_again(self) -> None:
        """Deletes records up to drawn offsets that are known to be committed; ``AdminError`` is a ``KafkaError``."""
        draw = self._environment.random
        async with Admin({"bootstrap.servers": self._bootstrap}, environment=self._environment) as admin:
            while not self._stopping.is_set():
                await trio.sleep(draw.expovariate(self._options.deletions_per_second))
                number = draw.randrange(self._options.partitions)
                known = [write.offset for write in self.writes if write.partition == number and write.offset != NEVER]
                if known:
                    try:
                        await admin.delete_records({(self._options.topic, number): draw.choice(known)})
                    except KafkaError:
                        await trio.sleep(RETRY_S)
