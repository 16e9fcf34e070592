"""Runs the queue workload: clients send unique values, and read them with assigned partitions and in a group.

Each value is sent to one drawn partition, so the order within a partition is known exactly. Senders keep a few records
in flight, as applications do. Readers either assign all partitions to themselves or share them in a group, and they
sometimes seek: to the beginning, to an offset or a time that they have read. Clients crash: they are abandoned without
closing, and a successor with a new number takes over. In the final phase every partition is read from its beginning
until every acknowledged offset has been passed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau_jepsen.history import Kind, Seek, Send, Status, TopicPartition
from moldau_jepsen.workloads.crashes import mortal
from moldau_jepsen.workloads.pauses import Pauser
from moldau_jepsen.workloads.phases.final_read import POLL_TIMEOUT_MS, polled, read_everything
from moldau_jepsen.workloads.recording.payload import send_payload
from moldau_jepsen.workloads.recording.recorder import Rebalances, Recorder, acknowledgements
from moldau_jepsen.workloads.seeks import Seeker

if TYPE_CHECKING:
    import random

    from moldau.consumer import ConsumedBatch
    from moldau.producer import Delivery
    from moldau.runtime.ports.environment import Environment

CERTAINLY_NOT_WRITTEN = frozenset(
    (
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
)
"""Errors after which no attempt can have been written. After other errors the outcome is unknown."""


_Life = Callable[[int, "random.Random"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The options of the workload."""

    topic: str = "queue"
    group: str = "chaos-readers"
    partitions: int = 4
    senders: int = 3
    assigned_readers: int = 1
    group_readers: int = 2
    sends_per_second: float = 150.0
    """Of each sender, on average."""
    in_flight_max: int = 8
    """Sends of one sender whose outcome is awaited together."""
    crash_every_s: float = 20.0
    """Mean time until a client is abandoned; 0 for never."""
    padding_bytes: int = 0
    """Bytes behind the value."""
    seek_share: float = 0.0
    """Of the polls that returned something: the reader seeks afterwards."""
    pause_share: float = 0.0
    """Of the polls: the reader pauses a partition afterwards."""
    producer: Mapping[str, object] = field(default_factory=dict)
    consumer: Mapping[str, object] = field(default_factory=dict)

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """All partitions of the topic."""
        return [TopicPartition(self.topic, number) for number in range(self.partitions)]


