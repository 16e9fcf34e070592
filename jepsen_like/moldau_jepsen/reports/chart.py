"""A line over time with marked moments, as inline SVG.

Written by hand instead of by a plotting library: the page stays a few kilobytes, text stays text, and colours follow
the page's light or dark scheme by CSS variables.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _Scale = Callable[[float], float]

WIDTH = 960
HEIGHT = 320
LEFT, RIGHT, BOTTOM = 70, 20, 44
TOP_WITH_LABELS, TOP_BARE = 54, 12
LABEL_CHARACTER = 6.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment worth seeing. ``kind`` picks the colour: ``fault`` or ``repair``."""

    at_s: float
    label: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A shaded stretch of time."""

    start_s: float
    end_s: float
    label: str


def nice_step(span: float, steps_max: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that divides ``span`` into at most ``steps_max`` steps."""
    assert span > 0, f"span is {span}"
    assert steps_max > 0, f"steps_max is {steps_max}"
    power = 10.0 ** math.floor(math.log10(span / steps_max))
    for factor in (1, 2, 5, 10):
        if span / (factor * power) <= steps_max:
            return factor * power
    return 10 * power


def short_number(value: float) -> str:
    """1,234,000 as 1.2M, 45,000 as 45k."""
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def timeline(
    points: Sequence[tuple[float, float]],
    *,
    marks: Sequence[Mark],
    spans: Sequence[Span],
    unit: str,
    title: str,
    until_s: float = 0.001,
) -> str:
    """Draws ``points`` (seconds from the start, value; ascending in time) with marks and shaded spans.

    The axis of time reaches at least to ``until_s``, so that charts under each other can be compared.

    Returns an ``svg`` element; an empty chart says so.
    """
    if len(points) < 2:
        return '<p class="empty">Too short to draw.</p>'
    last_s = max(points[-1][0], until_s, *(mark.at_s for mark in marks))
    top = max(max(value for _, value in points), 1.0)
    step = nice_step(top, 5)
    top = step * math.ceil(top / step)
    upper = TOP_WITH_LABELS if marks else TOP_BARE
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - upper - BOTTOM

    def x_of(at_s: float) -> float:
        return LEFT + wide * min(max(at_s / last_s, 0.0), 1.0)

    def y_of(value: float) -> float:
        return upper + high * (1 - value / top)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
    ]
    for span in spans:
        left, right = x_of(span.start_s), x_of(span.end_s)
        parts.append(
            f'<rect class="span" x="{left:.1f}" y="{upper}" width="{max(right - left, 1):.1f}" height="{high}">'
            f"<title>{escape(span.label)}</title></rect>"
        )
    for index in range(round(top / step) + 1):
        y = y_of(index * step)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{LEFT + wide}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short_number(index * step)}</text>'
        )
    time_step = nice_step(last_s, 10)
    for index in range(int(last_s / time_step + 1e-9) + 1):
        x = x_of(index * time_step)
        label = f"{index * time_step:g} s"
        parts.append(f'<text class="tick" x="{x:.1f}" y="{upper + high + 20}" text-anchor="middle">{label}</text>')
    line = " ".join(f"{x_of(at_s):.1f},{y_of(value):.1f}" for at_s, value in points)
    floor = f"{x_of(points[-1][0]):.1f},{upper + high} {x_of(points[0][0]):.1f},{upper + high}"
    parts.append(f'<polygon class="area" points="{line} {floor}"/>')
    parts.append(f'<polyline class="line" points="{line}"/>')
    parts.extend(_mark_elements(marks, x_of, upper, upper + high))
    parts.append(f'<text class="unit" x="{LEFT}" y="{HEIGHT - 6}">{escape(unit)}</text></svg>')
    return "\n".join(parts)


def _mark_elements(marks: Sequence[Mark], x_of: _Scale, top: float, bottom: float) -> list[str]:
    """Vertical lines with labels above; labels that would run into each other go to different rows."""
    parts: list[str] = []
    row_ends = [-math.inf, -math.inf, -math.inf]
    for mark in sorted(marks, key=lambda one: one.at_s):
        x = x_of(mark.at_s)
        wide = len(mark.label) * LABEL_CHARACTER
        anchor, left = ("start", x) if x + wide < WIDTH else ("end", x - wide)
        row = next((index for index, end in enumerate(row_ends) if left > end), len(row_ends) - 1)
        row_ends[row] = left + wide + 8
        y = top - 8 - 14 * row
        parts.append(f'<line class="mark {mark.kind}" x1="{x:.1f}" y1="{y + 3:.1f}" x2="{x:.1f}" y2="{bottom}"/>')
        shift = 4 if anchor == "start" else -4
        parts.append(
            f'<text class="label {mark.kind}" x="{x + shift:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{escape(mark.label)}</text>"
        )
    return parts
