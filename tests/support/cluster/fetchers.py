"""The fetchers of a follower alone, without its broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.values import BrokerId
from moldau_broker.server.replicas.replica_fetcher import FetcherSettings, ReplicaFetchers

if TYPE_CHECKING:
    from moldau_jepsen.world.world import World


def fetchers_of(
    world: World, replicas: Any, *, settings: FetcherSettings | None = None, **more: Any
) -> ReplicaFetchers:
    """Returns those of broker 1, which finds each leader at ``b2``; ``replicas`` stands in for its replica manager."""
    return ReplicaFetchers(
        world.node("b1").environment,
        settings or FetcherSettings(broker_id=BrokerId(1)),
        replicas,
        endpoint=lambda _: ("b2", 9092),
        broker_epoch=lambda: 1,
        **more,
    )
