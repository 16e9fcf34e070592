"""Rows of stretches over time, as inline SVG: faults, states of partitions, times without service."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from moldau_jepsen.reports.chart import LABEL_CHARACTER, RIGHT, WIDTH, Size, both, time_ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

LANE_LEFT = 170
"""Room for the names of rows; charts under lanes begin there too. On narrow screens names stand above their rows."""
LANE_HEIGHT = 22
NAME_HEIGHT = 16
AXIS_HEIGHT = 22
NAME_CHARACTERS_MAX = 23
BAND_WIDTH_MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One stretch of a row."""

    start_s: float
    end_s: float
    label: str
    """Shown when the pointer rests on it."""
    kind: str = ""
    """Class of the page's style that picks the colour; empty is that of faults."""
    text: str = ""
    """Written inside, where there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One row."""

    name: str
    bands: Sequence[Band]


def lanes(rows: Sequence[Lane], *, until_s: float, title: str) -> str:
    """Draws rows under each other, with the axis of time below, for both widths of screens; nothing for no rows."""
    if not rows:
        return ""
    return both(lambda size: _drawn(rows, until_s, title, size), Size(left=LANE_LEFT))


def _drawn(rows: Sequence[Lane], until_s: float, title: str, size: Size) -> str:
    above = 0 if size.width == WIDTH else NAME_HEIGHT
    left_edge, wide = size.left, size.width - size.left - RIGHT
    height = len(rows) * (LANE_HEIGHT + above) + AXIS_HEIGHT

    def x_of(at_s: float) -> float:
        return left_edge + wide * min(max(at_s / until_s, 0.0), 1.0)

    parts = [f'<svg viewBox="0 0 {size.width} {height}" role="img" aria-label="{escape(title)}">']
    for number, row in enumerate(rows):
        y = number * (LANE_HEIGHT + above) + above
        cut = len(row.name) > NAME_CHARACTERS_MAX and not above
        name = row.name[: NAME_CHARACTERS_MAX - 1] + "\N{HORIZONTAL ELLIPSIS}" if cut else row.name
        at = f'x="{left_edge}" y="{y - 1}"' if above else f'x="{left_edge - 8}" y="{y + 14}" text-anchor="end"'
        parts.append(
            f"<text {at}>{escape(name)}<title>{escape(row.name)}</title></text>"
            f'<line class="grid" x1="{left_edge}" y1="{y + 20}" x2="{left_edge + wide}" y2="{y + 20}"/>'
        )
        for band in row.bands:
            left, right = x_of(band.start_s), x_of(band.end_s)
            shown = max(right - left, BAND_WIDTH_MIN)
            kind = f"lane {band.kind}" if band.kind else "lane"
            parts.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" width="{shown:.1f}" height="14">'
                f"<title>{escape(band.label)}</title></rect>"
            )
            if band.text and len(band.text) * LABEL_CHARACTER < shown:
                parts.append(
                    f'<text class="inside" x="{left + shown / 2:.1f}" y="{y + 14}" text-anchor="middle">'
                    f"{escape(band.text)}</text>"
                )
    return "\n".join([*parts, *time_ticks(until_s, x_of, height - 4, size), "</svg>"])
