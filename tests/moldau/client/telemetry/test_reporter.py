"""Goal: a client asks, pushes, and stops as KIP-714 and Kafka's Java client do. Method: the pure core, step by step."""

from __future__ import annotations

import math
from uuid import UUID

import pytest

from moldau.cluster.telemetry.core.reporter import (
    BYTES_MAX_DEFAULT,
    INTERVAL_MS_DEFAULT,
    INTERVAL_MS_MIN,
    LOST_MS,
    Ask,
    Push,
    Reporter,
    State,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from moldau.records import Compression
from moldau.values import ZERO_UUID

ID = UUID(int=77)


def answer(**changes: object) -> GetTelemetrySubscriptionsResponse:
    fields = {
        "client_instance_id": ID,
        "subscription_id": 5,
        "accepted_compression_types": [4, 1],
        "push_interval_ms": 1_000,
        "telemetry_max_bytes": 2_000,
        "delta_temporality": True,
        "requested_metrics": ["*"],
    }
    return GetTelemetrySubscriptionsResponse(**{**fields, **changes})


def subscribed(now_ms: float = 0.0, draw: float = 0.25, **changes: object) -> Reporter:
    reporter = Reporter()
    assert isinstance(reporter.on_timer(now_ms), Ask)
    reporter.on_subscription(answer(**changes), now_ms, draw)
    return reporter


def push_of(reporter: Reporter) -> Push:
    due = reporter.on_timer(reporter.next_deadline_ms())
    assert isinstance(due, Push)
    return due


def test_first_asks_then_pushes_every_interval() -> None:
    reporter = Reporter()
    assert reporter.next_deadline_ms() == -math.inf
    assert reporter.on_timer(0) == Ask(client_instance_id=ZERO_UUID)
    assert reporter.next_deadline_ms() == math.inf
    assert reporter.on_timer(10_000) is None, "one request at a time"
    reporter.on_subscription(answer(), 100, 0.25)
    assert reporter.next_deadline_ms() == 100 + 750, "the first push comes after 0.5 to 1.5 of the interval"
    assert reporter.on_timer(849) is None
    pushed = reporter.on_timer(850)
    assert isinstance(pushed, Push)
    assert (pushed.codec, pushed.bytes_max, pushed.is_terminating) == (Compression.ZSTD, 2_000, False)
    assert reporter.on_pushed(ErrorCode.NONE, 900)
    assert reporter.next_deadline_ms() == 1_900


@pytest.mark.parametrize("draw", [0.0, 0.5, 0.999])
def test_jitter_of_the_first_push(draw: float) -> None:
    assert subscribed(draw=draw).next_deadline_ms() == 1_000 * (0.5 + draw)


def test_no_metrics_wanted_asks_again_with_its_id() -> None:
    reporter = subscribed(requested_metrics=[])
    assert reporter.next_deadline_ms() == 1_000
    assert reporter.on_timer(1_000) == Ask(client_instance_id=ID)
    reporter.on_subscription(answer(), 1_000, 0.0)
    assert reporter.state is State.PUSH_NEEDED


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(["*"], True), ([""], True), (["org.apache.kafka.producer."], True), (["org.apache.kafka.consumer."], False)],
)
def test_selection_by_beginnings(asked: list[str], expected: bool) -> None:
    subscription = subscribed(requested_metrics=asked).subscription
    assert subscription is not None
    assert subscription.selects("org.apache.kafka.producer.record.send.total") is expected


@pytest.mark.parametrize(
    ("code", "state", "delay_ms"),
    [
        (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, State.SUBSCRIPTION_NEEDED, 0),
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, State.SUBSCRIPTION_NEEDED, 0),
        (ErrorCode.TELEMETRY_TOO_LARGE, State.SUBSCRIPTION_NEEDED, 1_000),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, State.SUBSCRIPTION_NEEDED, 1_000),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, State.SUBSCRIPTION_NEEDED, 1_000),
        (ErrorCode.INVALID_REQUEST, State.DISABLED, None),
        (ErrorCode.INVALID_RECORD, State.DISABLED, None),
        (ErrorCode.UNSUPPORTED_VERSION, State.DISABLED, None),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, State.DISABLED, None),
    ],
)
def test_refused_pushes(code: ErrorCode, state: State, delay_ms: float | None) -> None:
    reporter = subscribed()
    push_of(reporter)
    assert not reporter.on_pushed(code, 5_000)
    assert reporter.state is state
    assert reporter.next_deadline_ms() == (math.inf if delay_ms is None else 5_000 + delay_ms)


