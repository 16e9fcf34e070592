"""Goal: docs/mutants.md names the planted bugs and rules that the code has now, with their texts and profiles.

Method: everything on the page but the measured figures is generated again, and compared.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.mutants.judged import ALONE
from moldau_jepsen.simulation.mutants.mutant_table import document
from moldau_jepsen.simulation.mutants.planted.registry import MUTANTS

if TYPE_CHECKING:
    from moldau_jepsen.simulation.campaign.profile import Profile

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/mutants.md").read_text(encoding="utf-8")
OPEN: list[str] = []
REMEDY = "run: moldau sim mutants --write docs/mutants.md"


def rows(title: str, columns: int) -> list[tuple[str, ...]]:
    """Returns the first cells of each row of the table below a title, without code marks."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [tuple(cell.strip("`") for cell in row[:columns]) for row in cells]


def profile_of(profile: Profile | None) -> str:
    return "swarm" if profile is None else profile.name


def test_the_page_lists_all_bugs_of_whole_clusters() -> None:
    expected = [(bug.name, bug.area, bug.text, profile_of(bug.profile)) for bug in MUTANTS.values()]
    assert sorted(rows("In whole simulated clusters", 4)) == sorted(expected), REMEDY


def test_the_page_lists_the_trial_of_each_rule() -> None:
    expected = [
        (rule, trial.mutant, profile_of(trial.profile or MUTANTS[trial.mutant].profile))
        for rule, trial in ALONE.items()
    ]
    assert sorted(rows("Each rule alone", 3)) == sorted(expected), REMEDY


def test_the_page_lists_the_bugs_of_single_parts() -> None:
    title = "## In single parts"
    assert PAGE.partition(title)[2] == document([], ROOT).partition(title)[2], REMEDY


def test_the_page_has_no_survivor_but_the_open_ones() -> None:
    """An open one was found by former draws, is missed by the present ones, and stands in docs/proof/run-log.md."""
    survivors = re.findall(r"^\| `([a-z-]+)` .*\*\*(?:survived|none in)", PAGE, re.MULTILINE)
    assert survivors == OPEN
    log = (ROOT / "docs/proof/run-log.md").read_text(encoding="utf-8")
    assert [name for name in OPEN if not re.search(rf"^\| `{name}` .*open: missed", log, re.MULTILINE)] == []
