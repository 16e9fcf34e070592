"""Measures a run from the clients' view, in figures that can be added up over runs.

The figures are the latency of acknowledgements, the times without any, and the delay and the number of deliveries of
records to groups.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau_jepsen.history import Kind, Status
from moldau_jepsen.reports.consumption import Consumption, GroupReads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau_jepsen.history import Operation

BUCKETS_PER_DECADE = 20
"""Latencies are counted in buckets whose ends are 12 % apart."""
LATENCY_MS_MIN = 0.01
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
UNAVAILABLE_MS = 1_000.0
"""A stretch without any acknowledged write that is longer than this counts as unavailability."""


@dataclass(slots=True, kw_only=True)
class Histogram:
    """Counts of latencies in logarithmic buckets."""

    counts: Counter[int] = field(default_factory=Counter)
    """By bucket: the whole part of ``BUCKETS_PER_DECADE * log10(latency / LATENCY_MS_MIN)``."""

    def add(self, latency_ms: float, count: int = 1) -> None:
        """Counts a latency."""
        self.counts[int(BUCKETS_PER_DECADE * math.log10(max(latency_ms, LATENCY_MS_MIN) / LATENCY_MS_MIN))] += count

    def merge(self, other: Histogram) -> None:
        """Takes in another histogram."""
        self.counts.update(other.counts)

    def quantile_ms(self, share: float) -> float:
        """Returns the upper end of the bucket below whose end ``share`` of the latencies lie; 0 if there are none."""
        wanted = share * self.counts.total()
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= wanted:
                return bucket_end_ms(bucket)
        return 0.0


def bucket_end_ms(bucket: int) -> float:
    """Returns the latency at which a bucket ends (exclusive)."""
    return float(LATENCY_MS_MIN * 10 ** ((bucket + 1) / BUCKETS_PER_DECADE))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Figures of one run. Times are virtual."""

    latency: Histogram = field(default_factory=Histogram)
    """From handing records over to their acknowledgement, one count per record."""
    acknowledged: int = 0
    seconds: float = 0.0
    """From the first send to the last acknowledgement."""
    dark_s: tuple[float, ...] = ()
    """Lengths of the stretches without any acknowledged write, as long as clients had writes under way."""
    operations: Mapping[str, int] = field(default_factory=dict)
    """By kind and outcome."""
    lag: Histogram = field(default_factory=Histogram)
    """From a record's acknowledgement to the first poll by a group that returned it."""
    groups: tuple[GroupReads, ...] = ()
    unread: int = 0
    """Acknowledged records that no group was given, as of ``Consumption``."""

    @property
    def per_second(self) -> float:
        """Acknowledged records per virtual second."""
        return self.acknowledged / self.seconds if self.seconds > 0 else 0.0


def measure(history: Iterable[Operation]) -> RunFigures:
    """Returns the figures of a history, whose operations are in the order of their ends."""
    latency, lag = Histogram(), Histogram()
    consumption = Consumption(lag)
    operations: Counter[str] = Counter()
    dark: list[float] = []
    began_ms, tried_ms = math.inf, 0.0
    last_ms: float | None = None
    acknowledged = 0
    for operation in consumption.passing(history):
        operations[f"{operation.kind.value} {'aborted' if operation.aborted else operation.status.value}"] += 1
        if operation.kind not in (Kind.SEND, Kind.TRANSACTION):
            continue
        count = sum(1 for _ in operation.sends)
        if not count:
            continue
        began_ms, tried_ms = min(began_ms, operation.begun_ms), max(tried_ms, operation.ended_ms)
        if operation.status is not Status.OK or operation.aborted:
            continue
        acknowledged += count
        latency.add(operation.ended_ms - operation.begun_ms, count)
        since = began_ms if last_ms is None else last_ms
        if operation.ended_ms - since > UNAVAILABLE_MS:
            dark.append((operation.ended_ms - since) / 1000)
        last_ms = operation.ended_ms
    since = began_ms if last_ms is None else last_ms
    if tried_ms - since > UNAVAILABLE_MS:
        dark.append((tried_ms - since) / 1000)
    return RunFigures(
        latency=latency,
        acknowledged=acknowledged,
        seconds=(last_ms - began_ms) / 1000 if last_ms is not None else 0.0,
        dark_s=tuple(dark),
        operations=dict(sorted(operations.items())),
        lag=lag,
        groups=consumption.groups(),
        unread=consumption.unread(),
    )
