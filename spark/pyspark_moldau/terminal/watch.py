"""Shows the progress of a streaming query in the terminal while it runs."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pyspark_moldau.terminal.figures import History

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql.streaming.query import StreamingQuery

POLL_S: Final = 0.5
SHOWN_BATCHES: Final = 10


def watch(
    query: StreamingQuery,
    *,
    picture: str | Path | None = None,
    timeout_s: float | None = None,
    console: Console | None = None,
) -> History:
    """Shows a query until it ends or ``timeout_s`` has passed; returns the figures of its micro-batches.

    The query is neither stopped nor are its errors raised. ``picture`` names a file, for example ``query.png``, into
    which the figures are drawn at the end, also at Ctrl-C; the suffix says the format.

    Raises:
        ImportError: ``picture`` is given, and matplotlib is not installed.
        OSError: ``picture`` cannot be written.
        ValueError: the suffix of ``picture`` is no format.
    """
    history = History()
    name = query.name or str(query.id)[:8]
    if picture is not None:
        from pyspark_moldau.terminal.picture import draw

        draw(history, picture, title=name)  # what is wrong with it shows now, and not after hours
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        with Live(table_of(name, history, "starting"), console=console or Console(), refresh_per_second=4) as live:
            while True:
                is_active = query.isActive  # asked first, so that the last report is not missed
                history.add(json.loads(report.json) for report in query.recentProgress)
                state = str(query.status.get("message", "")) if is_active else _end_of(query)
                live.update(table_of(name, history, state))
                if not is_active or (deadline is not None and time.monotonic() >= deadline):
                    break
                time.sleep(POLL_S)
    finally:
        if picture is not None:
            draw(history, picture, title=name)
    return history


def table_of(name: str, history: History, state: str) -> Table:
    """Returns the table of the last micro-batches, with the sums in its caption."""
    # A text of rich, because Spark's errors have parts in brackets, which a string has for markup.
    title = Text(f"query {name}: {state}", style="table.title")
    table = Table(title=title, title_justify="left", caption=summary(history))
    for column in ("batch", "started", "rows", "rows/s", "batch time", "lag"):
        table.add_column(column, justify="left" if column == "started" else "right")
    for batch in list(history.batches)[-SHOWN_BATCHES:]:
        table.add_row(
            str(batch.number),
            batch.started[11:19],
            f"{batch.rows:,}",
            f"{batch.rows_per_second:,.0f}",
            f"{batch.duration_ms / 1000:.2f} s",
            "-" if batch.lag is None else f"{batch.lag:,}",
        )
    return table


def summary(history: History) -> str:
    """Returns one line with the sums over all micro-batches."""
    rate = history.rows / (history.busy_ms / 1000) if history.busy_ms else 0.0
    return f"{history.count:,} batches, {history.rows:,} rows, {rate:,.0f} rows/s while busy"


def _end_of(query: StreamingQuery) -> str:
    failure = query.exception()
    if failure is None:
        return "ended"
    return "failed: " + next((line for line in str(failure).splitlines() if line.strip()), "")
