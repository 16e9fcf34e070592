"""Runs planted bugs, which the judge and the checkers must convict; otherwise their verdicts prove nothing.

A mutant breaks one rule of one protocol by replacing one function during a simulated run; production code has no switch
for it. ``run_mutant`` runs seeds until one convicts, reports the invariant or checker, and runs the same seed without
the bug, which must pass. A mutant that survives is a gap in the proof.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.planted_bug import owner_of, planted
from moldau_jepsen.simulation.campaign.seed import kit_failed, run_seed
from moldau_jepsen.simulation.mutants.judged import ALONE
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
from moldau_jepsen.workers import workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from moldau_jepsen.simulation.campaign.options import RunOptions
    from moldau_jepsen.simulation.mutants.mutant import Mutant


__all__ = [
    "ALONE",
    "MUTANTS",
    "MutantVerdict",
    "finder_of",
    "judges_of",
    "owner_of",
    "planted",
    "run_mutant",
    "run_mutants",
    "run_trial",
]

SEEDS_MAX = 200
HEALING_ALONE_SECONDS = 30.0
"""Enough for a sound cluster to serve its clients again; a broken one would take the whole time of every seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutantVerdict:
    """The verdict of the kit on a mutant."""

    name: str
    area: str
    text: str
    profile: str
    """The profile that the seeds were drawn from."""
    found: bool
    seeds: int
    """How many were run, the convicting one included."""
    found_by: str
    """The invariant or checker; empty if the mutant survived."""
    detail: str
    spoiled: int = 0
    """Seeds that fail without the bug too, and therefore say nothing; they count as run."""
    rule: str = ""
    """The rule or checker that was on trial, all others being off; empty if all were on."""

    def to_json(self) -> dict[str, object]:
        """Returns the verdict as JSON values."""
        return dataclasses.asdict(self)


def run_mutant(
    mutant: Mutant,
    seeds: Iterable[int],
    *,
    options: RunOptions | None = None,
    rule: str = "",
    passes: Callable[[int, RunOptions], bool] | None = None,
) -> MutantVerdict:
    """Runs seeds with the bug planted until one finds it, and that one again without the bug.

    With a ``rule``, by name, only that one may convict the bug; the run without it must still pass them all. An
    exception out of a run is a defect of the kit, or of the mutant: it finds nothing, and ends the hunt. ``passes``
    says whether a seed passes without the bug, for callers that remember it; by default the seed is run.
    """
    count = spoiled = 0
    verdict = _unjudged(mutant, rule)
    for seed in seeds:
        chosen = options if options is not None else mutant.run_of(seed)
        count += 1
        try:
            with planted(mutant):
                result = run_seed(seed, _alone(chosen, rule) if rule else chosen)
            innocent = not result.violations or (passes or _passes)(seed, chosen)
        except Exception as error:  # noqa: BLE001 - part of the verdict; the hunt for other mutants goes on
            detail = f"seed {seed}: {kit_failed(seed, error).violations[0]}"
            return dataclasses.replace(verdict, seeds=count, spoiled=spoiled, detail=detail)
        if not result.violations:
            continue
        if not innocent:
            spoiled += 1
            continue
        return dataclasses.replace(
            verdict,
            found=True,
            seeds=count,
            found_by=finder_of(result.violations[0]),
            detail=f"seed {seed}: {result.violations[0]}",
            spoiled=spoiled,
        )
    return dataclasses.replace(verdict, seeds=count, spoiled=spoiled)


def _passes(seed: int, options: RunOptions) -> bool:
    return run_seed(seed, options).passed


def _unjudged(mutant: Mutant, rule: str) -> MutantVerdict:
    return MutantVerdict(
        name=mutant.name,
        area=mutant.area,
        text=mutant.text,
        profile=mutant.profile.name if mutant.profile is not None else "swarm",
        found=False,
        seeds=0,
        found_by="",
        detail="",
        rule=rule,
    )


def _alone(options: RunOptions, rule: str) -> RunOptions:
    """Returns the options with all other rules off, and a shorter wait for healing unless that is the rule."""
    asked = dataclasses.replace(options, only=frozenset({rule}))
    if asked.may_convict("stuck"):
        return asked
    return dataclasses.replace(asked, healing_seconds=min(HEALING_ALONE_SECONDS, options.healing_seconds))


def judges_of(mutant: Mutant) -> tuple[str, ...]:
    """Returns the rules and checkers that must convict a mutant alone, else the profile in which all hunt it."""
    rules = tuple(rule for rule, trial in ALONE.items() if trial.mutant == mutant.name)
    profile = mutant.profile.name if mutant.profile is not None else "swarm"
    return mutant.judges or rules or (f"any rule, profile {profile}",)


def finder_of(violation: str) -> str:
    """Returns the name of the invariant or checker in a violation's text."""
    parts = violation.split(": ")
    if parts[0].endswith(" s") or parts[0] == "at the end":
        return parts[1]
    return parts[0].split(" at ")[0]


def run_mutants(
    names: Iterable[str] | None = None,
    *,
    rules: Iterable[str] = (),
    seeds_max: int = SEEDS_MAX,
    processes: int | None = None,
) -> Iterator[MutantVerdict]:
    """Hunts mutants over the cores, one mutant per task; yields verdicts as they finish.

    Each of ``rules`` is also tested alone with the mutant meant for it (``ALONE``).

    Raises:
        KeyError: A name is unknown.
    """
    chosen = [(MUTANTS[name].name, "") for name in (names if names is not None else MUTANTS)]
    chosen += [(ALONE[rule].mutant, rule) for rule in rules]
    with workers(processes, tasks=len(chosen)) as pool:
        hunts = {pool.submit(_hunt, name, rule, seeds_max): (name, rule) for name, rule in chosen}
        for hunt in concurrent.futures.as_completed(hunts):
            try:
                verdict = hunt.result()
            except concurrent.futures.BrokenExecutor as error:
                verdict = _not_hunted(*hunts[hunt], error)
            yield verdict


def _not_hunted(name: str, rule: str, error: Exception) -> MutantVerdict:
    """The verdict where a worker process died: nothing was found."""
    detail = kit_failed(0, error).violations[0]
    return dataclasses.replace(_unjudged(MUTANTS[name], rule), detail=detail)


def _hunt(name: str, rule: str, seeds_max: int) -> MutantVerdict:
    seeds = range(1, 1 + seeds_max)
    return run_trial(rule, seeds) if rule else run_mutant(MUTANTS[name], seeds)


def run_trial(rule: str, seeds: Iterable[int]) -> MutantVerdict:
    """Runs one rule on a mutant with all other rules off.

    Raises:
        KeyError: No mutant is meant for the rule.
    """
    trial = ALONE[rule]
    mutant = MUTANTS[trial.mutant]
    if trial.profile is not None:
        mutant = dataclasses.replace(mutant, profile=trial.profile)
    return run_mutant(mutant, seeds, rule=rule)
