"""Asks brokers what to push, and pushes it: the task of a client that a broker has offered client metrics.

Requests go over connections that are open anyway, to the same broker as long as its connection lasts (KIP-714). If
none is open, the client refreshes its metadata, which opens one. The task waits in no queue of the client and reports
no error to the application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import trio

from moldau.cluster.telemetry.core.metrics import DOMAIN, Ledger, Metric, dotted, named
from moldau.cluster.telemetry.core.reporter import Ask, Push, Reporter
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from moldau.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from moldau.records import Compression, compress
from moldau.runtime.tasks.sync import Signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.cluster.telemetry.core.metrics import HasMetrics, Point
    from moldau.runtime.config import Config
    from moldau.runtime.net.rpc import RpcConnection
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.telemetry.log import EventLogger

_LOST: Final = (OSError, trio.TooSlowError, ProtocolError)
_POINTS_PER_STEP: Final = 100
"""Other tasks run after so many points are encoded."""
_SLEEP_MS_MAX: Final = 1e9
_RESOURCE_KEYS: Final = {
    "client.rack": "client_rack",
    "group.id": "group_id",
    "group.instance.id": "group_instance_id",
    "transactional.id": "transactional_id",
}
"""Configuration keys whose values label all metrics of a client, and the labels."""


class Owner(Protocol):
    """The client that pushes: a ``ClusterClient``."""

    environment: Environment
    config: Config
    logger: EventLogger
    changed: Signal

    @property
    def now_ms(self) -> float:
        """The time of the monotonic clock."""
        ...

    @property
    def request_timeout_ms(self) -> int:
        """The value of ``request.timeout.ms``."""
        ...

    def request_update(self) -> None:
        """Refreshes the metadata soon."""
        ...


class Counters(Protocol):
    """The numbers of a client beside its statistics, and the connections that may carry metrics."""

    member_id: Callable[[], str]
    """Returns the client's id in its group; empty without one."""

    @property
    def application(self) -> ApplicationMetrics:
        """The application's own metrics."""
        ...

    def idlest_connection(self) -> RpcConnection | None:
        """Returns the open connection with the fewest requests in flight."""
        ...

    def watch_latencies(self) -> None:
        """Keeps the latencies of requests from now on."""
        ...

    def connection_numbers(self, now_ms: float) -> Mapping[str, float]:
        """Returns the numbers of all connections, by Kafka's names."""
        ...

    def latency_numbers(self, now_ms: float) -> Iterable[tuple[int, Mapping[str, float]]]:
        """Yields the numbers of each broker."""
        ...


