"""Counters of a producer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.cluster.samples import Samples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.producer.core.batches import ProducerBatch
    from moldau.producer.core.statistics import ProducerStatistics


class _Topic:
    __slots__ = ("bytes", "errors", "retries", "sent")

    def __init__(self) -> None:
        self.sent = self.errors = self.retries = self.bytes = 0


class ProducerCounters:
    """Counts for one producer. The topics are those that it has sent to, so their number is bounded by the program."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._requests = 0
        self._in_flight = 0
        self._splits = 0
        self._latency = Samples()
        self._throttle = Samples()
        self._queue_time = Samples()
        self._batch_size = Samples()
        self._per_request = Samples()

    def _topic(self, batch: ProducerBatch) -> _Topic:
        return self._topics.setdefault(batch.partition.topic, _Topic())

    def sending(self, batches: Iterable[ProducerBatch], now_ms: float) -> None:
        """Counts a request with these batches."""
        self._requests += 1
        self._in_flight += 1
        records = 0
        for batch in batches:
            size = len(batch.data or b"")
            records += batch.record_count
            self._topic(batch).bytes += size
            self._batch_size.add(size, now_ms)
            if batch.attempts <= 1:
                self._queue_time.add(max(now_ms - batch.created_ms, 0.0), now_ms)
        self._per_request.add(records, now_ms)

    def ended(self, latency_ms: float | None, now_ms: float) -> None:
        """Counts the end of a request, with its latency if it was answered."""
        self._in_flight -= 1
        if latency_ms is not None:
            self._latency.add(latency_ms, now_ms)

    def throttled(self, throttle_ms: float, now_ms: float) -> None:
        """Counts the pause that a broker's answer asked for; 0 for none."""
        self._throttle.add(throttle_ms, now_ms)

    def retried(self, batch: ProducerBatch) -> None:
        """Counts the records of a batch that will be sent again."""
        self._topic(batch).retries += batch.record_count

    def split(self) -> None:
        """Counts a batch that was too large and is sent again in parts."""
        self._splits += 1

    def settled(self, batch: ProducerBatch) -> None:
        """Counts the records of a batch whose outcome is known."""
        topic = self._topic(batch)
        records = batch.record_count or batch.builder.record_count
        if batch.error is None:
            topic.sent += records
        else:
            topic.errors += records

    def statistics(self, now_ms: float, *, total: int, used: int, waiting: int) -> ProducerStatistics:
        """Returns the numbers now; ``total`` and ``used`` are bytes of ``buffer.memory``."""
        from moldau.producer.core.statistics import ProducerStatistics, TopicStatistics  # most programs never ask

        topics = {
            name: TopicStatistics(
                record_send_total=each.sent,
                record_error_total=each.errors,
                record_retry_total=each.retries,
                byte_total=each.bytes,
            )
            for name, each in self._topics.items()
        }
        return ProducerStatistics(
            record_send_total=sum(each.sent for each in self._topics.values()),
            record_error_total=sum(each.errors for each in self._topics.values()),
            record_retry_total=sum(each.retries for each in self._topics.values()),
            byte_total=sum(each.bytes for each in self._topics.values()),
            batch_split_total=self._splits,
            request_total=self._requests,
            request_latency_avg=self._latency.average(now_ms),
            request_latency_max=self._latency.maximum(now_ms),
            requests_in_flight=self._in_flight,
            produce_throttle_time_avg=self._throttle.average(now_ms),
            produce_throttle_time_max=self._throttle.maximum(now_ms),
            record_queue_time_avg=self._queue_time.average(now_ms),
            record_queue_time_max=self._queue_time.maximum(now_ms),
            batch_size_avg=self._batch_size.average(now_ms),
            batch_size_max=self._batch_size.maximum(now_ms),
            records_per_request_avg=self._per_request.average(now_ms),
            buffer_total_bytes=total,
            buffer_available_bytes=max(total - used, 0),
            waiting_threads=waiting,
            topics=topics,
        )
