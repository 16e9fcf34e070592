"""Defines cases: kept runs, each a seed with an explicit plan of faults and the expected verdict.

Cases are JSON files. A case without a mutant or a control once found a bug, and must be clean. A case with a planted
bug, or with a configuration that promises less, must be convicted by one of the invariants or checkers that it names.

A seed alone is a poor regression test, because its draws change with the code. So a case contains the faults and the
other important draws.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from moldau_jepsen.faults.kinds import SIMULATED_KINDS, FaultKind, PlannedFault
from moldau_jepsen.simulation.campaign.controls import CONTROLS
from moldau_jepsen.simulation.campaign.options import Result, RunOptions
from moldau_jepsen.simulation.campaign.seed import kit_failed, run_seed
from moldau_jepsen.simulation.guidance.kinds import CHOSEN
from moldau_jepsen.simulation.inject.faults import FaultScope
from moldau_jepsen.simulation.mutants.mutants import finder_of, planted
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DRAWS = (
    "fault_seconds",
    "synced",
    "directories",
    "fault_scope",
    "transactions",
    "pipe",
    "topics",
    "bank",
    "members",
    "seeks",
    "variety",
    "core_first",
    "transaction_level",
    "security",
    "quotas",
    "compaction",
    "sharing",
    "streams",
    "administration",
    "share_administration",
    "racks",
    "short_sequences",
    "timed_syncs",
    "few_acks",
    "tiered",
)
"""Fields of ``RunOptions`` that a case may set."""
FORMER_DRAWS = {"struck": "fault_scope"}
"""Names of fields in cases that earlier releases wrote."""
FAULT_FIELDS = {one.name for one in fields(PlannedFault)}
KINDS = tuple(kind.value for kind in SIMULATED_KINDS)
SECONDS_MAX = 1_000_000
TRANSACTION_LEVELS = (1, 2)
SHOWN_MAX = 80
"""Characters of a wrong value in a message."""


class CaseError(Exception):
    """A file is not a case, or names an unknown rule, mutant or control; the message is one line for the user."""


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
    """Values that the seed does not decide, by field of ``RunOptions``; see ``DRAWS``."""

    def options(self, seed: int) -> RunOptions:
        """Returns the options of the run of a seed."""
        chosen = RunOptions()
        if self.profile:
            chosen = CHOSEN[self.profile].of_seed(seed)
        elif self.mutant:
            chosen = MUTANTS[self.mutant].run_of(seed)
        elif self.control:
            chosen = CONTROLS[self.control].options
        draws = dict(self.draws or {})
        if draws.get("fault_scope") is not None:
            draws["fault_scope"] = FaultScope(draws["fault_scope"])
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
    """The verdict on a case."""

    case: Case
    kept: bool
    """Whether it ended as it must."""
    seeds: int
    """How many were run."""
    text: str
    """The finding, or that there was none."""
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
    """Reads a plan.

    Raises:
        CaseError: The case is not valid.
    """
    if not isinstance(document, list):
        raise _wrong("faults", "are a list", document)
    return tuple(_fault_from_json(fault, f"faults[{number}]") for number, fault in enumerate(document))


def _fault_from_json(document: object, place: str) -> PlannedFault:
    if not isinstance(document, dict) or set(document) != FAULT_FIELDS:
        raise _wrong(place, f"has the fields {', '.join(sorted(FAULT_FIELDS))}", document)
    kind, begin, end, number = (document[name] for name in ("kind", "begin", "end", "number"))
    if kind not in KINDS:
        raise _wrong(f"{place}.kind", f"is one of {', '.join(KINDS)}", kind)
    for name, value in (("begin", begin), ("end", end)):
        if not _is_seconds(value):
            raise _wrong(f"{place}.{name}", f"is a number of seconds from 0 to {SECONDS_MAX}", value)
    if end < begin:
        raise _wrong(f"{place}.end", f"is not before begin ({begin})", end)
    if not _is_count(number):
        raise _wrong(f"{place}.number", "is a number from 0 on", number)
    return PlannedFault(kind=FaultKind(kind), begin=begin, end=end, number=number)


def _draws_from_json(document: object) -> dict[str, object]:
    if not isinstance(document, dict):
        raise _wrong("draws", "are an object", document)
    draws: dict[str, object] = {FORMER_DRAWS.get(str(name), str(name)): value for name, value in document.items()}
    unknown = [name for name in draws if name not in DRAWS]
    if unknown:
        raise CaseError(f"draws of a case are {', '.join(DRAWS)}, not {', '.join(unknown)}")
    for name, value in draws.items():
        place = f"draws.{name}"
        if name == "fault_seconds":
            if not _is_seconds(value):
                raise _wrong(place, f"is a number of seconds from 0 to {SECONDS_MAX}", value)
        elif value is None:
            continue  # left to the seed
        elif name == "fault_scope":
            if value not in [one.value for one in FaultScope]:
                raise _wrong(place, f"is one of {', '.join(one.value for one in FaultScope)}, or null", value)
        elif name == "directories":
            if not _is_count(value) or value == 0:
                raise _wrong(place, "is a number from 1 on, or null", value)
        elif name == "transaction_level":
            if value not in TRANSACTION_LEVELS or isinstance(value, bool):
                raise _wrong(place, "is 1 or 2, or null", value)
        elif not isinstance(value, bool):
            raise _wrong(place, "is true, false or null", value)
    return draws


def _wrong(place: str, right: str, value: object) -> CaseError:
    shown = json.dumps(value)
    return CaseError(f"{place} {right}, not {shown if len(shown) <= SHOWN_MAX else f'{shown[:SHOWN_MAX]} ...'}")


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= SECONDS_MAX


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _wrong(name, "is a list of texts", value)
    return tuple(value)


def case_from_json(document: object) -> Case:
    """Reads a case from JSON values.

    Raises:
        CaseError: A field is wrong; the message is one line that names the field and the expected value.
    """
    if not isinstance(document, dict):
        raise _wrong("a case", "is an object", document)
    given = dict(document)
    missing = [name for name in ("name", "why", "seeds") if name not in given]
    if missing:
        raise CaseError(f"not a case: it has no {', '.join(missing)}")
    seeds, faults, draws = given.pop("seeds"), given.pop("faults", None), given.pop("draws", None)
    texts = {name: given.pop(name, "") for name in ("name", "why", "mutant", "control", "profile")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise _wrong(name, "is a text", text)
    if not isinstance(seeds, list) or not all(map(_is_count, seeds)):
        raise _wrong("seeds", "are a list of numbers from 0 on", seeds)
    case = Case(
        **texts,
        seeds=tuple(seeds),
        convicted_by=_texts("convicted_by", given.pop("convicted_by", [])),
        faults=faults_from_json(faults) if faults is not None else None,
        draws=_draws_from_json(draws) if draws is not None else None,
    )
    if given:
        raise CaseError(f"unknown fields: {', '.join(sorted(given))}")
    if case.mutant and case.mutant not in MUTANTS:
        raise CaseError(f"there is no mutant {case.mutant!r}")
    if case.control and case.control not in CONTROLS:
        raise CaseError(f"there is no control {case.control!r}")
    if case.profile and case.profile not in CHOSEN:
        raise CaseError(f"there is no profile {case.profile!r}")
    if bool(case.mutant or case.control) != bool(case.convicted_by):
        raise CaseError("convicted_by belongs to a mutant or a control, and each of them needs it")
    if not case.seeds:
        raise CaseError("a case needs a seed")
    return case


def read_case(path: Path) -> Case:
    """Reads a case from a file.

    Raises:
        CaseError: The case is not valid.
    """
    try:
        return case_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise CaseError(f"{path}: {error}") from error
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from error


def write_case(case: Case, directory: Path) -> Path:
    """Writes a case into a folder, under its name.

    Raises:
        OSError: The file could not be written.
    """
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
