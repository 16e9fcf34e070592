"""A folder of cases: runs that are kept because they found something."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.campaign.case import CaseError, CaseVerdict, read_case, run_case
from moldau_jepsen.simulation.campaign.seed import kit_failed
from moldau_jepsen.workers import workers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from moldau_jepsen.simulation.campaign.case import Case


def read_corpus(directory: Path) -> list[Case]:
    """Reads all cases of a folder, by name.

    Raises:
        CaseError: A file is not a case, or its name is not that of its case.
    """
    cases: list[Case] = []
    for path in sorted(directory.glob("*.json")):
        case = read_case(path)
        if case.name != path.stem:
            raise CaseError(f"{path}: the case in it is called {case.name!r}")
        cases.append(case)
    return cases


def run_corpus(cases: Sequence[Case], *, processes: int | None = None) -> Iterator[CaseVerdict]:
    """Runs cases over the cores, one per task; yields verdicts as they come."""
    with workers(processes, tasks=len(cases)) as pool:
        running = {pool.submit(run_case, case): case for case in cases}
        for future in concurrent.futures.as_completed(running):
            try:
                verdict = future.result()
            except concurrent.futures.BrokenExecutor as error:
                verdict = _not_run(running[future], error)
            yield verdict


def _not_run(case: Case, error: Exception) -> CaseVerdict:
    """Returns the verdict where a worker process died."""
    result = kit_failed(case.seeds[0], error)
    text = f"seed {result.seed}: {result.violations[0]}"
    return CaseVerdict(case=case, kept=False, seeds=0, text=text, seconds=0.0, result=result)
