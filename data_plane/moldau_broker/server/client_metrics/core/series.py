"""The series that one client has pushed, and the budget that bounds those of all clients. Pure.

Clients choose names and labels, so each is bounded in length and number. A series that finds no room is counted, not
stored; a series that exists keeps its place until its client is forgotten, or is not to push it any more.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SERIES_MAX: Final = 10_000
"""Series of all clients."""
CLIENT_SERIES_MAX: Final = 500
"""Series of one client."""

ALL_METRICS: Final = "*"
OTHER: Final = "client_"
"""Beginning of the names of all metrics but Kafka's own."""
NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
"""Characters that a name on the broker's page has as underscores."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value that a client pushed; ``name`` and labels have Prometheus' form.

    ``is_delta`` says that the value is the change since the client's last push.
    """

    name: str
    labels: Labels
    is_counter: bool
    is_delta: bool
    value: float


@dataclass(slots=True)
class Budget:
    """The number of series that exist. Invariant: 0 <= used <= limit."""

    limit: int = SERIES_MAX
    used: int = 0


class ClientSeries:
    """The newest value of each series of one client."""

    __slots__ = ("_budget", "_kinds", "_values", "client_labels")

    def __init__(self, budget: Budget) -> None:
        """Starts without series."""
        self._budget = budget
        self._values: dict[tuple[str, Labels], float] = {}
        self._kinds: dict[str, bool] = {}  # by name: whether it is a counter
        self.client_labels: Labels = ()
        """Labels of all series, as of the last push: the client's group, its id in it, and the like."""

    def __len__(self) -> int:
        """Returns the number of series."""
        return len(self._values)

    def store(self, points: list[Point]) -> int:
        """Stores a push and returns how many of its points were left out.

        A point is left out without room for its series, if its name is of the other kind already, or if it is a change
        that no total can take (not finite, or a counter's decrease).
        """
        left_out = 0
        for point in points:
            key = (point.name, point.labels)
            before = self._values.get(key)
            if not self._fits(point, is_new=before is None):
                left_out += 1
                continue
            if before is None:
                self._budget.used += 1
                self._kinds[point.name] = point.is_counter
            self._values[key] = point.value + (before or 0.0) if point.is_delta else point.value
        return left_out

    def _fits(self, point: Point, *, is_new: bool) -> bool:
        if point.is_delta and (not math.isfinite(point.value) or (point.is_counter and point.value < 0)):
            return False
        if self._kinds.get(point.name, point.is_counter) is not point.is_counter:
            return False
        return not is_new or (len(self._values) < CLIENT_SERIES_MAX and self._budget.used < self._budget.limit)

    def drop_unless(self, is_wanted: Callable[[str], bool]) -> None:
        """Forgets the series whose name is not wanted any more, and gives their room back."""
        gone = {name for name in self._kinds if not is_wanted(name)}
        for key in [key for key in self._values if key[0] in gone]:
            del self._values[key]
            self._budget.used -= 1
        for name in gone:
            del self._kinds[name]

    def points(self) -> list[Point]:
        """Returns the totals and the newest values; a label of a series goes before one of the client."""
        return [
            Point(name=name, labels=self._labelled(labels), is_counter=self._kinds[name], is_delta=False, value=value)
            for (name, labels), value in self._values.items()
        ]

    def _labelled(self, labels: Labels) -> Labels:
        return tuple((dict(self.client_labels) | dict(labels)).items()) if self.client_labels else labels

    def clear(self) -> None:
        """Forgets all series, and gives their room back."""
        self._budget.used -= len(self._values)
        assert self._budget.used >= 0, "no more series end than began"
        self._values.clear()
        self._kinds.clear()


def may_select(metrics: Sequence[str], name: str) -> bool:
    """Returns whether a series may hold a metric that begins with one of ``metrics``; ``name`` is that on the page."""
    beginnings = tuple(NO_NAME.sub("_", each) for each in metrics)
    return ALL_METRICS in metrics or name.removeprefix(OTHER).startswith(beginnings)
