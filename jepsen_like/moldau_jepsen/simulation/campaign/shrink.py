"""Shrinks a failing run to the fewest and simplest faults of its plan that still violate the same rule.

Two steps. Delta debugging (Zeller and Hildebrandt 2002) leaves out parts of the plan, large ones first, because a run
costs a second and most faults have nothing to do with the failure. Hypothesis then shrinks what is left: single faults,
their beginnings (whole seconds before odd ones) and their lengths (short before long). It starts from the failing plan
by way of its example database, and is only asked to shrink.

Each fault has a random stream of its own, so leaving one out does not change what the others do; the rest of the run
does change, and a plan counts only if it is convicted by the same invariant or checker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign.options import Result, RunOptions, planned_faults
from moldau_jepsen.simulation.campaign.seed import add_kit_failure, kit_failed, run_seed
from moldau_jepsen.simulation.mutants.mutants import finder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_jepsen.faults.kinds import PlannedFault

    Plan = tuple[PlannedFault, ...]

ATTEMPTS_MAX = 100
LENGTHS_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Lengths that are tried instead of a fault's own, if they are shorter."""
_DRAW_MAX = 255
_BUFFER_BYTES = 64
"""Bytes that Hypothesis may draw from per fault of the first plan; all ones stand for the plan as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The smallest plan that was found."""

    faults: tuple[PlannedFault, ...]
    result: Result
    """Of a run with ``faults``."""
    attempts: int
    """Runs that were made."""
    faults_before: int
    found_by: str
    """The invariant or checker that convicts it."""


class _Search:
    """Runs plans and remembers the smallest one that fails as the first did."""

    def __init__(
        self, seed: int, options: RunOptions, attempts_max: int, on_attempt: Callable[[int, int], None] | None
    ) -> None:
        self._seed = seed
        self._options = options
        self._attempts_max = attempts_max
        self._on_attempt = on_attempt
        self._known: dict[Plan, bool] = {}
        self.attempts = 0
        self.wanted = ""
        self.best: Plan = ()
        self.result: Result | None = None

    @property
    def exhausted(self) -> bool:
        """Whether no further run may be made."""
        return self.attempts >= self._attempts_max

    def fails(self, plan: Plan) -> bool:
        """Runs a plan, unless its outcome is known or no run is left (then: no)."""
        known = self._known.get(plan)
        if known is not None or self.exhausted:
            return bool(known)
        self.attempts += 1
        try:
            result = run_seed(self._seed, replace(self._options, faults=plan))
        except Exception as error:  # noqa: BLE001 - another plan may do better
            result = kit_failed(self._seed, error)
        found = finder_of(result.violations[0]) if result.violations else ""
        self.wanted = self.wanted or found
        failed = self._known[plan] = bool(found) and found == self.wanted
        if failed and (self.result is None or _size(plan) <= _size(self.best)):
            self.best, self.result = plan, result
        if self._on_attempt is not None:
            self._on_attempt(self.attempts, len(self.best))
        return failed


def _size(plan: Plan) -> tuple[int, float]:
    """Faults and their seconds, without what differences lose: lengths that are equal are so at any beginning."""
    return len(plan), round(sum(fault.end - fault.begin for fault in plan), 6)


def shrink_seed(
    seed: int,
    options: RunOptions | None = None,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    on_attempt: Callable[[int, int], None] | None = None,
) -> Shrunk | None:
    """Shrinks the fault plan of a failing seed; None if the seed does not fail.

    ``on_attempt`` gets the number of runs so far and the size of the smallest plan so far. Where Hypothesis is not
    installed, whole faults are left out, and nothing more. If the search itself breaks, its smallest plan so far is
    returned, and the result has what broke among its violations.
    """
    chosen = options if options is not None else RunOptions()
    plan = tuple(chosen.faults if chosen.faults is not None else planned_faults(seed, chosen))
    search = _Search(seed, chosen, attempts_max, on_attempt)
    if not search.fails(plan):
        return None
    broken: AssertionError | None = None
    try:
        _leave_out(search)
        if search.best:
            _simplify(search)
    except AssertionError as error:
        broken = error
    assert search.result is not None, "the first plan failed"
    return Shrunk(
        faults=search.best,
        result=search.result if broken is None else add_kit_failure(search.result, broken),
        attempts=search.attempts,
        faults_before=len(plan),
        found_by=search.wanted,
    )


