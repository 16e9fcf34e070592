"""A line over time with marked moments, as inline SVG.

Written by hand instead of by a plotting library: the page stays a few kilobytes, text stays text, and colours follow
the page's light or dark scheme by CSS variables. Each chart is drawn twice, for wide and for narrow screens, and the
page's style shows the one that fits: a chart that is scaled down to a telephone has unreadable text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _Scale = Callable[[float], float]
    Points = Sequence[tuple[float, float | None]]
    """Seconds from the start, ascending, and values; the line is broken where there is None."""

WIDTH, NARROW_WIDTH = 960, 380
HEIGHT = 320
LEFT, NARROW_LEFT, RIGHT, BOTTOM = 70, 44, 20, 44
TOP_BARE, LABELS_TOP, LABEL_ROW = 12, 10, 15
LABEL_CHARACTER = 6.6
LABEL_GAP = 8
DOT_RADIUS = 3
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
    """Returns the smallest of 1, 2, 5 times a power of ten that divides ``span`` into at most ``steps_max`` steps."""
    assert span > 0, f"span is {span}"
    assert steps_max > 0, f"steps_max is {steps_max}"
    power = 10.0 ** math.floor(math.log10(span / steps_max))
    for factor in (1, 2, 5, 10):
        if span / (factor * power) <= steps_max:
            return factor * power
    return 10 * power


def short_number(value: float) -> str:
    """Returns a short form of a number: 1.2M for 1,234,000, 45k for 45,000."""
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
    width: int = WIDTH

    @property
    def narrow(self) -> Size:
        """The same for a narrow screen."""
        return replace(self, left=NARROW_LEFT, width=NARROW_WIDTH)


def both(draw: Callable[[Size], str], size: Size) -> str:
    """Draws for wide and for narrow screens; the page's style shows one of them."""
    wide = draw(size)
    if not wide.startswith("<svg"):
        return wide
    return f'<div class="chart"><div class="wide">{wide}</div><div class="narrow">{draw(size.narrow)}</div></div>'


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

    The axis of time reaches at least to ``until_s``, so that charts under each other can be compared. Labels of marks
    take room above the chart.

    Returns ``svg`` elements for both widths of screens; an empty chart says so.
    """
    values = _values(points)
    if len(points) < 2 or not values:
        return TOO_SHORT
    last_s = max(points[-1][0], until_s, *(mark.at_s for mark in marks))

    def draw(size: Size) -> str:
        labels = place_labels(marks, lambda at_s: _x_of(size, at_s, last_s), size.width)
        rows = max((label.row for label in labels), default=-1) + 1
        upper = TOP_BARE if not rows else LABELS_TOP + rows * LABEL_ROW
        grown = replace(size, height=size.height + upper - TOP_BARE)
        plane = _Plane(size=grown, upper=upper, last_s=last_s, greatest=max(values))
        parts = plane.frame(spans, title)
        for corners in plane.paths(points):
            parts.extend(_area(corners, plane.floor))
        parts.extend(_mark_elements(labels, upper, plane.floor))
        parts.append(f'<text class="unit" x="{size.left}" y="{grown.height - 6}">{escape(unit)}</text></svg>')
        return "\n".join(parts)

    return both(draw, size)


def _area(corners: list[tuple[float, float]], floor: float) -> list[str]:
    """A part of a line with the area below it; a point that stands alone is a dot."""
    if len(corners) == 1:
        return [_dot(corners[0], "dot")]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    below = f"{corners[-1][0]:.1f},{floor} {corners[0][0]:.1f},{floor}"
    return [f'<polygon class="area" points="{line} {below}"/>', f'<polyline class="line" points="{line}"/>']


def _dot(corner: tuple[float, float], kind: str, title: str = "") -> str:
    return f'<circle class="{kind}" cx="{corner[0]:.1f}" cy="{corner[1]:.1f}" r="{DOT_RADIUS}">{title}</circle>'


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
    last_s = max(until_s, *(line.points[-1][0] for line in shown))
    greatest = max(max(_values(line.points)) for line in shown)

    def draw(size: Size) -> str:
        names, rows = _legend([line.label for line in shown], size)
        below = rows * LEGEND_ROW
        grown = replace(size, height=size.height + below)
        plane = _Plane(size=grown, upper=TOP_BARE, last_s=last_s, greatest=greatest, below=below)
        parts = plane.frame(spans, title)
        for number, line in enumerate(shown):
            name = f"<title>{escape(line.label)}</title>"
            for corners in plane.paths(line.points):
                if len(corners) == 1:
                    parts.append(_dot(corners[0], f"dot c{number % COLOURS}", name))
                    continue
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
                parts.append(f'<polyline class="{_line_class(number)}" points="{path}">{name}</polyline>')
        parts.append(f'<text class="unit" x="{size.left}" y="{size.height - 6}">{escape(unit)}</text>')
        return "\n".join([*parts, *names, "</svg>"])

    return both(draw, size)


def _values(points: Points) -> list[float]:
    return [value for _, value in points if value is not None]


def _line_class(number: int) -> str:
    """Colours repeat, dashed from the second time on."""
    return f"line c{number % COLOURS}" + (" dashed" if number // COLOURS % 2 else "")


def _legend(labels: Sequence[str], size: Size) -> tuple[list[str], int]:
    """Draws names beside strokes of their colours; returns the elements and the number of rows."""
    parts: list[str] = []
    x, row = float(size.left), 0
    for number, label in enumerate(labels):
        wide = LEGEND_STROKE + 6 + len(label) * LABEL_CHARACTER + 14
        if x + wide > size.width and x > size.left:
            x, row = float(size.left), row + 1
        y = size.height + row * LEGEND_ROW
        parts.append(
            f'<line class="{_line_class(number)}" x1="{x:.1f}" y1="{y + 4}" x2="{x + LEGEND_STROKE:.1f}" '
            f'y2="{y + 4}"/><text x="{x + LEGEND_STROKE + 6:.1f}" y="{y + 8}">{escape(label)}</text>'
        )
        x += wide
    return parts, row + 1


def _x_of(size: Size, at_s: float, last_s: float) -> float:
    """Returns where a moment lies; moments beyond the axis lie at its end."""
    return size.left + (size.width - size.left - RIGHT) * min(max(at_s / last_s, 0.0), 1.0)


class _Plane:
    """Where times and values lie in a drawing."""

    def __init__(self, *, size: Size, upper: int, last_s: float, greatest: float, below: int = 0) -> None:
        """``below`` is what lies under the axis of time besides its labels."""
        self.size = size
        self.upper = upper
        self.last_s = last_s
        self.step = nice_step(max(greatest, 1.0), 5 if size.height > LOW else 3)
        self.top = self.step * math.ceil(max(greatest, 1.0) / self.step)
        self.wide = size.width - size.left - RIGHT
        self.high = size.height - upper - BOTTOM - below

    @property
    def floor(self) -> int:
        """Where the axis of time lies."""
        return self.upper + self.high

    def x(self, at_s: float) -> float:
        """Of a moment."""
        return _x_of(self.size, at_s, self.last_s)

    def y(self, value: float) -> float:
        """Of a value."""
        return self.upper + self.high * (1 - value / self.top)

    def paths(self, points: Points) -> list[list[tuple[float, float]]]:
        """Corners of the parts of a line; a part may be one point that stands alone."""
        found: list[list[tuple[float, float]]] = [[]]
        for at_s, value in points:
            if value is None:
                found.append([])
            else:
                found[-1].append((self.x(at_s), self.y(value)))
        return [part for part in found if part]

    def frame(self, spans: Sequence[Span], title: str) -> list[str]:
        """Returns the beginning of the drawing: shaded stretches, and the axes with their numbers."""
        left, wide, floor = self.size.left, self.wide, self.floor
        parts = [
            f'<svg viewBox="0 0 {self.size.width} {self.size.height}" role="img" aria-label="{escape(title)}">',
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
        parts.extend(time_ticks(self.last_s, self.x, floor + 20, self.size))
        return parts


def time_ticks(last_s: float, x_of: _Scale, y: float, size: Size) -> list[str]:
    """Labels of an axis of time, at ``y``."""
    step = nice_step(last_s, 10 if size.width == WIDTH else 5)
    return [
        f'<text class="tick" x="{x_of(index * step):.1f}" y="{y}" text-anchor="middle">{index * step:g} s</text>'
        for index in range(int(last_s / step + 1e-9) + 1)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Where the label of a mark stands: rows count upwards from the chart."""

    mark: Mark
    x: float
    """Of the mark."""
    left: float
    right: float
    anchor: str
    row: int


def place_labels(marks: Sequence[Mark], x_of: _Scale, width: float) -> list[Label]:
    """Places labels so that none covers another one, nor the line that leads to another one's label.

    A label that covers the line of another mark stands above that mark's label. Where two cover each other's lines,
    one of the lines is crossed: the page's style draws labels over lines.
    """
    lines = [x_of(mark.at_s) for mark in marks]
    waiting = [_label(mark, x_of, width, lines) for mark in sorted(marks, key=lambda one: one.at_s)]
    placed: list[Label] = []
    while waiting:
        free = [one for one in waiting if not any(_covers(one, other.x) for other in waiting)]
        chosen = (free or waiting)[-1]
        waiting.remove(chosen)
        row = max((one.row + 1 for one in placed if _covers(chosen, one.x)), default=0)
        while any(one.row == row and _overlap(chosen, one) for one in placed):
            row += 1
        placed.append(replace(chosen, row=row))
    return sorted(placed, key=lambda one: one.x)


def _label(mark: Mark, x_of: _Scale, width: float, others: Sequence[float]) -> Label:
    """A label begins or ends at its mark: on the side where it has room and covers fewer of the others' lines.

    Where it has room on neither side it fills the end of the drawing.
    """
    x = x_of(mark.at_s)
    wide = len(mark.label) * LABEL_CHARACTER + 4
    sides = []
    if x + wide <= width:
        sides.append(Label(mark=mark, x=x, left=x + 4, right=x + wide, anchor="start", row=0))
    if x - wide >= 0:
        sides.append(Label(mark=mark, x=x, left=x - wide, right=x - 4, anchor="end", row=0))
    if not sides:
        return Label(mark=mark, x=x, left=max(width - wide, 0), right=width, anchor="end", row=0)
    return min(sides, key=lambda side: sum(_covers(side, other) for other in others))


def _covers(label: Label, x: float) -> bool:
    """Returns whether the line of another mark, at ``x``, would run through the label."""
    return label.left - LABEL_GAP < x < label.right + LABEL_GAP and x != label.x


def _overlap(label: Label, other: Label) -> bool:
    return label.left < other.right + LABEL_GAP and other.left < label.right + LABEL_GAP


def _mark_elements(labels: Sequence[Label], top: float, bottom: float) -> list[str]:
    """Vertical lines with labels above; lines come first, so that labels are drawn over them."""
    lines, texts = [], []
    for label in labels:
        kind = label.mark.kind
        y = top - 8 - LABEL_ROW * label.row
        x = label.left if label.anchor == "start" else label.right
        at = f'x1="{label.x:.1f}" x2="{label.x:.1f}"'
        lines.append(f'<line class="mark {kind}" {at} y1="{y + 3:.1f}" y2="{bottom}"/>')
        texts.append(
            f'<text class="label {kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{label.anchor}">'
            f"{escape(label.mark.label)}</text>"
        )
    return lines + texts
