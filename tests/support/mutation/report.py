"""Keeps the page with the mutation scores: its table holds a row for each core and draw, the text is people's. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COLUMNS = ("core", "draw", "drawn", "first", "tests", "seeds", "equivalent", "open", "score")
OPEN = "## Open"
_HEADER = f"| {' | '.join(COLUMNS)} |"
_Key = tuple[str, int]


class PageError(ValueError):
    """The page has no table of scores where one is expected."""


def updated(page: str, rows: Mapping[str, Mapping[str, object]], draw: int, cores: Sequence[str]) -> str:
    """Returns the page with the rows of one draw in place of former rows of that draw.

    A new draw has its score as ``first``, which stays when the draw is measured again.

    Args:
        page: The page in Markdown.
        rows: For each core its counts, and the ``survivors`` that are open, as the campaign writes them.
        draw: The seed of the draw.
        cores: All cores in the order of the table.

    Raises:
        PageError: The page has no table of scores.
    """
    text, _, listed = page.partition(f"\n{OPEN}\n")
    lines = text.splitlines()
    if _HEADER not in lines:
        raise PageError(f"the page has no line {_HEADER}")
    start = lines.index(_HEADER) + 2
    end = next((at for at in range(start, len(lines)) if not lines[at].startswith("|")), len(lines))
    table: dict[_Key, list[str]] = {}
    for line in lines[start:end]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        table[cells[0], int(cells[1])] = cells
    still_open = [line for line in listed.splitlines() if not any(line.startswith(_item(core, draw)) for core in rows)]
    for core, row in rows.items():
        former = table.get((core, draw))
        cells = _cells(core, draw, row)
        cells[3] = cells[-1] if former is None else former[3]
        table[core, draw] = cells
        survivors = row["survivors"]
        assert isinstance(survivors, list)
        still_open += [f"{_item(core, draw)} `{each['key']}`" for each in survivors]
    ordered = sorted(table, key=lambda key: (cores.index(key[0]), key[1]))
    lines[start:end] = [f"| {' | '.join(table[key])} |".replace("|  |", "| |") for key in ordered]
    return "\n".join([*lines, *(["", OPEN, *still_open] if still_open else [])]) + "\n"


def _item(core: str, draw: int) -> str:
    return f"- {core}, draw {draw}:"


def _cells(core: str, draw: int, row: Mapping[str, object]) -> list[str]:
    counts = [row[name] for name in ("test", "seed", "equivalent", "survived", "uncalled")]
    tests, seeds, equivalent, *left = (count for count in counts if isinstance(count, int))
    missed, found = sum(left), tests + seeds
    score = f"{100 * found / (found + missed):.0f}%" if found + missed else ""
    return [
        *(core, str(draw), str(found + missed + equivalent), ""),
        *map(str, (tests, seeds, equivalent, missed)),
        score,
    ]
