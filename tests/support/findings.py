"""Writes the index of docs/findings.md from its entries: ``PYTHONPATH=tests python -m support.findings``.

The index has a row for each tag. A tag without a row gets one among the areas; a new method of finding needs a row with
its description first.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
ENTRY = re.compile(r'^- <a id="f(\d+)"></a>\*\*F(\d+)\*\* ((?:`[a-z-]+` ?)+): ', re.MULTILINE)
ROW = re.compile(r"^\| `(?P<tag>[a-z-]+)` \|(?P<words> [^|\[]+\|)? (?:\[\d+\]\(#f\d+\) ?)*\|$", re.MULTILINE)
AREAS = re.compile(r"## Index by area\n\| tag \| findings \|\n\|---\|---\|\n(?P<rows>(?:\|.*\n)*)")


def entries(page: str) -> dict[int, list[str]]:
    """Returns the tags of each finding, by its number."""
    return {int(number): re.findall(r"`([a-z-]+)`", tags) for _, number, tags in ENTRY.findall(page)}


def with_index(page: str) -> str:
    """Returns the page with the index that its entries give; a row that a merge has doubled stands once."""
    numbers: dict[str, list[int]] = {}
    for number, tags in sorted(entries(page).items()):
        for tag in tags:
            numbers.setdefault(tag, []).append(number)
    seen = set[str]()

    def row(tag: str, words: str) -> str:
        seen.add(tag)
        return f"| `{tag}` |{words} {' '.join(f'[{number}](#f{number})' for number in numbers[tag])} |"

    lines = list[str]()
    for line in page.split("\n"):
        found = ROW.fullmatch(line)
        if found is None:
            lines.append(line)
        elif found["tag"] in numbers and found["tag"] not in seen:
            lines.append(row(found["tag"], found["words"] or ""))
    added = [row(tag, "") for tag in sorted(numbers.keys() - seen)]

    def sorted_rows(found: re.Match[str]) -> str:
        start = found.start("rows") - found.start()
        rows = sorted([*found["rows"].splitlines(), *added], key=lambda each: each.split("`")[1])
        return found[0][:start] + "".join(f"{each}\n" for each in rows)

    return AREAS.sub(sorted_rows, "\n".join(lines))


if __name__ == "__main__":
    PAGE.write_text(with_index(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
