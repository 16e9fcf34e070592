"""A histogram as inline SVG: counts of buckets whose ends grow by a factor."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from moldau_jepsen.reports.chart import LABEL_CHARACTER, WIDTH, Size, both, short_number

if TYPE_CHECKING:
    from collections.abc import Sequence

HEIGHT = 200
LEFT, RIGHT, TOP, BOTTOM = 20, 20, 22, 40
LABELS_MAX, LABELS_NARROW_MAX = 12, 5
NUMBER_CHARACTERS = 4
"""Where bars are too slim for so many characters only the tallest one shows its count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bucket: all values below ``end`` that are in no bucket before."""

    end: float
    count: int


def bars(values: Sequence[Bar], *, unit: str, title: str) -> str:
    """Draws the buckets side by side, for both widths of screens; a sentence where there is nothing to draw."""
    if not any(value.count for value in values):
        return '<p class="hint">None.</p>'
    return both(lambda size: _drawn(values, unit, title, size.width), Size())


def _drawn(values: Sequence[Bar], unit: str, title: str, width: int) -> str:
    top = max(value.count for value in values)
    wide = (width - LEFT - RIGHT) / len(values)
    has_numbers = wide >= NUMBER_CHARACTERS * LABEL_CHARACTER
    high = HEIGHT - TOP - BOTTOM
    floor = TOP + high
    parts = [
        f'<svg viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f'<line class="grid" x1="{LEFT}" y1="{floor}" x2="{width - RIGHT}" y2="{floor}"/>',
    ]
    every = max(1, -(-len(values) // (LABELS_MAX if width == WIDTH else LABELS_NARROW_MAX)))
    for index, value in enumerate(values):
        x = LEFT + index * wide
        tall = high * value.count / top
        if value.count:
            tall = max(tall, 1.5)
        parts.append(
            f'<rect class="bar" x="{x + 0.5:.1f}" y="{floor - tall:.1f}" width="{max(wide - 1, 1):.1f}" '
            f'height="{tall:.1f}"><title>below {short_number(value.end)} {escape(unit)}: {value.count:,}</title></rect>'
        )
        if value.count == top or (value.count and has_numbers):
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
