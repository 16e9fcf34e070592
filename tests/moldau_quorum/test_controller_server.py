"""Controllers and brokers on a simulated network: registration, topics, failover, fencing, restarts.

Each test runs the production controller and the production broker session; only the disk, the network and time are
simulated.
"""

from __future__ import annotations

import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau_jepsen.simulation.world import run_world
from quorum_cluster import TestCluster, eventually
from quorum_memory_log import MemoryLog


def topic(name: str, partitions: int = 3, factor: int = 3) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)], timeout_ms=5000
    )


async def create(client, request: CreateTopicsRequest) -> CreateTopicsResponse:
    response = await client.request(request, CreateTopicsResponse, timeout_ms=10_000)
    assert [entry.error_code for entry in response.topics] == [ErrorCode.NONE] * len(request.topics), response
    return response


def test_brokers_register_and_follow_what_is_created_with_one_controller() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world, controllers=1, make_log=MemoryLog)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("first"))
        for broker in cluster.brokers.values():
            with trio.fail_after(5):
                await broker.follower.wait_until(lambda image: "first" in image.topics_by_name)
            image = broker.follower.image
            assert sorted(image.brokers) == [1, 2, 3]
            assert image.cluster_id
            partitions = image.topics_by_name["first"].partitions
            assert sorted(partition.leader for partition in partitions.values()) == [1, 2, 3]
        assert not world.failures

    run_world(main, 1)


def test_three_controllers_elect_one_and_survive_its_death() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        client = cluster.client()
        await create(client, topic("before"))
        first = await cluster.wait_active()
        started = trio.current_time()
        first.kill()
        await create(client, topic("after"))
        assert trio.current_time() - started < 5
        second = await cluster.wait_active(other_than=first.node_id)
        assert second.node_id != first.node_id
        # Nobody is fenced by the move, and everybody sees the new topic.
        for broker in cluster.brokers.values():
            with trio.fail_after(5):
                await broker.follower.wait_until(lambda image: "after" in image.topics_by_name)
            assert not any(b.fenced for b in broker.follower.image.brokers.values())
        first.start()
        await eventually(lambda: first.running and "after" in first.running.machine.image.topics_by_name)
        assert not world.failures

    run_world(main, 7)


def test_a_killed_broker_is_fenced_within_the_grace_period_and_its_partitions_get_other_leaders() -> None:
    async def main(world) -> None:
        cluster = TestCluster(world)
        cluster.start_controllers()
        await cluster.start_brokers(1, 2, 3)
        await create(cluster.client(), topic("t", partitions=30))
        active = await cluster.wait_active()
        commands = active.running.active.statistics().commands
        cluster.brokers[2].node.kill()
        killed = trio.current_time()
        observer = cluster.brokers[1].follower
        with trio.fail_after(3):
            await observer.wait_until(lambda image: image.brokers[2].fenced)
        assert 0.25 <= trio.current_time() - killed < 0.6
        partitions = observer.image.topics_by_name["t"].partitions
        assert all(partition.leader in (1, 3) and 2 not in partition.isr for partition in partitions.values())
        assert active.running.active.statistics().commands == commands + 1, "one command moves all leaders"

    run_world(main, 3)
