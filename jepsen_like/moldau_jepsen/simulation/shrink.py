"""Makes a failing run small: the fewest faults of its plan with which the same rule is still violated.

Delta debugging (Zeller and Hildebrandt 2002) over the fault plan. Each fault has a random stream of its own, so leaving
one out does not change what the others do; the rest of the run does change, and a subset counts only if it is convicted
by the same invariant or checker.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign import Result, RunOptions, planned_faults, run_seed
from moldau_jepsen.simulation.mutants import finder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_jepsen.simulation.faults import PlannedFault

ATTEMPTS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest plan that was found."""

    faults: tuple[PlannedFault, ...]
    result: Result
    """Of a run with ``faults``."""
    attempts: int


def shrink_seed(
    seed: int,
    options: RunOptions | None = None,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    on_attempt: Callable[[int, int], None] | None = None,
) -> Shrunk | None:
    """Shrinks the fault plan of a failing seed; None if the seed does not fail.

    ``on_attempt`` gets the number of the attempt and the size of the smallest plan so far.
    """
    chosen = options if options is not None else RunOptions()
    faults = list(chosen.faults if chosen.faults is not None else planned_faults(seed, chosen))
    result = run_seed(seed, replace(chosen, faults=tuple(faults)))
    if not result.violations:
        return None
    wanted = finder_of(result.violations[0])
    attempts = 1
    chunks = 2
    while faults and attempts < attempts_max:
        smaller: list[PlannedFault] | None = None
        for candidate in _without_each(faults, chunks):
            if attempts >= attempts_max:
                break
            attempts += 1
            found = run_seed(seed, replace(chosen, faults=tuple(candidate)))
            if found.violations and finder_of(found.violations[0]) == wanted:
                smaller, result = candidate, found
                break
        if on_attempt is not None:
            on_attempt(attempts, len(smaller if smaller is not None else faults))
        if smaller is not None:
            faults = smaller
            chunks = max(2, min(chunks - 1, len(faults)))
        elif chunks >= len(faults):
            break
        else:
            chunks = min(len(faults), chunks * 2)
    return Shrunk(faults=tuple(faults), result=result, attempts=attempts)


def _without_each(faults: Sequence[PlannedFault], chunks: int) -> list[list[PlannedFault]]:
    """Returns the plan without its first, second ... of ``chunks`` parts."""
    size = max(1, (len(faults) + chunks - 1) // chunks)
    return [[*faults[:start], *faults[start + size :]] for start in range(0, len(faults), size)]
