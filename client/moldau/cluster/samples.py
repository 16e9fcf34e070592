"""Averages and maxima over the last half minute to minute, as Kafka's client metrics have them. Pure.

Kafka's clients keep two samples of 30 s (``metrics.num.samples``, ``metrics.sample.window.ms``): the present one and
the one before. Memory does not depend on the number of observations.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WINDOW_MS = 30_000.0


class Samples:
    """Observations of one quantity."""

    __slots__ = ("_began_ms", "_count", "_max", "_sum")

    def __init__(self) -> None:
        self._began_ms = [-math.inf, -math.inf]  # of the present window, and of the one before
        self._count = [0, 0]
        self._sum = [0.0, 0.0]
        self._max = [-math.inf, -math.inf]

    def add(self, value: float, now_ms: float) -> None:
        """Adds an observation."""
        self._roll(now_ms)
        self._count[0] += 1
        self._sum[0] += value
        self._max[0] = max(self._max[0], value)

    def _roll(self, now_ms: float) -> None:
        age_ms = now_ms - self._began_ms[0]
        if age_ms < WINDOW_MS:
            return
        is_next = age_ms < 2 * WINDOW_MS
        self._count[:] = [0, self._count[0] if is_next else 0]
        self._sum[:] = [0.0, self._sum[0] if is_next else 0.0]
        self._max[:] = [-math.inf, self._max[0] if is_next else -math.inf]
        self._began_ms[:] = [now_ms, self._began_ms[0]]

    def rate(self, now_ms: float) -> float:
        """Returns the observations per second, over at least one window."""
        self._roll(now_ms)
        oldest_ms = self._began_ms[1] if self._count[1] else self._began_ms[0]
        return sum(self._count) / (max(now_ms - oldest_ms, WINDOW_MS) / 1000) if sum(self._count) else 0.0

    def average(self, now_ms: float) -> float:
        """Returns the average; NaN without observations, as in Kafka."""
        self._roll(now_ms)
        count = sum(self._count)
        return sum(self._sum) / count if count else math.nan

    def maximum(self, now_ms: float) -> float:
        """Returns the greatest observation; NaN without observations."""
        self._roll(now_ms)
        return max(self._max) if sum(self._count) else math.nan


class FetchNumbers(TypedDict):
    """The numbers of all fetches, by the fields that the statistics of all clients that consume have."""

    bytes_consumed_total: int
    fetch_total: int
    fetch_latency_avg: float
    fetch_latency_max: float
    fetch_size_avg: float
    fetch_size_max: float
    records_per_request_avg: float


class FetchCounters:
    """Counts the answered fetches of a client that consumes."""

    __slots__ = ("bytes", "latency", "records", "size", "total")

    def __init__(self) -> None:
        self.total = 0
        self.bytes = 0
        self.latency = Samples()
        self.size = Samples()
        self.records = Samples()  # for a request that brought some; the client adds to it

    def answered(self, size_bytes: int, latency_ms: float, now_ms: float) -> None:
        """Counts an answered fetch."""
        self.total += 1
        self.bytes += size_bytes
        self.latency.add(latency_ms, now_ms)
        self.size.add(size_bytes, now_ms)

    def numbers(self, now_ms: float) -> FetchNumbers:
        """Returns the numbers now."""
        return FetchNumbers(
            bytes_consumed_total=self.bytes,
            fetch_total=self.total,
            fetch_latency_avg=self.latency.average(now_ms),
            fetch_latency_max=self.latency.maximum(now_ms),
            fetch_size_avg=self.size.average(now_ms),
            fetch_size_max=self.size.maximum(now_ms),
            records_per_request_avg=self.records.average(now_ms),
        )


class PollIdleRatio:
    """The part of its time that an application spends in polls."""

    __slots__ = ("_ended_ms", "_ratio")

    def __init__(self) -> None:
        self._ratio = Samples()
        self._ended_ms: float | None = None  # of the poll before

    def polled(self, began_ms: float, now_ms: float) -> None:
        """Counts a poll that ends now, and the time between the poll before and it."""
        since_ms, self._ended_ms = self._ended_ms, now_ms
        if since_ms is not None and now_ms > since_ms:
            self._ratio.add((now_ms - began_ms) / (now_ms - since_ms), now_ms)

    def average(self, now_ms: float) -> float:
        """Returns the average; NaN before the second poll."""
        return self._ratio.average(now_ms)


def by_kafka_name(statistics: DataclassInstance) -> dict[str, float]:
    """Returns the numbers of a statistics object under Kafka's names, such as ``record-send-total``."""
    found = {}
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if isinstance(value, int | float):
            found[field.name.replace("_", "-")] = float(value)
    return found
