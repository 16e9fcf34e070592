"""Which moves of a plan start next, and how far the plan is. Pure.

Nothing is remembered between two questions: what the cluster reports says which moves are done, run or wait. So a plan
that was interrupted goes on where it stopped, from any machine that has its file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from moldau_cli.plans.balance.state import Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMove:
    """A move that the cluster reports."""

    replicas: tuple[int, ...]
    """Old and new ones."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def wanted(self) -> frozenset[int]:
        """The replicas after the move."""
        return frozenset(self.replicas) - frozenset(self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The state of a plan, and what to do now. Each partition of the plan is in exactly one of the first five."""

    done: tuple[Partition, ...]
    """They have the replicas of the plan."""
    running: tuple[Partition, ...]
    """They move to the replicas of the plan."""
    elsewhere: tuple[Partition, ...]
    """They move to other replicas; they have to wait for the end of that move."""
    waiting: tuple[Partition, ...]
    gone: tuple[Partition, ...]
    """They do not exist: their topic was deleted, or recreated with fewer partitions."""
    start: tuple[Partition, ...]
    """Those of ``waiting`` that start now."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.running or self.elsewhere or self.waiting)


def next_step(
    plan: Mapping[Partition, Sequence[int]],
    current: Mapping[Partition, Sequence[int]],
    moving: Mapping[Partition, RunningMove],
    sizes: Mapping[Partition, int],
    *,
    at_once_max: int,
) -> Step:
    """Decides which moves start.

    At most ``at_once_max`` replicas (at least 1) are copied to one broker, and away from one, at a time; moves of
    other plans count. Changes of order only, which copy nothing, start at once. Large partitions start first,
    because the largest one bounds the length of the whole.

    Args:
        plan: The wanted replicas.
        current: The replicas of the partitions that exist; of one that moves, old and new ones.
        moving: All partitions that move, those of other plans too.
        sizes: Bytes of a replica, where they are known.
        at_once_max: The bound, at least 1.
    """
    done: list[Partition] = []
    running: list[Partition] = []
    elsewhere: list[Partition] = []
    waiting: list[Partition] = []
    gone: list[Partition] = []
    for where, wanted in sorted(plan.items()):
        if where not in current:
            gone.append(where)
        elif where in moving:
            (running if moving[where].wanted == frozenset(wanted) else elsewhere).append(where)
        else:
            (done if tuple(current[where]) == tuple(wanted) else waiting).append(where)
    busy = _Busy(at_once_max)
    for move in moving.values():
        busy.add(move.adding, move.removing)
    start = []
    for where in sorted(waiting, key=lambda one: (-sizes.get(one, 0), one)):
        added = [node for node in plan[where] if node not in current[where]]
        removed = [node for node in current[where] if node not in plan[where]]
        if not added or busy.has_room(added, removed):
            start.append(where)
            busy.add(added, removed)
    return Step(
        done=tuple(done),
        running=tuple(running),
        elsewhere=tuple(elsewhere),
        waiting=tuple(waiting),
        gone=tuple(gone),
        start=tuple(start),
    )


class _Busy:
    """Replicas that are copied to and from each broker."""

    def __init__(self, at_once_max: int) -> None:
        assert at_once_max >= 1, "nothing could ever start"
        self._max = at_once_max
        self._to: dict[int, int] = {}
        self._from: dict[int, int] = {}

    def has_room(self, added: Collection[int], removed: Collection[int]) -> bool:
        """Returns whether a move may start."""
        to_room = all(self._to.get(node, 0) < self._max for node in added)
        return to_room and all(self._from.get(node, 0) < self._max for node in removed)

    def add(self, added: Collection[int], removed: Collection[int]) -> None:
        """Counts a move."""
        for node in added:
            self._to[node] = self._to.get(node, 0) + 1
        for node in removed:
            self._from[node] = self._from.get(node, 0) + 1
