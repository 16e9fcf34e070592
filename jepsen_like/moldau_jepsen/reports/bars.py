"""A histogram as inline SVG: counts of buckets whose ends grow by a factor."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from moldau_jepsen.reports.chart import short_number

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 960
HEIGHT = 200
LEFT, RIGHT, TOP, BOTTOM = 20, 20, 22, 40
LABELS_MAX = 12
NUMBERED_MAX = 32
"""With more bars than this only the tallest one shows its count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bucket: all values below ``end`` that are in no bucket before."""

    end: float
    count: int


def bars(values: Sequence[Bar], *, unit: str, title: str) -> str:
    """Draws the buckets side by side; returns an ``svg`` element, or a sentence where there is nothing to draw."""
    top = max((value.count for value in values), default=0)
    if not top:
        return '<p class="hint">None.</p>'
    wide = (WIDTH - LEFT - RIGHT) / len(values)
    high = HEIGHT - TOP - BOTTOM
    floor = TOP + high
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f'<line class="grid" x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}"/>',
    ]
    every = max(1, -(-len(values) // LABELS_MAX))
    for index, value in enumerate(values):
        x = LEFT + index * wide
        tall = high * value.count / top
        if value.count:
            tall = max(tall, 1.5)
        parts.append(
            f'<rect class="bar" x="{x + 0.5:.1f}" y="{floor - tall:.1f}" width="{max(wide - 1, 1):.1f}" '
            f'height="{tall:.1f}"><title>below {short_number(value.end)} {escape(unit)}: {value.count:,}</title></rect>'
        )
        if value.count == top or (value.count and len(values) <= NUMBERED_MAX):
            parts.append(
                f'<text x="{x + wide / 2:.1f}" y="{floor - tall - 5:.1f}" text-anchor="middle">'
                f"{short_number(value.count)}</text>"
            )
        if index % every == every - 1:
            parts.append(
                f'<text x="{x + wide:.1f}" y="{floor + 16}" text-anchor="middle">{short_number(value.end)}</text>'
            )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(unit)}, on a logarithmic scale</text></svg>')
    return "\n".join(parts)