class TelemetryShell:
    """The requests of one client for client metrics."""

    def __init__(self, client: Owner, counters: Counters, began_ms: float) -> None:
        """``began_ms`` is when the client was opened, in Unix time."""
        self._client = client
        self._counters = counters
        self._read: Callable[[], HasMetrics] | None = None
        self._reporter = Reporter()
        self._ledger = Ledger(began_ms)
        self._connection: RpcConnection | None = None
        self.asked = Signal()

    @property
    def instance_id(self) -> UUID | None:
        """The id of this client, from the first answer on."""
        return self._reporter.instance_id

    async def run(self, read: Callable[[], HasMetrics]) -> None:
        """Asks and pushes until cancelled; ``read`` returns the client's statistics."""
        client, reporter = self._client, self._reporter
        self._read = read
        while True:
            delay_ms = reporter.next_deadline_ms() - client.now_ms
            if delay_ms > 0:
                await trio.sleep(min(delay_ms, _SLEEP_MS_MAX) / 1000)
                continue
            connection = self._open_connection()
            if connection is None:
                client.request_update()  # opens a connection
                await client.changed.wait_until(lambda: self._counters.idlest_connection() is not None)
                continue
            await self._send(connection, reporter.on_timer(client.now_ms))

    async def terminate(self) -> None:
        """Ends the requests and pushes a last time, if a connection is open; the caller bounds the time."""
        last = self._reporter.terminate()
        connection = self._open_connection()
        if last is not None and connection is not None:
            await self._send(connection, last)

    def _open_connection(self) -> RpcConnection | None:
        """Returns the connection of the last request, or another one if it has ended."""
        while self._connection is None or not self._connection.notice_end():
            self._connection = self._counters.idlest_connection()
            if self._connection is None:
                return None
        return self._connection

    async def _send(self, connection: RpcConnection, due: Ask | Push | None) -> None:
        client, reporter = self._client, self._reporter
        try:
            if isinstance(due, Ask):
                await self._ask(connection, due)
            elif due is not None:
                await self._push(connection, due)
        except _LOST as error:
            client.logger.debug("client-metrics-unanswered", error=error)
            self._connection = None
            reporter.on_lost(client.now_ms, client.environment.random.random())
        except KafkaError as error:  # this broker does not serve the versions known here
            client.logger.info("client-metrics-off", error=error)
            reporter.disable()

    async def _ask(self, connection: RpcConnection, due: Ask) -> None:
        client, reporter = self._client, self._reporter
        request = GetTelemetrySubscriptionsRequest(client_instance_id=due.client_instance_id)
        answer = await connection.request_as(
            GetTelemetrySubscriptionsResponse, request, timeout_ms=client.request_timeout_ms
        )
        reporter.on_subscription(answer, client.now_ms, client.environment.random.random())
        subscription = reporter.subscription
        if answer.error_code:
            client.logger.debug("client-metrics-refused", code=ErrorCode.of(answer.error_code).name)
        elif subscription is not None:
            self.asked.notify()
            if subscription.metrics:
                client.logger.info(
                    "client-metrics-asked",
                    instance=subscription.client_instance_id,
                    metrics=",".join(subscription.metrics),
                    interval_ms=subscription.interval_ms,
                )
                self._counters.watch_latencies()

    async def _push(self, connection: RpcConnection, due: Push) -> None:
        client, reporter = self._client, self._reporter
        try:
            data = await self._encoded(due)
        except ImportError as error:
            client.logger.warning(
                "client-metrics-off", reason=f"{error.name} is missing: install moldau[client-metrics]"
            )
            reporter.disable()
            return
        request = PushTelemetryRequest(
            client_instance_id=due.subscription.client_instance_id,
            subscription_id=due.subscription.subscription_id,
            terminating=due.is_terminating,
            compression_type=due.codec,
            metrics=data,
        )
        answer = await connection.request_as(PushTelemetryResponse, request, timeout_ms=client.request_timeout_ms)
        if not reporter.on_pushed(answer.error_code, client.now_ms):
            self._ledger.refused()
            client.logger.info("client-metrics-refused", code=ErrorCode.of(answer.error_code).name)

    async def _encoded(self, due: Push) -> bytes:
        """Returns the compressed metrics; those that find no room are left out.

        Raises:
            ImportError: the library that writes them is not installed.
        """
        from moldau.cluster.telemetry.otlp import encode_metrics

        subscription = due.subscription
        now_ms = self._client.environment.clock.wall_ms()
        points = self._ledger.points(self._metrics(), subscription, now_ms)
        parts: list[bytes] = []
        size = 0
        for step in _steps(points):
            part = encode_metrics(step, self._resource(), now_ms, is_delta=subscription.is_delta)
            if size + len(part) > due.bytes_max:
                self._client.logger.info("client-metrics-cut", metrics=len(points), bytes_max=due.bytes_max)
                self._ledger.left_out(points[len(parts) * _POINTS_PER_STEP :])
                break
            parts.append(part)
            size += len(part)
            await trio.lowlevel.checkpoint()
        data = b"".join(parts)
        return data if due.codec is Compression.NONE else bytes(compress(due.codec, data))

    def _metrics(self) -> Iterable[Metric]:
        read = self._read
        if read is None:
            return
        statistics = read()
        prefix = statistics.TELEMETRY_PREFIX
        now_ms = self._client.now_ms
        yield from named(prefix, self._counters.connection_numbers(now_ms))
        for name, value, labels in self._counters.application.values():
            yield Metric(DOMAIN + dotted(name), value, labels)
        yield from statistics.metrics()
        for node_id, values in self._counters.latency_numbers(now_ms):
            yield from named(f"{prefix}.node", values, (("node_id", f"node-{node_id}"),))

    def _resource(self) -> Mapping[str, str]:
        config = self._client.config
        found = {label: config.get(key) for key, label in _RESOURCE_KEYS.items() if key in config}
        found["group_member_id"] = self._counters.member_id()
        return {label: str(value) for label, value in found.items() if value}


def _steps(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    for first in range(0, max(len(points), 1), _POINTS_PER_STEP):
        yield points[first : first + _POINTS_PER_STEP]
