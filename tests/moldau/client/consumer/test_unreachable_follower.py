"""Goal: a consumer that its leader sends to a follower goes on from the leader when the follower cannot serve it.

Method: a simulated cluster of racks whose link to the follower is cut, and one whose client does not know the follower.
The clock is virtual, so a consumer that asks in a loop would ask thousands of times.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import trio

from moldau.consumer import Consumer
from moldau.producer import Producer
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.coverage.situations import Situation, situations_watched
from moldau_jepsen.world.world import run_world

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World

TOPIC = "flights"
RACK = 2
SETTINGS = {"broker.session.timeout.ms": "60000", "broker.heartbeat.interval.ms": "1000"}


async def read(world: World, counts: Counter[Situation], trouble: str) -> list[int]:
    """Sends and reads ten records while the follower of the reader's rack cannot serve; returns the offsets."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=1, racks=True, settings=SETTINGS))
    cluster.start_all()
    await cluster.wait_healthy(60)
    environment = world.node("reader").environment
    sender = world.node("sender").environment
    await cluster.create_topic(sender, TOPIC, 3, {})
    servers = {"bootstrap.servers": cluster.bootstrap}
    offsets: list[int] = []
    async with (
        Producer({**servers, "linger.ms": 0}, environment=sender) as producer,
        Consumer(
            {**servers, "auto.offset.reset": "earliest", "client.rack": f"rack-{RACK}"}, environment=environment
        ) as consumer,
    ):
        infos = await consumer.partitions_for(TOPIC)
        partition = next(each.partition for each in infos if each.leader not in (RACK, -1))
        consumer.assign([(TOPIC, partition)])
        await producer.send(TOPIC, b"first", partition=partition)
        with trio.fail_after(20):
            while not offsets:
                offsets += [record.offset for batch in await consumer.poll(500) for record in batch.records]
        assert counts[Situation.FOLLOWER_READ] >= 1, "the reader was sent to the follower"
        counts.clear()
        if trouble == "cut":
            world.network.cut_between(["reader"], [cluster.host(RACK)])
        else:
            consumer.seek((TOPIC, partition), 1)  # forgets the follower
            client, _ = consumer._opened()
            del client.cluster_metadata.brokers[RACK]
            client.request_update = lambda: None  # type: ignore[method-assign]  # so that it stays unknown
        for _ in range(9):
            await producer.send(TOPIC, b"next", partition=partition)
        with trio.fail_after(60):
            while len(offsets) < 10:
                offsets += [record.offset for batch in await consumer.poll(500) for record in batch.records]
        with trio.move_on_after(5):
            while True:
                await consumer.poll(500)
    return offsets


@pytest.mark.parametrize("trouble", ["cut", "unknown"])
def test_a_reader_goes_on_without_its_follower(trouble: str) -> None:
    counts: Counter[Situation] = Counter()
    with situations_watched(counts):
        offsets = run_world(lambda world: read(world, counts, trouble), 3)
    assert offsets == list(range(10))
    assert counts[Situation.FOLLOWER_READ] < 20


async def read_beside(world: World) -> float:
    """Reads a partition without its follower, then another one too; returns how long a record of the first takes."""
    cluster = SimulatedCluster(world, ClusterShape(controllers=1, racks=True, settings=SETTINGS))
    cluster.start_all()
    await cluster.wait_healthy(60)
    sender = world.node("sender").environment
    await cluster.create_topic(sender, TOPIC, 6, {})
    servers = {"bootstrap.servers": cluster.bootstrap}
    async with (
        Producer({**servers, "linger.ms": 0}, environment=sender) as producer,
        Consumer(
            {**servers, "auto.offset.reset": "earliest", "client.rack": f"rack-{RACK}"},
            environment=world.node("reader").environment,
        ) as consumer,
    ):
        infos = await consumer.partitions_for(TOPIC)
        leader = next(each.leader for each in infos if each.leader not in (RACK, -1))
        first, second = [(TOPIC, each.partition) for each in infos if each.leader == leader][:2]

        async def arrives() -> float:
            begun = trio.current_time()
            await producer.send(TOPIC, b"next", partition=first[1])
            with trio.fail_after(60):
                while not any(batch.topic_partition == first for batch in await consumer.poll(500)):
                    pass
            return trio.current_time() - begun

        consumer.assign([first, second])
        consumer.pause(second)
        await arrives()
        world.network.cut_between(["reader"], [cluster.host(RACK)])
        await arrives()
        consumer.pause(first)
        await trio.sleep(2)  # the long poll ends
        consumer.resume(first, second)  # one fetch asks for both
        return await arrives()


def test_a_partition_beside_it_sends_no_reader_back() -> None:
    """A fetch names no rack while one of its partitions must be read from the leader (KIP-392)."""
    assert run_world(read_beside, 3) < 1
