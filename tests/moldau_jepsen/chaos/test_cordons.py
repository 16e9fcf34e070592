"""Goal: a cordoned broker takes no new replicas, and recovery ends all cordons, whatever fails in between.

Method: a simulated cluster whose operator is the one of chaos runs; a controller that does not answer for a while.
"""

from __future__ import annotations

import trio
from trio.testing import MockClock

from moldau.admin import Admin, NewTopic
from moldau.protocol.errors import ErrorCode, KafkaError
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


class Refusing:
    """An admin client whose first changes are refused."""

    def __init__(self, refusals):
        self.left = refusals
        self.done = []

    async def alter_configs(self, changes):
        await trio.lowlevel.checkpoint()
        if self.left:
            self.left -= 1
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        self.done += [(resource.name, change.value) for resource, listed in changes.items() for change in listed]


def test_a_refused_uncordoning_is_repeated():
    """A broker would else take no replicas for the rest of the run, and the run would pass."""
    admin = Refusing(0)
    cordons = DirectoryCordons(admin)

    async def main():
        await cordons.cordon(1)
        admin.done.clear()
        admin.left = 2
        assert await cordons.uncordon(1) == ErrorCode.REQUEST_TIMED_OUT.name
        return await cordons.uncordon_all(60.0)

    assert trio.run(main, clock=MockClock(autojump_threshold=0))
    assert (admin.done, cordons.cordoned) == ([("1", "")], {})
