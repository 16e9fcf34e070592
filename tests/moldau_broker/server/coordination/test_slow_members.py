"""Goal: a member that is slow to come back for a rebalance keeps its place for the rebalance timeout.

Method: consumers of the classic protocol on a cluster with virtual network, disk and time.
"""

from __future__ import annotations

import pytest
import trio

from moldau import Consumer
from support.cluster.broker_cluster import Cluster, batch, run_cluster

SETTINGS = {"group_min_session_timeout_ms": "1", "offsets_topic_num_partitions": "1"}


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_rebalance_waits_for_a_member_that_works(strategy: str) -> None:
    """Its work takes longer than its session, so it must send heartbeats although it has to join again."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t", partitions=2)
        leader = cluster.client(await cluster.leader("t", 0))
        await leader.produce("t", batch(b"a"), partition=0)
        lost = []

        async def on_lost(partitions) -> None:
            lost.extend(partitions)

        def open_consumer(**callbacks) -> Consumer:
            config = {
                "bootstrap.servers": "b1:9092",
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": strategy,
                "heartbeat.interval.ms": "300",
                "session.timeout.ms": "2000",
                "max.poll.interval.ms": "60000",
                "enable.auto.commit": "false",
            }
            return Consumer(config, environment=cluster.client_environment, **callbacks)

        async with open_consumer(on_lost=on_lost) as slow, open_consumer() as other, trio.open_nursery() as nursery:
            slow.subscribe(["t"])
            while not await slow.poll(100):
                continue
            member = slow.group_metadata().member_id
            other.subscribe(["t"])

            async def poll_other() -> None:
                while True:
                    await other.poll(100)

            nursery.start_soon(poll_other)
            await trio.sleep(8)  # works on the record
            assert other.assignment == []
            await slow.commit()
            while len(slow.assignment) != 1 or len(other.assignment) != 1:
                await slow.poll(100)
            assert slow.group_metadata().member_id == member
            assert lost == []
            nursery.cancel_scope.cancel()

    run_cluster(scenario, **SETTINGS)


def test_a_static_member_that_polls_too_late_starts_over() -> None:
    """It sends no heartbeats then, so others may own its partitions: it must not go on with them."""

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        leader = cluster.client(await cluster.leader("t", 0))
        await leader.produce("t", batch(b"a"), batch(b"b"), batch(b"c"), partition=0)
        lost = []

        async def on_lost(partitions) -> None:
            lost.extend(partitions)

        def open_consumer(**more) -> Consumer:
            config = {
                "bootstrap.servers": "b1:9092",
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": "300",
                "session.timeout.ms": "2000",
                "max.poll.records": "1",
                "enable.auto.commit": "false",
            } | more
            return Consumer(config, environment=cluster.client_environment, on_lost=on_lost)

        slow = open_consumer(**{"group.instance.id": "i", "max.poll.interval.ms": "3000"})
        async with slow, open_consumer() as other:
            slow.subscribe(["t"])
            while not await slow.poll(100):
                continue
            await trio.sleep(6)
            other.subscribe(["t"])
            while not (found := await other.poll(100)):
                continue
            assert found[0].records[0].value == b"a"
            assert await slow.poll(0) == [], "it held records that were fetched before"
            assert lost == [("t", 0)]

    run_cluster(scenario, **SETTINGS)
