"""Draws faults of the disks and clocks of running nodes by seed, as values of the control file."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau_jepsen.faults.kinds import FaultKind

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from moldau_jepsen.launcher.control import Control

ERROR_SHARES = (0.001, 0.01, 0.1)
SYNC_DELAYS_MS = (10.0, 100.0, 1_000.0)
RATES = (0.5, 0.95, 1.05, 2.0)
JUMPS_MS = (-3_600_000.0, -5_000.0, 5_000.0, 3_600_000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A change of a node's control, the change that reverts it, and its text."""

    change: Callable[[Control], Control]
    undo: Callable[[Control], Control]
    text: str


def draw_order(kind: FaultKind, draw: random.Random) -> Order:
    """Draws the severity of a fault. ``kind`` is one of the disk kinds or ``CLOCK``."""
    match kind:
        case FaultKind.DISK_FULL:
            return Order(change=lambda now: replace(now, disk_full=1.0), undo=calm_disk, text="no space left")
        case FaultKind.DISK_ERROR:
            writes, syncs = draw.choice((0.0, *ERROR_SHARES)), draw.choice(ERROR_SHARES)
            return Order(
                change=lambda now: replace(now, write_error_share=writes, sync_error_share=syncs),
                undo=calm_disk,
                text=f"{writes:.1%} of writes and {syncs:.1%} of syncs fail",
            )
        case FaultKind.DISK_SLOW:
            delay = draw.choice(SYNC_DELAYS_MS)
            return Order(
                change=lambda now: replace(now, sync_delay_ms=delay),
                undo=calm_disk,
                text=f"syncs take {delay:g} ms more",
            )
        case FaultKind.CLOCK:
            rate, jump = draw.choice(RATES), draw.choice((0.0, *JUMPS_MS))
            return Order(
                change=lambda now: replace(with_rate(now, rate), wall_offset_ms=now.wall_offset_ms + jump),
                undo=right_clock,
                text=f"rate {rate:g}, wall clock set by {jump / 1000:+g} s",
            )
        case _:
            raise ValueError(f"{kind.value} is no order to a disk or a clock")


def calm_disk(control: Control) -> Control:
    """Returns the control with a disk that works."""
    return replace(control, disk_full=0.0, write_error_share=0.0, sync_error_share=0.0, sync_delay_ms=0.0)


def with_rate(control: Control, rate: float) -> Control:
    """Returns the control with a new rate from now on; the monotonic clock continues from its present value."""
    now = time.monotonic() * 1000.0
    return replace(control, rate=rate, rate_since_ms=now, rate_base_ms=control.monotonic_ms(now))


def right_clock(control: Control) -> Control:
    """Returns the control with rate 1 and the correct wall clock; the monotonic clock keeps its deviation."""
    right = with_rate(control, 1.0)
    gained = right.rate_base_ms - right.rate_since_ms
    return replace(right, wall_offset_ms=-gained)
