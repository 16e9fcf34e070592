"""Which fault strikes whom and when: a pure plan, drawn from one seed.

A run is cut into windows. Every window draws a subset of the enabled fault kinds, a quarter of the windows draws
none, so that the cluster is seen breaking, broken and recovering. Within a window each fault of the subset begins at
a drawn moment and ends before the window does. Whom a fault strikes is drawn as a class (Jepsen's: one, minority,
majority, majorities-ring, leaders, all); which nodes these are is decided when it strikes, because nobody knows the
leaders beforehand.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

CALM_SHARE = 0.25
WINDOW_MS = 30_000.0
BEGIN_SHARE_MAX = 0.4
"""A fault begins within this share of its window, and ends before 0.9 of it: the rest shows the recovery."""
END_SHARE_MAX = 0.9


class FaultKind(enum.Enum):
    """What is done."""

    KILL = "kill"  # SIGKILL, started again at the end of the fault
    PAUSE = "pause"  # SIGSTOP, SIGCONT at the end
    RESTART = "restart"  # controlled stop and start, one node after the other
    CUT = "cut"  # links of the struck nodes to all other members, both ways
    CUT_ONE_WAY = "cut-one-way"  # only what the struck nodes send
    ISOLATE = "isolate"  # links to all other members and to the clients
    SLOW = "slow"  # every byte of the struck nodes comes late
    LOSS = "loss"  # some packets of the struck nodes are lost
    RESET = "reset"  # connections of the struck nodes end with RST, again and again
    POWER = "power-loss"  # SIGKILL, and what was not synced is gone
    DISK_FULL = "disk-full"  # nothing more can be written
    DISK_ERROR = "disk-error"  # some writes and syncs fail
    DISK_SLOW = "disk-slow"  # every sync takes long
    BIT_ROT = "bit-rot"  # closed files of a stopped node are damaged
    CLOCK = "clock-skew"  # clocks run at a wrong rate, and the wall clock is set
    REASSIGN = "reassign"  # replicas of partitions move to other brokers, again and again
    ELECT = "elect"  # preferred leaders are elected, again and again
    VOTERS = "voters"  # a controller loses its vote and gets it back, again and again


class Target(enum.Enum):
    """Whom it strikes."""

    ONE = "one"
    MINORITY = "minority"
    MAJORITY = "majority"
    RING = "majorities-ring"  # of CUT: every node sees a majority, no two see the same one
    LEADERS = "leaders"  # the active controller, and a broker that leads a partition of the workload
    ALL = "all"


TARGETS: dict[FaultKind, tuple[Target, ...]] = {
    FaultKind.KILL: (Target.ONE, Target.MINORITY, Target.MAJORITY, Target.LEADERS, Target.ALL),
    FaultKind.PAUSE: (Target.ONE, Target.MINORITY, Target.MAJORITY, Target.LEADERS, Target.ALL),
    FaultKind.RESTART: (Target.ONE, Target.LEADERS, Target.ALL),
    FaultKind.CUT: (Target.ONE, Target.MINORITY, Target.RING, Target.LEADERS),
    FaultKind.CUT_ONE_WAY: (Target.ONE, Target.LEADERS),
    FaultKind.ISOLATE: (Target.ONE, Target.LEADERS),
    FaultKind.SLOW: (Target.ONE, Target.MINORITY, Target.LEADERS, Target.ALL),
    FaultKind.LOSS: (Target.ONE, Target.MINORITY, Target.LEADERS, Target.ALL),
    FaultKind.RESET: (Target.ONE, Target.LEADERS, Target.ALL),
    FaultKind.POWER: (Target.ONE, Target.MINORITY, Target.MAJORITY, Target.LEADERS, Target.ALL),
    FaultKind.DISK_FULL: (Target.ONE, Target.MINORITY, Target.LEADERS),
    FaultKind.DISK_ERROR: (Target.ONE, Target.MINORITY, Target.LEADERS),
    FaultKind.DISK_SLOW: (Target.ONE, Target.MINORITY, Target.LEADERS, Target.ALL),
    FaultKind.BIT_ROT: (Target.ONE, Target.LEADERS),
    FaultKind.CLOCK: (Target.ONE, Target.LEADERS, Target.MINORITY),
    FaultKind.REASSIGN: (Target.ONE,),
    FaultKind.ELECT: (Target.ALL,),
    FaultKind.VOTERS: (Target.ONE, Target.LEADERS),
}

CHURN = (FaultKind.REASSIGN, FaultKind.ELECT, FaultKind.VOTERS)
"""Kinds that an operator brings about, and that may go on all the while."""

PROXY_KINDS = tuple(kind for kind in FaultKind if kind is not FaultKind.LOSS)
"""Kinds that need no network namespaces: a proxy holds bytes back, it loses none."""

MACHINE_KINDS = (
    FaultKind.POWER,
    FaultKind.DISK_FULL,
    FaultKind.DISK_ERROR,
    FaultKind.DISK_SLOW,
    FaultKind.BIT_ROT,
    FaultKind.CLOCK,
)
"""Kinds that need nodes whose disks and clocks the harness rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One fault of the plan; times are milliseconds since the start of the run."""

    kind: FaultKind
    target: Target
    begin_ms: float
    end_ms: float
    seed: int
    """For the draws that are left until it strikes (which node, which partition, how slow)."""


def plan_faults(
    draw: random.Random,
    *,
    duration_ms: float,
    kinds: Sequence[FaultKind],
    window_ms: float = WINDOW_MS,
    calm_share: float = CALM_SHARE,
    churn: bool = False,
) -> tuple[PlannedFault, ...]:
    """Draws the plan of a run.

    Args:
        draw: Source of all randomness; the same state gives the same plan.
        duration_ms: Length of the run; only whole windows that fit get faults.
        kinds: The enabled kinds; an empty sequence gives an empty plan.
        window_ms: Length of a window; a shorter run is one window.
        calm_share: Share of windows without any fault, 0 to 1. A run whose windows would all be calm has faults in one
            of them all the same, unless the share is 1: it would find nothing, and prove nothing.
        churn: The enabled kinds of ``CHURN`` go on from the beginning to the end instead of taking part in windows.

    Returns:
        The faults in order of their beginning.
    """
    if not 0 <= calm_share <= 1:
        raise ValueError(f"calm_share is {calm_share}; it must lie between 0 and 1")
    if window_ms <= 0:
        raise ValueError(f"window_ms is {window_ms}; it must be above 0")
    planned: list[PlannedFault] = []
    if churn:
        planned += [_lasting(kind, duration_ms, draw) for kind in kinds if kind in CHURN]
        kinds = [kind for kind in kinds if kind not in CHURN]
    window_ms = min(window_ms, duration_ms)
    windows = int(duration_ms // window_ms) if kinds and duration_ms > 0 else 0
    struck = 0
    for number in range(windows):
        if draw.random() >= calm_share:
            planned += _window(number * window_ms, window_ms, kinds, draw)
            struck += 1
    if windows and not struck and calm_share < 1:
        planned += _window(draw.randrange(windows) * window_ms, window_ms, kinds, draw)
    return tuple(sorted(planned, key=lambda fault: (fault.begin_ms, fault.kind.value)))


def _window(start_ms: float, length_ms: float, kinds: Sequence[FaultKind], draw: random.Random) -> list[PlannedFault]:
    """Draws the faults of a window, at least one."""
    planned = []
    for kind in draw.sample(list(kinds), draw.randint(1, min(3, len(kinds)))):
        begin = draw.uniform(0, BEGIN_SHARE_MAX)
        end = draw.uniform(begin + 0.1, END_SHARE_MAX)
        planned.append(
            PlannedFault(
                kind=kind,
                target=draw.choice(TARGETS[kind]),
                begin_ms=start_ms + begin * length_ms,
                end_ms=start_ms + end * length_ms,
                seed=draw.getrandbits(32),
            )
        )
    return planned


def _lasting(kind: FaultKind, duration_ms: float, draw: random.Random) -> PlannedFault:
    target = draw.choice(TARGETS[kind])
    return PlannedFault(kind=kind, target=target, begin_ms=0, end_ms=duration_ms, seed=draw.getrandbits(32))


def choose_nodes(target: Target, nodes: Sequence[int], leaders: Sequence[int], draw: random.Random) -> list[int]:
    """Resolves a target class to node ids of one role.

    Args:
        target: The class; ``RING`` gives all nodes (see ``ring_cuts``).
        nodes: All nodes of the role.
        leaders: Those of them that lead something now; when empty, ``LEADERS`` is as ``ONE``.
        draw: Source of randomness.

    Returns:
        Sorted ids, at least one if ``nodes`` is not empty.
    """
    known = sorted(nodes)
    if not known:
        return []
    minority = max(1, (len(known) - 1) // 2)
    match target:
        case Target.ONE:
            return [draw.choice(known)]
        case Target.MINORITY:
            return sorted(draw.sample(known, minority))
        case Target.MAJORITY:
            return sorted(draw.sample(known, len(known) // 2 + 1))
        case Target.LEADERS:
            return [draw.choice(sorted(leaders))] if leaders else [draw.choice(known)]
        case Target.RING | Target.ALL:
            return known


def ring_cuts(nodes: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs to cut so that each node keeps links to a majority (itself included), and no two keep the same one.

    Nodes stand on a ring; each keeps its nearest neighbours. With three nodes the ring keeps two links of three.
    """
    count = len(nodes)
    if count <= 3:
        return [(nodes[0], nodes[-1])] if count == 3 else []
    reach = (count // 2) // 2 + (count // 2) % 2
    pairs = []
    for first in range(count):
        for second in range(first + 1, count):
            distance = min(second - first, count - (second - first))
            if distance > reach:
                pairs.append((nodes[first], nodes[second]))
    return pairs
