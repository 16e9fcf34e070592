"""Lets the syncs of a deposed leader return only after it has cut its logs.

The leader loses sight of its peers while clients, and brokers in the case of a controller, still reach it. So it
appends records that no peer has, and its disk holds the syncs of that. Once others lead, it hears them again and drops
what they lack, while those syncs are under way; they return when the fault ends, and must count for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.faults.kinds import FaultKind

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from moldau_jepsen.simulation.inject.disk_faults import DiskFaults
    from moldau_jepsen.simulation.inject.link_faults import LinkFaults
    from moldau_jepsen.simulation.inject.targets import Targets


class LateSyncs:
    """Strikes the active controller, or a broker that leads a partition."""

    def __init__(self, targets: Targets, links: LinkFaults, disks: DiskFaults) -> None:
        """Starts without a fault; ``links`` and ``disks`` carry the cuts and the hanging disks out."""
        self._targets = targets
        self._cluster = targets.cluster
        self._links = links
        self._disks = disks
        self.actions: Mapping[FaultKind, Callable[[random.Random], Callable[[], None]]] = {
            FaultKind.LATE_SYNC: self._strike
        }

    def _strike(self, draw: random.Random) -> Callable[[], None]:
        node_id = self._targets.leader(draw)
        path = draw.choice(self._cluster.log_directories(node_id))
        if self._targets.spares(node_id):
            return lambda: None
        is_controller = node_id in self._cluster.controller_ids
        peers = self._cluster.controller_ids if is_controller else self._targets.all_nodes
        others = self._targets.hosts([other for other in peers if other != node_id])
        heal = self._links.cut_off(self._cluster.host(node_id), others)
        release = self._disks.hang(node_id, path)
        watchers = self._targets.world.agenda.watchers

        def turn_ended() -> None:
            if self._is_deposed(node_id):
                watchers.remove(turn_ended)
                heal()

        def end() -> None:
            if turn_ended in watchers:
                watchers.remove(turn_ended)
                heal()
            release()

        watchers.append(turn_ended)
        return end

    def _is_deposed(self, node_id: int) -> bool:
        """Returns whether others lead instead of the node: the quorum, or all partitions."""
        active = self._cluster.active_controller()
        if node_id in self._cluster.controller_ids:
            return active not in (None, node_id)
        image = self._cluster.newest_image()
        return image is not None and not any(
            partition.leader == node_id
            for topic in image.topics_by_name.values()
            for partition in topic.partitions.values()
        )
