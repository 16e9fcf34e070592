"""Goal: a reader finds every finding through the index, and every test that a page names exists.

Method: entries of docs/findings.md are compared with its index; paths of tests in all pages are looked up.
"""

import re
from pathlib import Path

import pytest

from support.findings import ENTRY, PAGE, ROW, entries, with_index

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


def test_the_index_names_each_finding_under_its_tags():
    assert with_index(FINDINGS) == FINDINGS, "run: PYTHONPATH=tests python -m support.findings"


@pytest.mark.parametrize("tag", ["admin", "reading"])
def test_the_command_mends_an_index(tag):
    (row,) = (each[0] for each in ROW.finditer(FINDINGS) if each["tag"] == tag)
    for damaged in (f"{row}\n{row}", row.replace("](#f", "0](#f", 1)):
        assert with_index(FINDINGS.replace(row, damaged)) == FINDINGS
    lost = FINDINGS.replace(f"{row}\n", "")
    assert (with_index(lost) == FINDINGS) == (tag == "admin"), "the description of a method is lost with its row"


def test_tests_that_pages_name_exist():
    named = {
        (str(page.relative_to(ROOT)), name)
        for page in PAGES
        for name in re.findall(r"`(tests/[\w./-]+)`", page.read_text(encoding="utf-8"))
    }
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []
