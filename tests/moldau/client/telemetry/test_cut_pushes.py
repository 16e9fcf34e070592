"""Goal: a push holds as much as its broker takes, and no change of a sum is lost or counted twice.

Method: the shell of one client on virtual time. Its broker takes as many bytes as the last push had, or one less, so
each bound is met exactly. It takes two pushes of each subscription and refuses the third.
"""

from __future__ import annotations

import random
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import trio
import trio.testing
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from moldau.cluster.telemetry.core.metrics import Metric
from moldau.cluster.telemetry.shell import TelemetryShell
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from moldau.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from moldau.runtime.tasks.sync import Signal
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGAN_MS = 1_000_000
METRICS = 350
"""Three steps of a hundred points, and half a step."""


class Statistics:
    """Sums that grow with each look; those of the second step have the longest labels."""

    TELEMETRY_PREFIX = "producer"

    def __init__(self) -> None:
        self.looks = 0

    def metrics(self) -> Iterator[Metric]:
        self.looks += 1
        for number in range(METRICS):
            length = 200 if 100 <= number < 200 else 3
            labels = (("n", f"{number:0{length}}"),)
            yield Metric("org.apache.kafka.producer.x.total", self.looks * (number + 1), labels)


class Pushed(NamedTuple):
    """One point of a push."""

    number: int
    value: float
    since_ms: int
    until_ms: int


def points_of(push: bytes) -> list[Pushed]:
    return [
        Pushed(
            number=int(point.attributes[0].value.string_value),
            value=point.as_double,
            since_ms=point.start_time_unix_nano // 1_000_000,
            until_ms=point.time_unix_nano // 1_000_000,
        )
        for owner in MetricsData.FromString(push).resource_metrics
        for metric in owner.scope_metrics[0].metrics
        for point in metric.sum.data_points
    ]


class Broker:
    """A connection whose peer answers at once."""

    def __init__(self) -> None:
        self.bytes_max = 0  # as if the broker named no limit
        self.taken: list[list[Pushed]] = []
        self.counts: list[int] = []
        self.last_size = self.of_subscription = self.subscriptions = 0

    def notice_end(self) -> bool:
        return True

    async def request_as(self, _: type, request: Any, *, timeout_ms: float) -> Any:
        await trio.lowlevel.checkpoint()
        if isinstance(request, PushTelemetryRequest):
            return PushTelemetryResponse(error_code=self.code_of(bytes(request.metrics)))
        self.bytes_max = self.last_size - (self.subscriptions % 2 == 0 and self.last_size > 0)
        self.subscriptions += 1
        self.of_subscription = 0
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=UUID(int=7),
            subscription_id=self.subscriptions,
            push_interval_ms=1_000,
            telemetry_max_bytes=self.bytes_max,
            delta_temporality=True,
            requested_metrics=["*"],
        )

    def code_of(self, pushed: bytes) -> ErrorCode:
        assert len(pushed) <= (self.bytes_max or 1 << 20)
        self.of_subscription += 1
        if self.of_subscription > 2:
            return ErrorCode.UNKNOWN_SUBSCRIPTION_ID
        self.taken.append(points_of(pushed))
        self.counts.append(len(self.taken[-1]))
        self.last_size = len(pushed)
        return ErrorCode.NONE


def pushed_to(broker: Broker, seconds: float) -> None:
    class Clock:
        def wall_ms(self) -> int:
            return BEGAN_MS + round(trio.current_time() * 1_000)

    class Client:
        environment = SimpleNamespace(clock=Clock(), random=random.Random(1))
        config = MappingProxyType[str, object]({})
        logger = EventLogger("test")
        changed = Signal()
        request_timeout_ms = 1_000

        @property
        def now_ms(self) -> float:
            return trio.current_time() * 1_000

        def request_update(self) -> None:
            raise AssertionError("a connection is open")

    counters: Any = SimpleNamespace(
        member_id=str,
        application=SimpleNamespace(values=tuple),
        idlest_connection=lambda: broker,
        watch_latencies=lambda: None,
        connection_numbers=lambda now_ms: {},
        latency_numbers=lambda now_ms: (),
    )
    statistics = Statistics()

    async def main() -> None:
        client: Any = Client()
        with trio.move_on_after(seconds):
            await TelemetryShell(client, counters, BEGAN_MS).run(lambda: statistics)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_pushes_end_where_their_broker_has_no_room() -> None:
    broker = Broker()
    pushed_to(broker, 40)
    fitting = [METRICS, METRICS, 300, 300, 200, 200, 100, 100, 0]
    assert broker.counts[:18] == [count for count in fitting for _ in range(2)]


def test_changes_that_found_no_room_are_pushed_later() -> None:
    """The pushes of a sum cover the time since the client's start without a gap, and add up to its value each time."""
    broker = Broker()
    pushed_to(broker, 60)
    values: dict[int, float] = {}
    ends: dict[int, int] = {}
    for push in broker.taken:
        assert [point.number for point in push] == list(range(len(push))), "the most important ones are the first"
        for point in push:
            values[point.number] = values.get(point.number, 0) + point.value
            assert point.since_ms == ends.get(point.number, BEGAN_MS)
            ends[point.number] = point.until_ms
        looks = values.get(0, 0)
        assert [values[point.number] for point in push] == [looks * (point.number + 1) for point in push]
    assert broker.counts.count(METRICS) > 4, "a push of no bytes is followed by one without a limit"
