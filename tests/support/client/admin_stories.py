"""Stories of an admin client and a small cluster with canned answers, on virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.admin import Admin
from moldau_jepsen.world.world import run_world
from support.client.fake_cluster import FakeCluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau_jepsen.world.world import World

Handlers = dict[int, "Callable[[int, Any], Any]"]
"""By API key: what answers a request to a broker."""


def simulate(
    scenario: Callable[[FakeCluster, Admin], Awaitable[Any]], handlers: Handlers, *, seed: int = 1, **config: object
) -> Any:
    """Runs ``scenario(cluster, admin)`` in a simulated world whose brokers also answer what ``handlers`` say."""

    async def main(world: World) -> Any:
        cluster = FakeCluster(world, 2)
        cluster.handlers = handlers
        cluster.add_topic("t", 2)
        cluster.start()
        given = {"bootstrap.servers": cluster.bootstrap} | config
        async with Admin(given, environment=world.node("client").environment) as admin:
            return await scenario(cluster, admin)

    return run_world(main, seed)
