"""Scripted stories of whole simulated clusters: clients work while the story injects faults.

A story is a coroutine function that gets a ``Scene``. Around it the kit starts the cluster, creates the topic, runs one
sender and one reader on it, heals everything at the end, reads every partition, and returns an ``Outcome``: the results
of the invariants and of the check of the history. A story that must fail (a negative control) runs in the same way.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from moldau.consumer import Consumer
from moldau.protocol.errors import KafkaError
from moldau_jepsen.checkers import CheckOptions, check_history
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.history import Kind, Status
from moldau_jepsen.places import place_of
from moldau_jepsen.simulation.inject.injector import FaultInjector
from moldau_jepsen.simulation.judge.invariants import ClusterInvariants
from moldau_jepsen.simulation.judge.observer import ClusterObserver
from moldau_jepsen.workloads.phases.final_read import polled
from moldau_jepsen.workloads.queue import QueueOptions, QueueWorkload
from moldau_jepsen.workloads.recording.recorder import Recorder
from moldau_jepsen.world.world import run_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from moldau_jepsen.history import Operation
    from moldau_jepsen.world.world import World
    from moldau_quorum.metadata.image import PartitionImage

TOPIC = "story"


@dataclass
class Outcome:
    """The results of a story."""

    invariants: list[str]
    """Names of violated invariants, and processes that ended with an exception."""
    anomalies: dict[str, int]
    """Counts of anomalies that are not allowed, by kind."""
    history: list[Operation] = field(repr=False)
    reported: dict[str, Any]
    """Values that the story noted for its test."""

    @property
    def clean(self) -> bool:
        return not self.invariants and not self.anomalies

    def acknowledged_between(self, begin_s: float, end_s: float) -> list[float]:
        """Returns the times (seconds) of acknowledged sends."""
        times = [one.ended_ms / 1000 for one in self.history if one.kind is Kind.SEND and one.status is Status.OK]
        return [time for time in times if begin_s <= time < end_s]

    def longest_silence(self, begin_s: float, end_s: float) -> float:
        """Returns the longest time without an acknowledged send."""
        times = [begin_s, *self.acknowledged_between(begin_s, end_s), end_s]
        return max(after - before for before, after in itertools.pairwise(times))


class Scene:
    """The cluster, the faults and the clock of a story."""

    def __init__(self, world: World, cluster: SimulatedCluster, recorder: Recorder, injector: FaultInjector) -> None:
        self.world, self.cluster, self.recorder, self.injector = world, cluster, recorder, injector
        self.client = world.node("client").environment
        self.reported: dict[str, Any] = {}

    def now(self) -> float:
        """Returns the seconds on the history's clock."""
        return self.recorder.now_ms() / 1000

    def partition(self, number: int = 0, topic: str = TOPIC) -> PartitionImage:
        """Returns the newest committed state of a partition that a running node knows."""
        images = [broker.metadata.image for broker in self.cluster.brokers.values()]
        newest = max(images, key=lambda image: image.offset)
        return newest.topics_by_name[topic].partitions[number]

    async def until(self, condition: Callable[[], object], seconds: float = 30.0) -> None:
        """Waits for a condition on the state of the nodes."""
        with trio.fail_after(seconds):
            await self.world.agenda.wait_until(condition, every_seconds=0.05)

    async def acknowledged_more(self, count: int = 5, seconds: float = 30.0) -> None:
        """Waits until ``count`` more sends were acknowledged."""
        before = self.recorder.acknowledged
        await self.until(lambda: self.recorder.acknowledged >= before + count, seconds)

    async def stop(self, node_id: int) -> None:
        """Stops a process in order (SIGTERM), and waits for its end."""
        self.cluster.stop(node_id)
        with trio.fail_after(30):
            await self.cluster.machines[node_id].wait_ended()

    async def read_for(self, seconds: float, number: int = 0) -> list[Any]:
        """Reads a partition from its start for ``seconds``, despite errors; returns offsets and values."""
        found: list[Any] = []
        config = {"bootstrap.servers": self.cluster.bootstrap, "auto.offset.reset": "earliest"}
        with trio.move_on_after(seconds):
            async with Consumer(config, environment=self.world.node("reader").environment) as consumer:
                consumer.assign([(TOPIC, number)])
                while True:
                    try:
                        batches = await consumer.poll(500)
                    except KafkaError:
                        await trio.sleep(0.2)
                        continue
                    found += [pair for batch in polled(batches, timed=True).records for pair in batch[1]]
        return found

    def cut(self, left: Sequence[str], right: Sequence[str]) -> None:
        """Cuts both directions between hosts."""
        self.world.network.cut_between(left, right)


def run_story(
    story: Callable[[Scene], Awaitable[object]],
    seed: int = 1,
    *,
    brokers: int = 3,
    controllers: int = 3,
    partitions: int = 1,
    settings: Mapping[str, str] | None = None,
    topic_settings: dict[str, str] | None = None,
    workload: Mapping[str, Any] | None = None,
    final_read_s: float = 60.0,
) -> Outcome:
    """Runs a story and returns its ``Outcome``.

    The last reader waits ``final_read_s`` for records that were acknowledged and are not there.
    """
    shape = ClusterShape(brokers=brokers, controllers=controllers, settings=settings or {})
    options = QueueOptions(
        topic=TOPIC,
        partitions=partitions,
        senders=1,
        assigned_readers=1,
        group_readers=0,
        sends_per_second=40.0,
        crash_every_s=0.0,
        **(workload or {}),
    )

    async def main(world: World) -> Outcome:
        cluster = SimulatedCluster(world, shape)
        judge = ClusterInvariants(trio.current_time)
        observer = ClusterObserver(cluster, judge)
        world.agenda.watchers.append(observer.turn_ended)
        history: list[Operation] = []
        environment = world.node("client").environment
        recorder = Recorder(environment.clock, history.append)
        clients = QueueWorkload(environment, cluster.bootstrap, options, recorder)
        injector = FaultInjector(cluster, ["client"], synced=False)
        scene = Scene(world, cluster, recorder, injector)
        cluster.start_all()
        await cluster.wait_healthy(60)
        await cluster.create_topic(environment, TOPIC, partitions, topic_settings or {})
        await cluster.wait_healthy(60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clients.run)
            await scene.acknowledged_more()
            await story(scene)
            injector.end_all()
            await cluster.wait_healthy(120)
            await scene.acknowledged_more()
            clients.stop()
        await clients.final_read(final_read_s)
        world.agenda.watchers.remove(observer.turn_ended)
        verdict = check_history(history, CheckOptions())
        anomalies: dict[str, int] = {}
        for anomaly in verdict.anomalies:
            if not anomaly.allowed:
                anomalies[anomaly.kind.value] = anomalies.get(anomaly.kind.value, 0) + 1
        ended = [f"{name}: {place_of(failure)}" for name, failure in world.failures]
        names = sorted({violation.invariant for violation in judge.violations})
        names += ended
        return Outcome(invariants=names, anomalies=anomalies, history=history, reported=scene.reported)

    return run_world(main, seed)
