"""Goal: moves that chaos asks for leave each partition as many replicas as it had. Method: a client that notes them."""

from __future__ import annotations

import random
from types import SimpleNamespace

import trio

from moldau.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.workloads.operations import ClusterOperations


class NotingClient:
    def __init__(self, replicas, brokers) -> None:
        self.asked: list[list[int]] = []
        partition = SimpleNamespace(partition=0, replicas=replicas)
        self.cluster_metadata = SimpleNamespace(
            topics={"t": SimpleNamespace(partitions=(partition,))}, brokers=dict.fromkeys(brokers)
        )
        self.now_ms = 0.0

    async def wait_update(self, deadline_ms) -> None:
        await trio.lowlevel.checkpoint()

    async def request_any(self, kind, request, *, timeout_ms):
        await trio.lowlevel.checkpoint()
        self.asked.append(request.topics[0].partitions[0].replicas)
        return AlterPartitionReassignmentsResponse()

    def show(self, replicas, brokers) -> None:
        self.cluster_metadata.topics["t"].partitions[0].replicas = replicas
        self.cluster_metadata.brokers = dict.fromkeys(brokers)


def test_a_partition_always_keeps_its_replication_factor() -> None:
    """With one broker left in service, moves gave up all other copies, and no later move asked for them again."""

    async def main() -> None:
        operations = ClusterOperations(real_environment(1), "127.0.0.1:1", "t")
        client = operations._client = NotingClient((1, 2, 3), (1, 2, 3, 4, 5))
        draw = random.Random(1)
        await operations.reassign(draw)
        client.show((4, 5, 1, 2, 3), (1, 2, 3, 4, 5))  # it is on its way
        await operations.reassign(draw)
        assert [len(replicas) for replicas in client.asked] == [3, 3]
        client.show((4, 5, 1), (4,))
        assert await operations.reassign(draw) == "not asked: 1 brokers for 3 replicas"
        client.show((4, 5, 1), (1, 4, 5))
        await operations.reassign(draw)
        assert [sorted(replicas) for replicas in client.asked[2:]] == [[1, 4, 5]]

    trio.run(main)
