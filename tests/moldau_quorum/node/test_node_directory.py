"""Goal: the directory of a controller takes the cluster id of its node's file, also after a start without one.

Method: whole controllers in a simulated world.
"""

from __future__ import annotations

import trio

from moldau_jepsen.world.world import run_world
from support.quorum.cluster import TestCluster, eventually


def test_a_cluster_id_that_is_set_later_is_that_of_the_cluster() -> None:
    """Each controller was started alone, without ``cluster.id``, so there was no majority that could begin a cluster.

    Then the operator sets the key in all files.
    """

    async def main(world) -> None:
        cluster = TestCluster(world)
        for controller in cluster.controllers.values():
            controller.start()
            await trio.sleep(5)
            assert controller.running.log.leadership.leader_id < 0
            controller.kill()
        cluster = TestCluster(world, cluster_id="K9-the-one-in-the-files")
        cluster.start_controllers()
        await cluster.wait_active()
        for controller in cluster.controllers.values():
            await eventually(lambda c=controller: c.running.machine.image.cluster_id)
            assert controller.running.machine.image.cluster_id == "K9-the-one-in-the-files"

    run_world(main, 1)
