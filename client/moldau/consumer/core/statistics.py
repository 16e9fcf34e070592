"""Counters of a consumer, under the names of Kafka's consumer metrics. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from moldau.cluster.samples import FetchCounters, PollIdleRatio, Samples, by_kafka_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from moldau.cluster.metadata import TopicPartition
    from moldau.cluster.telemetry.core.metrics import Metric
    from moldau.consumer.core.positions import PartitionPosition


_GROUPS = {
    "consumer.fetch.manager": ("fetch-", "records-", "bytes-"),
    "consumer.coordinator": ("commit-", "rebalance-", "assigned-"),
}
"""Groups of Kafka's metrics, and how the names in them begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """One assigned partition. -1 stands for a number that is not known yet; ``end_offset`` is that of ``Lag``."""

    position: int
    end_offset: int
    records_lag: int
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """A consumer's numbers now. Totals count since the start; averages and maxima cover the last 30 to 60 s.

    Times are in milliseconds, except ``last_poll_seconds_ago``. A value without observations is NaN.
    ``bytes_consumed_total`` counts fetched bytes, compressed; ``records_consumed_total`` counts records that the
    application received. ``poll_idle_ratio_avg`` is the part of the time that the application spends in ``poll``.
    ``rebalance_latency_total`` is in milliseconds.
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
    rebalance_latency_avg: float
    rebalance_latency_max: float
    rebalance_latency_total: float
    assigned_partitions: int
    last_poll_seconds_ago: float
    poll_idle_ratio_avg: float
    partitions: Mapping[TopicPartition, PartitionStatistics]

    TELEMETRY_PREFIX: ClassVar[str] = "consumer"

    def metrics(self) -> Iterator[Metric]:
        """Yields the numbers as client metrics (KIP-714): those of the consumer, then those of its partitions."""
        from moldau.cluster.telemetry.core.metrics import named  # most programs never ask

        for name, value in self.by_name().items():
            group = next((group for group, starts in _GROUPS.items() if name.startswith(starts)), "consumer")
            yield from named(group, {name: value})
        for partition, numbers in self.partitions.items():
            if numbers.records_lag >= 0:
                labels = (("topic", partition.topic), ("partition", str(partition.partition)))
                yield from named("consumer.fetch.manager", {"records-lag": numbers.records_lag}, labels)

    def by_name(self) -> dict[str, float]:
        """Returns the consumer's numbers under Kafka's names, such as ``records-consumed-total``."""
        return by_kafka_name(self)


class ConsumerCounters:
    """Counts for one consumer."""

    def __init__(self) -> None:
        self.records = 0
        self._rebalances = 0
        self._rebalance_ms = 0.0
        self._fetches = FetchCounters()
        self._commits = 0
        self._failed_commits = 0
        self._commit_latency = Samples()
        self._rebalance_latency = Samples()
        self._poll_idle_ratio = PollIdleRatio()

    def fetched(self, size_bytes: int, latency_ms: float, now_ms: float) -> None:
        """Counts an answered fetch."""
        self._fetches.answered(size_bytes, latency_ms, now_ms)

    def arrived(self, records: int, now_ms: float) -> None:
        """Counts the records that the answer of a fetch has brought."""
        if records:
            self._fetches.records.add(records, now_ms)

    def polled(self, records: int) -> None:
        """Counts records that reach the application."""
        self.records += records

    def polled_for(self, began_ms: float, now_ms: float) -> None:
        """Counts a poll, and the time between the poll before and it."""
        self._poll_idle_ratio.polled(began_ms, now_ms)

    def rebalanced(self, latency_ms: float, now_ms: float) -> None:
        """Counts an assignment that was taken over."""
        self._rebalances += 1
        self._rebalance_ms += latency_ms
        self._rebalance_latency.add(latency_ms, now_ms)

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
            **self._fetches.numbers(now_ms),
            records_lag_max=max(lags, default=math.nan),
            commit_total=self._commits,
            commit_failed_total=self._failed_commits,
            commit_latency_avg=self._commit_latency.average(now_ms),
            commit_latency_max=self._commit_latency.maximum(now_ms),
            rebalance_total=self._rebalances,
            rebalance_latency_avg=self._rebalance_latency.average(now_ms),
            rebalance_latency_max=self._rebalance_latency.maximum(now_ms),
            rebalance_latency_total=self._rebalance_ms,
            assigned_partitions=len(partitions),
            last_poll_seconds_ago=math.nan if last_poll_ms is None else (now_ms - last_poll_ms) / 1000,
            poll_idle_ratio_avg=self._poll_idle_ratio.average(now_ms),
            partitions=partitions,
        )


def _partition(position: PartitionPosition) -> PartitionStatistics:
    offset, end = position.offset if position.has_position else -1, position.end_offset
    return PartitionStatistics(
        position=offset,
        end_offset=end,
        records_lag=-1 if offset < 0 or end < 0 else max(end - offset, 0),
        is_paused=position.is_paused,
    )
