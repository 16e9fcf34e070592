"""Executes a plan of faults, and says which failures of nodes the faults explain.

The effect of each kind is in the module of its family: ``process_faults``, ``link_faults``, ``disk_faults``,
``late_syncs``, ``rot_faults``, ``log_losses``, ``moves``, ``held_calls``, ``store_faults``.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from moldau_jepsen.cluster.outside import NONE_OUTSIDE, Outside
from moldau_jepsen.faults.kinds import SIMULATED_KINDS, FaultKind, PlannedFault
from moldau_jepsen.simulation.inject.disk_faults import DiskFaults
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.inject.held_calls import HeldCalls
from moldau_jepsen.simulation.inject.late_packets import ALL_MAY_BE_LATE
from moldau_jepsen.simulation.inject.late_syncs import LateSyncs
from moldau_jepsen.simulation.inject.link_faults import LinkFaults
from moldau_jepsen.simulation.inject.log_losses import LogLosses
from moldau_jepsen.simulation.inject.moves import Moves
from moldau_jepsen.simulation.inject.process_faults import ProcessFaults
from moldau_jepsen.simulation.inject.rot_faults import RotFaults
from moldau_jepsen.simulation.inject.store_faults import StoreFaults
from moldau_jepsen.simulation.inject.targets import Targets
from moldau_jepsen.world.world import derive_random

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau_jepsen.cluster.simulated import SimulatedCluster
    from moldau_jepsen.simulation.inject.late_packets import PromptLinks


class FaultInjector:
    """Begins and ends each fault of a plan at its virtual time."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        client_hosts: Sequence[str],
        *,
        synced: bool,
        fault_scope: FaultScope = FaultScope.ALL,
        replaceable: bool = True,
        prompt_links: PromptLinks = ALL_MAY_BE_LATE,
    ) -> None:
        """``synced``: records are synced before they are acknowledged, so brokers may lose power at any time.

        ``fault_scope`` says which nodes faults choose from; cuts reach all others all the same. ``replaceable``: no
        partition has a single replica, so that what rots on one disk is on another. ``prompt_links`` are those whose
        packets are not held back.
        """
        self._cluster = cluster
        self._world = cluster.world
        self.targets = Targets(cluster, client_hosts, synced=synced, fault_scope=fault_scope, prompt_links=prompt_links)
        self.moves = Moves(cluster, lambda: self.targets.mark)
        self._begun: dict[int, FaultKind] = {}
        self._links = LinkFaults(self.targets)
        self._disks = DiskFaults(self.targets)
        self._rot = RotFaults(self.targets, replaceable=replaceable)
        self.log_losses = LogLosses(self.targets, self.moves)
        self.held_calls = HeldCalls(self.targets)
        self._store = StoreFaults(self.targets)
        self._actions: dict[FaultKind, Callable[[random.Random], Callable[[], None]]] = {
            **ProcessFaults(self.targets).actions,
            **self._links.actions,
            **self._disks.actions,
            **LateSyncs(self.targets, self._links, self._disks).actions,
            FaultKind.BIT_ROT: self._rot.strike,
            FaultKind.LOST_LOG: self.log_losses.strike,
            FaultKind.VOTERS: self.moves.remove_voter,
            FaultKind.REASSIGN: self.moves.reassign,
            FaultKind.MOVE_DIRECTORY: self.moves.move_directories,
            FaultKind.ELECT: self.moves.elect,
            FaultKind.CORDON: self.moves.cordon,
            FaultKind.HELD_CALL: self.held_calls.strike,
            **self._store.actions,
        }
        assert len(self._actions) == len(SIMULATED_KINDS), "every kind has its action"

    @property
    def begun(self) -> Counter[str]:
        """Counts the faults of each kind that have begun."""
        return Counter(kind.value for kind in self._begun.values())

    @property
    def effective(self) -> Counter[str]:
        """Counts the faults that found a target: the others found none, or only nodes that must be spared."""
        return Counter(kind.value for number, kind in self._begun.items() if number in self.targets.effective)

    @property
    def fault_scope(self) -> FaultScope:
        """The nodes that faults choose from."""
        return self.targets.fault_scope

    def schedule(self, faults: Sequence[PlannedFault], start: float) -> None:
        """Schedules the faults at virtual times, counted from ``start``."""
        for fault in faults:
            self._world.agenda.call_at(start + fault.begin, partial(self._strike, fault, start))

    def _strike(self, fault: PlannedFault, start: float) -> None:
        draw = derive_random(self._world.seed, "fault", fault.number)
        self._begun[fault.number] = fault.kind
        self.targets.begins(fault.number)
        self._world.trace.note("fault", fault.kind.value, f"until {start + fault.end:.3f}")
        end = self._actions[fault.kind](draw)

        def heal() -> None:
            self._world.trace.note("heal", fault.kind.value)
            end()

        self._world.agenda.call_at(start + fault.end, heal)

    def end_all(self, outside: Outside = NONE_OUTSIDE) -> None:
        """Repairs links, disks and clocks at once, and starts the processes that do not run.

        A process that is stopping, perhaps because its disk was hanging until now, is started once it has ended.
        Nodes outside stay down, or run and are cut off.
        """
        self._links.end_all([self._cluster.host(node_id) for node_id in outside.nodes] if outside.cut else [])
        self._disks.end_all()
        self.held_calls.end_all()
        self._store.end_all()
        for machine in self._world.nodes.values():
            machine.resume()
        down = () if outside.cut else outside.nodes
        self._cluster.keep_down(down)
        self._cluster.start_all(without=down)
        for node_id in self._cluster.machines:
            if node_id not in down and self._cluster.is_stopping(node_id):
                self._world.nursery.start_soon(self._cluster.start_once_ended, node_id)

    async def replace_disks(self, seconds: float) -> None:
        """Waits until no broker holds damaged records.

        Raises:
            ClusterNotReadyError: The time was not enough.
        """
        await self._rot.wait_replaced(seconds)

    def may_fail(self, node_id: int) -> list[str]:
        """Returns the log directories of a node whose failure a fault explains."""
        if node_id in self.targets.disk_errors:
            return self._cluster.log_directories(node_id)
        return list(self.targets.directory_errors.get(node_id, ()))

    def unexplained_directories(self) -> list[str]:
        """Returns log directories, as ``broker-1: /data``, that a broker gave up although no fault affected them."""
        return [
            f"{self._cluster.host(node_id)}: {path}"
            for node_id in self._cluster.broker_ids
            for path in self._cluster.offline_directories(node_id)
            if path not in self.may_fail(node_id)
        ]
