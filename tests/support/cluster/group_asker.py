"""A client that sends each request to a group's coordinator once, and brokers that die meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from moldau.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from moldau_jepsen.workloads.questions import Questions
from support.cluster.broker_cluster import BROKER_PORT

if TYPE_CHECKING:
    import random

    from support.cluster.broker_cluster import Cluster


class GroupAsker:
    """Asks the brokers of a cluster, over a new connection each time."""

    def __init__(self, cluster: Cluster, draw: random.Random) -> None:
        self.cluster = cluster
        self.broker_ids = list(cluster.broker_ids)
        self.controller_ids: list[int] = []
        self.draw = draw
        self.questions = Questions(cluster.client_environment, self, "test", keeps_connections=False)

    def address(self, node_id: int) -> tuple[str, int]:
        return f"b{node_id}", BROKER_PORT

    async def ask(self, kind: Any, request: Any, version: int | None = None) -> Any:
        """Asks any broker; returns None without an answer."""
        return await self.questions.ask(self.draw.choice(self.broker_ids), kind, request, version)

    async def ask_coordinator(self, group: str, kind: Any, request: Any, version: int | None = None) -> Any:
        """Asks the coordinator as any broker names it; returns None without an answer."""
        found = await self.ask(FindCoordinatorResponse, FindCoordinatorRequest(coordinator_keys=[group]), 4)
        if found is None or found.coordinators[0].error_code:
            return None
        return await self.questions.ask(found.coordinators[0].node_id, kind, request, version)


async def fail_brokers(
    cluster: Cluster,
    draw: random.Random,
    ending: trio.Event,
    *,
    pause_s: float,
    absence_s: float,
    stop_share: float = 0.0,
) -> None:
    """Kills brokers, or stops a share of them in order, and starts them again until the event ``ending`` is set.

    ``pause_s`` and ``absence_s`` are the longest times before a death and after it.
    """
    while not ending.is_set():
        await trio.sleep(draw.uniform(0.2, pause_s))
        victim = draw.choice(cluster.broker_ids)
        if victim not in cluster.running:
            continue
        if stop_share and draw.random() < stop_share:
            await cluster.stop(victim)
        else:
            cluster.kill(victim)
        await trio.sleep(draw.uniform(0.1, absence_s))
        cluster.start_broker(victim)
        await trio.sleep(draw.uniform(0, 2))
