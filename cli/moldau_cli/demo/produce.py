"""The demo's produce phase: sends all records with acks=all, kills a leader, and times the acknowledgements.

One trio task sends; another watches the deliveries (those of a partition settle in order) and kills a leader when the
chosen share is acknowledged. The killed broker is started again once all its partitions acknowledge under new leaders.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau import Producer
from moldau.cluster.metadata import NO_LEADER
from moldau.protocol.errors import KafkaError
from moldau_cli.demo.records import SEQUENCE_HEADER
from moldau_cli.errors import CommandError
from moldau_jepsen.reports.demo import Failover

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.producer.delivery import Delivery
    from moldau_cli.demo.records import DemoInput
    from moldau_jepsen.launcher import LocalCluster

KILL_AT_SHARE = 0.4
WATCH_S = 0.01
SAMPLE_S = 0.1
PRODUCER_SETTINGS = {"acks": "all", "enable.idempotence": "true", "linger.ms": "10", "batch.size": "131072"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """The outcome of the phase. ``acknowledged[n]`` is 1 if record n was acknowledged."""

    acknowledged: bytearray
    seconds: float  # from the first send to the last acknowledgement
    throughput: list[tuple[float, float]]
    failover: Failover | None
    failures: int
    first_failure: str


class ProducePhase:
    """One run of the phase; ``run`` is called once."""

    def __init__(
        self, cluster: LocalCluster, topic: str, records: DemoInput, *, progress: Callable[[int], None]
    ) -> None:
        """Takes the cluster and the records; ``progress`` is called with the number of acknowledged records."""
        self._cluster = cluster
        self._topic = topic
        self._records = records
        self._progress = progress
        self._waiting: dict[int, deque[tuple[int, Delivery]]] = {}
        self._acknowledged = bytearray(records.count)
        self._count = 0
        self._failures = 0
        self._first_failure = ""
        self._all_sent = False
        self._began_s = 0.0
        self._last_ack_s = 0.0
        self._samples: list[tuple[float, int]] = [(0.0, 0)]
        self._victim = -1
        self._killed_s = math.inf
        self._led: dict[int, float] = {}  # partitions of the victim, with the first acknowledgement by another leader
        self._moved: set[int] = set()  # those of them that another broker leads by now
        self._restarted_s: float | None = None

    async def run(self) -> Produced:
        """Produces all records.

        Raises:
            CommandError: records were not acknowledged.
        """
        settings = {"bootstrap.servers": self._cluster.bootstrap, **PRODUCER_SETTINGS}
        async with Producer(settings) as producer:
            partitions = await producer.partitions_for(self._topic)
            leaders = {one.partition: one.leader for one in partitions}
            self._began_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, nursery, producer, leaders)
                await self._send(producer)
                self._all_sent = True
                await producer.flush()
        if self._failures:
            raise CommandError(f"{self._failures} records were not acknowledged: {self._first_failure}")
        return Produced(
            acknowledged=self._acknowledged,
            seconds=self._last_ack_s,
            throughput=self._rates(),
            failover=self._failover(),
            failures=self._failures,
            first_failure=self._first_failure,
        )

    async def _send(self, producer: Producer) -> None:
        records, topic, waiting = self._records, self._topic, self._waiting
        stamps = records.timestamps_ms
        for number, (key, value) in enumerate(zip(records.keys, records.values, strict=True)):
            delivery = await producer.send(
                topic,
                value,
                key=key,
                headers=((SEQUENCE_HEADER, b"%d" % number),),
                timestamp=None if stamps is None else stamps[number],
            )
            queue = waiting.get(delivery.partition)
            if queue is None:
                queue = waiting[delivery.partition] = deque()
            queue.append((number, delivery))

    async def _watch(self, nursery: trio.Nursery, producer: Producer, leaders: dict[int, int]) -> None:
        """Collects outcomes until all are known; kills a broker at the chosen share and starts it again."""
        next_sample_s = SAMPLE_S
        restarting = False
        while not self._all_sent or any(self._waiting.values()) or (self._led and not restarting):
            await trio.sleep(WATCH_S)
            now_s = self._now_s()
            self._collect(now_s)
            if now_s >= next_sample_s:
                self._samples.append((now_s, self._count))
                self._progress(self._count)
                next_sample_s = now_s + SAMPLE_S
            if self._victim < 0 and self._count >= self._records.count * KILL_AT_SHARE:
                await self._kill(leaders)
            if self._led and not restarting:
                await self._notice_leaders(producer)
            if self._led and not restarting and self._is_healed():
                restarting = True
                nursery.start_soon(self._restart)
        self._samples.append((self._now_s(), self._count))
        self._progress(self._count)

    def _now_s(self) -> float:
        return trio.current_time() - self._began_s

    def _collect(self, now_s: float) -> None:
        for partition, queue in self._waiting.items():
            while queue and queue[0][1].is_done:
                number, delivery = queue.popleft()
                try:
                    delivery.result()
                except KafkaError as error:
                    self._failures += 1
                    self._first_failure = self._first_failure or str(error)
                    continue
                self._acknowledged[number] = 1
                self._count += 1
                self._last_ack_s = now_s
                if partition in self._moved:
                    self._led[partition] = min(self._led[partition], now_s)

    async def _kill(self, leaders: dict[int, int]) -> None:
        """Kills the broker that leads the most partitions."""
        led = sorted(leaders.values())
        self._victim = max(led, key=led.count)
        self._led = {partition: math.inf for partition, leader in leaders.items() if leader == self._victim}
        self._killed_s = self._now_s()
        await trio.to_thread.run_sync(self._cluster.kill, self._victim)

    async def _notice_leaders(self, producer: Producer) -> None:
        """Marks the partitions that have a new leader.

        Only acknowledgements collected after this count as the new leader's, because the killed broker may have sent
        the earlier ones.
        """
        for one in await producer.partitions_for(self._topic):
            if one.partition in self._led and one.leader not in (self._victim, NO_LEADER):
                self._moved.add(one.partition)

    def _is_healed(self) -> bool:
        """Returns whether all partitions of the killed broker acknowledge again, or have no records left."""
        return all(at_s < math.inf or (self._all_sent and not self._waiting.get(p)) for p, at_s in self._led.items())

    async def _restart(self) -> None:
        await trio.to_thread.run_sync(self._cluster.start_node, self._victim)
        self._restarted_s = self._now_s()

    def _rates(self) -> list[tuple[float, float]]:
        """Returns the acknowledged records per second between samples, at the end of each interval."""
        rates = [(0.0, 0.0)]
        for (before_s, before), (after_s, after) in zip(self._samples, self._samples[1:], strict=False):
            if after_s > before_s and before_s < self._last_ack_s:
                rates.append((after_s, (after - before) / (after_s - before_s)))
        return rates

    def _failover(self) -> Failover | None:
        answered = [at_s for at_s in self._led.values() if at_s < math.inf]
        if not answered:
            return None
        return Failover(
            node_id=self._victim,
            partitions=len(self._led),
            killed_s=self._killed_s,
            first_ack_s=min(answered),
            all_acked_s=max(answered),
            restarted_s=self._restarted_s,
        )
