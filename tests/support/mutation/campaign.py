"""Draws mutants of the pure cores, and reports which of them neither tests nor short simulations find.

    PYTHONPATH=tests python -m support.mutation.campaign --area replica --mutants 100
    PYTHONPATH=tests python -m support.mutation.campaign --page docs/proof/mutation.md

Each trial runs the tests that call the changed function, the cheapest first, in a forked process. Mutants that pass
all of them, of an area that simulations run, then meet whole simulated clusters. ``survivors.toml`` names the known
survivors that change nothing a user could observe; the score leaves them out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import tomllib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.mutation.areas import AREAS, ROOT, Area, module_name
from support.mutation.operators import Mutant, mutants_of
from support.mutation.report import updated
from support.mutation.trial import FOUND, SURVIVED, UNSWAPPABLE, end_group, forked, record, simulated, tried
from support.proof import ALL_EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from support.mutation.trial import Calls

KNOWN = Path(__file__).with_name("survivors.toml")
BASELINE_SECONDS = 900
TRIAL_CPU_SECONDS = 60
TRIAL_WALL_SECONDS = 900  # a trial that waits for nothing; other processes may slow trials down a lot
SEEDS_FIRST = 700_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The fate of one mutant."""

    mutant: Mutant
    outcome: str
    """One of "test", "seed", "survived", "uncalled" (no test calls the function) and "unswappable"."""


class Campaign:
    """A pytest plugin that puts mutants on trial instead of running the tests once."""

    def __init__(self, area: Area, args: argparse.Namespace) -> None:
        self._area = area
        self._args = args
        self.verdicts: list[Verdict] = []

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Makes Hypothesis stop at the first failing example; a trial needs no smaller one."""
        from hypothesis import Phase, settings  # not before pytest has begun: its plugin rewrites assertions there

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutation", parent=settings(), phases=phases)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the campaign on the collected tests."""
        area = self._area
        for path in area.files():  # also those that no test has imported
            __import__(module_name(path))
        result = Path(self._args.work) / f"{area.name.replace(' ', '-')}-{os.getpid()}.json"
        child = forked(
            lambda: record(session.items, area, result),
            cpu_seconds=BASELINE_SECONDS,
            wall_seconds=4 * BASELINE_SECONDS,
        )
        os.waitpid(child, 0)
        end_group(child)
        noted = json.loads(result.read_text() if result.exists() else '{"failed": "the time limit"}')
        result.unlink(missing_ok=True)
        if "failed" in noted:
            pytest.exit(f"{area.name}: {noted['failed']} fails without any mutant", returncode=1)
        calls: Calls = noted["calls"]
        items = {item.nodeid: item for item in session.items}
        seeds = range(SEEDS_FIRST, SEEDS_FIRST + self._args.seeds) if area.simulated else range(0)
        called: list[tuple[Mutant, Callable[[], int]]] = []
        left: list[Mutant] = []
        for mutant in draw(area, self._args.mutants, self._args.seed):
            tests = sorted(calls.get(f"{mutant.module}:{mutant.place}", []))
            if tests:
                called.append((mutant, partial(tried, mutant, [items[nodeid] for _, nodeid in tests])))
            elif seeds:
                left.append(mutant)
            else:
                self._note(mutant, "uncalled")
        for mutant, code in self._trials(called):
            if code == SURVIVED and seeds:
                left.append(mutant)
            else:
                self._note(mutant, {SURVIVED: "survived", UNSWAPPABLE: "unswappable"}.get(code, "test"))
        for mutant, code in self._trials([(mutant, partial(simulated, mutant, seeds)) for mutant in left]):
            self._note(mutant, {SURVIVED: "survived", UNSWAPPABLE: "unswappable"}.get(code, "seed"))
        return True

    def _note(self, mutant: Mutant, outcome: str) -> None:
        self.verdicts.append(Verdict(mutant=mutant, outcome=outcome))
        if outcome in ("survived", "uncalled"):
            print(f"{outcome}: {mutant.key} (line {mutant.line})", flush=True)

    def _trials(self, work: Sequence[tuple[Mutant, Callable[[], int]]]) -> Iterator[tuple[Mutant, int]]:
        """Yields each mutant with the exit code of its trial; several run at a time."""
        waiting = list(reversed(work))
        running: dict[int, Mutant] = {}
        done = 0
        while waiting or running:
            while waiting and len(running) < self._args.jobs:
                mutant, task = waiting.pop()
                child = forked(task, cpu_seconds=TRIAL_CPU_SECONDS, wall_seconds=TRIAL_WALL_SECONDS)
                running[child] = mutant
            child, status = os.waitpid(-1, 0)
            if child not in running:
                continue
            end_group(child)
            done += 1
            if sys.stderr.isatty() or done % 25 == 0:
                print(f"{self._area.name}: {done} of {len(work)}", file=sys.stderr, flush=True)
            code = os.waitstatus_to_exitcode(status)
            yield running.pop(child), code if code in (SURVIVED, UNSWAPPABLE) else FOUND


