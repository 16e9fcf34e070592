"""Goal: a consumer that is closed while it joins does not stay in its group until its session ends.

Method: consumers on a cluster with virtual network, disk and time, closed at different moments of their first poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from moldau import Admin, Consumer, ShareConsumer
from support.cluster.broker_cluster import Cluster, run_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS = {"offsets_topic_num_partitions": "1", "share_coordinator_state_topic_num_partitions": "1"}
MOMENTS_MS = [3, 3.5, 4, 4.5, 5, 6, 7]
"""The request to join is about to be sent, or was not answered yet."""


async def members_of(admin: Admin, kind: Callable) -> list[str]:
    describe = admin.describe_share_groups if kind is ShareConsumer else admin.describe_groups
    return [member.member_id for member in (await describe(["g"]))["g"].members]


@pytest.mark.parametrize("kind", [Consumer, ShareConsumer])
def test_a_member_that_leaves_as_it_joins_is_gone(kind: Callable) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.client(1).create_topic("t")
        server = {"bootstrap.servers": "b1:9092"}
        config = server | {"group.id": "g"} | ({"group.protocol": "consumer"} if kind is Consumer else {})
        async with Admin(server, environment=cluster.client_environment) as admin:
            async with kind(config, environment=cluster.client_environment) as first:
                first.subscribe(["t"])
                while not first.assignment:
                    await first.poll(100)
            for moment_ms in MOMENTS_MS:
                async with kind(config, environment=cluster.client_environment) as consumer:
                    consumer.subscribe(["t"])
                    with trio.move_on_after(moment_ms / 1000):
                        await consumer.poll(1_000)
                await trio.sleep(0.1)
                assert await members_of(admin, kind) == [], f"closed after {moment_ms} ms"

    run_cluster(scenario, **SETTINGS)
