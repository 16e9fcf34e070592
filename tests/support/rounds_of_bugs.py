"""Draws the picture of docs/proof/rounds.md from its table: ``PYTHONPATH=tests python -m support.rounds_of_bugs``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "proof" / "rounds.md"
PICTURE = DOCS / "assets" / "noticed-bugs.svg"
_ROW: Final = re.compile(
    r"^\| \[(\d+)\]\(([^)]+)\) \| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE
)


class Round(NamedTuple):
    """A row of the table: counts of bugs."""

    number: int
    target: str
    """Link to the round's survivors."""
    areas: str
    planted: int
    nearest: int
    wider: int
    survived: int
    without_effect: int

    @property
    def observable(self) -> int:
        """Bugs that change something a user or a peer could observe."""
        return self.planted - self.without_effect


def rounds(page: str) -> list[Round]:
    """Returns the rows of the table, in their order."""
    return [
        Round(int(number), target, areas, *map(int, counts)) for number, target, areas, *counts in _ROW.findall(page)
    ]


def draw(rows: list[Round], path: Path) -> None:
    """Draws a bar for each round: what the nearest tests noticed, and what wider ones added, of 100%."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "moldau"  # equal figures give equal files
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    numbers = [row.number for row in rows]
    nearest = [100 * row.nearest / row.observable for row in rows]
    wider = [100 * row.wider / row.observable for row in rows]
    panel.bar(numbers, nearest, color="#1f5fa8", label="by the nearest tests")
    panel.bar(numbers, wider, bottom=nearest, color="#e39a2d", label="by wider tests or a seed")
    for row, near, wide in zip(rows, nearest, wider, strict=True):
        panel.annotate(str(row.observable), (row.number, near + wide + 1), ha="center", fontsize=7, color="#555555")
    panel.set_xticks(numbers, [str(number) for number in numbers], fontsize=8)
    panel.set_xlabel("round; above each bar the number of its bugs with an effect")
    panel.set_ylabel("noticed, %")
    panel.set_ylim(0, 109)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(loc="upper left", fontsize=8, frameon=False, ncols=2)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(rounds(PAGE.read_text(encoding="utf-8")), PICTURE)
