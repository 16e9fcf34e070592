"""Writes the page with the mutation scores. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = """# Generated bugs

The [planted bugs](../mutants.md) were chosen by people. This page measures the tests with bugs that no one chose: a
generator changes one comparison, bound, statement, condition or field in a pure core, and the tests of that core, then
short simulations, must notice. A row shows how many of the drawn bugs were noticed. `make mutation` repeats the
measurement; `MUTATION_ARGS="--area replica --mutants 200"` chooses a core and a number. It is a sample: with 40 bugs,
a score of 95% means between 83% and 99%.

- **tests, seeds**: noticed by a test that calls the changed function; noticed only by a simulated cluster.
- **equivalent**: survivors that change nothing a user could observe; `tests/support/mutation/survivors.toml` gives the
  reason of each. The score leaves them out.
- **open**: survivors that no test notices. They are listed below the table.

"""
COLUMNS = ("core", "drawn", "tests", "seeds", "equivalent", "open", "score")


def page(rows: Mapping[str, Mapping[str, object]], measured: str) -> str:
    """Returns the page in Markdown.

    Args:
        rows: For each core its counts, and the ``survivors`` that are open, as the campaign writes them.
        measured: Says when, and with which arguments.
    """
    lines = [HEAD + measured, "", f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    open_ones: list[str] = []
    for area, row in rows.items():
        counts = {name: row[name] for name in ("test", "seed", "equivalent", "survived", "uncalled")}
        tests, seeds, equivalent, *left = (count for count in counts.values() if isinstance(count, int))
        missed, found = sum(left), tests + seeds
        score = f"{100 * found / (found + missed):.0f}%" if found + missed else ""
        cells = (area, found + missed + equivalent, tests, seeds, equivalent, missed, score)
        lines.append(f"| {' | '.join(map(str, cells))} |")
        survivors = row["survivors"]
        assert isinstance(survivors, list)
        open_ones += [f"- {area}: `{each['key']}`" for each in survivors]
    if open_ones:
        lines += ["", "## Open", *open_ones]
    return "\n".join(lines) + "\n"
