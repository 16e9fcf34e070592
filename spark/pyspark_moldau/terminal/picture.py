"""Draws the micro-batches of a query: rows per second, lag, and time per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark_moldau.terminal.figures import History


def draw(history: History, path: str | Path, *, title: str) -> None:
    """Writes the picture; the suffix of ``path`` says the format, for example png or svg.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the picture of a query needs matplotlib: pip install 'moldau[spark]'") from error

    batches = list(history.batches)
    numbers = [batch.number for batch in batches]
    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, 1, sharex=True)
    figure.suptitle(f"query {title}: {history.count:,} batches, {history.rows:,} rows")
    panels[0].bar(numbers, [batch.rows_per_second for batch in batches], color="tab:blue")
    panels[0].set_ylabel("rows per second")
    lags = [(batch.number, batch.lag) for batch in batches if batch.lag is not None]
    panels[1].step([number for number, _ in lags], [lag for _, lag in lags], where="mid", color="tab:red")
    panels[1].set_ylabel("lag (offsets)")
    panels[1].set_ylim(bottom=0)
    panels[2].bar(numbers, [batch.duration_ms / 1000 for batch in batches], color="tab:grey")
    panels[2].set_ylabel("time per batch (s)")
    panels[2].set_xlabel("batch")
    figure.savefig(str(path), dpi=120)
