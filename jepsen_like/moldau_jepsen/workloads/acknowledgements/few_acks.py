"""Runs producers without idempotence that wait for one acknowledgement, or for none, and a reader of their topic.

Each producer draws ``acks`` (0 or 1), whether it retries, and how many requests it has in flight. Each record is unique
and goes to one drawn partition. Producers crash: a successor with a new number takes over. A reader polls all
partitions meanwhile. ``checkers.log.few_acks`` judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.admin import Admin
from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers.log.few_acks import NO_OFFSET, FewAcksRead, FewAcksSend, check_few_acks
from moldau_jepsen.checkers.log.reach import GAP_MAX, has_reached
from moldau_jepsen.history import TopicPartition
from moldau_jepsen.workloads.crashes import mortal

if TYPE_CHECKING:
    import random

    from moldau.producer import Delivery
    from moldau.runtime.ports.environment import Environment

POLL_MS = 200.0
RETRY_S = 0.2
SENDS_MAX = 8
"""Records that a producer hands over before it waits for their outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FewAcksOptions:
    """The options of the workload."""

    topic: str = "few-acks"
    partitions: int = 2
    producers: int = 2
    rounds_per_second: float = 6.0
    """Of each producer: a round is a few records."""
    crash_every_s: float = 6.0
    """Mean time until a producer is abandoned; 0 for never."""
    padding_bytes: int = 40


