"""``moldau sim``: runs, replays and shrinks simulated clusters, and tries planted bugs."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from moldau_cli import output
from moldau_cli.commands.sim import corpus as sim_corpus
from moldau_cli.commands.sim.files import CampaignFiles, keep
from moldau_cli.errors import EXIT_INTERRUPTED, AnsweredError, CommandError, UsageError
from moldau_cli.progress import progress
from moldau_cli.signals import interrupted_by_sigterm
from moldau_cli.words import counted

if TYPE_CHECKING:
    from moldau_jepsen.planted_bug import PlantedBug
    from moldau_jepsen.reports.simulation import CampaignReport, ControlRow
    from moldau_jepsen.simulation import Result, RunOptions
    from moldau_jepsen.simulation.campaign.shrink import Shrunk
    from moldau_jepsen.simulation.mutants.mutant import Mutant
    from moldau_jepsen.simulation.mutants.mutants import MutantVerdict

commands = typer.Typer(help="Run clusters in the deterministic simulation.", rich_markup_mode=None)
commands.add_typer(sim_corpus.commands, name="corpus")

DEFAULT_DIR = Path("moldau-sim")
DEFAULT_SEEDS = 10
SEED_MAX = 2**63 - 1
REPORT_EVERY_S = 60.0
"""Interval at which a running campaign writes its report."""

Jobs = Annotated[int | None, typer.Option("--jobs", "--processes", min=1, help="Processes; default: one per core.")]
Dir = Annotated[Path, typer.Option("--dir", "--out", help="Where the report and the folders of failed seeds go.")]
KindName = Annotated[
    str | None,
    typer.Option("--kind", metavar="NAME", help="A profile, or 'swarm', instead of what the seed draws."),
]
MutantName = Annotated[str | None, typer.Option("--mutant", metavar="NAME", help="With this bug planted.")]


@commands.command()
def run(
    seed: Annotated[int | None, typer.Option(min=0, max=SEED_MAX, help="Run this one seed.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help=f"Run so many seeds (default {DEFAULT_SEEDS}).")] = None,
    hours: Annotated[float | None, typer.Option(min=0.0, help="Run seeds for so long, in real time.")] = None,
    first: Annotated[int, typer.Option("--first", "--from", min=0, max=SEED_MAX, help="First of the seeds.")] = 1,
    mutant: MutantName = None,
    kind: KindName = None,
    guided: Annotated[
        bool,
        typer.Option(
            "--guided", help="Choose the profiles of two thirds of the seeds by the rare states that runs reached."
        ),
    ] = False,
    jobs: Jobs = None,
    controls: Annotated[bool, typer.Option(help="Also run the negative controls, which must be convicted.")] = True,
    directory: Dir = DEFAULT_DIR,
) -> None:
    """Run seeds: clusters with clients and faults, judged after every step. Exit code 1 if a seed fails.

    A campaign (all but --seed) writes a report, and also fails if a negative control is not convicted.
    """
    find_mutant(mutant)
    check_kind(kind)
    if guided and (seed is not None or mutant is not None or kind is not None):
        raise UsageError("--guided chooses among many runs: leave out --seed, --mutant and --kind")
    if seed is not None:
        if seeds is not None or hours is not None:
            raise UsageError("--seed is for one seed; --seeds and --hours are for many")
        _one(seed, directory, mutant or "", kind or "", show_timeline=False)
        return
    if seeds is not None and hours is not None:
        raise UsageError("give either --seeds or --hours")
    if hours is not None and not 0 < hours < math.inf:
        raise UsageError("--hours must be a number above 0")
    count = seeds if hours is None else None
    wanted = _Runs(mutant=mutant or "", kind=kind or "", guided=guided)
    _campaign(first, count, hours, wanted, jobs, directory, controls=controls)


@commands.command()
def replay(
    seed: Annotated[int | None, typer.Argument(min=0, max=SEED_MAX, help="Seed of the run.")] = None,
    schedule: Annotated[Path | None, typer.Option(help="A schedule.json instead of a seed.")] = None,
    mutant: MutantName = None,
    kind: KindName = None,
    directory: Dir = DEFAULT_DIR,
) -> None:
    """Run one seed, or one schedule, again and print its events, and what each node knew, line by line."""
    if (seed is None) == (schedule is None):
        raise UsageError("give a seed or --schedule, and not both")
    if schedule is not None:
        if mutant is not None:
            raise UsageError("a schedule names its own mutant: leave out --mutant")
        if kind is not None:
            raise UsageError("a schedule names its own kind of run: leave out --kind")
        _replay_schedule(schedule)
        return
    assert seed is not None, "one of the two is given"
    find_mutant(mutant)
    check_kind(kind)
    _one(seed, directory, mutant or "", kind or "", show_timeline=True)


def _replay_schedule(schedule: Path) -> None:
    """Runs a case from a file.

    Raises:
        CommandError: the run violated a rule.
    """
    from moldau_jepsen.simulation.campaign.case import CaseError, read_case, run_case

    try:
        case = read_case(schedule)
    except CaseError as error:
        raise UsageError(str(error)) from error
    result = replace(run_case(case, detailed=True).result, mutant=case.mutant, schedule=str(schedule))
    _report(result, show_timeline=True)
    if not result.passed:
        raise CommandError(f"seed {result.seed} of {schedule} failed")


def find_mutant(name: str | None) -> Mutant | None:
    """Returns the planted bug of that name, None for no name.

    Raises:
        UsageError: the name is unknown.
    """
    if name is None:
        return None
    from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS

    found = MUTANTS.get(name)
    if found is None:
        raise UsageError(f"there is no mutant {name!r}; moldau sim mutants --list names them")
    return found


def check_kind(name: str | None) -> None:
    """Accepts the name of a kind of run, or none.

    Raises:
        UsageError: the name is unknown.
    """
    if name is None:
        return
    from moldau_jepsen.simulation.guidance.kinds import KINDS

    if name not in KINDS:
        raise UsageError(f"there is no kind of run {name!r}; there are {', '.join(sorted(KINDS))}")


def _one(seed: int, directory: Path, mutant: str, kind: str, *, show_timeline: bool) -> None:
    from moldau_jepsen.simulation import examine
    from moldau_jepsen.simulation.campaign.runner import folder_name

    result = examine(seed, mutant=mutant, kind=kind)
    _report(result, show_timeline=show_timeline)
    if not result.passed:
        where = keep(result, directory) or f"see {directory / folder_name(seed, mutant, kind)}"
        raise CommandError(f"seed {seed} failed; {where}; again: {result.replay_command}")


def _report(result: Result, *, show_timeline: bool) -> None:
    """Writes the answer about one run."""
    if output.wants_json():
        output.answer(cast("dict[str, output.Json]", result.to_json()), "")
        return
    for line in result.timeline if show_timeline else ():
        output.write_line(line)
    output.write_line(_summary(result))


def _summary(result: Result) -> str:
    verdict = "passed" if result.passed else f"FAILED: {result.violations[0]}"
    return (
        f"seed {result.seed}: {verdict} ({counted(result.faults, 'fault')}, {result.acknowledged:,} acknowledged, "
        f"{result.virtual_seconds:.0f} virtual s in {result.wall_seconds:.1f} s, trace {result.trace_hash})"
    )


# --- campaigns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """The runs that a campaign consists of."""

    mutant: str
    kind: str
    guided: bool

    def results(self, seeds: Iterable[int], jobs: int | None) -> Generator[Result, None, None]:
        """Runs the seeds."""
        from moldau_jepsen.simulation import run_guided, run_seeds
        from moldau_jepsen.simulation.guidance.guide import Guide

        if self.guided:
            return run_guided(Guide(seeds), processes=jobs)
        return run_seeds(seeds, processes=jobs, mutant=self.mutant, kind=self.kind)


def _campaign(
    first: int,
    seeds: int | None,
    hours: float | None,
    wanted: _Runs,
    jobs: int | None,
    directory: Path,
    *,
    controls: bool,
) -> None:
    from moldau_jepsen.simulation.campaign.runner import folder_name
    from moldau_jepsen.simulation.campaign.tally import Tally

    count = seeds if seeds is not None else (DEFAULT_SEEDS if hours is None else None)
    numbers: Iterable[int] = range(first, first + count) if count is not None else itertools.count(first)
    label = f"simulate {count} seeds"
    total = count
    if hours is not None:
        label, total = f"simulate for {hours:g} h", round(hours * 3600)
    began = time.monotonic()
    tally = Tally(jobs or os.cpu_count() or 1)
    files = CampaignFiles(directory)
    interrupts: list[str] = []
    report_next_s = REPORT_EVERY_S
    results = wanted.results(_until(numbers, began, hours), jobs)
    with progress(label, total) as shown, _interruptible(interrupts), contextlib.closing(results):
        for result in results:
            folder = folder_name(result.seed, result.mutant, result.kind)
            tally.add(result, "" if result.passed else str(directory / folder))
            if not result.passed:
                output.note(_summary(result))
                if not files.keep(result):
                    tally.lacks_folder(result.seed)
            elapsed_s = time.monotonic() - began
            shown.update(tally.seeds if hours is None else round(elapsed_s))
            if elapsed_s >= report_next_s:
                report_next_s = elapsed_s + REPORT_EVERY_S
                notes = ("The campaign is still running.", *files.notes)
                files.write_report(tally.report(elapsed_s, notes=notes, unfinished="still running"))
    wall_s = time.monotonic() - began
    rows: list[ControlRow] = []
    if controls and not interrupts:
        with _interruptible(interrupts):
            _run_controls(jobs, rows)
    unfinished = "interrupted" if interrupts else ""
    report = tally.report(wall_s, rows, (*interrupts, *files.notes), unfinished=unfinished)
    files.write_report(report)
    _answer_campaign(report, files)
    if (failure := _failure_text(report, files)) is not None:
        raise CommandError(failure)
    if interrupts:
        raise AnsweredError("interrupted", EXIT_INTERRUPTED)


def _until(numbers: Iterable[int], began: float, hours: float | None) -> Iterator[int]:
    """Yields seeds until the time is up."""
    for number in numbers:
        if hours is not None and time.monotonic() - began >= hours * 3600:
            return
        yield number


@contextlib.contextmanager
def _interruptible(notes: list[str]) -> Iterator[None]:
    """Ends the block at an interrupt or SIGTERM and adds a note, so that the campaign can still report."""
    try:
        with interrupted_by_sigterm():
            yield
    except KeyboardInterrupt:
        notes.append("The campaign was interrupted; the figures are those of the seeds that had ended.")
        output.note("interrupted; writing the report")


def _run_controls(jobs: int | None, rows: list[ControlRow]) -> None:
    """Adds verdicts to ``rows`` one by one, so that those of an interrupted trial are kept."""
    from moldau_jepsen.reports.simulation import ControlRow
    from moldau_jepsen.simulation.campaign.controls import control_names, run_controls

    names = control_names()
    with progress(f"judge {len(names)} negative controls", len(names)) as shown:
        for verdict in run_controls(processes=jobs):
            rows.append(
                ControlRow(
                    name=verdict.name,
                    text=verdict.text,
                    convicted=verdict.convicted,
                    seeds=verdict.seeds,
                    found_by=verdict.convicted_by,
                    detail=verdict.detail,
                    skipped=verdict.skipped,
                )
            )
            rows.sort(key=lambda row: names.index(row.name))
            shown.update(len(rows))


def _answer_campaign(report: CampaignReport, files: CampaignFiles) -> None:
    controls: list[output.Json] = [
        {
            "name": row.name,
            "convicted": row.convicted,
            "seeds": row.seeds,
            "found_by": row.found_by,
            "detail": row.detail,
            "skipped": row.skipped,
        }
        for row in report.controls
    ]
    document: dict[str, output.Json] = {
        "seeds": report.seeds,
        "failed": [failure.seed for failure in report.failures],
        "passed": report.passed,
        "unfinished": report.unfinished,
        "virtual_seconds": round(report.virtual_seconds, 1),
        "wall_seconds": round(report.wall_seconds, 1),
        "time_ratio": round(report.time_ratio, 2),
        "seeds_per_hour": round(report.seeds_per_hour),
        "faults": report.faults,
        "acknowledged": report.acknowledged,
        "controls": controls,
        "report": str(files.page),
        "document": str(files.document),
    }
    lines = [
        f"{counted(report.seeds, 'seed')}, {len(report.failures)} failed; {counted(report.faults, 'fault')}, "
        f"{report.acknowledged:,} records acknowledged, {report.virtual_seconds:,.0f} virtual seconds in "
        f"{report.wall_seconds:.0f} s",
        *(f"control {row.name}: {_control_text(row)}" for row in report.controls),
        f"report: {files.page}",
    ]
    output.answer(document, "\n".join(lines))


def _control_text(row: ControlRow) -> str:
    if row.convicted:
        return f"convicted by {row.found_by} in {row.seeds}"
    return f"{row.verdict} ({row.detail})" if row.detail else row.verdict


def _failure_text(report: CampaignReport, files: CampaignFiles) -> str | None:
    """Returns why the campaign failed, in one line; None if it did not. An interrupt is not a failure."""
    if report.failures:
        worst = report.failures[0]
        return f"{counted(len(report.failures), 'seed')} failed; see {files.page}; again: {worst.replay}; smaller: " + (
            worst.replay.replace("sim run --seed", "sim shrink")
        )
    acquitted = [row.name for row in report.controls if row.acquitted]
    if acquitted:
        return f"negative controls were not convicted, so the checkers prove nothing: {', '.join(acquitted)}"
    if files.unwritten:
        return "no seed failed, but files are missing: " + "; ".join(map(": ".join, files.unwritten.items()))
    if not report.seeds and not report.unfinished:
        return "no seed was run: the time was over before the first"
    return None


# --- shrinking


@commands.command()
def shrink(
    seed: Annotated[int, typer.Argument(min=0, max=SEED_MAX, help="Seed of a run that fails.")],
    mutant: MutantName = None,
    kind: KindName = None,
    attempts: Annotated[int, typer.Option(min=1, help="Runs to spend.")] = 100,
    directory: Dir = DEFAULT_DIR,
) -> None:
    """Find the fewest faults with which a seed still fails the same way, and write the run with these faults.

    Exit code 1 if the seed does not fail, or if the kit itself failed.
    """
    from moldau_jepsen.simulation.campaign.runner import SCHEDULE_FILE, folder_name, in_detail, kit_findings, options_of
    from moldau_jepsen.simulation.campaign.seed import kit_failed
    from moldau_jepsen.simulation.campaign.shrink import shrink_seed
    from moldau_jepsen.simulation.mutants.mutants import planted

    bug = find_mutant(mutant)
    check_kind(kind)
    schedule = directory / folder_name(seed, mutant or "", kind or "") / SCHEDULE_FILE
    shrunk: Shrunk | None = None
    with progress(f"shrink seed {seed}", attempts) as shown:

        def report(attempt: int, faults: int) -> None:
            shown.update(attempt)
            output.note(f"  run {attempt}: it fails with {counted(faults, 'fault')}")

        try:
            options = options_of(seed, mutant or "", kind or "")
            with planted(bug) if bug is not None else contextlib.nullcontext():
                shrunk = shrink_seed(seed, options, attempts_max=attempts, on_attempt=report)
                if shrunk is not None:
                    smallest = replace(options, faults=shrunk.faults)
                    result = replace(in_detail(shrunk.result, smallest), schedule=str(schedule))
                    result = _as_it_was_run(result, smallest)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - reported as a failure of the kit, in its folder
            result = kit_failed(seed, error)
        else:
            if shrunk is None:
                raise CommandError(f"seed {seed} does not fail: there is nothing to shrink")
    result = replace(result, mutant=mutant or "", kind=kind or "")
    trouble = keep(result, directory)
    if shrunk is None:
        _report(result, show_timeline=False)
    else:
        _answer_shrunk(shrunk, result, schedule.parent)
    broken = kit_findings(result)
    if broken or trouble:
        found = f"{broken[0]}; " if broken else ""
        where = trouble or f"see {schedule.parent}"
        raise CommandError(f"seed {seed}: {found}{where}; again: {result.replay_command}")


def _as_it_was_run(result: Result, options: RunOptions) -> Result:
    """Adds the given plan and draws to a run in which the kit failed, so that it can be run again."""
    from moldau_jepsen.simulation.campaign.case import DRAWS

    if result.draws:
        return result
    draws = {name: getattr(options, name) for name in DRAWS}
    draws["fault_scope"] = options.fault_scope.value if options.fault_scope is not None else None
    return replace(result, plan=tuple(options.faults or ()), draws=draws)


def _answer_shrunk(shrunk: Shrunk, result: Result, folder: Path) -> None:
    from moldau_jepsen.simulation.campaign.case import faults_to_json

    document: dict[str, output.Json] = {
        "seed": result.seed,
        "found_by": shrunk.found_by,
        "faults_before": shrunk.faults_before,
        "faults": cast("list[output.Json]", faults_to_json(shrunk.faults)),
        "runs": shrunk.attempts,
        "violation": shrunk.result.violations[0],
        "violations": list(result.violations),
        "trace_hash": shrunk.result.trace_hash,
        "folder": str(folder),
    }
    shown_faults = [f"  {fault.begin:8.3f} s to {fault.end:8.3f} s  {fault.kind.value}" for fault in shrunk.faults]
    lines = [
        f"{shrunk.faults_before} faults shrank to {len(shrunk.faults)} in {shrunk.attempts} runs, "
        f"found by {shrunk.found_by}",
        *(shown_faults or ["  no fault is needed"]),
        shrunk.result.violations[0],
        f"timeline, history and schedule: {folder}; again: {result.replay_command}",
    ]
    output.answer(document, "\n".join(lines))


# --- planted bugs


@commands.command()
def mutants(
    name: Annotated[list[str] | None, typer.Option("--name", help="Only these; default: all, and all rules.")] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", help="Only these rules and checkers, each with a bug meant for it and all others off."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to try for each mutant.")] = 200,
    jobs: Jobs = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="Only list all planted bugs and the checks that must find them.")
    ] = False,
    write: Annotated[
        Path | None, typer.Option("--write", help="Write the table as Markdown; in a working copy of the sources.")
    ] = None,
) -> None:
    """Plant known bugs one by one and see whether the simulation finds them. Exit code 1 if one survives.

    Then each rule is put on trial: alone, with a bug that it must convict.
    """
    from moldau_jepsen.simulation.mutants.judged import ALONE
    from moldau_jepsen.simulation.mutants.mutants import run_mutants
    from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS

    chosen = list(dict.fromkeys(name or (() if rule else MUTANTS)))
    for one in chosen:
        find_mutant(one)
    rules = list(dict.fromkeys(rule or (() if name else ALONE)))
    for one in rules:
        if one not in ALONE:
            raise UsageError(f"there is no rule {one!r}; docs/mutants.md names them")
    if only_list:
        output.answer_rows(
            "mutants", ["name", "area", "bug", "judges"], _listed(chosen, with_suites=not (name or rule))
        )
        return
    verdicts: list[MutantVerdict] = []
    with progress(f"hunt {len(chosen)} mutants, try {len(rules)} rules", len(chosen) + len(rules)) as shown:
        for verdict in run_mutants(chosen, rules=rules, seeds_max=seeds, processes=jobs):
            verdicts.append(verdict)
            output.note(_verdict_text(verdict))
            shown.update(len(verdicts))
    if write is not None:
        _write_mutants(verdicts, write)
    if output.wants_json():
        output.write_line(json.dumps({"mutants": [verdict.to_json() for verdict in verdicts]}))
    else:
        found: list[dict[str, output.Json]] = [
            {
                "name": one.name,
                "area": one.area,
                "alone": one.rule or None,
                "found": one.found,
                "seeds": one.seeds,
                "found_by": one.found_by or None,
            }
            for one in sorted(verdicts, key=lambda each: (each.rule, each.name))
        ]
        output.answer_rows("mutants", ["name", "area", "alone", "found", "seeds", "found_by"], found)
    survivors = [verdict.name for verdict in verdicts if not verdict.found and not verdict.rule]
    unable = [verdict.rule for verdict in verdicts if not verdict.found and verdict.rule]
    if unable:
        output.note(f"{len(unable)} rules convicted no mutant alone: {', '.join(sorted(unable))}")
    if survivors:
        raise CommandError(f"{len(survivors)} mutants survived: {', '.join(sorted(survivors))}")
    if unable:
        raise CommandError("a rule that convicts no mutant may be unable to fail")


def _listed(names: list[str], *, with_suites: bool) -> list[dict[str, output.Json]]:
    """Returns the rows of the named mutants, and of the bugs of single parts if this is a working copy."""
    from moldau_jepsen.simulation.mutants.mutants import judges_of
    from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
    from moldau_jepsen.simulation.mutants.suites import load_suites

    bugs: list[tuple[PlantedBug, tuple[str, ...]]] = [(MUTANTS[one], judges_of(MUTANTS[one])) for one in names]
    if with_suites:
        try:
            bugs += [(bug, bug.judges) for suite in load_suites(Path.cwd()) for bug in suite.bugs]
        except OSError:
            output.note("the bugs of single parts are listed in a working copy of the sources only")
    return [{"name": bug.name, "area": bug.area, "bug": bug.text, "judges": ", ".join(judges)} for bug, judges in bugs]


def _verdict_text(verdict: MutantVerdict) -> str:
    outcome = f"found by {verdict.found_by} in {verdict.seeds} seeds" if verdict.found else "SURVIVED"
    if not verdict.found and verdict.detail:
        outcome += f" ({verdict.detail})"
    return f"{verdict.name}: {outcome}" + (f" ({verdict.rule} alone)" if verdict.rule else "")


def _write_mutants(verdicts: list[MutantVerdict], path: Path) -> None:
    """Writes the document of planted bugs.

    Raises:
        UsageError: the current directory is not a working copy, or the file cannot be written.
    """
    from moldau_jepsen.simulation.mutants.mutant_table import document

    try:
        path.write_text(document(verdicts, Path.cwd()), encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {error}; --write wants to run in a working copy") from error
