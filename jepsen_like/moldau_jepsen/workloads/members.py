"""Runs the members workload: a group of the consumer protocol (KIP-848) whose members come, go and change.

Members live on machines of their own, which faults pause and cut off. Each life draws its protocol, so the group
migrates between the classic and the consumer protocol; it crashes, leaves, or takes a break from polling; it narrows
and widens its subscription. The member of the first slot is static: its next life has the same instance id. It always
subscribes to all topics, so each partition has a reader.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.history import Kind, Send, Status, TopicPartition
from moldau_jepsen.workloads.crashes import mortal
from moldau_jepsen.workloads.phases.final_read import POLL_TIMEOUT_MS, polled, read_everything
from moldau_jepsen.workloads.recording.payload import send_payload
from moldau_jepsen.workloads.recording.recorder import Rebalances, acknowledgements

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from moldau.runtime.ports.environment import Environment
    from moldau_jepsen.workloads.recording.recorder import Recorder

BREAK_PROBABILITY = 0.04
"""Of a break in polling, after a poll."""
BREAK_S = (0.5, 4.0)
RESUBSCRIBE_PROBABILITY = 0.1
COMMIT_PROBABILITY = 0.6
RETRY_S = 0.1
INSTANCE_ID = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersOptions:
    """The options of the workload."""

    topics: tuple[str, ...] = ("members-a", "members-b")
    partitions: int = 2
    group: str = "members"
    slots: int = 3
    classic_share: float = 0.3
    """Of the lives: those that speak the classic protocol."""
    sends_per_second: float = 20.0
    crash_every_s: float = 5.0
    """Mean length of a life; 0 for lives without end."""
    reset: str = "earliest"
    """Where members begin in a partition without a committed offset."""
    classic: Mapping[str, object] = field(
        default_factory=lambda: {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 500}
    )
    """Configuration of members of the classic protocol; brokers choose these times for the others."""

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        """All partitions of the topics."""
        return [TopicPartition(topic, number) for topic in self.topics for number in range(self.partitions)]

    @property
    def sizes(self) -> dict[str, int]:
        """The topics with their numbers of partitions."""
        return dict.fromkeys(self.topics, self.partitions)


class MembersWorkload:
    """All clients of one run."""

    def __init__(self, bootstrap: str, options: MembersOptions, recorder: Recorder) -> None:
        """Runs nothing before `feed` and `live`."""
        self._bootstrap = bootstrap
        self._options = options
        self._recorder = recorder
        self._stopping = trio.Event()

    def stop(self) -> None:
        """Ends all clients after their open operations."""
        self._stopping.set()

    # -- the sender

    async def feed(self, environment: Environment) -> None:
        """Sends records to all partitions until ``stop``."""
        draw = environment.random
        while not self._stopping.is_set():
            process = self._recorder.new_process()
            config = {"acks": "all", "linger.ms": 2, "bootstrap.servers": self._bootstrap}
            try:
                async with Producer(config, environment=environment) as producer:
                    while not self._stopping.is_set():
                        await self._send(process, producer, draw)
                        await trio.sleep(draw.expovariate(self._options.sends_per_second))
            except KafkaError:  # the producer itself failed for good; each send has been reported
                await trio.sleep(RETRY_S)

    async def _send(self, process: int, producer: Producer, draw: random.Random) -> None:
        partition = draw.choice(self._options.topic_partitions)
        value = self._recorder.new_value(partition)
        payload = self._recorder.payload(value)
        begun = self._recorder.now_ms()
        part = Send(partition, value, None, payload.digest)
        try:
            delivery = await send_payload(producer, partition, payload)
        except KafkaError as error:  # no metadata in time: it was never handed over
            self._recorder.operation(process, Kind.SEND, Status.FAIL, begun, part, error=error.code.name)
            return
        try:
            metadata = await delivery
        except KafkaError as error:
            self._recorder.operation(process, Kind.SEND, Status.INFO, begun, part, error=error.code.name)
            return
        leads = acknowledgements([delivery])
        part = part._replace(offset=metadata.offset if metadata.offset >= 0 else None)
        self._recorder.operation(process, Kind.SEND, Status.OK, begun, part, leads=leads)

    # -- members

    async def live(self, slot: int, environment: Environment) -> None:
        """Runs the members of one slot in turn: each until it crashes, leaves or the run stops."""
        draw, options = environment.random, self._options
        while not self._stopping.is_set():
            process = self._recorder.new_process()
            span = draw.expovariate(1 / options.crash_every_s) if options.crash_every_s > 0 else float("inf")
            with trio.move_on_after(span) as scope:
                try:
                    await self._member(slot, process, environment)
                except KafkaError as error:  # fenced by its successor, or refused for good
                    now = self._recorder.now_ms()
                    text = f"{error.code.name}: {error}"
                    self._recorder.operation(process, Kind.POLL, Status.FAIL, now, error=text, rebalanced=True)
                    await trio.sleep(RETRY_S)
            if scope.cancelled_caught:
                now = self._recorder.now_ms()
                self._recorder.operation(process, Kind.CRASH, Status.INFO, now, error="abandoned")

    def _config(self, slot: int, draw: random.Random) -> dict[str, object]:
        is_classic = draw.random() < self._options.classic_share
        config: dict[str, object] = {
            "auto.offset.reset": self._options.reset,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "group.id": self._options.group,
            "bootstrap.servers": self._bootstrap,
        }
        if is_classic:
            config |= {**self._options.classic, "partition.assignment.strategy": "cooperative-sticky"}
        else:
            config |= {"group.protocol": "consumer", "group.remote.assignor": draw.choice(("uniform", "range"))}
        if slot == 0:
            config["group.instance.id"] = INSTANCE_ID
        return config

    def _topics(self, slot: int, draw: random.Random) -> list[str]:
        topics = list(self._options.topics)
        return topics if slot == 0 else draw.choice([topics, topics[:1], topics[1:]])

    async def _member(self, slot: int, process: int, environment: Environment) -> None:
        draw, options, recorder = environment.random, self._options, self._recorder
        rebalances = Rebalances()
        report = rebalances.reported
        reader = Consumer(self._config(slot, draw), environment=environment, on_assigned=report, on_revoked=report)
        async with mortal(reader, draw) as consumer:
            consumer.subscribe(self._topics(slot, draw))
            seen = (-1, 0)
            static = INSTANCE_ID if slot == 0 else ""
            while not self._stopping.is_set():
                begun = recorder.now_ms()
                try:
                    batches = await consumer.poll(POLL_TIMEOUT_MS)
                except KafkaError as error:
                    text = f"{error.code.name}: {error}"
                    recorder.operation(process, Kind.POLL, Status.FAIL, begun, error=text, rebalanced=True)
                    await trio.sleep(RETRY_S)
                    continue
                now = (consumer.assignment_generation, rebalances.count)
                moved = now != seen
                if moved:
                    seen = now
                    owned = tuple(TopicPartition(*partition) for partition in consumer.assignment)
                    recorder.operation(
                        process, Kind.SUBSCRIBE, Status.OK, begun, partitions=owned, generation=now[0], group=static
                    )
                if batches:
                    part = polled(batches, timed=recorder.timed)
                    recorder.operation(
                        process, Kind.POLL, Status.OK, begun, part, rebalanced=moved, group=options.group
                    )
                    if draw.random() < COMMIT_PROBABILITY:
                        await _commit(consumer)
                if draw.random() < RESUBSCRIBE_PROBABILITY:
                    consumer.subscribe(self._topics(slot, draw))
                if draw.random() < BREAK_PROBABILITY:
                    await trio.sleep(draw.uniform(*BREAK_S))

    # -- the end

    async def final_read(self, environment: Environment, timeout_s: float) -> None:
        """Reads every partition from its beginning until every acknowledged offset was passed."""

        def reader(isolation: str) -> Consumer:
            config = {"isolation.level": isolation, "bootstrap.servers": self._bootstrap}
            return Consumer({**config, "auto.offset.reset": "earliest"}, environment=environment)

        await read_everything(reader, "read_committed", self._options.topic_partitions, self._recorder, timeout_s)


async def _commit(consumer: Consumer) -> None:
    try:
        await consumer.commit()
    except (KafkaError, trio.TooSlowError):
        return  # a rebalance or a lost coordinator: the records will be read again, which this workload allows
