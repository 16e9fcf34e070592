"""Measures rebalances in both group protocols: how long a group takes to rest, and how many records wait meanwhile.

    PYTHONPATH=tests python -m benchmarks.groups [--members 3,50,500] [--seed 1] [--kafka CACHE]

One broker, one controller and Moldau's consumers in the simulation. All times are virtual: what is measured is the
protocol (round trips, heartbeat intervals, timeouts), not the processor. A topic has two partitions for each member.
Three events: all members join at once; one more joins; one dies without a word. The group rests when every partition
has a reader and no partition has to move. A partition without a reader delays the records that arrive meanwhile; with
RATE records a second in each partition, "stalled" is their number.

With ``--kafka`` the same members work with a real broker of Moldau and then with one of Apache Kafka, on real time.
Maven fetches Kafka into the folder CACHE. A group rests then when no member has reported a change for QUIET_S.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from benchmarks.broker.peers import KafkaPeer, MoldauPeer, kafka_libraries
from benchmarks.groups.group import GROUP, HEARTBEAT_MS, PROTOCOLS, SETTINGS, TOPIC, Group

from moldau.admin import Admin, NewTopic
from moldau.runtime.ports.real import real_environment
from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroupState
from moldau_broker.coordinator.group.core.group import GroupState
from support.cluster.broker_cluster import run_cluster

if TYPE_CHECKING:
    from support.cluster.broker_cluster import Cluster

QUIET_S = 5.0
Figures = list[tuple[float, float]]


def is_stable(cluster: Cluster, members: int) -> bool:
    """Whether the coordinator of a simulated cluster has a stable group of so many members."""
    (broker,) = cluster.running.values()
    for shard in broker.context.groups._shards.values():
        if shard.core is None:
            continue
        consumers = shard.core.consumers.get(GROUP)
        classic = shard.core.rebalancer.groups.get(GROUP)
        if consumers is not None:
            return consumers.state is ConsumerGroupState.STABLE and len(consumers.members) == members
        if classic is not None:
            return classic.state is GroupState.STABLE and len(classic.members) == members
    return False


def measure(protocol: str, members: int, seed: int) -> Figures:
    """Returns seconds and stalled records of the three events in the simulation."""
    figures: Figures = []

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic(TOPIC, partitions=2 * members, replicas=1, min_insync_replicas="1")
        async with trio.open_nursery() as nursery:
            group = Group(cluster.client_environment, "b1:9092", protocol, 2 * members, nursery)

            def rests(count: int) -> bool:
                return is_stable(cluster, count) and len(group.readers.owner) == group.readers.count

            figures.extend(await group.events(members, rests, 3 * HEARTBEAT_MS / 1000))
            nursery.cancel_scope.cancel()

    settings: dict[str, Any] = {**SETTINGS}
    run_cluster(scenario, seed=seed, brokers=1, controllers=1, **settings)
    return figures


async def measure_real(bootstrap: str, protocol: str, members: int) -> Figures:
    """Returns seconds and stalled records of the three events at running brokers."""
    environment = real_environment(1)
    name = f"g-{members}-{list(PROTOCOLS).index(protocol)}"  # a group and a topic of its own
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic(name, 2 * members, 1)])
    async with trio.open_nursery() as nursery:
        group = Group(environment, bootstrap, protocol, 2 * members, nursery, name=name)
        figures = await group.events(members, group.is_read, QUIET_S)
        nursery.cancel_scope.cancel()
    return figures


def print_row(first: str, members: int, protocol: str, figures: Figures, cpu_s: float) -> None:
    """Prints one row of the table."""
    cells = [f"{seconds:.2f} s | {stalled:,.0f}" for seconds, stalled in figures]
    print(f"| {first}{members} | {protocol} | {' | '.join(cells)} | {cpu_s:.0f} s |", flush=True)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", help="sizes of the group; 3,50,500 or, beside Kafka, 3,50")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kafka", type=Path, metavar="CACHE", help="also measure real brokers, beside Apache Kafka")
    given = parser.parse_args()
    sizes = [int(size) for size in (given.members or ("3,50,500" if given.kafka is None else "3,50")).split(",")]
    first = "" if given.kafka is None else "broker | "
    print(f"| {first}members | protocol | all join | stalled | one joins | stalled | one dies | stalled | CPU |")
    print("|" + "---|" * bool(first) + "---:|---|" + "---:|" * 7)
    if given.kafka is None:
        for members in sizes:
            for protocol in PROTOCOLS:
                began = time.process_time()
                figures = measure(protocol, members, given.seed)
                print_row("", members, protocol, figures, time.process_time() - began)
        return
    with tempfile.TemporaryDirectory(prefix="moldau-", ignore_cleanup_errors=True) as directory:
        for make in (
            lambda: MoldauPeer(Path(directory) / "moldau", 1, SETTINGS),
            lambda: KafkaPeer(kafka_libraries(given.kafka), Path(directory) / "kafka", 1, SETTINGS),
        ):
            peer = make()
            try:
                for members in sizes:
                    for protocol in PROTOCOLS:
                        began = time.process_time()
                        figures = trio.run(measure_real, peer.bootstrap, protocol, members)
                        print_row(f"{peer.name} | ", members, protocol, figures, time.process_time() - began)
            finally:
                peer.shut_down()


if __name__ == "__main__":
    main()
