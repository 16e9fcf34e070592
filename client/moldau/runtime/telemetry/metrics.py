"""A small metrics registry: counters, gauges and histograms with bounded memory, and their Prometheus text form. Pure.

A metric family has a name, a help text and label names; a child is one combination of label values and is looked up
once, by the shell that owns it, so that counting is one addition. Families and children are bounded in number: label
values come from configuration and topic names, and an unbounded label would be a leak.

Histograms count into fixed buckets (1-2-5 steps), so that quantiles cost no memory per observation; a quantile is an
interpolation inside one bucket and as exact as the bucket is narrow.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CHILDREN_MAX = 10_000
"""Combinations of label values per family."""

LATENCY_BUCKETS_MS: tuple[float, ...] = (
    *(step * 10.0**power for power in range(-2, 4) for step in (1.0, 2.0, 5.0)),
    10_000.0,
    30_000.0,
    60_000.0,
)
"""Upper bounds (inclusive) from 10 us to 1 min, in milliseconds."""


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        """Starts at 0."""
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        """Adds ``amount``, which is not negative."""
        assert amount >= 0, "a counter only grows"
        self.value += amount


class Gauge:
    """A number that goes up and down."""

    __slots__ = ("_read", "_value")

    def __init__(self) -> None:
        """Starts at 0."""
        self._value: float = 0
        self._read: Callable[[], float] | None = None

    @property
    def value(self) -> float:
        """The present value."""
        return self._value if self._read is None else self._read()

    def set(self, value: float) -> None:
        """Replaces the value."""
        self._value = value

    def add(self, amount: float) -> None:
        """Adds ``amount``, of any sign."""
        self._value += amount

    def read_from(self, read: Callable[[], float]) -> None:
        """Reads the value with ``read()`` at each request."""
        self._read = read


class Histogram:
    """Counts of observations by bucket, their sum and their maximum."""

    __slots__ = ("bounds", "count", "counts", "maximum", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BUCKETS_MS) -> None:
        """``bounds`` are inclusive upper bounds, ascending; one more bucket takes larger values."""
        assert list(bounds) == sorted(bounds), "bucket bounds ascend"
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.maximum = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value

    def quantile(self, fraction: float) -> float:
        """Returns the value below which ``fraction`` (0..1) of the observations lie; NaN when there are none."""
        if self.count == 0:
            return math.nan
        rank = fraction * self.count
        below = 0
        for index, count in enumerate(self.counts):
            if count and below + count >= rank:
                lower = self.bounds[index - 1] if index else 0.0
                upper = self.bounds[index] if index < len(self.bounds) else self.maximum
                return min(self.maximum, lower + (upper - lower) * max(0.0, rank - below) / count)
            below += count
        return self.maximum


M = TypeVar("M", Counter, Gauge, Histogram)


class Family(Generic[M]):
    """All children of one metric."""

    __slots__ = ("_children", "_make", "help", "kind", "label_names", "name")

    def __init__(self, name: str, kind: str, text: str, label_names: tuple[str, ...], make: Callable[[], M]) -> None:
        """Made by the registry."""
        self.name = name
        self.kind = kind
        self.help = text
        self.label_names = label_names
        self._make: Callable[[], M] = make
        self._children: dict[tuple[str, ...], M] = {}

    def labels(self, *values: object) -> M:
        """Returns the child with these label values; creates it if it is new.

        Raises:
            OverflowError: there are ``CHILDREN_MAX`` children already.
        """
        key = tuple(str(value) for value in values)
        child = self._children.get(key)
        if child is None:
            assert len(key) == len(self.label_names), f"{self.name} has the labels {self.label_names}"
            if len(self._children) >= CHILDREN_MAX:
                raise OverflowError(f"metric {self.name} has {CHILDREN_MAX} label combinations already")
            child = self._children[key] = self._make()
        return child

    def attach(self, child: M, *values: object) -> None:
        """Shows ``child``, which its owner counts into, under these label values."""
        self.labels(*values)
        self._children[tuple(str(value) for value in values)] = child

    def clear(self) -> None:
        """Forgets all children, before those that exist now are set."""
        self._children.clear()

    def remove(self, *values: object) -> None:
        """Forgets a child (a deleted topic's); an unknown one is no error."""
        self._children.pop(tuple(str(value) for value in values), None)

    def children(self) -> list[tuple[tuple[str, ...], M]]:
        """Returns label values and children, sorted by label values."""
        return sorted(self._children.items(), key=lambda item: item[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a source whose names and labels are known only when it is read."""

    name: str
    kind: str
    text: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Registry:
    """The metrics of one node. Asking for a family twice returns the same one."""

    __slots__ = ("_families", "_sources", "_updates")

    def __init__(self) -> None:
        """No metric."""
        self._families: dict[str, Family[Counter] | Family[Gauge] | Family[Histogram]] = {}
        self._updates: list[Callable[[], None]] = []
        self._sources: list[Callable[[], list[Series]]] = []

    def on_expose(self, update: Callable[[], None]) -> None:
        """Calls ``update`` before each ``expose``, to copy the statistics of a core into its families."""
        self._updates.append(update)

    def add_source(self, read: Callable[[], list[Series]]) -> None:
        """Shows the series that ``read`` returns at each request; it bounds their number itself.

        A name that a family has, or of which an earlier series is of another kind, is left out.
        """
        self._sources.append(read)

    def counter(self, name: str, text: str, *label_names: str) -> Family[Counter]:
        """Returns a family of counters; by convention ``name`` ends with ``_total``."""
        family = self._families.get(name)
        if family is None:
            self._families[name] = counters = Family(name, "counter", text, label_names, Counter)
            return counters
        self._check(family, "counter", label_names)
        return family  # type: ignore[return-value]  # the kind was compared

    def gauge(self, name: str, text: str, *label_names: str) -> Family[Gauge]:
        """Returns a family of gauges."""
        family = self._families.get(name)
        if family is None:
            self._families[name] = gauges = Family(name, "gauge", text, label_names, Gauge)
            return gauges
        self._check(family, "gauge", label_names)
        return family  # type: ignore[return-value]  # the kind was compared

    def histogram(
        self, name: str, text: str, *label_names: str, bounds: Sequence[float] = LATENCY_BUCKETS_MS
    ) -> Family[Histogram]:
        """Returns a family of histograms; by convention ``name`` ends with the unit."""
        family = self._families.get(name)
        if family is None:
            self._families[name] = found = Family(name, "histogram", text, label_names, lambda: Histogram(bounds))
            return found
        self._check(family, "histogram", label_names)
        return family  # type: ignore[return-value]  # the kind was compared

    @staticmethod
    def _check(
        family: Family[Counter] | Family[Gauge] | Family[Histogram], kind: str, label_names: tuple[str, ...]
    ) -> None:
        if family.kind != kind or family.label_names != label_names:
            raise ValueError(f"metric {family.name} exists as {family.kind} with labels {family.label_names}")

    def expose(self) -> str:
        """Returns all metrics in the Prometheus text format, version 0.0.4, sorted by name."""
        for update in self._updates:
            update()
        lines: list[str] = []
        for name in sorted(self._families):
            family = self._families[name]
            lines.append(f"# HELP {name} {_escape(family.help, quotes=False)}")
            lines.append(f"# TYPE {name} {family.kind}")
            for values, child in family.children():
                labels = [f'{key}="{_escape(value)}"' for key, value in zip(family.label_names, values, strict=True)]
                if isinstance(child, Histogram):
                    lines.extend(_histogram_lines(name, labels, child))
                else:
                    lines.append(f"{name}{_braces(labels)} {_number(child.value)}")
        lines.extend(self._source_lines())
        return "\n".join(lines) + "\n" if lines else ""

    def _source_lines(self) -> list[str]:
        by_name: dict[str, list[Series]] = {}
        for read in self._sources:
            for series in read():
                known = by_name.setdefault(series.name, [])
                if series.name not in self._families and (not known or known[0].kind == series.kind):
                    known.append(series)
        lines: list[str] = []
        for name, found in sorted(by_name.items()):
            if not found:
                continue
            lines.append(f"# HELP {name} {_escape(found[0].text, quotes=False)}")
            lines.append(f"# TYPE {name} {found[0].kind}")
            for series in found:
                labels = [f'{key}="{_escape(value)}"' for key, value in series.labels]
                lines.append(f"{name}{_braces(labels)} {_number(series.value)}")
        return lines


def _histogram_lines(name: str, labels: list[str], histogram: Histogram) -> list[str]:
    lines = []
    below = 0
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        below += count
        limit = f'le="{_number(bound)}"'
        lines.append(f"{name}_bucket{_braces([*labels, limit])} {below}")
    lines.append(f"{name}_sum{_braces(labels)} {_number(histogram.total)}")
    lines.append(f"{name}_count{_braces(labels)} {histogram.count}")
    return lines


def _braces(labels: list[str]) -> str:
    return "{" + ",".join(labels) + "}" if labels else ""


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if value == int(value) else repr(float(value))


def _escape(text: str, *, quotes: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
