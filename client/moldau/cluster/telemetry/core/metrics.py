"""The metrics of a client under Kafka's names, and what of them a push holds. Pure.

A name is ``org.apache.kafka.``, the group of Kafka's metric without ``-metrics``, and its name, with dots for hyphens:
``record-queue-time-avg`` of ``producer-metrics`` is ``org.apache.kafka.producer.record.queue.time.avg``. A metric whose
name ends with ``.total`` is a sum that only grows; all others are gauges. Values that nothing was observed of (NaN) are
left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from moldau.cluster.telemetry.core.reporter import ClientSubscription

DOMAIN: Final = "org.apache.kafka."
METRICS_MAX: Final = 2_000
"""Metrics of a push; the client leaves out the last ones: those of single partitions."""

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of a client now."""

    name: str
    value: float
    labels: Labels = ()

    @property
    def is_sum(self) -> bool:
        """Whether the value is a total that only grows, from the client's start on."""
        return self.name.endswith(".total")


class HasMetrics(Protocol):
    """The statistics of a client, as metrics."""

    TELEMETRY_PREFIX: ClassVar[str]
    """The group of the metrics of its connections: ``producer`` or ``consumer``."""

    def metrics(self) -> Iterable[Metric]:
        """Yields the metrics, most important first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One value of a push. A sum covers the time from ``since_ms`` on; ``since_ms`` is None for a gauge."""

    name: str
    labels: Labels
    value: float
    since_ms: float | None


def named(group: str, values: Mapping[str, float], labels: Labels = ()) -> Iterator[Metric]:
    """Yields the metrics of a group such as ``producer.topic``; keys of ``values`` may have hyphens."""
    for name, value in values.items():
        yield Metric(f"{DOMAIN}{group}.{dotted(name)}", value, labels)


def dotted(name: str) -> str:
    """Returns a name with dots for hyphens and underscores."""
    return name.replace("-", ".").replace("_", ".")


class Ledger:
    """The sums that a client has pushed, for brokers that want the change since the last push."""

    def __init__(self, began_ms: float) -> None:
        """``began_ms`` is when the sums were 0, in milliseconds since the Unix epoch."""
        self._began_ms = began_ms
        self._is_delta = False
        self._pushed: dict[tuple[str, Labels], tuple[float, float]] = {}  # value and time of the last push
        self._before = self._pushed

    def points(self, metrics: Iterable[Metric], subscription: ClientSubscription, now_ms: float) -> list[Point]:
        """Returns what a push holds, and notes it as pushed; ``now_ms`` is Unix time."""
        if self._is_delta is not subscription.is_delta:
            self._is_delta = subscription.is_delta
            self._pushed = {}
        self._before, self._pushed = self._pushed, dict(self._pushed)
        points: list[Point] = []
        for metric in metrics:
            if not math.isfinite(metric.value) or not subscription.selects(metric.name):
                continue
            if len(points) >= METRICS_MAX:
                break
            value, since_ms = metric.value, None
            if metric.is_sum:
                since_ms = self._began_ms
                if self._is_delta:
                    key = (metric.name, metric.labels)
                    pushed, since_ms = self._before.get(key, (0.0, self._began_ms))
                    value -= pushed
                    self._pushed[key] = (metric.value, now_ms)
            points.append(Point(name=metric.name, labels=metric.labels, value=value, since_ms=since_ms))
        return points

    def left_out(self, points: Iterable[Point]) -> None:
        """Notes that the last push does not hold these points after all: the next one holds their changes too."""
        for point in points if self._is_delta else ():
            key = (point.name, point.labels)
            before = self._before.get(key)
            if before is not None:
                self._pushed[key] = before
            else:
                self._pushed.pop(key, None)

    def refused(self) -> None:
        """Takes the last push back, which the broker has not taken."""
        self._pushed = self._before
