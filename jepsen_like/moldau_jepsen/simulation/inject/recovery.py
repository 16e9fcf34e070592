"""Chooses the core of the nodes that a run heals first when its faults are over; the others stay down or cut off.

A cluster that needs every node before it works again waits for a node without need. The core is a
majority of the voters, and brokers that have of each partition an in-sync replica and as many replicas as
``min.insync.replicas`` asks for; there everything must converge before the rest is healed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.cluster.outside import Outside
from moldau_jepsen.world.world import derive_random

if TYPE_CHECKING:
    import random

    from moldau_jepsen.simulation.inject.injector import FaultInjector

CORE_FIRST_PROBABILITY = 0.5
CUT_PROBABILITY = 0.5
MIN_ISR = "min.insync.replicas"
TRANSACTIONS_MIN_ISR = "transaction.state.log.min.isr"


def drawn_core_first(seed: int) -> bool:
    """Draws whether a core is healed first, from a random stream of its own, so that no other draw shifts."""
    return derive_random(seed, "core first").random() < CORE_FIRST_PROBABILITY


def draw_outside(injector: FaultInjector, draw: random.Random) -> Outside:
    """Draws the nodes outside the core: as many controllers as the quorum can spare, and one broker if possible.

    No node can be spared while a move is under way that could take what is needed from the core: a vote, or replicas.
    """
    cluster, keeping, moves = injector.targets.cluster, injector.targets.safekeeping, injector.moves
    nodes: list[int] = []
    whole = moves.settled("voters") and moves.lost_voter is None
    if whole and len(moves.voters()) == len(cluster.controller_ids):
        nodes += draw.sample(cluster.controller_ids, (len(cluster.controller_ids) - 1) // 2)
    brokers = [
        node_id
        for node_id in cluster.broker_ids
        if moves.settled("reassign")
        and not keeping.rotten
        and keeping.can_do_without(node_id)
        and _enough_without(injector, node_id)
    ]
    if brokers:
        nodes.append(draw.choice(brokers))
    image = cluster.newest_image()
    return Outside(
        nodes=tuple(nodes),
        cut=draw.random() < CUT_PROBABILITY,
        earlier_topics=frozenset(image.topics_by_id if image is not None else ()),
    )


def _enough_without(injector: FaultInjector, broker_id: int) -> bool:
    """Returns whether every partition has enough other replicas to acknowledge records.

    Those that a reassignment removes do not count: it goes on in the core.
    """
    cluster = injector.targets.cluster
    settings = cluster.settings(broker_id)
    wanted = max(int(str(settings[MIN_ISR])), int(str(settings[TRANSACTIONS_MIN_ISR])))
    image = cluster.newest_image()
    return image is not None and all(
        len(set(partition.replicas) - set(partition.removing_replicas) - {broker_id}) >= wanted
        for topic in image.topics_by_name.values()
        for partition in topic.partitions.values()
        if broker_id in partition.replicas
    )
