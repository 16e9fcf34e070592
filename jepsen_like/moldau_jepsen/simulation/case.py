"""A case is a run that is worth keeping: a seed with an explicit plan of faults, and what must come of it.

Cases are files in JSON. One without a mutant or a control must be clean: it once found a bug. One with a planted bug,
or with a configuration that promises less, must be convicted by one of the invariants or checkers that it names.

A seed alone is a poor regression test, because what it draws changes with the code; so the faults and the other draws
that matter are written out.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from moldau_jepsen.simulation.campaign import Result, RunOptions, kit_failed, run_seed
from moldau_jepsen.simulation.controls import CONTROLS
from moldau_jepsen.simulation.faults import FaultKind, PlannedFault, Struck
from moldau_jepsen.simulation.mutants import finder_of, planted
from moldau_jepsen.simulation.planted.registry import MUTANTS
from moldau_jepsen.simulation.profiles import PROFILES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DRAWS = (
    "fault_seconds",
    "synced",
    "directories",
    "struck",
    "transactions",
    "pipe",
    "topics",
    "bank",
    "seeks",
    "variety",
    "core_first",
)
"""Fields of ``RunOptions`` that a case may set."""


class CaseError(Exception):
    """A file that is no case, or one that names what does not exist; the text is one line for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kept run."""

    name: str
    why: str
    """Why it is kept, and what it found: one sentence."""
    seeds: tuple[int, ...]
    """All must be clean; or the first that convicts is enough."""
    mutant: str = ""
    """A planted bug by name; empty for none."""
    control: str = ""
    """A configuration that promises less, by name; empty for the usual one."""
    profile: str = ""
    """The profile whose options the run has, by name; empty for the swarm's, or those of the mutant or control."""
    convicted_by: tuple[str, ...] = ()
    """Invariants and checkers of which one must convict; empty: the run must be clean."""
    faults: tuple[PlannedFault, ...] | None = None
    """None: what the seed draws."""
    draws: Mapping[str, object] | None = None
    """What is not left to the seed, by field of ``RunOptions``; see ``DRAWS``."""

    def options(self, seed: int) -> RunOptions:
        """What the run of a seed consists of."""
        chosen = RunOptions()
        if self.profile:
            chosen = PROFILES[self.profile].of_seed(seed)
        elif self.mutant:
            chosen = MUTANTS[self.mutant].run_of(seed)
        elif self.control:
            chosen = CONTROLS[self.control].options
        draws = dict(self.draws or {})
        if draws.get("struck") is not None:
            draws["struck"] = Struck(draws["struck"])
        if self.faults is not None:
            draws["faults"] = self.faults
        return replace(chosen, **draws)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Returns the case as JSON values."""
        document: dict[str, object] = {"name": self.name, "why": self.why, "seeds": list(self.seeds)}
        for name in ("mutant", "control", "profile"):
            if getattr(self, name):
                document[name] = getattr(self, name)
        if self.convicted_by:
            document["convicted_by"] = list(self.convicted_by)
        if self.draws:
            document["draws"] = dict(self.draws)
        if self.faults is not None:
            document["faults"] = faults_to_json(self.faults)
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseVerdict:
    """What came of a case."""

    case: Case
    kept: bool
    """Whether it ended as it must."""
    seeds: int
    """How many were run."""
    text: str
    """What was found, or that nothing was."""
    seconds: float
    """Processor time of all runs."""
    result: Result
    """Of the last run."""


def faults_to_json(faults: tuple[PlannedFault, ...]) -> list[dict[str, object]]:
    """Returns a plan as JSON values."""
    return [
        {
            name: value.value if isinstance(value, FaultKind) else value
            for name, value in ((each.name, getattr(fault, each.name)) for each in fields(fault))
        }
        for fault in faults
    ]


def faults_from_json(document: object) -> tuple[PlannedFault, ...]:
    """Reads a plan. Raises ``CaseError``."""
    try:
        return tuple(
            PlannedFault(**{**fault, "kind": FaultKind(fault["kind"])})
            for fault in cast("list[dict[str, Any]]", document)
        )
    except (TypeError, KeyError, ValueError) as error:
        raise CaseError(f"not a plan of faults: {error}") from error


def case_from_json(document: object) -> Case:
    """Reads a case. Raises ``CaseError``."""
    try:
        given = dict(cast("dict[str, object]", document))
        faults = faults_from_json(given.pop("faults")) if given.get("faults") is not None else None
        case = Case(
            name=str(given.pop("name")),
            why=str(given.pop("why")),
            seeds=tuple(int(seed) for seed in cast("list[int]", given.pop("seeds"))),
            mutant=str(given.pop("mutant", "")),
            control=str(given.pop("control", "")),
            profile=str(given.pop("profile", "")),
            convicted_by=tuple(map(str, cast("list[str]", given.pop("convicted_by", [])))),
            faults=faults,
            draws=cast("dict[str, object] | None", given.pop("draws", None)),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise CaseError(f"not a case: {type(error).__name__} {error}") from error
    if given:
        raise CaseError(f"unknown fields: {', '.join(sorted(given))}")
    unknown = [name for name in case.draws or () if name not in DRAWS]
    if unknown:
        raise CaseError(f"draws of a case are {', '.join(DRAWS)}, not {', '.join(unknown)}")
    if case.mutant and case.mutant not in MUTANTS:
        raise CaseError(f"there is no mutant {case.mutant!r}")
    if case.control and case.control not in CONTROLS:
        raise CaseError(f"there is no control {case.control!r}")
    if case.profile and case.profile not in PROFILES:
        raise CaseError(f"there is no profile {case.profile!r}")
    if bool(case.mutant or case.control) != bool(case.convicted_by):
        raise CaseError("convicted_by belongs to a mutant or a control, and each of them needs it")
    if not case.seeds:
        raise CaseError("a case needs a seed")
    return case


def read_case(path: Path) -> Case:
    """Reads a case from a file. Raises ``CaseError``."""
    try:
        return case_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CaseError(f"{path}: {error}") from error
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from error


def write_case(case: Case, directory: Path) -> Path:
    """Writes a case into a folder, under its name. Raises ``OSError``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{case.name}.json"
    path.write_text(json.dumps(case.to_json(), indent=2) + "\n", encoding="utf-8")
    return path


def run_case(case: Case, *, detailed: bool = False) -> CaseVerdict:
    """Runs a case."""
    began = time.process_time()
    result: Result | None = None
    text = ""
    count = 0
    for seed in case.seeds:
        count += 1
        with planted(MUTANTS[case.mutant]) if case.mutant else contextlib.nullcontext():
            try:
                result = run_seed(seed, case.options(seed), detailed=detailed)
            except Exception as error:  # noqa: BLE001 - the other cases are run; this one has not ended as it must
                result = kit_failed(seed, error)
        text = f"seed {seed}: {result.violations[0]}" if result.violations else "nothing was found"
        convicted = any(finder_of(violation) in case.convicted_by for violation in result.violations)
        if convicted if case.convicted_by else result.violations:
            break
    assert result is not None, "a case has a seed"
    kept = convicted if case.convicted_by else not result.violations
    seconds = time.process_time() - began
    return CaseVerdict(case=case, kept=kept, seeds=count, text=text, seconds=seconds, result=result)
