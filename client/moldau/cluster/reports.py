"""Reports of a client about itself: statistics to the application, metrics to brokers that want them (KIP-714).

Brokers that take no metrics cost nothing: the modules of ``moldau.cluster.telemetry`` are loaded when a connection to
one that does is open. Until then a client keeps a few counters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from moldau.cluster import arguments
from moldau.cluster.samples import Samples
from moldau.protocol.api import ApiKey
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from moldau.cluster.client import ClusterClient
    from moldau.cluster.telemetry.application import ApplicationMetrics
    from moldau.cluster.telemetry.core.metrics import HasMetrics
    from moldau.cluster.telemetry.shell import TelemetryShell
    from moldau.runtime.config import Config
    from moldau.runtime.net.rpc import RpcConnection

LAST_PUSH_MS = 1_000
"""How long closing a client may wait for the answer to its last push."""
_NEEDED = (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY)


def check_has_instance_id(config: Config) -> None:
    """Refuses a question for the instance id of a client without metrics.

    Raises:
        ConfigError: ``enable.metrics.push`` is false.
    """
    if not config.get_bool("enable.metrics.push"):
        raise ConfigError(["enable.metrics.push = false: a client without metrics has no instance id"])


def check_callback(kind: str, callback: object) -> None:
    """Refuses what cannot be called as ``on_statistics``.

    Raises:
        TypeError: it is no function, or a coroutine function, which nothing would await.
    """
    if callback is None:
        return
    if not callable(callback):
        raise TypeError(f"{kind}: on_statistics must be a function, not {arguments.shown(callback)}")
    arguments.check_no_coroutine(f"{kind}: on_statistics", callback)


class TelemetryHandle:
    """The client metrics of one client."""

    __slots__ = (
        "_application",
        "_began_ms",
        "_client",
        "_connections",
        "_creations",
        "_latencies",
        "_offered",
        "_opened",
        "_shell",
        "assigned_id",
        "member_id",
    )

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._application: ApplicationMetrics | None = None
        self.member_id: Callable[[], str] = str
        """Returns the client's id in its group; empty without one."""
        self.assigned_id: UUID | None = None
        """The id of a client that pushes no metrics, once a broker has assigned it; its parts share it."""
        self._began_ms = client.environment.clock.wall_ms()
        self._connections: list[RpcConnection] = []
        self._creations = Samples()
        self._opened = 0
        self._latencies: dict[int, Samples] | None = None  # None: no broker wants them
        self._offered = trio.Event()
        self._shell: TelemetryShell | None = None

    @property
    def application(self) -> ApplicationMetrics:
        """The application's own metrics."""
        if self._application is None:
            from moldau.cluster.telemetry.application import ApplicationMetrics  # most programs have none

            self._application = ApplicationMetrics(self._client.logger)
        return self._application

    # --- what the client reports

    def opened(self, connection: RpcConnection, purpose: str) -> None:
        """Counts a new connection; one for ordinary requests may carry metrics."""
        self._opened += 1
        self._creations.add(1, self._client.now_ms)
        if not purpose and all(key in connection.served_versions for key in _NEEDED):
            self._connections = [*(known for known in self._connections if known.is_open), connection]
            self._offered.set()

    def answered(self, node_id: int, began_ms: float) -> None:
        """Notes how long a broker has taken to answer until now, if a broker wants to know."""
        if self._latencies is not None:
            now_ms = self._client.now_ms
            self._latencies.setdefault(node_id, Samples()).add(now_ms - began_ms, now_ms)

    def watch_latencies(self) -> None:
        """Keeps the latencies of requests from now on."""
        if self._latencies is None:
            self._latencies = {}

    # --- what a push needs

    def idlest_connection(self) -> RpcConnection | None:
        """Returns the open connection with the fewest requests in flight."""
        usable = [connection for connection in self._connections if connection.is_open]
        return min(usable, key=lambda connection: connection.in_flight, default=None)

    def connection_numbers(self, now_ms: float) -> dict[str, float]:
        """Returns how many connections were opened, and how many in a second."""
        return {
            "connection-creation-rate": self._creations.rate(now_ms),
            "connection-creation-total": self._opened,
        }

    def latency_numbers(self, now_ms: float) -> Iterator[tuple[int, dict[str, float]]]:
        """Yields the latencies of each broker's answers."""
        for node_id, samples in (self._latencies or {}).items():
            yield (
                node_id,
                {
                    "request-latency-avg": samples.average(now_ms),
                    "request-latency-max": samples.maximum(now_ms),
                },
            )

    # --- life

    def _loaded(self) -> TelemetryShell:
        if self._shell is None:
            from moldau.cluster.telemetry.shell import TelemetryShell  # not loaded before a broker offers the API

            self._shell = TelemetryShell(self._client, self, self._began_ms)
        return self._shell

    async def run(self, read: Callable[[], HasMetrics]) -> None:
        """Pushes what ``read`` returns, as the brokers want it, until cancelled."""
        if self._client.config.get_bool("enable.metrics.push"):
            await self._offered.wait()
            await self._loaded().run(read)

    async def client_instance_id(self, timeout_ms: float | None) -> UUID:
        """Returns the id by which brokers know this client; waits until one has assigned it.

        Raises:
            ConfigError: ``enable.metrics.push`` is false.
            KafkaError: REQUEST_TIMED_OUT, by default after ``request.timeout.ms``.
        """
        client = self._client
        check_has_instance_id(client.config)
        limit_ms = arguments.time_limit("client_instance_id", timeout_ms, client.request_timeout_ms)
        with trio.move_on_after(limit_ms / 1000):
            await client.changed.wait_until(lambda: self._offered.is_set() or client.is_closed)
            if not client.is_closed:
                shell = self._loaded()
                await shell.asked.wait_until(lambda: shell.instance_id is not None)
        found = None if self._shell is None else self._shell.instance_id
        if found is None and client.is_closed:
            await trio.lowlevel.checkpoint()
            raise RuntimeError("the client was closed during the call")
        if found is None:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"no client instance id after {limit_ms:g} ms: no broker that takes client metrics has answered",
            )
        return found

    async def farewell(self) -> None:
        """Pushes a last time if a broker wants metrics; takes at most ``LAST_PUSH_MS``."""
        if self._shell is not None:
            with trio.move_on_after(LAST_PUSH_MS / 1000):
                await self._shell.terminate()


