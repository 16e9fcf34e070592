"""``moldau sim``: whole clusters in one process, on virtual time, network and disk, from one seed each."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from moldau_cli import output
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.progress import progress

if TYPE_CHECKING:
    from moldau_jepsen.simulation import Result
    from moldau_jepsen.simulation.mutants import MutantVerdict

commands = typer.Typer(help="Run clusters in the deterministic simulation.", rich_markup_mode=None)

DEFAULT_OUT = Path("moldau-sim")
SEED_MAX = 2**63 - 1

Processes = Annotated[int | None, typer.Option(min=1, help="Default: one per core.")]
Out = Annotated[Path, typer.Option("--out", help="Where the folders of failed seeds go.")]


@commands.command()
def run(
    seed: Annotated[int | None, typer.Option(min=0, max=SEED_MAX, help="Run this one seed.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Run so many seeds.")] = 10,
    first: Annotated[int, typer.Option("--from", min=0, max=SEED_MAX, help="First of the seeds.")] = 1,
    processes: Processes = None,
    out: Out = DEFAULT_OUT,
) -> None:
    """Run seeds: clusters with clients and faults, judged after every step. Exit code 1 if a seed fails."""
    if seed is not None:
        _one(seed, out, show_timeline=False)
        return
    _many(range(first, first + seeds), processes, out)


@commands.command()
def replay(
    seed: Annotated[int, typer.Argument(min=0, max=SEED_MAX, help="Seed of the run.")], out: Out = DEFAULT_OUT
) -> None:
    """Run one seed again and print what happened in it, line by line."""
    _one(seed, out, show_timeline=True)


def _one(seed: int, out: Path, *, show_timeline: bool) -> None:
    from moldau_jepsen.simulation import run_seed

    result = run_seed(seed)
    if output.wants_json():
        output.answer(cast("dict[str, output.Json]", result.to_json()), "")
    else:
        for line in result.timeline if show_timeline else ():
            output.write_line(line)
        output.write_line(_summary(result))
    _judge([result], out)


def _many(seeds: range, processes: int | None, out: Path) -> None:
    from moldau_jepsen.simulation import run_seeds

    began = time.monotonic()
    failed: list[Result] = []
    done = 0
    virtual_s = 0.0
    faults = acknowledged = 0
    with progress(f"simulate {len(seeds)} seeds", len(seeds)) as shown:
        for result in run_seeds(seeds, processes=processes):
            done += 1
            virtual_s += result.virtual_seconds
            faults += result.faults
            acknowledged += result.acknowledged
            if not result.passed:
                failed.append(result)
                output.note(_summary(result))
            shown.update(done)
    wall_s = time.monotonic() - began
    document: dict[str, output.Json] = {
        "seeds": done,
        "failed": [result.seed for result in failed],
        "virtual_seconds": round(virtual_s, 1),
        "wall_seconds": round(wall_s, 1),
        "seeds_per_hour": round(done / wall_s * 3600),
        "faults": faults,
        "acknowledged": acknowledged,
    }
    output.answer(
        document,
        f"{done} seeds, {len(failed)} failed; {faults} faults, {acknowledged:,} records acknowledged, "
        f"{virtual_s:,.0f} virtual seconds in {wall_s:.0f} s",
    )
    _judge(failed, out)


def _summary(result: Result) -> str:
    verdict = "passed" if result.passed else f"FAILED: {result.violations[0]}"
    return (
        f"seed {result.seed}: {verdict} ({result.faults} faults, {result.acknowledged:,} acknowledged, "
        f"{result.virtual_seconds:.0f} virtual s in {result.wall_seconds:.1f} s, trace {result.trace_hash})"
    )


def _judge(results: list[Result], out: Path) -> None:
    """Writes the folders of failed runs and raises for them."""
    from moldau_jepsen.simulation import write_failure

    failed = [result for result in results if not result.passed]
    if not failed:
        return
    try:
        folders = [write_failure(result, out) for result in failed]
    except OSError as error:
        raise UsageError(f"cannot write below {out}: {error.strerror}") from error
    raise CommandError(
        f"{len(failed)} seeds failed; see {', '.join(str(folder) for folder in folders[:3])}; "
        f"again: moldau sim replay {failed[0].seed}"
    )


@commands.command()
def mutants(
    name: Annotated[list[str] | None, typer.Option("--name", help="Only these; default: all.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to try for each mutant.")] = 200,
    processes: Processes = None,
    only_list: Annotated[bool, typer.Option("--list", help="Only list the mutants.")] = False,
) -> None:
    """Plant known bugs one by one and see whether the simulation finds them. Exit code 1 if one survives."""
    from moldau_jepsen.simulation.mutants import MUTANTS, run_mutants

    chosen = list(dict.fromkeys(name or MUTANTS))
    unknown = [one for one in chosen if one not in MUTANTS]
    if unknown:
        raise UsageError(f"there is no mutant {unknown[0]!r}; moldau sim mutants --list names them")
    if only_list:
        rows: list[dict[str, output.Json]] = [
            {"name": one, "area": MUTANTS[one].area, "bug": MUTANTS[one].text} for one in chosen
        ]
        output.answer_rows("mutants", ["name", "area", "bug"], rows)
        return
    verdicts: list[MutantVerdict] = []
    with progress(f"hunt {len(chosen)} mutants", len(chosen)) as shown:
        for verdict in run_mutants(chosen, seeds_max=seeds, processes=processes):
            verdicts.append(verdict)
            shown.update(len(verdicts))
    if output.wants_json():
        output.write_line(json.dumps({"mutants": [verdict.to_json() for verdict in verdicts]}))
    else:
        found: list[dict[str, output.Json]] = [
            {"name": one.name, "found": one.found, "seeds": one.seeds, "found_by": one.found_by or None}
            for one in sorted(verdicts, key=lambda each: each.name)
        ]
        output.answer_rows("mutants", ["name", "found", "seeds", "found_by"], found)
    survivors = [verdict.name for verdict in verdicts if not verdict.found]
    if survivors:
        raise CommandError(f"{len(survivors)} mutants survived: {', '.join(sorted(survivors))}")
