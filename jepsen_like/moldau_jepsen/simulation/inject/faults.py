"""Plans the faults of a simulated cluster in swarm style. Pure; ``injector`` executes the plan.

Each run turns a random subset of the kinds on, with random numbers of strikes: runs with everything on hide what a few
faults in the right order find (Groce et al., "Swarm Testing"). A fault has a beginning and an end; its nodes are drawn
when it begins, because the leaders are not known beforehand. Faults on the same node overlap freely.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from moldau_jepsen.faults.kinds import SIMULATED_KINDS, FaultKind, PlannedFault
from moldau_jepsen.world.world import derive_random

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

KIND_PROBABILITY = 0.35
STRIKES_PER_KIND_MAX = 4
LENGTH_SECONDS = (0.2, 6.0)
STORM_PROBABILITY = 0.25
STORM_STRIKES_PER_KIND_MAX = 15
STORM_LENGTH_SECONDS = (0.05, 1.5)


class FaultScope(enum.Enum):
    """The nodes that the faults of a run strike; drawn for each run."""

    ALL = "all"
    CONTROLLERS = "controllers"
    BROKERS = "brokers"


NEEDS_DIRECTORIES = (FaultKind.DIRECTORY, FaultKind.MOVE_DIRECTORY, FaultKind.CORDON)
"""Kinds that do nothing to brokers with one log directory."""
NEEDS_STORE = (FaultKind.STORE_AWAY, FaultKind.STORE_SLOW, FaultKind.STORE_ERROR, FaultKind.STORE_LATE)
"""Kinds that do nothing to a cluster without tiered topics."""

STREAMS: Final = {
    "apart": (FaultKind.POWER_UNSYNCED, FaultKind.LOSS, FaultKind.READ_ERROR, FaultKind.BIT_ROT),
    "last": (FaultKind.LOST_LOG,),
    "since": (FaultKind.HELD_BACK, FaultKind.POWER_TRUNCATED),
    "newly": (FaultKind.DISK_HANGS,),
    "calls": (FaultKind.HELD_CALL,),
    "cordons": (FaultKind.CORDON,),
    "syncs": (FaultKind.LATE_SYNC,),
    "store": NEEDS_STORE,
}
"""Kinds that came later, in the order in which they came, by the stream that they are drawn from.

So a new kind shifts no draw of those that were there before it.
"""


def plan_of_seed(seed: int, duration: float, kinds: Sequence[FaultKind]) -> list[PlannedFault]:
    """Returns the faults that a seed draws of ``kinds`` for ``duration`` seconds, in the order of their beginnings."""
    faults: list[PlannedFault] = []
    first = [kind for kind in kinds if not any(kind in streamed for streamed in STREAMS.values())]
    if first:
        faults = plan_faults(derive_random(seed, "fault plan"), duration, first)
    planned = bool(first)
    for stream, streamed in STREAMS.items():
        chosen = [kind for kind in kinds if kind in streamed]
        if chosen:
            draw = derive_random(seed, "fault plan", stream)
            faults += plan_faults(draw, duration, chosen, at_least_one=not planned, number_first=len(faults))
            planned = True
    return _in_order(faults)


def plan_faults(
    draw: random.Random,
    duration: float,
    kinds: Sequence[FaultKind] = SIMULATED_KINDS,
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
