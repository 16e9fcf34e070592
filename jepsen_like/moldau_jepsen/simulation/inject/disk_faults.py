"""Faults of disks and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.faults.kinds import FaultKind
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.world.disk.disk_profile import Trouble

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from moldau_jepsen.simulation.inject.targets import Targets

DIRECTORY_FULL_PROBABILITY = 0.3
DIRECTORY_HANGS_PROBABILITY = 0.25


CLOCK_JUMPS_MS = (-3_600_000.0, -5_000.0, 5_000.0, 3_600_000.0)
"""By how much a fault sets a wall clock, until all faults are over; the faults of a run add up."""


class DiskFaults:
    """Begins faults of disks and clocks. Each action returns a function that ends it."""

    def __init__(self, targets: Targets) -> None:
        """Starts with disks that work and clocks that are right."""
        self._targets = targets
        self._world = targets.world
        self._cluster = targets.cluster
        self._jumped_ms: dict[int, float] = {}  # by how much faults have set wall clocks, by node
        self.actions: Mapping[FaultKind, Callable[[random.Random], Callable[[], None]]] = {
            FaultKind.DISK_SLOW: self._disk_slow,
            FaultKind.DISK_FULL: self._disk_full,
            FaultKind.DISK_ERROR: self._disk_error,
            FaultKind.READ_ERROR: self._read_error,
            FaultKind.DIRECTORY: self._directory,
            FaultKind.DISK_HANGS: self._disk_hangs,
            FaultKind.CLOCK_RATE: self._clock_rate,
            FaultKind.CLOCK_JUMP: self._clock_jump,
        }

    def end_all(self) -> None:
        """Repairs all disks and clocks."""
        for node_id, machine in self._cluster.machines.items():
            machine.disk.profile.end_all()
            machine.clock.set_rate(1.0)
            # A broker that is hours behind for good refuses what clients write now, by message.timestamp.after.max.ms.
            machine.clock.jump_wall(-self._jumped_ms.pop(node_id, 0.0))

    def _mend(self, node_id: int) -> None:
        """Restarts a node whose disk works again if a log directory failed, as an operator would."""
        if self._cluster.shape.directories > 1 and self._cluster.offline_directories(node_id):
            self._world.nursery.start_soon(self._cluster.restart, node_id)
        else:
            self._targets.start([node_id])

    def _begin(self, node_id: int, trouble: Trouble) -> Callable[[], None]:
        """Counts a fault of a node's disk, and returns a function that ends it; other faults of the disk may go on."""
        profile = self._cluster.machines[node_id].disk.profile
        profile.begin(trouble)
        return lambda: profile.end(trouble)

    def _fails(self, node_id: int, trouble: Trouble) -> Callable[[], None]:
        """Permits the node to end because of its disk; returns a function that withdraws the permission."""
        calm = self._begin(node_id, trouble)
        self._targets.safekeeping.endanger(node_id)

        def end() -> None:
            calm()
            self._targets.safekeeping.secure(node_id)
            self._mend(node_id)

        return end

    def _disk_slow(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        jitter, stall_max = draw.choice((0.01, 0.1)), draw.choice((0.5, 3.0))
        slow = Trouble(
            on_effect=self._targets.mark, offload_delay_jitter=jitter, stall_probability=0.05, stall_max=stall_max
        )
        return self._begin(node_id, slow)

    def _disk_full(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        if self._targets.spares(node_id):
            return lambda: None
        capacity = self._cluster.machines[node_id].disk.used_bytes() + draw.randint(0, 5_000)
        self._targets.disk_errors[node_id] = None
        return self._fails(node_id, Trouble(on_effect=self._targets.mark, capacity_bytes=capacity))

    def _disk_error(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        if self._targets.spares(node_id):
            return lambda: None
        write, sync = draw.choice((0.0, 0.01, 0.1)), draw.choice((0.0, 0.01, 0.1))
        self._targets.disk_errors[node_id] = None
        errors = Trouble(on_effect=self._targets.mark, write_error_probability=write, sync_error_probability=sync)
        return self._fails(node_id, errors)

    def _read_error(self, draw: random.Random) -> Callable[[], None]:
        """Makes some reads of a drawn disk fail, or those of one log directory of a broker that has several."""
        node_id = draw.choice(self._targets.nodes)
        if self._targets.spares(node_id):
            return lambda: None
        path = draw.choice(["/", *self._cluster.log_directories(node_id)])
        probability = draw.choice((0.01, 0.1, 1.0))
        if path == "/":
            self._targets.disk_errors[node_id] = None
        else:
            self._targets.directory_errors.setdefault(node_id, {})[path] = None
        self._world.trace.note("unreadable", self._cluster.host(node_id), path, probability)
        errors = Trouble(on_effect=self._targets.mark, read_error_probability=probability, unreadable_paths=(path,))
        return self._fails(node_id, errors)

    def _directory(self, draw: random.Random) -> Callable[[], None]:
        if self._cluster.shape.directories < 2 or self._targets.fault_scope is FaultScope.CONTROLLERS:
            return lambda: None
        node_id = draw.choice(self._cluster.broker_ids)
        if self._targets.spares(node_id):
            return lambda: None
        path = draw.choice(self._cluster.log_directories(node_id))
        mark, drawn = self._targets.mark, draw.random()
        if drawn < DIRECTORY_FULL_PROBABILITY:
            kind, trouble = "full", Trouble(on_effect=mark, full_paths=(path,))
        elif drawn < DIRECTORY_FULL_PROBABILITY + DIRECTORY_HANGS_PROBABILITY:
            kind, trouble = "hangs", Trouble(on_effect=mark, hanging_paths=(path,))
        else:
            kind, trouble = "gone", Trouble(on_effect=mark, failing_paths=(path,))
        self._targets.directory_errors.setdefault(node_id, {})[path] = None
        self._world.trace.note("directory", self._cluster.host(node_id), path, kind)
        return self._fails(node_id, trouble)

    def _disk_hangs(self, draw: random.Random) -> Callable[[], None]:
        """Makes a drawn disk answer no sync: a broker gives the directory up, or ends without another (ADR 0043)."""
        node_id = draw.choice(self._targets.nodes)
        if self._targets.spares(node_id):
            return lambda: None
        return self.hang(node_id, draw.choice(self._cluster.log_directories(node_id)))

    def hang(self, node_id: int, path: str) -> Callable[[], None]:
        """Makes the disk of one log directory answer no sync; returns the function that ends it."""
        if len(self._cluster.log_directories(node_id)) == 1:
            self._targets.disk_errors[node_id] = None
        else:
            self._targets.directory_errors.setdefault(node_id, {})[path] = None
        self._world.trace.note("directory", self._cluster.host(node_id), path, "hangs")
        return self._fails(node_id, Trouble(on_effect=self._targets.mark, hanging_paths=(path,)))

    # --- clocks

    def _clock_rate(self, draw: random.Random) -> Callable[[], None]:
        clock = self._cluster.machines[draw.choice(self._targets.nodes)].clock
        clock.set_rate(draw.choice((0.5, 0.95, 1.05, 2.0)))
        self._targets.mark()
        return lambda: clock.set_rate(1.0)

    def _clock_jump(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        jump_ms = draw.choice(CLOCK_JUMPS_MS)
        self._cluster.machines[node_id].clock.jump_wall(jump_ms)
        self._jumped_ms[node_id] = self._jumped_ms.get(node_id, 0.0) + jump_ms
        self._targets.mark()
        return lambda: None