def draw(area: Area, count: int, seed: int) -> list[Mutant]:
    """Draws mutants of an area without replacement, the same ones for the same source and seed."""
    every = [mutant for path in area.files() for mutant in mutants_of(module_name(path), path.read_text())]
    return random.Random(f"{seed} {area.name}").sample(every, min(count, len(every)))


def known_survivors() -> dict[str, str]:
    """Returns the mutants that change nothing a user could observe, each with the reason."""
    return {
        str(mutant): str(group["reason"])
        for group in tomllib.loads(KNOWN.read_text())["equivalent"]
        for mutant in group["mutants"]
    }


def summary(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Counts the outcomes of one area."""
    known = known_survivors()
    counts = dict.fromkeys(("test", "seed", "survived", "uncalled", "equivalent"), 0)
    for verdict in verdicts:
        if verdict.outcome == "unswappable":
            continue
        lives = verdict.outcome in ("survived", "uncalled")
        counts["equivalent" if lives and verdict.mutant.key in known else verdict.outcome] += 1
    return counts


def parser() -> argparse.ArgumentParser:
    """Returns the command line of the campaign."""
    parser = argparse.ArgumentParser(prog="python -m support.mutation.campaign", description=__doc__)
    parser.add_argument("--area", action="append", choices=[area.name for area in AREAS], help="default: all")
    parser.add_argument("--mutants", type=int, default=60, help="drawn from each area")
    parser.add_argument("--seeds", type=int, default=4, help="simulated clusters that a mutant meets after the tests")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", default="/tmp", help="folder for files of a run")
    parser.add_argument("--result", help="file that gets the result as JSON, area by area; areas not run are kept")
    parser.add_argument("--page", help="page whose table gets the rows of this draw")
    return parser


def main() -> int:
    """Runs the campaign and prints a table."""
    args = parser().parse_args()
    os.chdir(ROOT)
    os.environ[ALL_EXAMPLES] = "1"
    result = Path(args.result) if args.result else None
    rows: dict[str, dict[str, object]] = json.loads(result.read_text()) if result and result.exists() else {}
    failed = False
    for area in AREAS:
        if args.area and area.name not in args.area:
            continue
        started = time.monotonic()
        campaign = Campaign(area, args)
        options = ["-q", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not proof"]
        failed |= pytest.main([*options, *area.tests], plugins=[campaign]) not in (0, 5)
        counts = summary(campaign.verdicts)
        survivors = [
            {"key": each.mutant.key, "line": each.mutant.line, "outcome": each.outcome}
            for each in campaign.verdicts
            if each.outcome in ("survived", "uncalled") and each.mutant.key not in known_survivors()
        ]
        rows[area.name] = {**counts, "survivors": survivors, "seconds": round(time.monotonic() - started)}
        print(json.dumps({area.name: counts}), flush=True)
        if result:
            result.write_text(json.dumps(rows, indent=1))
    if args.page:
        page = Path(args.page)
        measured = {area.name: rows[area.name] for area in AREAS if not args.area or area.name in args.area}
        page.write_text(updated(page.read_text(), measured, args.seed, [area.name for area in AREAS]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
