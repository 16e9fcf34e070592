"""Writes the figures of a client benchmark as a table (Markdown) and a bar chart (PNG) into one directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines)


def write(directory: str, name: str, text: str, unit: str, figures: Mapping[str, Mapping[str, float]]) -> None:
    """Writes ``name``.md with ``text`` and ``name``.png with a group of bars for each case of ``figures``.

    ``figures`` holds, of each case, a number in ``unit`` for each client.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    home = Path(directory)
    home.mkdir(parents=True, exist_ok=True)
    (home / f"{name}.md").write_text(text)
    clients = list(dict.fromkeys(client for case in figures.values() for client in case))
    width = 0.8 / len(clients)
    drawing, axes = pyplot.subplots(figsize=(9, 4))
    for number, client in enumerate(clients):
        heights = [case.get(client, 0.0) for case in figures.values()]
        axes.bar([at + number * width for at in range(len(figures))], heights, width, label=client)
    axes.set_xticks([at + width * (len(clients) - 1) / 2 for at in range(len(figures))], list(figures))
    axes.set_ylabel(unit)
    axes.legend()
    drawing.tight_layout()
    drawing.savefig(home / f"{name}.png", dpi=120)
    pyplot.close(drawing)
