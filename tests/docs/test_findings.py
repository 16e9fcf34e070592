"""Goal: a reader finds every finding by its tags, and every test that a page names exists.

Method: entries of docs/findings.md are compared with its table of tags; paths of tests in all pages are looked up.
"""

import re
from pathlib import Path

from support.findings import ENTRY, METHODS, PAGE, entries, with_tags

ROOT = Path(__file__).parents[2]
FINDINGS = PAGE.read_text(encoding="utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_each_entry_has_a_number_of_its_own():
    """A new entry goes to the end of its section, and numbers may be left out, so that several people can add some."""
    anchors = [int(anchor) for anchor, _, _ in ENTRY.findall(FINDINGS)]
    assert anchors == list(entries(FINDINGS))
    assert [int(number) for _, number, _ in ENTRY.findall(FINDINGS)] == anchors
    assert anchors
    assert len(anchors) == len(re.findall(r"^- ", FINDINGS, re.MULTILINE)), "an entry does not have the form of others"


def test_each_entry_has_an_area_and_a_method():
    tags = entries(FINDINGS)
    assert [number for number, each in tags.items() if not set(each) & METHODS.keys()] == []
    assert [number for number, each in tags.items() if not set(each) - METHODS.keys()] == []


def test_the_table_counts_the_tags():
    assert with_tags(FINDINGS) == FINDINGS, "run: PYTHONPATH=tests python -m support.findings"


def test_the_command_replaces_a_table_that_a_merge_has_damaged():
    row = next(line for line in FINDINGS.split("\n") if line.startswith("| `reading` |"))
    for damaged in (f"{row}\n{row}", "| `reading` | 1 |", ""):
        assert with_tags(FINDINGS.replace(row, damaged)) == FINDINGS


def test_tests_that_pages_name_exist():
    named = {
        (str(page.relative_to(ROOT)), name)
        for page in PAGES
        for name in re.findall(r"`(tests/[\w./-]+)`", page.read_text(encoding="utf-8"))
    }
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []
