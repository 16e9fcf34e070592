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
    Points = Sequence[tuple[float, float | None]]
    """Seconds from the start, ascending, and values; the line is broken where there is None."""

WIDTH = 960
HEIGHT = 320
LEFT, RIGHT, BOTTOM = 70, 20, 44
TOP_WITH_LABELS, TOP_BARE = 54, 12
LABEL_CHARACTER = 6.6
LEGEND_ROW, LEGEND_STROKE = 18, 18
COLOURS = 8
"""Classes ``c0`` to ``c7`` of the page's style."""
LOW = 200
"""Charts of at most this height have few numbers on their axis."""
TOO_SHORT = '<p class="empty">Too short to draw.</p>'


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One of several lines of a chart; ``points`` as of ``timeline``."""

    label: str
    points: Points


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Measures of a chart in units of its own; pages scale it to their width."""

    left: int = LEFT
    """Where the axis of time begins. Drawings under each other need the same."""
    height: int = HEIGHT


def timeline(
    points: Points,
    *,
    marks: Sequence[Mark],
    spans: Sequence[Span],
    unit: str,
    title: str,
    until_s: float = 0.001,
    size: Size = Size(),
) -> str:
    """Draws ``points`` with marks and shaded spans.

    The axis of time reaches at least to ``until_s``, so that charts under each other can be compared.

    Returns an ``svg`` element; an empty chart says so.
    """
    values = _values(points)
    if len(points) < 2 or not values:
        return TOO_SHORT
    plane = _Plane(
        size=size,
        upper=TOP_WITH_LABELS if marks else TOP_BARE,
        last_s=max(points[-1][0], until_s, *(mark.at_s for mark in marks)),
        greatest=max(values),
    )
    parts = plane.frame(spans, title)
    for corners in plane.paths(points):
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        floor = f"{corners[-1][0]:.1f},{plane.floor} {corners[0][0]:.1f},{plane.floor}"
        parts.append(f'<polygon class="area" points="{line} {floor}"/>')
        parts.append(f'<polyline class="line" points="{line}"/>')
    parts.extend(_mark_elements(marks, plane.x, plane.upper, plane.floor))
    parts.append(f'<text class="unit" x="{size.left}" y="{size.height - 6}">{escape(unit)}</text></svg>')
    return "\n".join(parts)


def lines(
    drawn: Sequence[Line],
    *,
    spans: Sequence[Span],
    unit: str,
    title: str,
    until_s: float = 0.001,
    size: Size = Size(),
) -> str:
    """Draws several lines over each other, with their names below. Lines of fewer than two points are left out."""
    shown = [line for line in drawn if len(line.points) > 1 and _values(line.points)]
    if not shown:
        return TOO_SHORT
    names, rows = _legend([line.label for line in shown], size)
    plane = _Plane(
        size=Size(left=size.left, height=size.height + rows * LEGEND_ROW),
        upper=TOP_BARE,
        last_s=max(until_s, *(line.points[-1][0] for line in shown)),
        greatest=max(max(_values(line.points)) for line in shown),
        below=rows * LEGEND_ROW,
    )
    parts = plane.frame(spans, title)
    for number, line in enumerate(shown):
        for corners in plane.paths(line.points):
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
            parts.append(
                f'<polyline class="{_line_class(number)}" points="{path}"><title>{escape(line.label)}</title>'
                "</polyline>"
            )
    parts.append(f'<text class="unit" x="{size.left}" y="{size.height - 6}">{escape(unit)}</text>')
    return "\n".join([*parts, *names, "</svg>"])


def _widened(corners: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(corners) > 1:
        return corners
    x, y = corners[0]
    return [(x - 1, y), (x + 1, y)]


def _values(points: Points) -> list[float]:
    return [value for _, value in points if value is not None]


def _line_class(number: int) -> str:
    """Colours repeat, dashed from the second time on."""
    return f"line c{number % COLOURS}" + (" dashed" if number // COLOURS % 2 else "")


def _legend(labels: Sequence[str], size: Size) -> tuple[list[str], int]:
    """Names beside strokes of their colours, in as many rows as they need; returns the elements and the rows."""
    parts: list[str] = []
    x, row = float(size.left), 0
    for number, label in enumerate(labels):
        wide = LEGEND_STROKE + 6 + len(label) * LABEL_CHARACTER + 14
        if x + wide > WIDTH and x > size.left:
            x, row = float(size.left), row + 1
        y = size.height + row * LEGEND_ROW
        parts.append(
            f'<line class="{_line_class(number)}" x1="{x:.1f}" y1="{y + 4}" x2="{x + LEGEND_STROKE:.1f}" '
            f'y2="{y + 4}"/><text x="{x + LEGEND_STROKE + 6:.1f}" y="{y + 8}">{escape(label)}</text>'
        )
        x += wide
    return parts, row + 1


class _Plane:
    """Where times and values lie in a drawing."""

    def __init__(self, *, size: Size, upper: int, last_s: float, greatest: float, below: int = 0) -> None:
        """``below`` is what lies under the axis of time besides its labels."""
        self.size = size
        self.upper = upper
        self.last_s = last_s
        self.step = nice_step(max(greatest, 1.0), 5 if size.height > LOW else 3)
        self.top = self.step * math.ceil(max(greatest, 1.0) / self.step)
        self.wide = WIDTH - size.left - RIGHT
        self.high = size.height - upper - BOTTOM - below

    @property
    def floor(self) -> int:
        """Where the axis of time lies."""
        return self.upper + self.high

    def x(self, at_s: float) -> float:
        """Of a moment; what lies beyond the axis is drawn at its end."""
        return self.size.left + self.wide * min(max(at_s / self.last_s, 0.0), 1.0)

    def y(self, value: float) -> float:
        """Of a value."""
        return self.upper + self.high * (1 - value / self.top)

    def paths(self, points: Points) -> list[list[tuple[float, float]]]:
        """Corners of the parts of a line; a point that stands alone becomes a short stroke."""
        found: list[list[tuple[float, float]]] = [[]]
        for at_s, value in points:
            if value is None:
                found.append([])
            else:
                found[-1].append((self.x(at_s), self.y(value)))
        return [_widened(part) for part in found if part]

    def frame(self, spans: Sequence[Span], title: str) -> list[str]:
        """The beginning of the drawing: shaded stretches, and the axes with their numbers."""
        left, wide, floor = self.size.left, self.wide, self.floor
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {self.size.height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
        ]
        for span in spans:
            begin, end = self.x(span.start_s), self.x(span.end_s)
            parts.append(
                f'<rect class="span" x="{begin:.1f}" y="{self.upper}" width="{max(end - begin, 1):.1f}" '
                f'height="{self.high}"><title>{escape(span.label)}</title></rect>'
            )
        for index in range(round(self.top / self.step) + 1):
            y = self.y(index * self.step)
            number = short_number(index * self.step)
            parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{left + wide}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{number}</text>')
        parts.extend(time_ticks(self.last_s, self.x, floor + 20))
        return parts


def time_ticks(last_s: float, x_of: _Scale, y: float) -> list[str]:
    """Labels of an axis of time, at ``y``."""
    step = nice_step(last_s, 10)
    return [
        f'<text class="tick" x="{x_of(index * step):.1f}" y="{y}" text-anchor="middle">{index * step:g} s</text>'
        for index in range(int(last_s / step + 1e-9) + 1)
    ]


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
