"""Goal: sums of a push are changes or totals as the broker wants, and none is lost or counted twice. Method: values."""

from __future__ import annotations

import math
from uuid import UUID

from moldau.cluster.telemetry.core.metrics import METRICS_MAX, Ledger, Metric, Point, named
from moldau.cluster.telemetry.core.reporter import ClientSubscription

TOTAL = "org.apache.kafka.producer.record.send.total"
GAUGE = "org.apache.kafka.producer.record.queue.time.avg"


def subscription(*metrics: str, is_delta: bool = True) -> ClientSubscription:
    return ClientSubscription(
        client_instance_id=UUID(int=7),
        subscription_id=1,
        codecs=(),
        interval_ms=1_000,
        bytes_max=1_000,
        is_delta=is_delta,
        metrics=metrics or ("*",),
    )


def pushed(ledger: Ledger, value: float, now_ms: float, *, is_delta: bool = True) -> list[tuple[float, float | None]]:
    points = ledger.points([Metric(TOTAL, value)], subscription(is_delta=is_delta), now_ms)
    return [(point.value, point.since_ms) for point in points]


def test_names_are_those_of_kafka() -> None:
    assert list(named("producer.topic", {"record-send-total": 3.0}, (("topic", "t"),))) == [
        Metric("org.apache.kafka.producer.topic.record.send.total", 3.0, (("topic", "t"),))
    ]
    assert Metric(TOTAL, 1.0).is_sum
    assert not Metric("org.apache.kafka.producer.buffer.total.bytes", 1.0).is_sum


def test_deltas_cover_the_time_since_the_last_push() -> None:
    ledger = Ledger(100)
    assert pushed(ledger, 5, 1_000) == [(5, 100)]
    assert pushed(ledger, 8, 2_000) == [(3, 1_000)]
    assert pushed(ledger, 8, 3_000) == [(0, 2_000)]


def test_a_refused_push_is_counted_again() -> None:
    ledger = Ledger(100)
    pushed(ledger, 5, 1_000)
    assert pushed(ledger, 8, 2_000) == [(3, 1_000)]
    ledger.refused()
    assert pushed(ledger, 9, 3_000) == [(4, 1_000)]


def test_points_that_find_no_room_are_counted_later() -> None:
    other = "org.apache.kafka.producer.record.retry.total"
    ledger = Ledger(100)

    def points(value: float, now_ms: float) -> list[Point]:
        return ledger.points([Metric(TOTAL, value), Metric(other, value), Metric(GAUGE, 1.0)], subscription(), now_ms)

    ledger.left_out(points(5, 1_000)[1:])
    second = points(8, 2_000)
    assert [(point.value, point.since_ms) for point in second] == [(3, 1_000), (8, 100), (1.0, None)]
    ledger.left_out(second[2:])
    third = points(9, 3_000)
    assert [(point.value, point.since_ms) for point in third] == [(1, 2_000), (1, 2_000), (1.0, None)]
    ledger.left_out(third[:1])
    ledger.refused()
    assert [(point.value, point.since_ms) for point in points(9, 4_000)][:2] == [(1, 2_000), (1, 2_000)]


def test_cumulative_sums_cover_all_the_time() -> None:
    ledger = Ledger(100)
    assert pushed(ledger, 5, 1_000, is_delta=False) == [(5, 100)]
    assert pushed(ledger, 8, 2_000, is_delta=False) == [(8, 100)]


def test_a_change_of_temporality_begins_again() -> None:
    ledger = Ledger(100)
    pushed(ledger, 5, 1_000)
    assert pushed(ledger, 6, 2_000, is_delta=False) == [(6, 100)]
    assert pushed(ledger, 7, 3_000) == [(7, 100)]


def test_gauges_unwanted_ones_and_values_without_observations() -> None:
    metrics = [Metric(GAUGE, 2.5), Metric(TOTAL, 1.0), Metric("org.apache.kafka.producer.other", math.nan)]
    points = Ledger(0).points(metrics, subscription("org.apache.kafka.producer.record.queue"), 1_000)
    assert [(point.name, point.value, point.since_ms) for point in points] == [(GAUGE, 2.5, None)]
    assert [point.name for point in Ledger(0).points(metrics, subscription(), 1_000)] == [GAUGE, TOTAL]


def test_a_push_is_bounded() -> None:
    many = [Metric(TOTAL, 1.0, (("topic", str(number)),)) for number in range(METRICS_MAX + 5)]
    ledger = Ledger(0)
    assert len(ledger.points(many, subscription(), 1_000)) == METRICS_MAX
    assert [point.value for point in ledger.points(many[-1:], subscription(), 2_000)] == [1.0], "not pushed before"
