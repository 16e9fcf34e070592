"""Counters of a share consumer, under the names of Kafka's metrics. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from moldau.cluster.samples import FetchCounters, PollIdleRatio, by_kafka_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau.cluster.telemetry.core.metrics import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareConsumerStatistics:
    """A share consumer's numbers now. Totals count since the start; averages and maxima cover the last 30 to 60 s.

    Times are in milliseconds, except ``last_poll_seconds_ago``. A value without observations is NaN.
    ``records_consumed_total`` counts records that the application received, ``acknowledgements_send_total`` records
    whose acknowledgement was sent, and ``acknowledgements_error_total`` those of them that no broker has taken.
    ``poll_idle_ratio_avg`` is the part of the time that the application spends in ``poll``.
    """

    records_consumed_total: int
    bytes_consumed_total: int
    fetch_total: int
    fetch_latency_avg: float
    fetch_latency_max: float
    fetch_size_avg: float
    fetch_size_max: float
    records_per_request_avg: float
    acknowledgements_send_total: int
    acknowledgements_error_total: int
    last_poll_seconds_ago: float
    poll_idle_ratio_avg: float

    TELEMETRY_PREFIX: ClassVar[str] = "consumer"

    def metrics(self) -> Iterator[Metric]:
        """Yields the numbers as client metrics (KIP-714)."""
        from moldau.cluster.telemetry.core.metrics import named  # most programs never ask

        for name, value in self.by_name().items():
            group = "consumer.share" if "poll" in name else "consumer.share.fetch.manager"
            yield from named(group, {name: value})

    def by_name(self) -> dict[str, float]:
        """Returns the numbers under Kafka's names, such as ``records-consumed-total``."""
        return by_kafka_name(self)


class ShareCounters:
    """Counts for one share consumer."""

    def __init__(self) -> None:
        self._records = 0
        self._fetches = FetchCounters()
        self._sent = 0
        self._errors = 0
        self._poll_idle_ratio = PollIdleRatio()

    def fetched(self, size_bytes: int, records: int, latency_ms: float, now_ms: float) -> None:
        """Counts an answered fetch."""
        self._fetches.answered(size_bytes, latency_ms, now_ms)
        if records:
            self._fetches.records.add(records, now_ms)

    def acknowledged(self, records: int, *, failed: bool) -> None:
        """Counts records whose acknowledgement was answered, or given up."""
        self._sent += records
        if failed:
            self._errors += records

    def polled_for(self, began_ms: float, now_ms: float) -> None:
        """Counts a poll, and the time between the poll before and it."""
        self._poll_idle_ratio.polled(began_ms, now_ms)

    def polled(self, records: int) -> None:
        """Counts records that reach the application."""
        self._records += records

    def statistics(self, now_ms: float, last_poll_ms: float | None) -> ShareConsumerStatistics:
        """Returns the numbers now; ``last_poll_ms`` is None before the first poll."""
        return ShareConsumerStatistics(
            records_consumed_total=self._records,
            **self._fetches.numbers(now_ms),
            acknowledgements_send_total=self._sent,
            acknowledgements_error_total=self._errors,
            last_poll_seconds_ago=math.nan if last_poll_ms is None else (now_ms - last_poll_ms) / 1000,
            poll_idle_ratio_avg=self._poll_idle_ratio.average(now_ms),
        )