@pytest.mark.parametrize(
    ("code", "delay_ms"),
    [
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, INTERVAL_MS_DEFAULT),
        (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, INTERVAL_MS_DEFAULT),
        (ErrorCode.INVALID_REQUEST, math.inf),
    ],
)
def test_refused_first_question(code: ErrorCode, delay_ms: float) -> None:
    """A broker that answers every question at once with an error is not asked in a loop."""
    reporter = subscribed(error_code=code)
    assert reporter.subscription is None
    assert reporter.next_deadline_ms() == delay_ms


def test_a_refused_codec_is_not_used_again() -> None:
    reporter = subscribed()
    for codec in (Compression.ZSTD, Compression.GZIP, Compression.NONE):
        assert push_of(reporter).codec is codec
        reporter.on_pushed(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, 1_000)
        reporter.on_timer(1_000)
        reporter.on_subscription(answer(), 1_000, 0.0)
    assert push_of(reporter).codec is Compression.NONE


def test_a_push_that_was_too_large_halves_the_next() -> None:
    reporter = subscribed()
    for bytes_max in (2_000, 1_000, 500):
        assert push_of(reporter).bytes_max == bytes_max
        reporter.on_pushed(ErrorCode.TELEMETRY_TOO_LARGE, 1_000)
        reporter.on_timer(reporter.next_deadline_ms())
        reporter.on_subscription(answer(), 2_000, 0.0)


def test_an_unknown_codec_of_a_later_kafka_is_skipped() -> None:
    assert push_of(subscribed(accepted_compression_types=[9, 3])).codec is Compression.LZ4
    assert push_of(subscribed(accepted_compression_types=[])).codec is Compression.NONE


@pytest.mark.parametrize(
    ("given", "taken"), [(0, INTERVAL_MS_DEFAULT), (-1, INTERVAL_MS_DEFAULT), (1, INTERVAL_MS_MIN), (700, 700)]
)
def test_intervals_that_no_broker_should_send(given: int, taken: int) -> None:
    assert subscribed(push_interval_ms=given, requested_metrics=[]).next_deadline_ms() == taken


def test_answers_that_no_broker_should_send() -> None:
    assert subscribed(client_instance_id=ZERO_UUID).state is State.DISABLED
    assert push_of(subscribed(telemetry_max_bytes=-1)).bytes_max == BYTES_MAX_DEFAULT


def test_a_lost_request_is_repeated_sooner_than_the_interval() -> None:
    reporter = Reporter()
    reporter.on_timer(0)
    reporter.on_lost(10, 0.0)
    assert reporter.next_deadline_ms() == 10 + LOST_MS / 2
    reporter = subscribed()
    push_of(reporter)
    reporter.on_lost(2_000, 1.0)
    assert reporter.next_deadline_ms() == 2_000 + 1_500
    assert reporter.on_timer(3_500) == Ask(client_instance_id=ID), "another broker may know another subscription"


def test_closing_pushes_a_last_time_if_there_is_a_subscription() -> None:
    assert Reporter().terminate() is None
    assert subscribed(requested_metrics=[]).terminate() is None
    for state in (State.PUSH_NEEDED, State.PUSH_IN_PROGRESS):
        reporter = subscribed()
        if state is State.PUSH_IN_PROGRESS:
            push_of(reporter)
        assert reporter.state is state
        last = reporter.terminate()
        assert last is not None
        assert last.is_terminating
        assert reporter.state is State.TERMINATED
        assert reporter.terminate() is None, "the last push is sent once"


def test_nothing_is_sent_after_the_end() -> None:
    reporter = subscribed()
    push_of(reporter)
    reporter.terminate()
    assert reporter.on_pushed(ErrorCode.UNKNOWN_SUBSCRIPTION_ID, 0), "answers to earlier requests change nothing"
    reporter.on_subscription(answer(), 0, 0.0)
    reporter.on_lost(0, 0.0)
    reporter.disable()
    assert reporter.state is State.TERMINATED
    assert reporter.next_deadline_ms() == math.inf
    assert reporter.on_timer(1e12) is None
