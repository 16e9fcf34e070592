"""Goal: a cordoned broker takes no new replicas, and recovery ends all cordons, whatever fails in between.

Method: a simulated cluster whose operator is the one of chaos runs; a controller that does not answer for a while.
"""

from __future__ import annotations

import trio

from moldau.admin import Admin, NewTopic
from moldau_jepsen.chaos.nemesis.cordons import DONE, DirectoryCordons, strike_cordons
from moldau_jepsen.cluster.simulated import ClusterShape, SimulatedCluster
from moldau_jepsen.world.world import run_world


async def cordoned(world):
    cluster = SimulatedCluster(world, ClusterShape(controllers=1, brokers=2))
    cluster.start_all()
    await cluster.wait_healthy(60)
    config = {"bootstrap.servers": cluster.bootstrap, "default.api.timeout.ms": 1_000}
    placed = []
    async with Admin(config, environment=world.node("client").environment) as admin:
        cordons = DirectoryCordons(admin)

        async def place(name):
            await admin.create_topics([NewTopic(name=name, partitions=4, replication_factor=1)])
            partitions = cluster.newest_image().topics_by_name[name].partitions.values()
            placed.append({replica for partition in partitions for replica in partition.replicas})

        async with trio.open_nursery() as nursery:
            outcomes = []

            async def strike():
                outcomes.append(await strike_cordons(cordons, [1], trio.current_time() + 3))

            nursery.start_soon(strike)
            await trio.sleep(1)
            await place("during")
        await place("after")
        cluster.kill(cluster.controller_ids[0])
        refused = await cordons.cordon(2)
        assert not await cordons.uncordon_all(1.0)
        cluster.start(cluster.controller_ids[0])
        ended = await cordons.uncordon_all(60.0)
        await place("recovered")
    return outcomes, placed, refused, ended, cordons.cordoned


def test_a_cordoned_broker_takes_no_replicas_until_it_recovers():
    outcomes, placed, refused, ended, left = run_world(cordoned, 1)
    assert outcomes == [([1], f"1: {DONE}, then {DONE}")]
    assert placed == [{2}, {1, 2}, {1, 2}]
    assert refused != DONE
    assert ended
    assert left == {}
