"""Chooses the kind of each run of a campaign by what its former runs reached (``core.weights``).

Decisions are made in rounds of fixed size. A round is decided by all results of the rounds up to the one before the
last, so it does not depend on the order in which processes finish, and processes rarely wait: while one round ends,
seeds of the next one run. The work of a run is counted in turns of its event loop, which are the same on each machine.
So a campaign with the same seeds and the same code makes the same choices.

A third of the seeds is left as they draw themselves, so that nothing is starved.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from moldau_jepsen.simulation.guidance.core.weights import Record, weights_of
from moldau_jepsen.simulation.guidance.kinds import KINDS, kind_of
from moldau_jepsen.workers import NOT_YET, NotYet
from moldau_jepsen.world.world import derive_random

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from moldau_jepsen.simulation.campaign.options import Result

ROUND_SEEDS = 16
ROUNDS_UNKNOWN = 2
"""A round is decided while so many rounds, itself included, may still lack results."""
DRAWN_SHARE = 1 / 3
"""Share of the seeds that are not chosen for."""


class Task(NamedTuple):
    """One run of a guided campaign."""

    seed: int
    kind: str
    """The kind that was chosen; empty for what the seed draws."""


class _Outcome(NamedTuple):
    kind: str
    work: int
    reached: tuple[str, ...]


class Guide:
    """Hands out the runs of a campaign, and learns from their results."""

    def __init__(self, seeds: Iterable[int], kinds: Sequence[str] = KINDS, *, round_seeds: int = ROUND_SEEDS) -> None:
        """Begins without results; ``seeds`` may be without end, and are taken one by one."""
        assert round_seeds > 0, "a round has seeds"
        self._seeds = seeds
        self._round_seeds = round_seeds
        self.records = {kind: Record() for kind in kinds}
        """The runs of finished rounds that were used for a decision, by kind."""
        self._round_of: dict[int, int] = {}  # by seed that runs
        self._running: Counter[int] = Counter()  # seeds by round
        self._outcomes: dict[int, list[_Outcome]] = {}

    def tasks(self) -> Iterator[Task | NotYet]:
        """Yields the runs in order; ``NOT_YET`` while a decision needs results of runs that have not ended."""
        weights: Mapping[str, float] = {}
        for index, seed in enumerate(self._seeds):
            number, position = divmod(index, self._round_seeds)
            if position == 0:
                last_needed = number - ROUNDS_UNKNOWN
                while any(running and each <= last_needed for each, running in self._running.items()):
                    yield NOT_YET
                self._learn(last_needed)
                weights = weights_of(self.records)
            self._round_of[seed] = number
            self._running[number] += 1
            yield Task(seed, choose(seed, weights))

    def add(self, result: Result) -> None:
        """Takes the result of a run that was handed out."""
        number = self._round_of.pop(result.seed)
        self._running[number] -= 1
        if not self._running[number]:
            del self._running[number]
        self._outcomes.setdefault(number, []).append(_Outcome(kind_of(result), result.steps, reached_by(result)))

    def _learn(self, last_round: int) -> None:
        for number in [each for each in self._outcomes if each <= last_round]:
            for outcome in self._outcomes.pop(number):
                record = self.records.get(outcome.kind)
                if record is not None:
                    record.add(outcome.work, outcome.reached)


def choose(seed: int, weights: Mapping[str, float]) -> str:
    """Returns the kind of a seed's run; empty if the seed is among those that draw themselves."""
    draw = derive_random(seed, "guided choice")
    drawn = draw.random() < DRAWN_SHARE
    kind = draw.choices(list(weights), list(weights.values()))[0]
    return "" if drawn else kind


def reached_by(result: Result) -> tuple[str, ...]:
    """Names the transitions and rare situations that a run reached, each once."""
    return tuple(
        f"{one.machine}: {one.before} to {one.after}" for one, count in result.coverage.transitions.items() if count
    )
