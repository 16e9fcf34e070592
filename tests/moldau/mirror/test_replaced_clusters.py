"""Goal: a cluster that another one replaces at its addresses is a new one for the mirror, which goes on running.

Method: simulated clusters; the nodes of one are killed, and start again with empty disks.
"""

import pytest
import trio

from moldau.admin import ConfigResource, ResourceType
from moldau.mirror.core.provenance import HEADER
from support.mirror.clusters import numbers, run_clusters
from support.proof import proof_beyond

MODES = ["disabled", "enabled"]
FIRST, LATER = numbers(0, 50), numbers(50, 100)


async def replace(clusters, alias):
    """Starts the nodes of a cluster again with empty disks, after some seconds."""
    cluster = clusters[alias]
    for name in [*(f"b{node}" for node in cluster.broker_ids), *(f"c{node}" for node in cluster.controller_ids)]:
        node = clusters.world.node(name)
        node.kill()
        node.environment.disk.remove_tree("/data")
    cluster.running.clear()
    await trio.sleep(5)
    await cluster.start()


async def cluster_id(clusters, alias):
    async with clusters.admin(alias) as admin:
        return (await admin.describe_cluster()).cluster_id


@pytest.mark.parametrize("mode", proof_beyond(1, MODES))
def test_a_new_target_gets_all_records(mode):
    """The mirror went on in the middle, so the records before were in no target; its topics came by themselves."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        clusters.start(clusters.settings(["east"], "hub", exactly_once_source_support=mode))
        await clusters.fill("east", "orders", FIRST)
        await clusters.wait_values("hub", "east.orders", FIRST)
        await trio.sleep(2)  # its positions are stored
        await clusters.fill("east", "orders", LATER[:10])
        await clusters.wait_values("hub", "east.orders", LATER[:10])
        await replace(clusters, "hub")
        await clusters.fill("east", "orders", LATER[10:])
        found = await clusters.wait_values("hub", "east.orders", FIRST + LATER)
        if mode == "enabled":
            assert found == FIRST + LATER
        positions = ConfigResource(ResourceType.TOPIC, "mm2-offsets.east.internal")
        async with clusters.admin("hub") as admin:
            configs = (await admin.describe_configs([positions]))[positions]
        assert configs["cleanup.policy"].value == "compact"

    run_clusters(scenario, fails=True)


def test_records_of_a_new_source_name_it():
    """They carried the id of the former cluster, by which a mirror in the other direction knows its own records."""

    async def scenario(clusters):
        await clusters.create("east", "orders")
        identity = {"replication_policy_class": "IdentityReplicationPolicy"}
        clusters.start(clusters.settings(["east"], "hub", **identity))
        await clusters.fill("east", "orders", FIRST)
        await clusters.wait_values("hub", "orders", FIRST)
        before = await cluster_id(clusters, "east")
        await replace(clusters, "east")
        await clusters.create("east", "orders")
        await clusters.fill("east", "orders", LATER)
        await clusters.wait_values("hub", "orders", FIRST + LATER)
        after = await cluster_id(clusters, "east")
        assert before != after
        visited = {bytes(record.value): dict(record.headers)[HEADER] for record in await clusters.read("hub", "orders")}
        assert visited == dict.fromkeys(FIRST, before.encode()) | dict.fromkeys(LATER, after.encode())

    run_clusters(scenario, fails=True)
