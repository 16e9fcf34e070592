"""Goal: a member goes on reading its other topics after one of them was deleted.

Method: a consumer that commits automatically, on a cluster with virtual network, disk and time.
"""

from __future__ import annotations

import pytest
import trio

from moldau import Admin, Consumer, TopicPartition
from support.cluster.broker_cluster import Cluster, batch, run_cluster

T0 = TopicPartition("t", 0)
SETTINGS = {
    "auto_create_topics_enable": "false",
    "group_consumer_min_heartbeat_interval_ms": "1",
    "group_consumer_heartbeat_interval_ms": "300",
    "offsets_topic_num_partitions": "1",
}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_deleted_topic_does_not_hold_up_the_others(protocol: str) -> None:
    """Offsets of a topic that is gone are never committed: neither a rebalance nor the end waits for that."""

    async def scenario(cluster: Cluster) -> None:
        client, polls, read = cluster.client(1), [], []
        for topic in ("t", "u"):
            await client.create_topic(topic)
            await cluster.leader(topic)
            await client.produce(topic, batch(b"1"))
        server = {"bootstrap.servers": "b1:9092"}
        config = {"group.id": "g", "group.protocol": protocol, "auto.offset.reset": "earliest"}

        async def poll() -> None:
            began = trio.current_time()
            read.extend(each.topic for each in await consumer.poll(100))
            polls.append(trio.current_time() - began)

        async with (
            Admin(server, environment=cluster.client_environment) as admin,
            Consumer(server | config, environment=cluster.client_environment) as consumer,
        ):
            consumer.subscribe(["t", "u"])
            while len(read) < 2:
                await poll()
            await admin.delete_topics(["u"])
            await trio.sleep(1)
            await client.produce("t", batch(b"2"))
            if protocol == "classic":
                consumer.subscribe(["t"])
            with trio.fail_after(100):
                while len(read) < 3 or len(consumer.assignment) > 1:
                    await poll()
            assert max(polls) < 3
            committed = await consumer.committed([("t", 0)])
            assert committed[T0].offset >= 1, "the offsets of the other topic were committed"
            await admin.delete_topics(["t"])
            began = trio.current_time()
        assert trio.current_time() - began < 3

    run_cluster(scenario, **SETTINGS)


def test_a_member_without_topics_leaves_its_group() -> None:
    """A rebalance of the others would wait for it until its session, or the rebalance, times out."""

    async def scenario(cluster: Cluster) -> None:
        for topic in ("a", "b"):
            await cluster.client(1).create_topic(topic)
        server = {"bootstrap.servers": "b1:9092"}
        config = {"group.id": "g", "heartbeat.interval.ms": "300", "metadata.max.age.ms": "500"}
        async with (
            Admin(server, environment=cluster.client_environment) as admin,
            Consumer(server | config, environment=cluster.client_environment) as first,
            Consumer(server | config, environment=cluster.client_environment) as other,
            trio.open_nursery() as nursery,
        ):

            async def poll(consumer: Consumer) -> None:
                while True:
                    await consumer.poll(100)

            first.subscribe(pattern="a.*")
            other.subscribe(["b"])
            nursery.start_soon(poll, first)
            nursery.start_soon(poll, other)
            await cluster.until(lambda: first.assignment and other.assignment)
            await admin.delete_topics(["a"])
            await cluster.until(lambda: not first.assignment)
            await admin.create_partitions({"b": 2})
            await cluster.until(lambda: len(other.assignment) == 2, timeout_ms=5_000)
            await cluster.client(1).create_topic("a2")
            await cluster.until(lambda: len(first.assignment) == 1, timeout_ms=5_000)
            nursery.cancel_scope.cancel()

    run_cluster(scenario, **SETTINGS)
