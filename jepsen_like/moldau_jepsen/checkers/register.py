"""Searches for one order that explains all operations on a register (linearizability, Herlihy and Wing 1990).

The register is a key of the metadata (a topic's configuration). The search is Wing and Gong's with Lowe's cache of
visited states: take any operation that no other one must precede, apply it, continue; remember (set of taken
operations, value) so that no state is searched twice. An operation whose outcome is unknown may be taken at any later
time or never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STATES_MAX = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterOperation:
    """One read or write; times are on one clock."""

    write: bool
    value: int | None
    """The written value, or the result of the read (None: the register was never written)."""
    begun_ms: float
    ended_ms: float
    """Infinity for a write whose outcome is unknown. Failed writes and unanswered reads are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterVerdict:
    """The judgement; ``linearizable`` is None if the search gave up."""

    linearizable: bool | None
    explored: int
    text: str


def check_register(operations: Sequence[RegisterOperation], *, states_max: int = STATES_MAX) -> RegisterVerdict:
    """Searches for an order of ``operations`` that respects time and in which every read returns the last write.

    It leaves out a write of unknown outcome whose value no read returned: any order with the write is also valid
    without it, and each such write would double the search.
    """
    returned = {operation.value for operation in operations if not operation.write}
    ordered = sorted(
        (one for one in operations if not one.write or one.ended_ms != float("inf") or one.value in returned),
        key=lambda operation: (operation.begun_ms, operation.ended_ms),
    )
    required = sum(1 << number for number, op in enumerate(ordered) if op.ended_ms != float("inf"))
    seen: set[tuple[int, int | None]] = set()
    stack: list[tuple[int, int | None]] = [(0, None)]
    longest = 0
    while stack:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        taken, value = state
        if taken & required == required:
            return RegisterVerdict(linearizable=True, explored=len(seen), text="an order was found")
        if len(seen) > states_max:
            return RegisterVerdict(
                linearizable=None, explored=len(seen), text=f"gave up after {states_max} states; shorten the history"
            )
        longest = max(longest, taken.bit_count())
        stack.extend(_successors(ordered, taken, value))
    return RegisterVerdict(
        linearizable=False,
        explored=len(seen),
        text=f"no order explains the operations; the longest that does holds {longest} of {len(ordered)}",
    )


def _successors(ordered: Sequence[RegisterOperation], taken: int, value: int | None) -> list[tuple[int, int | None]]:
    """Returns the states after each operation that may come next."""
    earliest_end = float("inf")
    candidates = []
    first = (~taken & taken + 1).bit_length() - 1  # skips the operations below, which are all taken
    for number in range(first, len(ordered)):
        operation = ordered[number]
        if taken >> number & 1:
            continue
        if operation.begun_ms > earliest_end:
            break  # ordered by begin: later ones begin after the end of an untaken one
        earliest_end = min(earliest_end, operation.ended_ms)
        candidates.append((number, operation))
    following = []
    for number, operation in candidates:
        if operation.begun_ms > earliest_end:
            continue
        if operation.write:
            following.append((taken | 1 << number, operation.value))
        elif operation.value == value:
            following.append((taken | 1 << number, value))
    return following
