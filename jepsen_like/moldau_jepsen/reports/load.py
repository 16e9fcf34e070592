"""The observations of clients over time: writes acknowledged, how long that took, and when there were none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau_jepsen.history import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau_jepsen.history import Operation

UNAVAILABLE_MS = 1_000.0
"""A stretch without any acknowledged write that is longer than this counts as unavailability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Figures of a history, one point for each bucket of time; times in seconds."""

    acknowledged: Sequence[tuple[float, float]]
    """Begin of each bucket, and records acknowledged in it per second."""
    latency_p99_ms: Sequence[tuple[float, float | None]]
    """None where nothing was acknowledged."""
    unavailable: Sequence[tuple[float, float]]  # begin and end of each stretch
    latency_ms: Mapping[str, float]  # p50, p99, p99.9, max over the whole run

    @property
    def unavailable_s(self) -> float:
        """Length of all stretches together."""
        return sum(end - begin for begin, end in self.unavailable)


class Latencies:
    """Counts of times, rounded to three significant digits: as small for ten million as for ten thousand."""

    __slots__ = ("_counts", "_max", "total")

    def __init__(self) -> None:
        """No times."""
        self._counts: dict[float, int] = {}
        self.total = 0
        """How many were added."""
        self._max = 0.0

    def add(self, ms: float, count: int = 1) -> None:
        """Adds a time, so many times over."""
        key = round(ms, 2 - math.floor(math.log10(ms))) if ms > 0 else 0.0
        self._counts[key] = self._counts.get(key, 0) + count
        self.total += count
        self._max = max(self._max, ms)

    def percentile(self, share: float) -> float:
        """Returns the nearest-rank percentile; 0 for none. The greatest time is exact."""
        rank = min(self.total, max(1, math.ceil(share * self.total)))
        if rank == self.total:
            return self._max
        passed = 0
        for key in sorted(self._counts):
            passed += self._counts[key]
            if passed >= rank:
                return key
        raise AssertionError("the ranks of all times are below their number")

    def summary(self) -> dict[str, float]:
        """Percentiles by name."""
        return {
            "p50": self.percentile(0.5),
            "p99": self.percentile(0.99),
            "p99.9": self.percentile(0.999),
            "max": self.percentile(1),
        }


def series_of(history: Iterable[Operation], until_s: float = math.inf, bucket_s: float = 1.0) -> Series:
    """Computes the figures of a history in one pass.

    ``until_s`` is when the load ended: silence after it is no unavailability. Silence before it is, as long as clients
    had writes under way.
    """
    per_bucket: dict[int, Latencies] = {}
    acknowledged: dict[int, int] = {}
    unavailable: list[tuple[float, float]] = []
    began_ms, tried_ms = math.inf, 0.0
    last_ack: float | None = None
    latencies = Latencies()
    for operation in history:
        if operation.kind not in (Kind.SEND, Kind.TRANSACTION):
            continue
        count = sum(1 for _ in operation.sends)
        if not count:
            continue
        began_ms, tried_ms = min(began_ms, operation.begun_ms), max(tried_ms, operation.ended_ms)
        if operation.status is not Status.OK or operation.aborted:
            continue
        taken_ms = operation.ended_ms - operation.begun_ms
        latencies.add(taken_ms)
        bucket = int(operation.ended_ms / 1000 / bucket_s)
        per_bucket.setdefault(bucket, Latencies()).add(taken_ms, count)
        acknowledged[bucket] = acknowledged.get(bucket, 0) + count
        silent_from = began_ms if last_ack is None else last_ack
        _add_silence(unavailable, silent_from, operation.ended_ms, until_s)
        last_ack = operation.ended_ms
    _add_silence(unavailable, began_ms if last_ack is None else last_ack, tried_ms, until_s)
    buckets = range(max(acknowledged, default=-1) + 1)
    latency = {bucket: times.percentile(0.99) for bucket, times in per_bucket.items()}
    return Series(
        acknowledged=[(bucket * bucket_s, acknowledged.get(bucket, 0) / bucket_s) for bucket in buckets],
        latency_p99_ms=[(bucket * bucket_s, latency.get(bucket)) for bucket in buckets],
        unavailable=unavailable,
        latency_ms=latencies.summary(),
    )


def _add_silence(found: list[tuple[float, float]], begin_ms: float, end_ms: float, until_s: float) -> None:
    if begin_ms < until_s * 1000 and end_ms - begin_ms > UNAVAILABLE_MS:
        found.append((begin_ms / 1000, min(end_ms / 1000, until_s)))
