"""The live view as a screen of the terminal, and as plain text for scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from moldau_cli import output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_cli.live.core.samples import View

TABLES: Final = {
    "troubles": ("partition", "problem", "leader", "isr", "replicas"),
    "brokers": (
        *("broker", "address", "state", "leaders", "replicas", "out_of_sync"),
        *("records_per_s", "bytes", "bytes_per_s"),
    ),
    "topics": ("topic", "partitions", "under_replicated", "records_per_s", "bytes", "bytes_per_s"),
    "groups": ("group", "state", "members", "lag", "consumed_per_s"),
}
"""The tables in the order of the screen, with their columns."""
HEAD_LINES: Final = 2
TABLE_LINES: Final = 3
"""Lines of a table beside its rows: title, heading and an empty line."""


def screen(view: View, *, height: int) -> Group:
    """Returns the screen: troubles first, and of each table as many rows as the height has room for."""
    is_bad = view.offline or view.silence or view.silent
    is_poor = view.under_replicated or view.unanswered
    style = "bold red" if is_bad else "bold yellow" if is_poor else "bold green"
    parts: list[Text | Table] = [Text(view.headline, style=style, no_wrap=True, overflow="ellipsis"), Text("")]
    for name, rows, left in _fitted(view, height):
        columns = TABLES[name]
        title = f"{name}, {left} more" if left else name
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in columns:
            is_number = any(isinstance(row[column], int | float) for row in rows)
            table.add_column(column.replace("_", " ").upper(), justify="right" if is_number else "left", no_wrap=True)
        for row in rows:
            cells = [_cell(row[column]) for column in columns]
            is_wrong = name == "troubles" or row.get("state") in ("down", "silent")
            table.add_row(*map(Text, cells), style="red" if is_wrong else "")
        parts += [table, Text("")]
    return Group(*parts)


def text(view: View, *, rows_max: int) -> str:
    """Returns the view as plain text, with at most ``rows_max`` rows of each table."""
    lines = [view.headline]
    for name, columns in TABLES.items():
        rows: Sequence[dict[str, output.Json]] = getattr(view, name)
        if rows:
            shown = [[_cell(row[column]) for column in columns] for row in rows[:rows_max]]
            lines += ["", output.table(list(columns), shown)]
            if len(rows) > rows_max:
                lines.append(f"{len(rows) - rows_max} more {name}")
    return "\n".join(lines)


def _fitted(view: View, height: int) -> list[tuple[str, Sequence[dict[str, output.Json]], int]]:
    """Returns name, rows and the number of hidden rows of each table that has rows.

    Each table has at least one row. Room that small tables do not need goes to the others, troubles first.
    """
    present = {name: getattr(view, name) for name in TABLES if getattr(view, name)}
    room = max(0, height - HEAD_LINES - TABLE_LINES * len(present))
    sizes = dict.fromkeys(present, 1)
    room -= len(present)
    while room > 0 and any(sizes[name] < len(rows) for name, rows in present.items()):
        for name, rows in present.items():
            if room > 0 and sizes[name] < len(rows):
                sizes[name] += 1
                room -= 1
    return [(name, rows[: sizes[name]], len(rows) - sizes[name]) for name, rows in present.items()]


def _cell(value: output.Json) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 10_000 else f"{value:,}"
    return output.cell(value)
