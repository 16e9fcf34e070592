"""Goal: all partitions of a classic group are read, whatever its members subscribe to, and also after restarts.

Method: consumers on a cluster with virtual network, disk and time.
"""

from __future__ import annotations

import trio

from moldau import Admin, Consumer
from support.cluster.broker_cluster import Cluster, run_cluster


def test_partitions_of_topics_that_others_read_are_assigned() -> None:
    """Only the leader of the group assigns, so it must notice the growth of topics to which it does not subscribe."""

    async def scenario(cluster: Cluster) -> None:
        server = {"bootstrap.servers": "b1:9092"}
        config = {"group.id": "g", "heartbeat.interval.ms": "300", "metadata.max.age.ms": "500"}
        for topic in ("a", "b"):
            await cluster.client(1).create_topic(topic)
        async with (
            Admin(server, environment=cluster.client_environment) as admin,
            Consumer(server | config, environment=cluster.client_environment) as leader,
            Consumer(server | config, environment=cluster.client_environment) as other,
            trio.open_nursery() as nursery,
        ):

            async def poll(consumer: Consumer) -> None:
                while True:
                    await consumer.poll(100)

            leader.subscribe(["a"])
            nursery.start_soon(poll, leader)
            await cluster.until(lambda: leader.assignment == [("a", 0)])
            other.subscribe(["b"])
            nursery.start_soon(poll, other)
            await cluster.until(lambda: other.assignment == [("b", 0)])
            await admin.create_partitions({"b": 2})
            await cluster.until(lambda: sorted(other.assignment) == [("b", 0), ("b", 1)], timeout_ms=10_000)
            assert leader.assignment == [("a", 0)]
            nursery.cancel_scope.cancel()

    run_cluster(scenario, offsets_topic_num_partitions="1")


def test_a_static_leader_that_restarts_notices_new_partitions() -> None:
    """It gets its former assignment and computes none (KIP-814), but it is the leader still."""

    async def scenario(cluster: Cluster) -> None:
        server = {"bootstrap.servers": "b1:9092"}
        config = {"group.id": "g", "group.instance.id": "i", "metadata.max.age.ms": "500"}
        await cluster.client(1).create_topic("a")
        async with Admin(server, environment=cluster.client_environment) as admin:
            async with Consumer(server | config, environment=cluster.client_environment) as consumer:
                consumer.subscribe(["a"])
                while not consumer.assignment:
                    await consumer.poll(100)
                generation = consumer.group_generation
            async with Consumer(server | config, environment=cluster.client_environment) as consumer:
                consumer.subscribe(["a"])
                while not consumer.assignment:
                    await consumer.poll(100)
                assert consumer.group_generation == generation, "the group did not notice the restart"
                await admin.create_partitions({"a": 2})
                with trio.fail_after(10):
                    while len(consumer.assignment) < 2:
                        await consumer.poll(100)

    run_cluster(scenario, offsets_topic_num_partitions="1")
