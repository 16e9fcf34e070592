"""A folder of cases: runs that are kept because they found something."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.case import CaseError, read_case, run_case

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from moldau_jepsen.simulation.case import Case, CaseVerdict


def read_corpus(directory: Path) -> list[Case]:
    """Reads all cases of a folder, by name. Raises ``CaseError`` for a file that is none, or under a wrong name."""
    cases: list[Case] = []
    for path in sorted(directory.glob("*.json")):
        case = read_case(path)
        if case.name != path.stem:
            raise CaseError(f"{path}: the case in it is called {case.name!r}")
        cases.append(case)
    return cases


def run_corpus(cases: Sequence[Case], *, processes: int | None = None) -> Iterator[CaseVerdict]:
    """Runs cases over the cores, one per task; yields verdicts as they come."""
    count = processes if processes is not None else (os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(count, len(cases) or 1), mp_context=context) as pool:
        for future in concurrent.futures.as_completed([pool.submit(run_case, case) for case in cases]):
            yield future.result()