def _leave_out(search: _Search) -> None:
    """Leaves out the largest parts of the plan that it can do without (delta debugging)."""
    if search.fails(()):
        return
    chunks = 2
    while search.best and not search.exhausted:
        plan = search.best
        if any(search.fails(candidate) for candidate in _without_each(plan, chunks)):
            chunks = max(2, min(chunks - 1, len(search.best)))
        elif chunks >= len(plan):
            return
        else:
            chunks = min(len(plan), chunks * 2)


def _without_each(plan: Plan, chunks: int) -> list[Plan]:
    """Returns the plan without its first, second ... of ``chunks`` parts."""
    size = max(1, math.ceil(len(plan) / chunks))
    return [(*plan[:start], *plan[start + size :]) for start in range(0, len(plan), size)]


def _simplify(search: _Search) -> None:
    """Lets Hypothesis shrink the plan as an example of a property that does not hold.

    Raises:
        AssertionError: Hypothesis did not search as it was asked to.
    """
    try:
        from hypothesis import HealthCheck, Phase, Verbosity, given, settings
        from hypothesis import strategies as st
        from hypothesis.database import InMemoryExampleDatabase
        from hypothesis.errors import HypothesisException
    except ImportError:
        return
    plan = search.best
    choices = [(_begins(fault), _lengths(fault)) for fault in plan]

    @settings(
        database=InMemoryExampleDatabase(),
        phases=(Phase.reuse, Phase.shrink),
        deadline=None,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        def draw_one_of(values: Sequence[float]) -> float:
            return values[data.draw(st.integers(0, _DRAW_MAX)) * len(values) // (_DRAW_MAX + 1)]

        chosen: list[PlannedFault] = []
        for fault, (begins, lengths) in zip(plan, choices, strict=True):
            if data.draw(st.integers(0, _DRAW_MAX)) > _DRAW_MAX // 2:
                begin, length = draw_one_of(begins), draw_one_of(lengths)
                as_it_is = (begin, length) == (fault.begin, fault.end - fault.begin)  # a sum would be rounded
                chosen.append(fault if as_it_is else replace(fault, begin=begin, end=begin + length))
        candidate = tuple(sorted(chosen, key=lambda fault: (fault.begin, fault.number)))
        if search.fails(candidate):
            raise _StillFailsError

    try:
        holds.hypothesis.fuzz_one_input(b"\xff" * (_BUFFER_BYTES * len(plan)))  # type: ignore[attr-defined]
    except _StillFailsError:
        pass
    else:
        raise AssertionError("the plan that is to be shrunk does not fail any more")
    try:
        holds()
    except _StillFailsError:
        return
    except HypothesisException as error:
        raise AssertionError(f"Hypothesis gave up: {type(error).__name__}: {error}") from error
    raise AssertionError("Hypothesis did not start from the plan that fails")


class _StillFailsError(Exception):
    """The property does not hold for a plan."""


def _begins(fault: PlannedFault) -> list[float]:
    """Moments to try for a beginning, the simplest first and the fault's own last."""
    return [*dict.fromkeys((float(math.floor(fault.begin)), round(fault.begin, 1))), fault.begin]


def _lengths(fault: PlannedFault) -> list[float]:
    """Lengths to try, the shortest first and the fault's own last."""
    own = fault.end - fault.begin
    return [*(length for length in LENGTHS_SECONDS if length < own), own]
