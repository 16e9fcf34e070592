"""Cuts the power of nodes that have just dropped the end of a log, before or while they append another end.

These are mostly followers: of a partition, or voters of the quorum, that drop what a former leader had not committed.
Brokers cut files; a voter overwrites the entries in memory first, and the writes of that follow.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_quorum.log.raft.node import RaftNode
from moldau_quorum.log.raft.shell import RaftLog

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from moldau_jepsen.simulation.inject.targets import Targets
    from moldau_quorum.log.raft.core.entry_log import EntryLog

WRITES_MAX = 4
"""Most writes of a node between its truncation of a log and its loss of power."""


class Truncations:
    """Strikes the first node that truncates a log while the fault lasts."""

    def __init__(self, targets: Targets) -> None:
        """Starts without a fault."""
        self._targets = targets
        self._world = targets.world
        self._cluster = targets.cluster

    def strike(self, draw: random.Random) -> Callable[[], None]:
        """Begins the fault; returns a function that ends it.

        Brokers that may not lose power are killed instead: their writes survive.
        """
        targets, cluster = self._targets, self._cluster
        armed: list[int] = []
        counts = {node_id: draw.randint(0, WRITES_MAX) for node_id in targets.all_nodes}
        mark = targets.mark

        def crash(node_id: int) -> None:
            for other in armed:  # one death is enough
                cluster.machines[other].forget_crash_point()
            mark()
            if node_id in targets.may_lose_power:
                cluster.lose_power(node_id)
            else:
                cluster.kill(node_id)

        if targets.fault_scope is not FaultScope.CONTROLLERS:
            for node_id in cluster.broker_ids:
                if cluster.machines[node_id].is_running and not targets.spares(node_id):
                    targets.safekeeping.endanger(node_id)
                    cluster.machines[node_id].crash_after_truncation(counts[node_id], partial(crash, node_id))
                    armed.append(node_id)
        watch = None
        if targets.fault_scope is not FaultScope.BROKERS:
            watch = _QuorumWatch(targets, lambda node_id: self._arm_voter(node_id, counts[node_id], armed, crash))
            self._world.agenda.watchers.append(watch.turn_ended)

        def end() -> None:
            if watch is not None:
                self._world.agenda.watchers.remove(watch.turn_ended)
            for node_id in armed:
                cluster.machines[node_id].forget_crash_point()
                if node_id in cluster.broker_ids:
                    targets.safekeeping.secure(node_id)
            targets.start(armed)

        return end

    def _arm_voter(self, node_id: int, count: int, armed: list[int], crash: Callable[[int], None]) -> None:
        machine = self._cluster.machines[node_id]
        if node_id not in armed and machine.is_running:
            armed.append(node_id)
            machine.crash_after_writes(count + 1, partial(crash, node_id))


class _QuorumWatch:
    """Finds voters that have dropped entries of their logs."""

    def __init__(self, targets: Targets, on_truncated: Callable[[int], None]) -> None:
        """``on_truncated`` is called with the node, in the turn in which its log has lost its end."""
        self._cluster = targets.cluster
        self._on_truncated = on_truncated
        self._ends: dict[int, tuple[EntryLog, int, int]] = {}

    def turn_ended(self) -> None:
        """Looks for truncated logs at the end of a turn of the event loop."""
        for node_id, controller in self._cluster.controllers.items():
            log = controller.log
            node = log.node if isinstance(log, RaftLog) else None
            if not isinstance(node, RaftNode):
                continue
            entries = node.core.log
            before = self._ends.get(node_id)
            self._ends[node_id] = entries, entries.last_index, entries.last_epoch
            if before is None or before[0] is not entries or before[1] <= entries.base_index:
                continue
            _, index, epoch = before
            if index > entries.last_index or entries.epoch_at(index) != epoch:
                self._on_truncated(node_id)
