"""Which faults strike a simulated cluster: a pure plan in swarm style, and the hands that carry it out.

Each run turns a random subset of the kinds on, with random numbers of strikes: runs with everything on hide what a few
faults in the right order find (Groce et al., "Swarm Testing"). A fault has a beginning and an end; whom it strikes is
drawn when it begins, because nobody knows the leaders beforehand. Faults on the same node overlap freely.

Whether a loss of power may strike brokers depends on what the run promises: without a sync before each
acknowledgement a record that only lives in page caches can be lost with them, by design; so then only controllers,
which always sync, lose power.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.moves import Moves, ring_cuts
from moldau_jepsen.simulation.world import derive_random

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau_jepsen.simulation.cluster import SimulatedCluster

KIND_PROBABILITY = 0.35
STRIKES_PER_KIND_MAX = 4
LENGTH_SECONDS = (0.2, 6.0)
CLIENT_PAUSE_PROBABILITY = 0.3
DIRECTORY_FULL_PROBABILITY = 0.3
HANG_SECONDS = 1.2
HANG_SECONDS_GOING_ON = 0.4
STORM_PROBABILITY = 0.25
STORM_STRIKES_PER_KIND_MAX = 15
STORM_LENGTH_SECONDS = (0.05, 1.5)


class Struck(enum.Enum):
    """Whom the faults of a run strike; drawn per run."""

    ALL = "all"
    CONTROLLERS = "controllers"
    BROKERS = "brokers"


class FaultKind(enum.Enum):
    """What is done."""

    KILL = "kill"  # a process dies, and starts again at the end
    KILL_LEADER = "kill-leader"  # the active controller, or a broker that leads something
    KILL_MANY = "kill-many"  # several nodes at once
    CRASH_POINT = "crash-point"  # a process dies between two writes to its disk
    POWER = "power"  # a machine loses power
    POWER_ALL = "power-all"  # every machine does
    RESTART = "restart"  # a process ends in order, and starts again
    ROLL = "roll"  # all brokers do, one after the other
    HANG = "hang"  # a process stands still, goes on for a moment, is killed for it, and starts again at the end
    PAUSE = "pause"  # a process, or a machine of clients, does nothing for a while, and its connections stay open
    CUT = "cut"  # a node is cut off from the other nodes; clients reach it or not
    CUT_ONE_WAY = "cut-one-way"  # nothing that a node sends arrives
    HALVES = "halves"  # the nodes fall into two groups
    BRIDGE = "bridge"  # two groups that only one node can reach both of
    RING = "ring"  # each node hears a majority, and no two of them the same
    LINK = "link"  # two nodes lose sight of each other
    BLIND = "blind"  # a broker loses sight of the controllers, but not of its replicas and clients
    RESET = "reset"  # connections of a node end, again and again
    SLOW = "slow"  # what a node sends comes late
    DISK_SLOW = "disk-slow"  # a disk takes long for everything
    DISK_FULL = "disk-full"  # nothing more fits on a disk
    DISK_ERROR = "disk-error"  # some writes and syncs of a disk fail
    DIRECTORY = "directory"  # the device of one log directory of a broker is gone, or full
    CLOCK_RATE = "clock-rate"  # a clock runs too fast or too slow
    CLOCK_JUMP = "clock-jump"  # a wall clock is set
    VOTERS = "voters"  # a controller loses its vote, and gets it back
    REASSIGN = "reassign"  # partitions move to other brokers
    MOVE_DIRECTORY = "move-directory"  # replicas move between the log directories of a broker
    ELECT = "elect"  # preferred leaders are elected, again and again


NEEDS_SYNC = (FaultKind.POWER, FaultKind.POWER_ALL)
"""Kinds that strike brokers only when records are synced before they are acknowledged."""

NEEDS_DIRECTORIES = (FaultKind.DIRECTORY, FaultKind.MOVE_DIRECTORY)
"""Kinds that do nothing to brokers with one log directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of a plan; times in seconds since the start of the fault phase."""

    kind: FaultKind
    begin: float
    end: float
    number: int
    """Gives the fault a random stream of its own, whatever else is left out of the plan."""


def plan_faults(
    draw: random.Random, duration: float, kinds: Sequence[FaultKind] = tuple(FaultKind)
) -> list[PlannedFault]:
    """Draws the faults of a run of ``duration`` seconds, in the order of their beginnings; at least one.

    Some runs are storms: many short faults, so that one begins before the last has healed.
    """
    storm = draw.random() < STORM_PROBABILITY
    strikes_max = STORM_STRIKES_PER_KIND_MAX if storm else STRIKES_PER_KIND_MAX
    lengths = STORM_LENGTH_SECONDS if storm else LENGTH_SECONDS
    chosen = [kind for kind in kinds if draw.random() < KIND_PROBABILITY] or [draw.choice(list(kinds))]
    faults: list[PlannedFault] = []
    for kind in chosen:
        for _ in range(draw.randint(1, strikes_max)):
            begin = draw.uniform(0.0, duration * 0.9)
            length = min(draw.uniform(*lengths), duration - begin)
            faults.append(PlannedFault(kind=kind, begin=begin, end=begin + length, number=len(faults)))
    return sorted(faults, key=lambda fault: (fault.begin, fault.number))


class FaultInjector:
    """Carries faults out. Every method returns what ends the fault."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        client_hosts: Sequence[str],
        *,
        synced: bool,
        struck: Struck = Struck.ALL,
    ) -> None:
        """``synced``: records are synced before they are acknowledged, so brokers may lose power.

        ``struck`` says which nodes faults choose from; cuts reach all others all the same.
        """
        self._cluster = cluster
        self._world = cluster.world
        self._clients = list(client_hosts)
        self._synced = synced
        self.moves = Moves(cluster)
        self.struck_nodes = struck
        self._cuts: dict[tuple[str, str], int] = {}  # how many faults cut a link now
        self._jumped_ms: dict[int, float] = {}  # by how much faults have set wall clocks, by node
        self.struck = 0
        self.disk_errors: dict[int, None] = {}
        """Nodes whose disk failed at some time: their processes may end for it."""
        self.directory_errors: dict[int, dict[str, None]] = {}
        """Log directories that failed alone at some time, by broker: it may end only when it has no other."""
        self._deeds: dict[FaultKind, Callable[[random.Random], Callable[[], None]]] = {
            FaultKind.KILL: lambda draw: self._kill([draw.choice(self._nodes)]),
            FaultKind.KILL_LEADER: lambda draw: self._kill([self._leader(draw)]),
            FaultKind.KILL_MANY: lambda draw: self._kill(self._several(draw)),
            FaultKind.CRASH_POINT: self._crash_point,
            FaultKind.POWER: lambda draw: self._power(self._one_of(self._may_lose_power, draw)),
            FaultKind.POWER_ALL: lambda draw: self._power(self._may_lose_power),
            FaultKind.RESTART: self._restart,
            FaultKind.ROLL: self.moves.roll,
            FaultKind.PAUSE: self._pause,
            FaultKind.HANG: self._hang,
            FaultKind.CUT: self._cut_node,
            FaultKind.CUT_ONE_WAY: self._cut_one_way,
            FaultKind.HALVES: self._halves,
            FaultKind.BRIDGE: self._bridge,
            FaultKind.RING: self._ring,
            FaultKind.LINK: self._cut_link,
            FaultKind.BLIND: self._blind,
            FaultKind.RESET: self._reset,
            FaultKind.SLOW: self._slow,
            FaultKind.DISK_SLOW: self._disk_slow,
            FaultKind.DISK_FULL: self._disk_full,
            FaultKind.DISK_ERROR: self._disk_error,
            FaultKind.DIRECTORY: self._directory,
            FaultKind.CLOCK_RATE: self._clock_rate,
            FaultKind.CLOCK_JUMP: self._clock_jump,
            FaultKind.VOTERS: self.moves.remove_voter,
            FaultKind.REASSIGN: self.moves.reassign,
            FaultKind.MOVE_DIRECTORY: self.moves.move_directories,
            FaultKind.ELECT: self.moves.elect,
        }
        assert len(self._deeds) == len(FaultKind), "every kind has its deed"

    @property
    def _everybody(self) -> list[int]:
        return [*self._cluster.controller_ids, *self._cluster.broker_ids]

    @property
    def _nodes(self) -> list[int]:
        match self.struck_nodes:
            case Struck.CONTROLLERS:
                return self._cluster.controller_ids
            case Struck.BROKERS:
                return self._cluster.broker_ids
            case Struck.ALL:
                return self._everybody

    @property
    def _may_lose_power(self) -> list[int]:
        if self._synced:
            return self._nodes
        return [] if self.struck_nodes is Struck.BROKERS else self._cluster.controller_ids

    def _one_of(self, nodes: Sequence[int], draw: random.Random) -> list[int]:
        return [draw.choice(nodes)] if nodes else []

    def schedule(self, faults: Sequence[PlannedFault], start: float) -> None:
        """Books the faults on the world's agenda, for virtual times from ``start`` on."""
        for fault in faults:
            self._world.agenda.call_at(start + fault.begin, partial(self._strike, fault, start))

    def _strike(self, fault: PlannedFault, start: float) -> None:
        draw = derive_random(self._world.seed, "fault", fault.number)
        self.struck += 1
        self._world.trace.note("fault", fault.kind.value, f"until {start + fault.end:.3f}")
        end = self._deeds[fault.kind](draw)

        def heal() -> None:
            self._world.trace.note("heal", fault.kind.value)
            end()

        self._world.agenda.call_at(start + fault.end, heal)

    def end_all(self) -> None:
        """Puts everything right at once: links, disks, clocks; starts what does not run."""
        self._cuts.clear()
        self._world.network.heal_all()
        for node_id, machine in self._cluster.machines.items():
            self._calm_disk(node_id)
            machine.disk.profile.failing_paths = machine.disk.profile.full_paths = ()
            machine.clock.set_rate(1.0)
            # A broker that is hours behind for good refuses what clients write now, by message.timestamp.after.max.ms.
            machine.clock.jump_wall(-self._jumped_ms.pop(node_id, 0.0))
        for machine in self._world.nodes.values():
            machine.resume()
        self._cluster.start_all()

    def may_fail(self, node_id: int) -> list[str]:
        """Log directories of a node that its faults explain the failure of."""
        if node_id in self.disk_errors:
            return self._cluster.log_directories(node_id)
        return list(self.directory_errors.get(node_id, ()))

    def unexplained_directories(self) -> list[str]:
        """Log directories that a broker has given up although no fault struck them, as ``broker-1: /data``."""
        return [
            f"{self._cluster.host(node_id)}: {path}"
            for node_id in self._cluster.broker_ids
            for path in self._cluster.offline_directories(node_id)
            if path not in self.may_fail(node_id)
        ]

    # --- whom

    def _leader(self, draw: random.Random) -> int:
        candidates = [] if self.struck_nodes is Struck.CONTROLLERS else self._cluster.leaders()
        active = self._cluster.active_controller()
        if self.struck_nodes is not Struck.BROKERS and active is not None and (not candidates or draw.random() < 0.4):
            return active
        return draw.choice(candidates or self._nodes)

    def _several(self, draw: random.Random) -> list[int]:
        return draw.sample(self._nodes, draw.randint(2, len(self._nodes)))

    # --- processes and machines

    def _kill(self, nodes: Sequence[int]) -> Callable[[], None]:
        for node_id in nodes:
            self._cluster.kill(node_id)
        return lambda: self._start(nodes)

    def _power(self, nodes: Sequence[int]) -> Callable[[], None]:
        for node_id in nodes:
            self._cluster.lose_power(node_id)
        return lambda: self._start(nodes)

    def _start(self, nodes: Sequence[int]) -> None:
        for node_id in nodes:
            self._cluster.start(node_id)

    def _crash_point(self, draw: random.Random) -> Callable[[], None]:
        running = [node_id for node_id in self._nodes if self._cluster.machines[node_id].is_running]
        node_id = draw.choice(running or self._nodes)
        machine = self._cluster.machines[node_id]
        if machine.is_running:
            power = node_id in self._may_lose_power and draw.random() < 0.5
            crash = self._cluster.lose_power if power else self._cluster.kill
            machine.crash_after_writes(draw.randint(1, 60), lambda: crash(node_id))

        def end() -> None:
            machine.forget_crash_point()  # one that was not reached must not strike when all is to heal
            self._start([node_id])

        return end

    def _restart(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._nodes)
        self._cluster.stop(node_id)
        return lambda: self._start([node_id])

    def _hang(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._nodes)
        machine = self._cluster.machines[node_id]
        machine.pause()
        over = False

        def go_on() -> None:
            if over:
                return
            machine.resume()
            self._world.agenda.call_after(HANG_SECONDS_GOING_ON, kill)

        def kill() -> None:
            if not over:
                self._cluster.kill(node_id)

        def end() -> None:
            nonlocal over
            over = True
            machine.resume()
            self._start([node_id])

        self._world.agenda.call_after(HANG_SECONDS, go_on)
        return end

    def _pause(self, draw: random.Random) -> Callable[[], None]:
        if draw.random() < CLIENT_PAUSE_PROBABILITY and self.struck_nodes is Struck.ALL:
            host = draw.choice(self._clients)
        else:
            host = self._cluster.host(self._leader(draw) if draw.random() < 0.5 else draw.choice(self._nodes))
        machine = self._world.node(host)
        machine.pause()
        return machine.resume

    # --- links

    def _cut(self, pairs: Sequence[tuple[str, str]]) -> Callable[[], None]:
        for pair in pairs:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1
            self._world.network.cut(*pair)

        def end() -> None:
            for pair in pairs:
                left = self._cuts.get(pair, 0) - 1
                if left > 0:
                    self._cuts[pair] = left
                else:
                    self._cuts.pop(pair, None)
                    self._world.network.heal(*pair)

        return end

    def _hosts(self, nodes: Sequence[int]) -> list[str]:
        return [self._cluster.host(node_id) for node_id in nodes]

    def _others(self, host: str, draw: random.Random) -> list[str]:
        others = [other for other in self._hosts(self._everybody) if other != host]
        return others + (self._clients if draw.random() < 0.5 else [])

    def _cut_node(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(self._leader(draw) if draw.random() < 0.5 else draw.choice(self._nodes))
        others = self._others(host, draw)
        return self._cut([*((host, other) for other in others), *((other, host) for other in others)])

    def _cut_one_way(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(draw.choice(self._nodes))
        others = self._others(host, draw)
        if draw.random() < 0.5:
            return self._cut([(host, other) for other in others])
        return self._cut([(other, host) for other in others])

    def _halves(self, draw: random.Random) -> Callable[[], None]:
        hosts = self._hosts(self._nodes)
        draw.shuffle(hosts)
        middle = draw.randint(1, len(hosts) - 1)
        return self._cut(_between(hosts[:middle], hosts[middle:]))

    def _bridge(self, draw: random.Random) -> Callable[[], None]:
        hosts = self._hosts(self._nodes)
        draw.shuffle(hosts)
        middle = len(hosts) // 2
        return self._cut(_between(hosts[1 : middle + 1], hosts[middle + 1 :]))

    def _ring(self, draw: random.Random) -> Callable[[], None]:
        hosts = self._hosts(self._nodes)
        draw.shuffle(hosts)
        return self._cut(ring_cuts(hosts))

    def _cut_link(self, draw: random.Random) -> Callable[[], None]:
        one, other = draw.sample([*self._hosts(self._everybody), *self._clients], 2)
        return self._cut(_between([one], [other]))

    def _blind(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(draw.choice(self._cluster.leaders() or self._cluster.broker_ids))
        return self._cut(_between([host], self._hosts(self._cluster.controller_ids)))

    def _reset(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(draw.choice(self._nodes))
        others = [other for other in self._world.network.host_names if other != host]
        active = True

        def strike() -> None:
            if active:
                for other in others:
                    self._world.network.reset_connections(host, other)
                self._world.agenda.call_after(draw.uniform(0.05, 1.5), strike)

        def end() -> None:
            nonlocal active
            active = False

        strike()
        return end

    def _slow(self, draw: random.Random) -> Callable[[], None]:
        host = self._cluster.host(draw.choice(self._nodes))
        others = [other for other in self._world.network.host_names if other != host]
        delay = draw.choice((0.005, 0.05, 0.3))
        rate = draw.choice((0.0, 20_000.0, 500_000.0))
        for other in others:
            self._world.network.slow_link(host, other, extra_delay=delay, bytes_per_second=rate)

        def end() -> None:
            for other in others:
                self._world.network.slow_link(host, other, extra_delay=0.0)

        return end

    # --- disks and clocks

    def _calm_disk(self, node_id: int) -> None:
        profile = self._cluster.machines[node_id].disk.profile
        profile.offload_delay_jitter, profile.stall_probability, profile.stall_max = 0.000_5, 0.001, 0.05
        profile.capacity_bytes = 1 << 32
        profile.write_error_probability = profile.sync_error_probability = profile.read_error_probability = 0.0

    def _mend(self, node_id: int) -> None:
        """What an operator does with a node whose disk works again: a directory that failed needs a restart."""
        if self._cluster.shape.directories > 1 and self._cluster.offline_directories(node_id):
            self._world.nursery.start_soon(self._cluster.restart, node_id)
        else:
            self._start([node_id])

    def _disk_slow(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._nodes)
        profile = self._cluster.machines[node_id].disk.profile
        profile.offload_delay_jitter = draw.choice((0.01, 0.1))
        profile.stall_probability, profile.stall_max = 0.05, draw.choice((0.5, 3.0))
        return lambda: self._calm_disk(node_id)

    def _disk_full(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._nodes)
        disk = self._cluster.machines[node_id].disk
        disk.profile.capacity_bytes = disk.used_bytes() + draw.randint(0, 5_000)
        self.disk_errors[node_id] = None

        def end() -> None:
            self._calm_disk(node_id)
            self._mend(node_id)

        return end

    def _disk_error(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._nodes)
        profile = self._cluster.machines[node_id].disk.profile
        profile.write_error_probability = draw.choice((0.0, 0.01, 0.1))
        profile.sync_error_probability = draw.choice((0.0, 0.01, 0.1))
        self.disk_errors[node_id] = None

        def end() -> None:
            self._calm_disk(node_id)
            self._mend(node_id)

        return end

    def _directory(self, draw: random.Random) -> Callable[[], None]:
        if self._cluster.shape.directories < 2 or self.struck_nodes is Struck.CONTROLLERS:
            return lambda: None
        node_id = draw.choice(self._cluster.broker_ids)
        profile = self._cluster.machines[node_id].disk.profile
        path = draw.choice(self._cluster.log_directories(node_id))
        full = draw.random() < DIRECTORY_FULL_PROBABILITY
        if full:
            profile.full_paths = (*profile.full_paths, path)
        else:
            profile.failing_paths = (*profile.failing_paths, path)
        self.directory_errors.setdefault(node_id, {})[path] = None
        self._world.trace.note("directory", self._cluster.host(node_id), path, "full" if full else "gone")

        def end() -> None:
            # Another fault may hold the same directory still: each takes its own mark back.
            if full:
                profile.full_paths = _without(profile.full_paths, path)
            else:
                profile.failing_paths = _without(profile.failing_paths, path)
            self._mend(node_id)

        return end

    def _clock_rate(self, draw: random.Random) -> Callable[[], None]:
        clock = self._cluster.machines[draw.choice(self._nodes)].clock
        clock.set_rate(draw.choice((0.5, 0.95, 1.05, 2.0)))
        return lambda: clock.set_rate(1.0)

    def _clock_jump(self, draw: random.Random) -> Callable[[], None]:
        node_id = draw.choice(self._nodes)
        jump_ms = draw.choice((-3_600_000.0, -5_000.0, 5_000.0, 3_600_000.0))
        self._cluster.machines[node_id].clock.jump_wall(jump_ms)
        self._jumped_ms[node_id] = self._jumped_ms.get(node_id, 0.0) + jump_ms
        return lambda: None


def _without(paths: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Returns ``paths`` with one occurrence of ``path`` less, if there is one."""
    left = list(paths)
    if path in left:
        left.remove(path)
    return tuple(left)


def _between(left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for one in left for other in right for pair in ((one, other), (other, one))]
