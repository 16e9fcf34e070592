"""Runs many seeds on all processor cores, and writes folders for those that fail.

Results are values, so they can be sent between processes. A seed that fails is run again in the same process, with a
witness that records the actions and the state of each node. The second run must be the same run; if it is not, that is
another finding.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from moldau_jepsen.history import write_history
from moldau_jepsen.origin import origin
from moldau_jepsen.reports.simulation import seed_page
from moldau_jepsen.simulation.campaign.case import Case, write_case
from moldau_jepsen.simulation.campaign.profiles import drawn_options
from moldau_jepsen.simulation.campaign.seed import add_kit_failure, kit_failed, run_seed
from moldau_jepsen.simulation.campaign.tally import failed_seed, findings_of
from moldau_jepsen.simulation.guidance.kinds import SWARM, chosen_options, kind_of
from moldau_jepsen.simulation.mutants.mutants import finder_of, planted
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS
from moldau_jepsen.workers import run_each

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from moldau_jepsen.simulation.campaign.options import Result, RunOptions
    from moldau_jepsen.simulation.guidance.guide import Guide, Task

SEEDS_PER_WORKER = 50
"""A worker process is replaced after so many seeds, which bounds what a leak could cost."""
SEED_SECONDS_MAX = 3_600.0
"""Real time for one seed, with its second run if it fails: hundreds of times what most take."""
SCHEDULE = "schedule"
SCHEDULE_FILE = f"{SCHEDULE}.json"
HISTORY = "history"
PAGE = "run.html"


def options_of(seed: int, mutant: str = "", kind: str = "") -> RunOptions:
    """Returns the options with which a campaign, or the hunt for a mutant, runs a seed.

    Args:
        seed: The seed.
        mutant: A planted bug, which has runs of its own.
        kind: A kind of run instead of that which the seed or the planted bug has.

    Raises:
        KeyError: The mutant or the kind is unknown.
    """
    if kind:
        return chosen_options(kind, seed)
    return MUTANTS[mutant].run_of(seed) if mutant else drawn_options(seed)


def examine(seed: int, options: RunOptions | None = None, mutant: str = "", kind: str = "") -> Result:
    """Runs a seed, with a bug planted if one is named, and once more in detail if it fails.

    An exception out of the run becomes a finding of the result. ``kind`` is as in ``options_of``.

    Raises:
        KeyError: The mutant or the kind is unknown.
    """
    bug = MUTANTS[mutant] if mutant else None
    chosen = options if options is not None else options_of(seed, mutant, kind)
    try:
        with planted(bug) if bug is not None else contextlib.nullcontext():
            result = run_seed(seed, chosen)
        if not result.passed:
            # Planted again: some bugs count what they did, and the second run must be the first again.
            with planted(bug) if bug is not None else contextlib.nullcontext():
                result = in_detail(result, chosen)
    except Exception as error:  # noqa: BLE001 - the campaign goes on; this seed has failed
        result = kit_failed(seed, error)
    return replace(result, mutant=mutant, kind=kind)


def in_detail(first: Result, options: RunOptions) -> Result:
    """Runs a failed seed once more, with a witness; a bug that was planted must still be there.

    ``options`` are those of the first run. Its violations are not lost if the second run comes to another end, or to
    none: that the kit is broken, or does not repeat itself, is added to them.
    """
    try:
        again = run_seed(first.seed, options, detailed=True)
    except Exception as error:  # noqa: BLE001 - the findings of the first run are reported all the same
        return add_kit_failure(first, error)
    if again.trace_hash != first.trace_hash:
        text = f"not-repeatable: traces {first.trace_hash or 'none'} and {again.trace_hash} of one seed"
        again = replace(again, violations=(*first.violations, f"at the end: {text}"))
    return replace(again, wall_seconds=first.wall_seconds)


def kit_findings(result: Result) -> list[str]:
    """Returns the violations of a result that the kit caused, not the cluster."""
    return [violation for violation in result.violations if finder_of(violation) in ("kit-failed", "not-repeatable")]


def run_seeds(
    seeds: Iterable[int],
    *,
    processes: int | None = None,
    options: RunOptions | None = None,
    mutant: str = "",
    kind: str = "",
    seconds_max: float = SEED_SECONDS_MAX,
) -> Generator[Result, None, None]:
    """Runs seeds over the cores, each in a process of its own pool; yields results as they come.

    Memory is bounded: a seed is handed out when a process is free for it. When the iterator is closed, the seeds that
    run are ended and the others are dropped. A seed that takes longer than ``seconds_max`` of real time has failed with
    the kit, and its process is killed. If a worker process dies, the seed that it ran has failed with the kit, and no
    more are begun.
    """
    outcomes = run_each(
        partial(examine, options=options, mutant=mutant, kind=kind),
        seeds,
        processes=processes,
        tasks_per_worker=SEEDS_PER_WORKER,
        seconds_max=seconds_max,
    )
    with contextlib.closing(outcomes):
        for seed, outcome in outcomes:
            if isinstance(outcome, Exception):
                yield replace(kit_failed(seed, outcome), mutant=mutant, kind=kind)
            else:
                yield outcome


def run_guided(
    guide: Guide, *, processes: int | None = None, seconds_max: float = SEED_SECONDS_MAX
) -> Generator[Result, None, None]:
    """Runs the tasks of a guide over the cores, as ``run_seeds`` does; the guide learns of each result."""
    outcomes = run_each(
        _examine_task,
        guide.tasks(),
        processes=processes,
        tasks_per_worker=SEEDS_PER_WORKER,
        seconds_max=seconds_max,
    )
    with contextlib.closing(outcomes):
        for task, outcome in outcomes:
            if isinstance(outcome, Exception):
                result = replace(kit_failed(task.seed, outcome), kind=task.kind)
            else:
                result = outcome
            guide.add(result)
            yield result


def _examine_task(task: Task) -> Result:
    return examine(task.seed, kind=task.kind)


def case_of(result: Result, name: str, why: str) -> Case:
    """Makes a case of a result of ``examine``: its seed with all faults and draws."""
    kind = "" if result.mutant and not result.kind else kind_of(result)
    found = tuple(dict.fromkeys(finder_of(violation) for violation in result.violations))
    return Case(
        name=name,
        why=why,
        seeds=(result.seed,),
        mutant=result.mutant,
        profile="" if kind == SWARM else kind,
        convicted_by=found if result.mutant else (),
        faults=result.plan,
        draws=dict(result.draws),
    )


def folder_name(seed: int, mutant: str, kind: str = "") -> str:
    """Returns the name of the folder of a failed seed."""
    return "-".join([f"seed-{seed}", *(name for name in (mutant, kind) if name)])


def write_failure(result: Result, directory: Path) -> Path:
    """Writes the folder of a failed seed and returns it.

    ``timeline.txt`` shows what happened and what each node knew, ``verdict.json`` what was violated and by which
    operations, ``run.html`` draws the run over time, ``history`` holds all operations of the clients,
    ``schedule.json`` the run as a case for the corpus. A run that the kit itself did not bring to its end leaves no
    schedule, unless its draws are known all the same.

    Raises:
        OSError: The file could not be written.
    """
    folder = directory / folder_name(result.seed, result.mutant, result.kind)
    folder.mkdir(parents=True, exist_ok=True)
    document = result.to_json()
    timeline = document.pop("timeline")
    assert isinstance(timeline, list)
    findings = [{"kind": one.kind, "text": one.text, "operations": list(one.operations)} for one in findings_of(result)]
    verdict = {**document, "findings": findings}
    (folder / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n", encoding="utf-8")
    lines = [f"again: {result.replay_command}", f"trace: {result.trace_hash}", "", *result.violations, "", *timeline]
    (folder / "timeline.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(seed_page(failed_seed(result, str(folder)), origin()), encoding="utf-8")
    with (folder / HISTORY).open("wb") as stream:
        write_history(stream, result.history)
    why = result.violations[0] if result.violations else ""
    if result.trace_hash or result.draws:
        write_case(case_of(result, SCHEDULE, why), folder)
    return folder
