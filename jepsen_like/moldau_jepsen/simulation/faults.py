"""Which faults strike a simulated cluster: a pure plan in swarm style. ``injector`` carries it out.

Each run turns a random subset of the kinds on, with random numbers of strikes: runs with everything on hide what a few
faults in the right order find (Groce et al., "Swarm Testing"). A fault has a beginning and an end; whom it strikes is
drawn when it begins, because nobody knows the leaders beforehand. Faults on the same node overlap freely.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.world import derive_random

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

KIND_PROBABILITY = 0.35
STRIKES_PER_KIND_MAX = 4
LENGTH_SECONDS = (0.2, 6.0)
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
    CRASH_POINT = "crash-point"  # a process dies just after a write to its disk, or just after it has sent something
    POWER = "power"  # a machine loses power; brokers only where records are synced before they are acknowledged
    POWER_ALL = "power-all"  # every machine does, by the same rule
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
    POWER_UNSYNCED = "power-unsynced"  # a broker loses power, and with it what it has not synced and others have
    LOSS = "loss"  # links lose segments, each link and direction at a rate of its own
    READ_ERROR = "read-error"  # some reads of a disk, or of one log directory, fail
    BIT_ROT = "bit-rot"  # closed files of a broker are damaged while it is stopped; later it gets a new disk


NEEDS_DIRECTORIES = (FaultKind.DIRECTORY, FaultKind.MOVE_DIRECTORY)
"""Kinds that do nothing to brokers with one log directory."""

DRAWN_APART = (FaultKind.POWER_UNSYNCED, FaultKind.LOSS, FaultKind.READ_ERROR, FaultKind.BIT_ROT)
"""Kinds that are drawn from a stream of their own, so that they shift no draw of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of a plan; times in seconds since the start of the fault phase."""

    kind: FaultKind
    begin: float
    end: float
    number: int
    """Gives the fault a random stream of its own, whatever else is left out of the plan."""


def plan_of_seed(seed: int, duration: float, kinds: Sequence[FaultKind]) -> list[PlannedFault]:
    """Returns the faults that a seed draws of ``kinds`` for ``duration`` seconds, in the order of their beginnings."""
    faults: list[PlannedFault] = []
    first = [kind for kind in kinds if kind not in DRAWN_APART]
    apart = [kind for kind in kinds if kind in DRAWN_APART]
    if first:
        faults = plan_faults(derive_random(seed, "fault plan"), duration, first)
    if apart:
        draw = derive_random(seed, "fault plan", "apart")
        faults += plan_faults(draw, duration, apart, at_least_one=not first, number_first=len(faults))
    return _in_order(faults)


def plan_faults(
    draw: random.Random,
    duration: float,
    kinds: Sequence[FaultKind] = tuple(FaultKind),
    *,
    at_least_one: bool = True,
    number_first: int = 0,
) -> list[PlannedFault]:
    """Draws the faults of a run of ``duration`` seconds, in the order of their beginnings; at least one, if wanted.

    Some runs are storms: many short faults, so that one begins before the last has healed. ``number_first`` is the
    number of the first fault.
    """
    storm = draw.random() < STORM_PROBABILITY
    strikes_max = STORM_STRIKES_PER_KIND_MAX if storm else STRIKES_PER_KIND_MAX
    lengths = STORM_LENGTH_SECONDS if storm else LENGTH_SECONDS
    chosen = [kind for kind in kinds if draw.random() < KIND_PROBABILITY]
    if not chosen and at_least_one:
        chosen = [draw.choice(list(kinds))]
    faults: list[PlannedFault] = []
    for kind in chosen:
        for _ in range(draw.randint(1, strikes_max)):
            begin = draw.uniform(0.0, duration * 0.9)
            length = min(draw.uniform(*lengths), duration - begin)
            number = number_first + len(faults)
            faults.append(PlannedFault(kind=kind, begin=begin, end=begin + length, number=number))
    return _in_order(faults)


def _in_order(faults: Sequence[PlannedFault]) -> list[PlannedFault]:
    return sorted(faults, key=lambda fault: (fault.begin, fault.number))
