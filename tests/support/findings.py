"""Writes the table of tags in docs/findings.md from its entries: ``PYTHONPATH=tests python -m support.findings``.

A tag is a method of finding if ``METHODS`` describes it, otherwise an area.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
ENTRY = re.compile(r'^- <a id="f(\d+)"></a>\*\*F(\d+)\*\* ((?:`[a-z-]+` ?)+): ', re.MULTILINE)
TITLE: Final = "## Tags\n"
METHODS: Final = {
    "reading": "close reading of the code, often beside Kafka's",
    "seed": "a seed of the cluster simulation",
    "model": "a model, a campaign of one part, or a planted bug",
    "chaos-run": "chaos on real processes",
    "user": "first use by a new user, a screenshot, or stock files of Kafka",
    "hostile": "hostile clients and hand-made frames",
    "measured": "a measurement or profile",
    "suite": "the test suite, or writing a test",
    "peer": "a comparison with Apache Kafka",
    "librdkafka": "librdkafka",
}


def entries(page: str) -> dict[int, list[str]]:
    """Returns the tags of each finding, by its number."""
    return {int(number): re.findall(r"`([a-z-]+)`", tags) for _, number, tags in ENTRY.findall(page)}


def with_tags(page: str) -> str:
    """Returns the page with the table that its entries give, in place of the one it has."""
    counts = Counter(tag for tags in entries(page).values() for tag in tags)
    areas = ", ".join(f"`{tag}` {counts[tag]}" for tag in sorted(counts.keys() - METHODS.keys()))
    rows = "".join(f"| `{tag}` | {words} | {counts[tag]} |\n" for tag, words in METHODS.items())
    section = f"""{TITLE}
An entry has the tags of its areas, then those of the methods that found it. Search this page for a tag to read its
entries. Areas, with the number of their entries: {areas}.

| tag | found by | entries |
|---|---|---|
{rows}
"""
    before, title, rest = page.partition(TITLE)
    _, heading, after = rest.partition("\n## ")
    if not title or not heading:
        raise ValueError(f"{PAGE.name} has no section {TITLE.strip()!r} with another behind it")
    return f"{before}{section}## {after}"


if __name__ == "__main__":
    PAGE.write_text(with_tags(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
