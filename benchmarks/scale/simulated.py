"""A cluster in the deterministic simulation, whose traffic and failover are compared with the model's.

Time is virtual and processors cost nothing there, so the simulation checks what depends on messages: bytes between
brokers and controllers at rest and after a dead broker, and the protocol's share of a failover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from support.cluster.broker_cluster import CONTROLLER_PORT, run_cluster

if TYPE_CHECKING:
    from moldau_jepsen.world.network.connection import VirtualConnection
    from support.cluster.broker_cluster import Cluster

TOPIC_PARTITIONS = 100
DEAD = 2
REST_S = 20.0
AFTER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observations of a simulated cluster."""

    brokers: int
    partitions: int
    rest_bytes_per_s: float
    """Bytes between all brokers and all controllers while nothing happens."""
    rest_sends_per_s: float
    """Their sends, requests and responses."""
    failover_bytes: float
    """Bytes between nodes and controllers, and among controllers, in ``AFTER_S`` after the death of a broker, less
    those at rest."""
    changed: int
    """Partitions with a replica on the dead broker."""
    first_ms: float
    """From the kill until the first of its partitions is led by another broker."""
    last_ms: float


class _Tally:
    """Counts what passes between brokers, controllers, and both."""

    def __init__(self) -> None:
        self.bytes = self.sends = 0

    def tap(self, connection: VirtualConnection, data: bytes) -> None:
        """Counts bytes on connections to or from a controller's listener."""
        ports = (connection.local_address[1], connection.peer_address[1])
        if CONTROLLER_PORT in ports:
            self.bytes += len(data)
            self.sends += 1


def observe(brokers: int, partitions: int, *, seed: int = 1) -> Observed:
    """Runs a cluster of three controllers, kills a broker without a word, and returns what happened."""

    async def scenario(cluster: Cluster) -> Observed:
        network = cluster.world.network
        for number in range(0, partitions, TOPIC_PARTITIONS):
            count = min(TOPIC_PARTITIONS, partitions - number)
            await cluster.client(1).create_topic(f"t{number}", partitions=count, replicas=3)
        await cluster.until(
            lambda: sum(len(one.context.replicas.partitions) for one in cluster.running.values()) == 3 * partitions
        )
        await trio.sleep(15)
        rest = _Tally()
        network.tap = rest.tap
        await trio.sleep(REST_S)
        image = cluster.image()
        parts = [
            (name, number, part)
            for name, topic in image.topics_by_name.items()
            for number, part in topic.partitions.items()
        ]
        orphans = [(name, number) for name, number, part in parts if part.leader == DEAD]
        after = _Tally()
        network.tap = after.tap
        begun = trio.current_time()
        cluster.kill(DEAD)
        times: list[float] = []

        def count_led() -> bool:
            left = [one for one in orphans if cluster._leader(*one, DEAD) is None]
            if len(left) < len(orphans) and not times:
                times.append(trio.current_time())
            return not left

        with trio.fail_after(30):
            while not count_led():  # noqa: ASYNC110 - virtual time; no event reports it
                await trio.sleep(0.0005)
        times.append(trio.current_time())
        await trio.sleep(AFTER_S - (trio.current_time() - begun))
        network.tap = None
        return Observed(
            brokers=brokers,
            partitions=partitions,
            rest_bytes_per_s=rest.bytes / REST_S,
            rest_sends_per_s=rest.sends / REST_S,
            failover_bytes=after.bytes - rest.bytes * AFTER_S / REST_S,
            changed=sum(DEAD in part.replicas for _, _, part in parts),
            first_ms=(times[0] - begun) * 1000,
            last_ms=(times[-1] - begun) * 1000,
        )

    observed, _ = run_cluster(
        scenario,
        seed=seed,
        brokers=brokers,
        controllers=3,
        broker_heartbeat_interval_ms="2000",
        broker_session_timeout_ms="9000",
    )
    assert isinstance(observed, Observed)
    return observed