class FewAcksWorkload:
    """The clients and their observations."""

    def __init__(self, environment: Environment, bootstrap: str, options: FewAcksOptions, draw: random.Random) -> None:
        """``environment`` is that of the clients' machine; ``draw`` is the workload's own, and shifts no other."""
        self._environment = environment
        self._bootstrap = bootstrap
        self._options = options
        self._draw = draw
        self._stopping = trio.Event()
        self._producers = 0
        self.sends: list[FewAcksSend] = []
        self.reads: list[FewAcksRead] = []
        self.final: list[FewAcksRead] = []
        self.leader_epochs: dict[int, int] = {}
        self.stuck: str | None = None
        """Why the final read failed, if it did."""

    def stop(self) -> None:
        """Ends all clients after their open operations."""
        self._stopping.set()

    def verdict(self) -> list[str]:
        """Returns what is wrong with the records; call it after the final read."""
        return check_few_acks(self.sends, self.reads, self.final, self.leader_epochs)

    async def run(self) -> None:
        """Runs producers and the reader until ``stop``; returns when the last outcome is known or given up."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._options.producers):
                nursery.start_soon(self._lives)
            nursery.start_soon(self._read_until)

    async def _lives(self) -> None:
        """Runs producers in turn: each runs until it crashes or the run stops."""
        draw, every_s = self._draw, self._options.crash_every_s
        while not self._stopping.is_set():
            self._producers += 1
            with trio.move_on_after(draw.expovariate(1 / every_s) if every_s > 0 else float("inf")):
                await self._send_as(self._producers)

    async def _send_as(self, number: int) -> None:
        draw = self._draw
        acks, retries, in_flight = draw.choice((0, 1)), draw.random() < 0.5, draw.choice((1, 5))
        config = {
            "acks": str(acks),
            "enable.idempotence": False,
            "retries": 100 if retries else 0,
            "max.in.flight.requests.per.connection": in_flight,
            "linger.ms": draw.choice((0, 5)),
            "delivery.timeout.ms": 6_000,
            "request.timeout.ms": 2_000,
            "max.block.ms": 4_000,
            "client.id": f"few-acks-{number}",
            "bootstrap.servers": self._bootstrap,
        }
        async with mortal(Producer(config, environment=self._environment), draw) as producer:
            while not self._stopping.is_set():
                under_way: list[tuple[FewAcksSend, Delivery]] = []
                for _ in range(draw.randint(1, SENDS_MAX)):
                    send = self._next(number, acks, in_flight, retries=retries)
                    try:
                        under_way.append((send, await self._hand_over(producer, send)))
                    except KafkaError:
                        await trio.sleep(RETRY_S)  # no metadata or no memory in time: it was never handed over
                for send, delivery in under_way:
                    await self._settle(send, delivery)
                await trio.sleep(draw.expovariate(self._options.rounds_per_second))

    def _next(self, producer: int, acks: int, in_flight: int, *, retries: bool) -> FewAcksSend:
        number = len(self.sends)
        send = FewAcksSend(
            number=number,
            producer=producer,
            partition=self._draw.randrange(self._options.partitions),
            value=f"{number} of {producer} " + "." * self._options.padding_bytes,
            acks=acks,
            retries=retries,
            in_flight=in_flight,
        )
        self.sends.append(send)
        return send

    async def _hand_over(self, producer: Producer, send: FewAcksSend) -> Delivery:
        return await producer.send(self._options.topic, send.value.encode(), partition=send.partition)

    async def _settle(self, send: FewAcksSend, delivery: Delivery) -> None:
        try:
            metadata = await delivery
        except KafkaError:
            return  # the outcome is unknown
        send.is_acknowledged = True
        send.offset = metadata.offset if metadata.offset >= 0 else NO_OFFSET
        leader = delivery.acknowledged_by
        send.leader_epoch = -1 if leader is None else leader[1]

    # --- readers

    def _consumer(self) -> Consumer:
        config = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "bootstrap.servers": self._bootstrap,
        }
        return Consumer(config, environment=self._environment)

    def _all(self) -> list[TopicPartition]:
        return [TopicPartition(self._options.topic, number) for number in range(self._options.partitions)]

    async def _read_until(self) -> None:
        while not self._stopping.is_set():
            try:
                async with self._consumer() as consumer:
                    consumer.assign(self._all())
                    while not self._stopping.is_set():
                        self.reads += await _polled(consumer)
            except KafkaError:
                await trio.sleep(RETRY_S)

    async def final_read(self, seconds: float) -> None:
        """Reads each partition from its beginning; sets ``stuck`` when that does not end within ``seconds``."""
        with trio.move_on_after(seconds):
            await self._read_until_it_ends()
            return
        self.stuck = f"topic {self._options.topic} could not be read within {seconds} s"

    async def _read_until_it_ends(self) -> None:
        while True:
            if await self._read_everything():
                return
            await trio.sleep(RETRY_S)

    async def _read_everything(self) -> bool:
        """Reads to the ends that the leaders name, which lie behind all that is judged; returns whether it could."""
        found: dict[int, list[tuple[int, str]]] = {partition.partition: [] for partition in self._all()}
        servers = {"bootstrap.servers": self._bootstrap}
        try:
            async with Admin(servers, environment=self._environment) as admin, self._consumer() as consumer:
                before = await self._epochs(admin)
                ends = await consumer.end_offsets(self._all())
                consumer.assign(self._all())
                while not all(has_reached(consumer.position_nowait(each) or 0, ends[each]) for each in self._all()):
                    for read in await _polled(consumer):
                        found[read.partition] += read.records
                        end = ends[TopicPartition(self._options.topic, read.partition)]
                        if any(offset >= end + GAP_MAX for offset, _ in read.records):
                            self.reads.append(read)  # impossible offsets: the reader is sent back to the beginning now
                            return False
                if await self._epochs(admin) != before:
                    return False  # another leader may have another end
        except KafkaError:
            return False
        self.leader_epochs = before
        self.final = [FewAcksRead(number, tuple(records)) for number, records in found.items()]
        return True

    async def _epochs(self, admin: Admin) -> dict[int, int]:
        described = await admin.describe_topics([self._options.topic])
        return {part.partition: part.leader_epoch for part in described[self._options.topic].partitions}


async def _polled(consumer: Consumer) -> list[FewAcksRead]:
    return [
        FewAcksRead(
            batch.topic_partition.partition,
            tuple((record.offset, bytes(record.value or b"").decode()) for record in batch.records),
        )
        for batch in await consumer.poll(POLL_MS)
    ]
