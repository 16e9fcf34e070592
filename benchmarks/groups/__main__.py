"""Measures rebalances in both group protocols: how long a group takes to rest, and how many records wait meanwhile.

    PYTHONPATH=tests python -m benchmarks.groups [--members 3,50,500] [--seed 1]

One broker, one controller and Moldau's consumers in the simulation. All times are virtual: what is measured is the
protocol (round trips, heartbeat intervals, timeouts), not the processor. A topic has two partitions for each member.
Three events: all members join at once; one more joins; one dies without a word. The group rests when every partition
has a reader and no partition has to move. A partition without a reader delays the records that arrive meanwhile; with
RATE records a second in each partition, "stalled" is their number.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from moldau.consumer import Consumer
from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroupState
from moldau_broker.coordinator.group.core.group import GroupState
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.cluster.metadata import TopicPartition
    from support.cluster.broker_cluster import Cluster

RATE = 100
SESSION_MS = 10_000
HEARTBEAT_MS = 1_000
GROUP, TOPIC = "g", "t"
LIMIT_S = 300.0
STEP_S = 0.02
SETTINGS = {
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.initial.rebalance.delay.ms": "3000",
    "offsets.topic.num.partitions": "1",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
}
PROTOCOLS = {
    "classic, range": {"partition.assignment.strategy": "range"},
    "classic, cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer, uniform": {"group.protocol": "consumer"},
}


@dataclass
class Readers:
    """Which member reads each partition, and for how long each had no reader since `begin`."""

    count: int
    owner: dict[int, int] = field(default_factory=dict)
    free_since: dict[int, float] = field(default_factory=dict)
    waited_s: float = 0.0

    def begin(self) -> None:
        now = trio.current_time()
        self.waited_s = 0.0
        self.free_since = {number: now for number in range(self.count) if number not in self.owner}

    def took(self, member: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            since = self.free_since.pop(number, None)
            if since is not None:
                self.waited_s += trio.current_time() - since
            self.owner[number] = member

    def gave(self, member: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            if self.owner.get(number) == member:
                del self.owner[number]
                self.free_since[number] = trio.current_time()


class Group:
    """The members of one run."""

    def __init__(self, cluster: Cluster, protocol: str, partitions: int, nursery: trio.Nursery) -> None:
        self.cluster = cluster
        self.settings = PROTOCOLS[protocol]
        self.readers = Readers(partitions)
        self.nursery = nursery
        self.scopes: dict[int, trio.CancelScope] = {}
        self.numbers = itertools.count()

    def add(self) -> None:
        self.nursery.start_soon(self._member, next(self.numbers))

    async def _member(self, number: int) -> None:
        async def took(partitions: Sequence[TopicPartition]) -> None:
            self.readers.took(number, [each.partition for each in partitions])

        async def gave(partitions: Sequence[TopicPartition]) -> None:
            self.readers.gave(number, [each.partition for each in partitions])

        config = {
            "bootstrap.servers": "b1:9092",
            "group.id": GROUP,
            "fetch.max.wait.ms": 5_000,
            "enable.auto.commit": False,
            **self.settings,
        }
        if "group.protocol" not in self.settings:
            config |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        consumer = Consumer(config, environment=self.cluster.client_environment, on_assigned=took, on_revoked=gave)
        with trio.CancelScope() as scope:
            self.scopes[number] = scope
            async with consumer:
                consumer.subscribe([TOPIC])
                try:
                    while True:
                        await consumer.poll(5_000)
                except trio.Cancelled:
                    consumer.abandon()
                    raise

    def kill(self) -> None:
        """A member dies: its partitions have no reader until the coordinator notices."""
        number, scope = self.scopes.popitem()
        scope.cancel()
        self.readers.gave(number, [each for each, owner in list(self.readers.owner.items()) if owner == number])

    def rests(self, members: int) -> bool:
        (broker,) = self.cluster.running.values()
        for shard in broker.context.groups._shards.values():
            if shard.core is None:
                continue
            consumers = shard.core.consumers.get(GROUP)
            classic = shard.core.rebalancer.groups.get(GROUP)
            if consumers is not None:
                is_stable = consumers.state is ConsumerGroupState.STABLE and len(consumers.members) == members
            elif classic is not None:
                is_stable = classic.state is GroupState.STABLE and len(classic.members) == members
            else:
                continue
            return is_stable and len(self.readers.owner) == self.readers.count
        return False

    async def until_rest(self, members: int) -> tuple[float, float]:
        """Returns the seconds until the group rests, and the records that were delayed."""
        self.readers.begin()
        began = trio.current_time()
        rested_at = began
        with trio.fail_after(LIMIT_S):
            while True:
                await trio.sleep(STEP_S)
                if not self.rests(members):
                    rested_at = trio.current_time()
                elif trio.current_time() - rested_at > 3 * HEARTBEAT_MS / 1000:  # cooperative groups rebalance twice
                    return rested_at - began, self.readers.waited_s * RATE


def measure(protocol: str, members: int, seed: int) -> list[tuple[float, float]]:
    """Returns seconds and stalled records of the three events."""
    figures: list[tuple[float, float]] = []

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic(TOPIC, partitions=2 * members, replicas=1, min_insync_replicas="1")
        async with trio.open_nursery() as nursery:
            group = Group(cluster, protocol, 2 * members, nursery)
            for _ in range(members):
                group.add()
            figures.append(await group.until_rest(members))
            group.add()
            figures.append(await group.until_rest(members + 1))
            group.kill()
            figures.append(await group.until_rest(members))
            nursery.cancel_scope.cancel()

    run_cluster(scenario, seed=seed, brokers=1, controllers=1, **SETTINGS)
    return figures


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", default="3,50,500", help="sizes of the group")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print("| members | protocol | all join | stalled | one joins | stalled | one dies | stalled | CPU |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|---:|")
    for members in map(int, given.members.split(",")):
        for protocol in PROTOCOLS:
            began = time.process_time()
            cells = [f"{seconds:.2f} s | {stalled:,.0f}" for seconds, stalled in measure(protocol, members, given.seed)]
            cpu = time.process_time() - began
            print(f"| {members} | {protocol} | {' | '.join(cells)} | {cpu:.0f} s |", flush=True)


if __name__ == "__main__":
    main()
