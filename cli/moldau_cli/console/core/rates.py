"""Rates from successive samples of log end offsets and log sizes. Pure.

A partition counts only between two samples that both know it: its leader may be unreachable for a while. Falling
figures (deleted records, a recreated topic) count as no traffic.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POINTS_MAX: Final = 150
GAP_MS_MAX: Final = 180_000
"""Between two samples with a rate: the mean of a longer time says nothing of its end."""
FRESH_MS: Final = 60_000
"""A rate that is older is not the present one. Samples of a large cluster may be most of this apart."""
TOPICS_MAX: Final = 200
"""Topics with a history of their own; the busiest are kept. Sums cover all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Figures of partitions at one time. ``ends`` are log end offsets; ``sizes`` are bytes of the leader's replica."""

    now_ms: float
    ends: Mapping[tuple[str, int], int]
    sizes: Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Records and bytes a second over the time before ``now_ms``."""

    now_ms: float
    records: float
    bytes: float


class RateHistory:
    """The rates of the cluster and of its busiest topics.

    Invariant: it holds at most ``POINTS_MAX`` points of ``TOPICS_MAX`` topics.
    """

    def __init__(self) -> None:
        self._last: Sample | None = None
        self._total: deque[Point] = deque(maxlen=POINTS_MAX)
        self._topics: dict[str, deque[Point]] = {}

    def observe(self, sample: Sample) -> None:
        """Adds a sample; samples of the same time are ignored."""
        last, self._last = self._last, sample
        if last is None or not 0 < sample.now_ms - last.now_ms <= GAP_MS_MAX:
            return
        seconds = (sample.now_ms - last.now_ms) / 1000
        records = _growth(last.ends, sample.ends)
        sizes = _growth(last.sizes, sample.sizes)
        self._total.append(_point(sample.now_ms, sum(records.values()), sum(sizes.values()), seconds))
        for topic in sorted({topic for topic, _ in sample.ends}):
            if topic not in self._topics and not self._has_room(records.get(topic, 0)):
                continue
            history = self._topics.setdefault(topic, deque(maxlen=POINTS_MAX))
            history.append(_point(sample.now_ms, records.get(topic, 0), sizes.get(topic, 0), seconds))
        for gone in self._topics.keys() - {topic for topic, _ in sample.ends}:
            del self._topics[gone]

    def _has_room(self, growth: int) -> bool:
        """Returns whether a topic may get a history; a silent topic gives way to one that grows."""
        if len(self._topics) < TOPICS_MAX:
            return True
        silent = next((name for name, points in self._topics.items() if not points[-1].records), None)
        if not growth or silent is None:
            return False
        del self._topics[silent]
        return True

    @property
    def total(self) -> list[Point]:
        """The points of the whole cluster, oldest first."""
        return list(self._total)

    def topic(self, name: str) -> list[Point]:
        """Returns the points of a topic, oldest first; empty if it has none."""
        return list(self._topics.get(name, ()))

    def latest(self, name: str, now_ms: float) -> Point | None:
        """Returns a topic's latest point, if it has one that is fresh."""
        points = self._topics.get(name)
        return points[-1] if points and is_fresh(points, now_ms) else None


def is_fresh(points: Sequence[Point], now_ms: float) -> bool:
    """Returns whether the last point tells the present rate."""
    return bool(points) and now_ms - points[-1].now_ms <= FRESH_MS


def _growth(before: Mapping[tuple[str, int], int], after: Mapping[tuple[str, int], int]) -> dict[str, int]:
    grown: dict[str, int] = {}
    for partition, value in after.items():
        if partition in before:
            grown[partition[0]] = grown.get(partition[0], 0) + max(0, value - before[partition])
    return grown


def _point(now_ms: float, records: int, size: int, seconds: float) -> Point:
    return Point(now_ms=now_ms, records=round(records / seconds, 1), bytes=round(size / seconds, 1))
