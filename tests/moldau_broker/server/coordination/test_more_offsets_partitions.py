"""Goal: a group keeps its committed offsets, whatever an operator does to the partitions of ``__consumer_offsets``.

Method: a consumer that commits, on a cluster with virtual network, disk and time.
"""

from __future__ import annotations

import pytest

from moldau import Admin, Consumer, TopicPartition
from moldau.admin import AdminError
from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.runtime.partitioning import partition_for
from support.cluster.broker_cluster import Cluster, run_cluster

T0 = TopicPartition("t", 0)


def test_the_topic_of_offsets_gets_no_more_partitions() -> None:
    """The group would be looked for in another partition: its consumers would skip records, or read them again."""
    assert partition_for("g", 1) != partition_for("g", 5)

    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        await cluster.leader("t")
        server = {"bootstrap.servers": "b1:9092"}
        async with (
            Admin(server, environment=cluster.client_environment) as admin,
            Consumer(server | {"group.id": "g"}, environment=cluster.client_environment) as consumer,
        ):
            await consumer.commit({T0: 7})
            with pytest.raises(AdminError) as failure:
                await admin.create_partitions({"__consumer_offsets": 5})
            assert failure.value.code is ErrorCode.INVALID_PARTITIONS
            assert (await consumer.committed([T0]))[T0].offset == 7

    run_cluster(scenario, offsets_topic_num_partitions="1")
