"""Numbers of a producer, under the names of Kafka's producer metrics. Values without behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from moldau.cluster.samples import by_kafka_name
from moldau.cluster.telemetry.core.metrics import named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moldau.cluster.telemetry.core.metrics import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatistics:
    """The records of one topic."""

    record_send_total: int
    record_error_total: int
    record_retry_total: int
    byte_total: int  # of batches as sent, compressed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStatistics:
    """A producer's numbers now. Totals count since the start; averages and maxima cover the last 30 to 60 s.

    Times are in milliseconds. A value without observations is NaN. ``record_send_total`` counts acknowledged records
    (with acks=0, sent ones), ``record_error_total`` those that failed for good.
    """

    record_send_total: int
    record_error_total: int
    record_retry_total: int
    byte_total: int
    batch_split_total: int
    request_total: int
    request_latency_avg: float
    request_latency_max: float
    requests_in_flight: int
    produce_throttle_time_avg: float
    produce_throttle_time_max: float
    record_queue_time_avg: float
    record_queue_time_max: float
    batch_size_avg: float
    batch_size_max: float
    records_per_request_avg: float
    buffer_total_bytes: int
    buffer_available_bytes: int
    waiting_threads: int
    topics: Mapping[str, TopicStatistics]

    TELEMETRY_PREFIX: ClassVar[str] = "producer"

    def metrics(self) -> Iterator[Metric]:
        """Yields the numbers as client metrics (KIP-714): those of the producer, then those of its topics."""
        yield from named(self.TELEMETRY_PREFIX, self.by_name())
        for topic, numbers in self.topics.items():
            yield from named("producer.topic", by_kafka_name(numbers), (("topic", topic),))

    def by_name(self) -> dict[str, float]:
        """Returns the producer's numbers under Kafka's names, such as ``record-send-total``."""
        return by_kafka_name(self)
