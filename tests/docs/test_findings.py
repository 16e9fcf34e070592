"""Goal: a reader finds every finding through the index, and every test that a page names exists.

Method: entries of docs/findings.md are compared with its index; paths of tests in all pages are looked up.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
ENTRY = re.compile(r'^- <a id="f(\d+)"></a>\*\*F(\d+)\*\* ((?:`[a-z-]+` ?)+): ', re.MULTILINE)
ROW = re.compile(r"^\| `([a-z-]+)` \|(?: [^|\[]+\|)? ((?:\[\d+\]\(#f\d+\) ?)+)\|$", re.MULTILINE)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def entries():
    return {int(number): re.findall(r"`([a-z-]+)`", tags) for _, number, tags in ENTRY.findall(FINDINGS)}


def test_each_entry_has_a_number_of_its_own():
    """A new entry goes to the end of its section, and numbers may be left out, so that several people can add some."""
    anchors = [int(anchor) for anchor, _, _ in ENTRY.findall(FINDINGS)]
    assert anchors == list(entries())
    assert [int(number) for _, number, _ in ENTRY.findall(FINDINGS)] == anchors
    assert anchors
    assert len(anchors) == len(re.findall(r"^- ", FINDINGS, re.MULTILINE)), "an entry does not have the form of others"


def test_the_index_names_each_finding_under_its_tags():
    wanted = {}
    for number, tags in sorted(entries().items()):
        for tag in tags:
            wanted.setdefault(tag, []).append(number)
    tags = [tag for tag, _ in ROW.findall(FINDINGS)]
    assert sorted(tags) == sorted(set(tags)), "a tag has two rows, perhaps since a merge"
    found = {tag: [int(number) for number in re.findall(r"\[(\d+)\]", row)] for tag, row in ROW.findall(FINDINGS)}
    rows = "\n".join(
        f"| `{tag}` | " + " ".join(f"[{number}](#f{number})" for number in numbers) + " |"
        for tag, numbers in sorted(wanted.items())
        if found.get(tag) != numbers
    )
    assert found == wanted, f"rows that differ should be:\n{rows}"


def test_tests_that_pages_name_exist():
    named = {
        (str(page.relative_to(ROOT)), name)
        for page in PAGES
        for name in re.findall(r"`(tests/[\w./-]+)`", page.read_text(encoding="utf-8"))
    }
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []
