"""How often a group gets a new target assignment (KIP-1263). Pure.

Each change of a group's members or topics calls for another target. While many members join at once, the assignor would
run for each of them. So a target is computed at most once in an assignment interval: the first change gets its target
at once, and those that follow wait and share the next one. The time of the last target is in its record, so a new
coordinator keeps the pace.
"""

from __future__ import annotations

from typing import Protocol


class Paced(Protocol):
    """A group of any kind, as far as the pace of its target assignments goes."""

    @property
    def epoch(self) -> int:
        """The group epoch."""
        ...

    @property
    def assignment_epoch(self) -> int:
        """The group epoch of the last target assignment."""
        ...

    @property
    def assigned_ms(self) -> int:
        """When that was computed, in Unix time; 0 if unknown."""
        ...


def target_wait_ms(group: Paced, interval_ms: int, wall_ms: int, *, is_assigned: bool) -> int:
    """Returns how long a group still waits for the target of its epoch; 0 if it has it or can get it now.

    The other arguments are those of ``assignment_wait_ms``.
    """
    if group.epoch <= group.assignment_epoch:
        return 0
    return assignment_wait_ms(group.assigned_ms, interval_ms, wall_ms, is_assigned=is_assigned)


def assignment_wait_ms(assigned_ms: int, interval_ms: int, wall_ms: int, *, is_assigned: bool) -> int:
    """Returns how long a group still has to wait for a new target assignment; 0 if it can be computed now.

    Args:
        assigned_ms: when the last target was computed, in Unix time; 0 if that is unknown.
        interval_ms: the assignment interval; 0 for none.
        wall_ms: now, in Unix time.
        is_assigned: whether the last target gives any member something; if not, there is nothing to spare.
    """
    if assigned_ms <= 0 or interval_ms <= 0 or not is_assigned:
        return 0
    if wall_ms < assigned_ms:
        return 0  # a clock was set back, or the last coordinator's was ahead: the wait could take hours
    return max(0, assigned_ms + interval_ms - wall_ms)


def heartbeat_after_ms(interval_ms: int, wait_ms: int) -> int:
    """Returns the heartbeat interval of an answer.

    A member that waits for the next target is asked to return when it is due, instead of one interval later.
    """
    return interval_ms if wait_ms <= 0 else min(interval_ms, wait_ms)
