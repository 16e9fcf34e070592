"""Goal: the bounds of connections in a controller's file hold for its listeners.

Method: a controller on the simulated network, and a client that opens connections.
"""

from __future__ import annotations

import trio

from moldau_jepsen.world.world import run_world
from support.quorum.cluster import TestCluster, eventually
from support.quorum.memory_log import MemoryLog


async def opened(world, count: int, **settings: str):
    """Returns the server of a controller to whose listener a client has opened connections."""
    cluster = TestCluster(world, controllers=1, make_log=MemoryLog, **settings)
    cluster.start_controllers()
    await cluster.wait_active()
    network = world.node("client").environment.network
    for _ in range(count):
        await network.connect("c101", 9093)
    return cluster.controllers[101].running.servers["CONTROLLER"]


def test_a_listener_of_a_controller_has_its_own_bound() -> None:
    async def main(world) -> None:
        server = await opened(world, 5, listener_name_controller_max_connections="2")
        await eventually(lambda: server.refused == 3)
        assert len(server.connections) == 2

    run_world(main, 1)


def test_a_controller_accepts_at_the_rate_of_its_file() -> None:
    """The allowance of all windows but one may be used at once; the rest is accepted later, and nothing refused."""
    for key in ("max_connection_creation_rate", "listener_name_controller_max_connection_creation_rate"):

        async def main(world, key: str = key) -> None:
            server = await opened(world, 8, quota_window_num="3", **{key: "1"})
            await trio.sleep(0.5)
            assert len(server.connections) == 2
            await eventually(lambda: len(server.connections) == 8, timeout_ms=30_000)
            assert server.refused == server.throttled == 0

        run_world(main, 1)
