"""Chooses the nodes that faults strike, and spares those that must live for a while.

Whether a loss of power may strike brokers depends on what the run promises: without a sync before each
acknowledgement a record that only lives in page caches can be lost with them, by design. Then controllers, which always
sync, lose power freely, and brokers one at a time, by the rules of ``safekeeping``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.late_packets import ALL_MAY_BE_LATE
from moldau_jepsen.simulation.inject.safekeeping import Safekeeping
from moldau_quorum.metadata.internal_topics import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.simulation.inject.late_packets import PromptLinks


class Targets:
    """The nodes that the faults of one run choose from."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        client_hosts: Sequence[str],
        *,
        synced: bool,
        fault_scope: FaultScope = FaultScope.ALL,
        prompt_links: PromptLinks = ALL_MAY_BE_LATE,
    ) -> None:
        """See ``FaultInjector``."""
        self.cluster = cluster
        self.world = cluster.world
        self.clients = list(client_hosts)
        self.synced = synced
        self.fault_scope = fault_scope
        self.prompt_links = prompt_links
        self.safekeeping = Safekeeping(cluster)
        self.disk_errors: dict[int, None] = {}
        """Nodes whose disk failed at some time: their processes may end for it."""
        self.directory_errors: dict[int, dict[str, None]] = {}
        """Log directories that failed alone at some time, by broker: it may end only when it has no other."""
        self.effective: dict[int, None] = {}
        """Numbers of the faults that found a target; the others found none that they could or may strike."""
        self._under_way = -1

    def begins(self, number: int) -> None:
        """Notes that the fault with that number begins: ``mark`` is for it until the next one."""
        self._under_way = number

    @property
    def mark(self) -> Callable[[], None]:
        """Returns the function that the beginning action calls once it has hit a target."""
        number = self._under_way

        def mark() -> None:
            self.effective[number] = None

        return mark

    @property
    def all_nodes(self) -> list[int]:
        """Returns the ids of all nodes, controllers first."""
        return [*self.cluster.controller_ids, *self.cluster.broker_ids]

    @property
    def nodes(self) -> list[int]:
        """Returns the ids of the nodes that faults choose from."""
        match self.fault_scope:
            case FaultScope.CONTROLLERS:
                return self.cluster.controller_ids
            case FaultScope.BROKERS:
                return self.cluster.broker_ids
            case FaultScope.ALL:
                return self.all_nodes

    @property
    def may_lose_power(self) -> list[int]:
        """Returns the ids of the nodes that may lose power at any time."""
        if self.synced:
            return self.nodes
        return [] if self.fault_scope is FaultScope.BROKERS else self.cluster.controller_ids

    def leader(self, draw: random.Random) -> int:
        """Returns the active controller, or a broker that leads a partition; any node if there is none."""
        candidates = [] if self.fault_scope is FaultScope.CONTROLLERS else self.cluster.leaders()
        active = self.cluster.active_controller()
        if (
            self.fault_scope is not FaultScope.BROKERS
            and active is not None
            and (not candidates or draw.random() < 0.4)
        ):
            return active
        return draw.choice(candidates or self.nodes)

    def leader_or_any(self, draw: random.Random) -> int:
        """Returns a leader or any node, with equal probability."""
        return self.leader(draw) if draw.random() < 0.5 else draw.choice(self.nodes)

    def transaction_coordinators(self) -> list[int]:
        """Returns the brokers that coordinate transactions, as some broker knows, and that faults may choose."""
        for broker in self.cluster.brokers.values():
            topic = broker.metadata.image.topics_by_name.get(TRANSACTIONS_TOPIC)
            if topic is not None:
                leaders = {partition.leader for partition in topic.partitions.values()}
                return [node_id for node_id in self.nodes if node_id in leaders]
        return []

    def several(self, draw: random.Random) -> list[int]:
        """Draws two nodes or more."""
        return draw.sample(self.nodes, draw.randint(2, len(self.nodes)))

    def hosts(self, nodes: Sequence[int]) -> list[str]:
        """Returns the names of the nodes' machines."""
        return [self.cluster.host(node_id) for node_id in nodes]

    def start(self, nodes: Sequence[int]) -> None:
        """Starts the processes that do not run."""
        for node_id in nodes:
            self.cluster.start(node_id)

    # --- deaths that are not in order

    def spares(self, node_id: int) -> bool:
        """Returns whether the node must not die now, and reports that in the timeline."""
        if not self.safekeeping.needs(node_id):
            return False
        self.world.trace.note("spared", self.cluster.host(node_id))
        return True

    def may_kill(self, nodes: Sequence[int]) -> list[int]:
        """Returns those of the nodes that may die now."""
        return [node_id for node_id in nodes if not self.spares(node_id)]
