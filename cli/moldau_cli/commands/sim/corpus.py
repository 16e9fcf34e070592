"""``moldau sim corpus``: kept runs that once found a bug, which continuous integration replays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from moldau_cli import output
from moldau_cli.errors import CommandError, UsageError
from moldau_cli.progress import progress

if TYPE_CHECKING:
    from moldau_jepsen.simulation.campaign.case import Case, CaseVerdict

commands = typer.Typer(help="Kept runs that once found a bug or that convict a planted one.", rich_markup_mode=None)

DEFAULT_CORPUS = Path("tests/simulation/corpus")
Corpus = Annotated[Path, typer.Option("--dir", help="The folder of the cases.")]
Names = Annotated[list[str] | None, typer.Option("--name", help="Only these; default: all.")]


@commands.command("list")
def list_cases(directory: Corpus = DEFAULT_CORPUS, name: Names = None) -> None:
    """List the kept runs."""
    rows: list[dict[str, output.Json]] = [
        {
            "name": case.name,
            "seeds": list(case.seeds),
            "faults": None if case.faults is None else len(case.faults),
            "kept_for": case.mutant or case.control or "clean run",
            "why": case.why,
        }
        for case in _read(directory, name)
    ]
    output.answer_rows("cases", ["name", "seeds", "faults", "kept_for", "why"], rows)


@commands.command()
def run(
    directory: Corpus = DEFAULT_CORPUS,
    name: Names = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Processes; default: one per core.")] = None,
) -> None:
    """Run the kept runs. Exit code 1 if one does not end as it must: clean, or convicted if a bug is planted."""
    from moldau_jepsen.simulation.campaign.corpus import run_corpus

    cases = _read(directory, name)
    verdicts: list[CaseVerdict] = []
    with progress(f"run {len(cases)} cases", len(cases)) as shown:
        for verdict in run_corpus(cases, processes=jobs):
            verdicts.append(verdict)
            shown.update(len(verdicts))
    verdicts.sort(key=lambda each: each.case.name)
    rows: list[dict[str, output.Json]] = [
        {
            "name": each.case.name,
            "as_it_must": each.kept,
            "seeds": each.seeds,
            "seconds": round(each.seconds, 1),
            "found": each.text,
        }
        for each in verdicts
    ]
    output.answer_rows("cases", ["name", "as_it_must", "seeds", "seconds", "found"], rows)
    wrong = [each.case.name for each in verdicts if not each.kept]
    if wrong:
        raise CommandError(f"{len(wrong)} cases did not end as they must: {', '.join(wrong)}")


@commands.command()
def add(
    schedule: Annotated[Path, typer.Argument(help="schedule.json of a failed or shrunk seed's folder.")],
    name: Annotated[str, typer.Option(help="Name of the case; letters, digits and hyphens.")],
    why: Annotated[str, typer.Option(help="The bug that it found, in one sentence.")],
    directory: Corpus = DEFAULT_CORPUS,
) -> None:
    """Keep a run. It must already end as required: clean if its bug is fixed, convicted if a bug is planted."""
    from moldau_jepsen.simulation.campaign.case import CaseError, read_case, run_case, write_case

    if not name or not all(letter.isascii() and (letter.isalnum() or letter == "-") for letter in name):
        raise UsageError(f"{name!r} is not a valid case name: use letters, digits and hyphens")
    if (directory / f"{name}.json").exists():
        raise UsageError(f"the case {name!r} exists already")
    if not schedule.is_file():
        raise UsageError(f"{schedule} is no file: give the schedule.json of a seed's folder")
    try:
        case = replace(read_case(schedule), name=name, why=why)
    except CaseError as error:
        raise UsageError(str(error)) from error
    verdict = run_case(case)
    if not verdict.kept:
        wanted = "convicted by " + " or ".join(case.convicted_by) if case.convicted_by else "clean"
        raise CommandError(f"not kept: the run must be {wanted}, and {verdict.text}")
    try:
        path = write_case(case, directory)
    except OSError as error:
        raise UsageError(f"cannot write below {directory}: {error.strerror}") from error
    output.answer({"case": name, "path": str(path)}, f"kept as {path}")


def _read(directory: Path, names: list[str] | None) -> list[Case]:
    from moldau_jepsen.simulation.campaign.case import CaseError
    from moldau_jepsen.simulation.campaign.corpus import read_corpus

    try:
        cases = read_corpus(directory)
    except CaseError as error:
        raise UsageError(str(error)) from error
    if not cases:
        why = "" if directory.is_dir() else ", which does not exist"
        raise UsageError(f"there are no cases in {directory}{why}; --dir names another folder")
    known = {case.name: case for case in cases}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise UsageError(f"there is no case {unknown[0]!r} in {directory}")
    return [known[name] for name in names] if names else cases