class QueueWorkload:
    """All clients of one run."""

    def __init__(self, environment: Environment, bootstrap: str, options: QueueOptions, recorder: Recorder) -> None:
        """``environment`` is that of the clients' machine."""
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._recorder = recorder
        self._stopping = trio.Event()

    def stop(self) -> None:
        """Ends all clients after their open operations."""
        self._stopping.set()

    async def run(self) -> None:
        """Runs senders and readers until ``stop``; returns when the last outcome is known."""
        options = self._options
        async with trio.open_nursery() as nursery:
            for _ in range(options.senders):
                nursery.start_soon(self._lives, self._send_until)
            for _ in range(options.assigned_readers):
                nursery.start_soon(self._lives, self._read_assigned)
            for _ in range(options.group_readers):
                nursery.start_soon(self._lives, self._read_in_group)

    async def _lives(self, live: _Life) -> None:
        """Runs clients in turn: each runs until it crashes or the run stops."""
        draw = self._environment.random
        while not self._stopping.is_set():
            process = self._recorder.new_process()
            crash_every_s = self._options.crash_every_s
            span = draw.expovariate(1 / crash_every_s) if crash_every_s > 0 else float("inf")
            with trio.move_on_after(span) as scope:
                await live(process, draw)
            if scope.cancelled_caught:
                now = self._recorder.now_ms()
                self._recorder.operation(process, Kind.CRASH, Status.INFO, now, error="abandoned")

    # -- senders -----------------------------------------------------------------------------------------------------

    async def _send_until(self, process: int, draw: random.Random) -> None:
        options = self._options
        config = {"acks": "all", "linger.ms": 2, **options.producer, "bootstrap.servers": self._bootstrap}
        under_way: list[_Sent] = []
        why = "the client crashed"
        try:
            async with Producer(config, environment=self._environment) as producer:
                while not self._stopping.is_set():
                    for _ in range(draw.randint(1, options.in_flight_max)):
                        await self._send_one(process, producer, draw, under_way)
                    while under_way:
                        await self._settle(process, under_way)
                    await trio.sleep(draw.expovariate(options.sends_per_second / (options.in_flight_max / 2 + 0.5)))
        except KafkaError as error:  # the producer itself failed for good
            why = f"{error.code.name}: {error}"
        finally:
            self._forget(process, under_way, why)  # a crash may come as a group of what was cancelled

    async def _send_one(self, process: int, producer: Producer, draw: random.Random, under_way: list[_Sent]) -> None:
        partition = TopicPartition(self._options.topic, draw.randrange(self._options.partitions))
        value = self._recorder.new_value(partition)
        payload = self._recorder.payload(value, padding_bytes=self._options.padding_bytes)
        sent = _Sent(part=Send(partition, value, None, payload.digest), begun_ms=self._recorder.now_ms())
        under_way.append(sent)
        try:
            sent.delivery = await send_payload(producer, partition, payload)
        except KafkaError as error:  # no metadata or no memory in time: it was never handed over
            under_way.remove(sent)
            self._report(process, sent, Status.FAIL, None, f"{error.code.name}: {error}")

    async def _settle(self, process: int, under_way: list[_Sent]) -> None:
        """Awaits the oldest send and records its outcome."""
        sent = under_way[0]
        assert sent.delivery is not None
        try:
            metadata = await sent.delivery
        except KafkaError as error:
            status = Status.FAIL if error.code in CERTAINLY_NOT_WRITTEN else Status.INFO
            under_way.pop(0)
            self._report(process, sent, status, None, f"{error.code.name}: {error}")
        else:
            under_way.pop(0)
            self._report(process, sent, Status.OK, metadata.offset if metadata.offset >= 0 else None, "")

    def _forget(self, process: int, under_way: list[_Sent], why: str) -> None:
        for sent in under_way:
            self._report(process, sent, Status.INFO, None, why)
        under_way.clear()

    def _report(self, process: int, sent: _Sent, status: Status, offset: int | None, error: str) -> None:
        part = sent.part._replace(offset=offset)
        leads = acknowledgements([] if sent.delivery is None else [sent.delivery])
        self._recorder.operation(process, Kind.SEND, status, sent.begun_ms, part, error=error, leads=leads)

    # -- readers -----------------------------------------------------------------------------------------------------

    def _consumer(self, rebalances: Rebalances | None = None, /, **more: object) -> Consumer:
        config = {
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            **self._options.consumer,
            **more,
            "bootstrap.servers": self._bootstrap,
        }
        reported = rebalances.reported if rebalances is not None else None
        return Consumer(config, environment=self._environment, on_assigned=reported, on_revoked=reported)

    async def _read_assigned(self, process: int, draw: random.Random) -> None:
        partitions = self._options.topic_partitions
        async with self._consumer() as consumer:
            begun = self._recorder.now_ms()
            consumer.assign(partitions)
            self._recorder.operation(process, Kind.ASSIGN, Status.OK, begun, partitions=tuple(partitions))
            if self._begins_at_earliest:
                seeks = [Seek(partition, None) for partition in partitions]
                self._recorder.operation(process, Kind.SEEK, Status.OK, begun, seeks=seeks)
            seeker, pauser = self._seeker(process), Pauser(process, self._options.pause_share)
            while not self._stopping.is_set():
                batches = await self._poll_once(process, consumer)
                pauser.polled(consumer)
                await seeker.saw(consumer, batches)

    @property
    def _begins_at_earliest(self) -> bool:
        return self._options.consumer.get("auto.offset.reset", "earliest") == "earliest"

    def _seeker(self, process: int) -> Seeker:
        return Seeker(self._recorder, process, self._options.seek_share)

    async def _poll_once(self, process: int, consumer: Consumer) -> list[ConsumedBatch]:
        begun = self._recorder.now_ms()
        try:
            batches = await consumer.poll(POLL_TIMEOUT_MS)
        except KafkaError as error:
            text = f"{error.code.name}: {error}"
            self._recorder.operation(process, Kind.POLL, Status.FAIL, begun, error=text)
            await trio.sleep(0.1)
            return []
        if batches:
            part = polled(batches, timed=self._recorder.timed)
            self._recorder.operation(process, Kind.POLL, Status.OK, begun, part)
        return batches

    async def _read_in_group(self, process: int, draw: random.Random) -> None:
        rebalances = Rebalances()
        # A group that begins at the end has skipped what came before.
        group = self._options.group if self._begins_at_earliest else ""
        reader = self._consumer(rebalances, **{"group.id": self._options.group})
        async with mortal(reader, draw) as consumer:
            consumer.subscribe([self._options.topic])
            seeker, pauser = self._seeker(process), Pauser(process, self._options.pause_share)
            seen = (-1, 0)
            while not self._stopping.is_set():
                begun = self._recorder.now_ms()
                try:
                    batches = await consumer.poll(POLL_TIMEOUT_MS)
                except KafkaError as error:
                    text = f"{error.code.name}: {error}"
                    self._recorder.operation(process, Kind.POLL, Status.FAIL, begun, error=text, rebalanced=True)
                    await trio.sleep(0.1)
                    continue
                now = (consumer.assignment_generation, rebalances.count)
                moved = now != seen
                if moved:
                    seen = now
                    owned = tuple(TopicPartition(*partition) for partition in consumer.assignment)
                    self._recorder.operation(
                        process, Kind.SUBSCRIBE, Status.OK, begun, partitions=owned, generation=now[0]
                    )
                if batches:
                    part = polled(batches, timed=self._recorder.timed)
                    self._recorder.operation(process, Kind.POLL, Status.OK, begun, part, rebalanced=moved, group=group)
                    if draw.random() < 0.3 and seeker.is_back(consumer):
                        await self._commit(consumer)
                await seeker.saw(consumer, batches)
                pauser.polled(consumer)

    async def _commit(self, consumer: Consumer) -> None:
        try:
            await consumer.commit()
        except (KafkaError, trio.TooSlowError):
            return  # a rebalance or a lost coordinator: the records will be read again, which this workload allows

    # -- the end -----------------------------------------------------------------------------------------------------

    async def final_read(self, timeout_s: float) -> None:
        """Reads every partition from its beginning until every acknowledged offset was passed.

        Records one operation that is not OK when that does not happen within ``timeout_s``.
        """
        asked = str(self._options.consumer.get("isolation.level", "read_committed"))
        await read_everything(
            lambda isolation: self._consumer(**{"isolation.level": isolation, "auto.offset.reset": "earliest"}),
            asked,
            self._options.topic_partitions,
            self._recorder,
            timeout_s,
        )


@dataclass(slots=True, kw_only=True)
class _Sent:
    part: Send
    begun_ms: float
    delivery: Delivery | None = None
