"""Faults of disks and clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.simulation.disk_profile import DiskProfile
from moldau_jepsen.simulation.faults import FaultKind, Struck

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from moldau_jepsen.simulation.targets import Targets

DIRECTORY_FULL_PROBABILITY = 0.3


class DiskFaults:
    """Strikes disks and clocks. Every deed returns what ends it."""

    def __init__(self, targets: Targets) -> None:
        """All disks work, all clocks are right."""
        self._targets = targets
        self._world = targets.world
        self._cluster = targets.cluster
        self._jumped_ms: dict[int, float] = {}  # by how much faults have set wall clocks, by node
        self.deeds: Mapping[FaultKind, Callable[[random.Random], Callable[[], None]]] = {
            FaultKind.DISK_SLOW: self._disk_slow,
            FaultKind.DISK_FULL: self._disk_full,
            FaultKind.DISK_ERROR: self._disk_error,
            FaultKind.READ_ERROR: self._read_error,
            FaultKind.DIRECTORY: self._directory,
            FaultKind.CLOCK_RATE: self._clock_rate,
            FaultKind.CLOCK_JUMP: self._clock_jump,
        }

    def end_all(self) -> None:
        """All disks work again, all clocks are right."""
        for node_id, machine in self._cluster.machines.items():
            self._calm(node_id)
            profile = machine.disk.profile
            profile.failing_paths = profile.full_paths = profile.unreadable_paths = ()
            machine.clock.set_rate(1.0)
            # A broker that is hours behind for good refuses what clients write now, by message.timestamp.after.max.ms.
            machine.clock.jump_wall(-self._jumped_ms.pop(node_id, 0.0))

    def _calm(self, node_id: int) -> None:
        profile, calm = self._cluster.machines[node_id].disk.profile, DiskProfile()
        profile.offload_delay_jitter = calm.offload_delay_jitter
        profile.stall_probability, profile.stall_max = calm.stall_probability, calm.stall_max
        profile.capacity_bytes = calm.capacity_bytes
        profile.write_error_probability = profile.sync_error_probability = profile.read_error_probability = 0.0

    def _mend(self, node_id: int) -> None:
        """What an operator does with a node whose disk works again: a directory that failed needs a restart."""
        if self._cluster.shape.directories > 1 and self._cluster.offline_directories(node_id):
            self._world.nursery.start_soon(self._cluster.restart, node_id)
        else:
            self._targets.start([node_id])

    def _fails(self, node_id: int) -> Callable[[], None]:
        """The node may end for its disk; returns what ends that."""
        self._targets.disk_errors[node_id] = None
        self._targets.safekeeping.endanger(node_id)

        def end() -> None:
            self._calm(node_id)
            self._targets.safekeeping.secure(node_id)
            self._mend(node_id)

        return end

    def _disk_slow(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        profile = self._cluster.machines[node_id].disk.profile
        profile.offload_delay_jitter = draw.choice((0.01, 0.1))
        profile.stall_probability, profile.stall_max = 0.05, draw.choice((0.5, 3.0))
        self._targets.mark()
        return lambda: self._calm(node_id)

    def _disk_full(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        if self._targets.spares(node_id):
            return lambda: None
        disk = self._cluster.machines[node_id].disk
        self._targets.mark()
        disk.profile.capacity_bytes = disk.used_bytes() + draw.randint(0, 5_000)
        return self._fails(node_id)

    def _disk_error(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        if self._targets.spares(node_id):
            return lambda: None
        profile = self._cluster.machines[node_id].disk.profile
        profile.write_error_probability = draw.choice((0.0, 0.01, 0.1))
        profile.sync_error_probability = draw.choice((0.0, 0.01, 0.1))
        if profile.write_error_probability or profile.sync_error_probability:
            self._targets.mark()
        return self._fails(node_id)

    def _read_error(self, draw: random.Random) -> Callable[[], None]:
        """Reads of a drawn disk fail, or of one log directory of a broker, if it has several."""
        node_id = draw.choice(self._targets.nodes)
        if self._targets.spares(node_id):
            return lambda: None
        profile = self._cluster.machines[node_id].disk.profile
        path = draw.choice(["/", *self._cluster.log_directories(node_id)])
        profile.read_error_probability = draw.choice((0.01, 0.1, 1.0))
        profile.unreadable_paths = (path,)
        self._targets.mark()
        if path == "/":
            self._targets.disk_errors[node_id] = None
        else:
            self._targets.directory_errors.setdefault(node_id, {})[path] = None
        self._targets.safekeeping.endanger(node_id)
        self._world.trace.note("unreadable", self._cluster.host(node_id), path, profile.read_error_probability)

        def end() -> None:
            profile.read_error_probability = 0.0
            self._targets.safekeeping.secure(node_id)
            self._mend(node_id)

        return end

    def _directory(self, draw: random.Random) -> Callable[[], None]:
        if self._cluster.shape.directories < 2 or self._targets.struck_nodes is Struck.CONTROLLERS:
            return lambda: None
        node_id = draw.choice(self._cluster.broker_ids)
        if self._targets.spares(node_id):
            return lambda: None
        profile = self._cluster.machines[node_id].disk.profile
        path = draw.choice(self._cluster.log_directories(node_id))
        full = draw.random() < DIRECTORY_FULL_PROBABILITY
        if full:
            profile.full_paths = (*profile.full_paths, path)
        else:
            profile.failing_paths = (*profile.failing_paths, path)
        self._targets.directory_errors.setdefault(node_id, {})[path] = None
        self._targets.mark()
        self._targets.safekeeping.endanger(node_id)
        self._world.trace.note("directory", self._cluster.host(node_id), path, "full" if full else "gone")

        def end() -> None:
            # Another fault may hold the same directory still: each takes its own mark back.
            if full:
                profile.full_paths = _without(profile.full_paths, path)
            else:
                profile.failing_paths = _without(profile.failing_paths, path)
            self._targets.safekeeping.secure(node_id)
            self._mend(node_id)

        return end

    # --- clocks

    def _clock_rate(self, draw: random.Random) -> Callable[[], None]:
        clock = self._cluster.machines[draw.choice(self._targets.nodes)].clock
        clock.set_rate(draw.choice((0.5, 0.95, 1.05, 2.0)))
        self._targets.mark()
        return lambda: clock.set_rate(1.0)

    def _clock_jump(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._targets.nodes)
        jump_ms = draw.choice((-3_600_000.0, -5_000.0, 5_000.0, 3_600_000.0))
        self._cluster.machines[node_id].clock.jump_wall(jump_ms)
        self._jumped_ms[node_id] = self._jumped_ms.get(node_id, 0.0) + jump_ms
        self._targets.mark()
        return lambda: None


def _without(paths: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Returns ``paths`` with one occurrence of ``path`` less, if there is one."""
    left = list(paths)
    if path in left:
        left.remove(path)
    return tuple(left)
