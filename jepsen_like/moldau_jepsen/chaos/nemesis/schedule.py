"""Draws the plan of faults of a run from one seed: kinds, targets and times. Pure.

A run is cut into windows. Every window draws a subset of the enabled fault kinds, and a quarter of the windows draws
none, so that runs include the begin of faults, their effect and the recovery. Within a window each fault of the subset
begins at a drawn moment and ends before the window does. The target of a fault is drawn as a class (Jepsen's: one,
minority, majority, majorities-ring, leaders, all); the nodes are chosen when the fault begins, because the leaders are
not known beforehand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.faults.kinds import CHAOS_KINDS, FaultKind, Target, TargetedFault

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

CALM_SHARE = 0.25
WINDOW_MS = 30_000.0
BEGIN_SHARE_MAX = 0.4
"""A fault begins within this share of its window, and ends before 0.9 of it: the rest shows the recovery."""
END_SHARE_MAX = 0.9


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
    FaultKind.CORDON: (Target.ONE, Target.LEADERS),
}

CHURN = (FaultKind.REASSIGN, FaultKind.ELECT, FaultKind.VOTERS)
"""Kinds that an operator brings about, and that may go on all the while."""

PROXY_KINDS = tuple(kind for kind in CHAOS_KINDS if kind is not FaultKind.LOSS)
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


def plan_faults(
    draw: random.Random,
    *,
    duration_ms: float,
    kinds: Sequence[FaultKind],
    window_ms: float = WINDOW_MS,
    calm_share: float = CALM_SHARE,
    churn: bool = False,
) -> tuple[TargetedFault, ...]:
    """Draws the plan of a run.

    Args:
        draw: Source of all randomness; the same state gives the same plan.
        duration_ms: Length of the run; only whole windows that fit get faults.
        kinds: The enabled kinds; an empty sequence gives an empty plan.
        window_ms: Length of a window; a shorter run is one window.
        calm_share: Share of windows without any fault, 0 to 1. Unless the share is 1, at least one window has faults,
            because a run without faults would prove nothing.
        churn: The enabled kinds of ``CHURN`` last from the beginning to the end instead of taking part in windows.

    Returns:
        The faults in order of their beginning.
    """
    if not 0 <= calm_share <= 1:
        raise ValueError(f"calm_share is {calm_share}; it must lie between 0 and 1")
    if window_ms <= 0:
        raise ValueError(f"window_ms is {window_ms}; it must be above 0")
    planned: list[TargetedFault] = []
    if churn:
        planned += [_lasting(kind, duration_ms, draw) for kind in kinds if kind in CHURN]
        kinds = [kind for kind in kinds if kind not in CHURN]
    window_ms = min(window_ms, duration_ms)
    windows = int(duration_ms // window_ms) if kinds and duration_ms > 0 else 0
    effective = 0
    for number in range(windows):
        if draw.random() >= calm_share:
            planned += _window(number * window_ms, window_ms, kinds, draw)
            effective += 1
    if windows and not effective and calm_share < 1:
        planned += _window(draw.randrange(windows) * window_ms, window_ms, kinds, draw)
    return tuple(sorted(planned, key=lambda fault: (fault.begin, fault.kind.value)))


def _window(start_ms: float, length_ms: float, kinds: Sequence[FaultKind], draw: random.Random) -> list[TargetedFault]:
    """Draws the faults of a window, at least one."""
    planned = []
    for kind in draw.sample(list(kinds), draw.randint(1, min(3, len(kinds)))):
        begin = draw.uniform(0, BEGIN_SHARE_MAX)
        end = draw.uniform(begin + 0.1, END_SHARE_MAX)
        planned.append(
            TargetedFault(
                kind=kind,
                target=draw.choice(TARGETS[kind]),
                begin=(start_ms + begin * length_ms) / 1000,
                end=(start_ms + end * length_ms) / 1000,
                number=draw.getrandbits(32),
            )
        )
    return planned


def _lasting(kind: FaultKind, duration_ms: float, draw: random.Random) -> TargetedFault:
    target = draw.choice(TARGETS[kind])
    return TargetedFault(kind=kind, target=target, begin=0, end=duration_ms / 1000, number=draw.getrandbits(32))


def choose_nodes(target: Target, nodes: Sequence[int], leaders: Sequence[int], draw: random.Random) -> list[int]:
    """Resolves a target class to node ids of one role.

    Args:
        target: The class; ``RING`` gives all nodes (see ``ring_cuts``).
        nodes: All nodes of the role.
        leaders: Those of them that lead a partition or the quorum now; if empty, ``LEADERS`` means ``ONE``.
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
