"""Controllers and brokers on a simulated network: registration, topics, failover, fencing, restarts.

Each test runs the production controller and the production broker session; only the disk, the network and time are simulated.
"""

from __future__ import annotations

import pytest
import trio

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from moldau_jepsen.simulation.world import run_world
from quorum_cluster import TestCluster
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