S = TypeVar("S", bound="HasMetrics")


class Reports(Generic[S]):
    """The reports of one client. ``statistics.interval.ms`` = 0 makes none to the application."""

    __slots__ = ("_callback", "_interval_ms")

    def __init__(self, kind: str, config: Config, callback: Callable[[S], object] | None) -> None:
        """``callback`` receives the statistics every ``statistics.interval.ms``.

        Raises:
            ConfigError: only one of interval and callback is given.
            TypeError: the callback is no function, or a coroutine function.
        """
        interval_ms = config.get_int("statistics.interval.ms")
        check_callback(kind, callback)
        if (callback is None) != (interval_ms == 0):
            raise ConfigError([f"statistics.interval.ms = {interval_ms}: it and on_statistics need each other"])
        self._callback = callback
        self._interval_ms = interval_ms

    def start(self, nursery: trio.Nursery, client: ClusterClient, read: Callable[[], S]) -> None:
        """Starts the reports of what ``read`` returns; they end with the nursery."""
        nursery.start_soon(client.telemetry.run, read)
        if self._callback is not None:
            nursery.start_soon(self._report_forever, client, read, self._callback)

    async def _report_forever(
        self, client: ClusterClient, read: Callable[[], S], callback: Callable[[S], object]
    ) -> None:
        """Passes the statistics to a function. Its exceptions are logged."""
        while True:
            await trio.sleep(self._interval_ms / 1000)
            statistics = read()
            try:
                callback(statistics)
            except Exception as error:  # noqa: BLE001 - a fault of the application's function must not end its client
                client.logger.error("on-statistics-failed", exception=error)
