"""Counters of a consumer, under the names of Kafka's consumer metrics. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.cluster.samples import Samples, by_kafka_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.core.positions import PartitionPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """One assigned partition. -1 stands for a number that is not known yet."""

    position: int
    end_offset: int
    records_lag: int
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """A consumer's numbers now. Totals count since the start; averages and maxima cover the last 30 to 60 s.

    Times are in milliseconds, except ``last_poll_seconds_ago``. A value without observations is NaN.
    ``bytes_consumed_total`` counts fetched bytes, compressed; ``records_consumed_total`` counts records that the
    application received.
    """

    records_consumed_total: int
    bytes_consumed_total: int
    fetch_total: int
    fetch_latency_avg: float
    fetch_latency_max: float
    fetch_size_avg: float
    fetch_size_max: float
    records_per_request_avg: float
    records_lag_max: float
    commit_total: int
    commit_failed_total: int
    commit_latency_avg: float
    commit_latency_max: float
    rebalance_total: int
    assigned_partitions: int
    last_poll_seconds_ago: float
    partitions: Mapping[TopicPartition, PartitionStatistics]

    def by_name(self) -> dict[str, float]:
        """Returns the consumer's numbers under Kafka's names, such as ``records-consumed-total``."""
        return by_kafka_name(self)


class ConsumerCounters:
    """Counts for one consumer."""

    def __init__(self) -> None:
        self.records = 0
        self.rebalances = 0
        self._bytes = 0
        self._fetches = 0
        self._commits = 0
        self._failed_commits = 0
        self._fetch_latency = Samples()
        self._fetch_size = Samples()
        self._per_fetch = Samples()
        self._commit_latency = Samples()

    def fetched(self, size_bytes: int, latency_ms: float, now_ms: float) -> None:
        """Counts an answered fetch."""
        self._fetches += 1
        self._bytes += size_bytes
        self._fetch_latency.add(latency_ms, now_ms)
        self._fetch_size.add(size_bytes, now_ms)

    def polled(self, records: int, now_ms: float) -> None:
        """Counts records that reach the application."""
        self.records += records
        if records:
            self._per_fetch.add(records, now_ms)

    def committed(self, latency_ms: float, now_ms: float, *, failed: bool) -> None:
        """Counts a commit that was answered or given up."""
        if failed:
            self._failed_commits += 1
        else:
            self._commits += 1
            self._commit_latency.add(latency_ms, now_ms)

    def statistics(
        self, positions: Iterable[PartitionPosition], now_ms: float, last_poll_ms: float | None
    ) -> ConsumerStatistics:
        """Returns the numbers now; ``last_poll_ms`` is None before the first poll."""
        partitions = {each.partition: _partition(each) for each in positions}
        lags = [each.records_lag for each in partitions.values() if each.records_lag >= 0]
        return ConsumerStatistics(
            records_consumed_total=self.records,
            bytes_consumed_total=self._bytes,
            fetch_total=self._fetches,
            fetch_latency_avg=self._fetch_latency.average(now_ms),
            fetch_latency_max=self._fetch_latency.maximum(now_ms),
            fetch_size_avg=self._fetch_size.average(now_ms),
            fetch_size_max=self._fetch_size.maximum(now_ms),
            records_per_request_avg=self._per_fetch.average(now_ms),
            records_lag_max=max(lags, default=math.nan),
            commit_total=self._commits,
            commit_failed_total=self._failed_commits,
            commit_latency_avg=self._commit_latency.average(now_ms),
            commit_latency_max=self._commit_latency.maximum(now_ms),
            rebalance_total=self.rebalances,
            assigned_partitions=len(partitions),
            last_poll_seconds_ago=math.nan if last_poll_ms is None else (now_ms - last_poll_ms) / 1000,
            partitions=partitions,
        )


def _partition(position: PartitionPosition) -> PartitionStatistics:
    offset, end = position.offset if position.has_position else -1, position.high_watermark
    return PartitionStatistics(
        position=offset,
        end_offset=end,
        records_lag=-1 if offset < 0 or end < 0 else max(end - offset, 0),
        is_paused=position.is_paused,
    )
