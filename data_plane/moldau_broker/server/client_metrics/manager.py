"""The shell of client telemetry: follows the subscriptions, answers clients, keeps what they push for the scrapes."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsResponse
from moldau.protocol.messages.push_telemetry import PushTelemetryResponse
from moldau.protocol.refusals import refusal
from moldau.records.compression import Compression, decompress
from moldau.records.errors import CorruptRecordError, OversizedRecordsError
from moldau.runtime.config import CLIENT_METRICS_CONFIG
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.coordinator.regexes import compile_regex
from moldau_broker.server.client_metrics.core.instances import Instances, Push, Subscription
from moldau_quorum.metadata.image import RESOURCE_CLIENT_METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from moldau.protocol.messages.get_telemetry_subscriptions import GetTelemetrySubscriptionsRequest
    from moldau.protocol.messages.push_telemetry import PushTelemetryRequest
    from moldau.runtime.ports.environment import Environment
    from moldau.values import Buffer
    from moldau_broker.server.client_metrics.core.instances import Client
    from moldau_broker.server.client_metrics.core.series import Labels, Point
    from moldau_quorum.metadata.image import MetadataImage

OFFERED: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
"""The codecs that clients may choose from, best first; they may also send metrics uncompressed."""
_CODECS: Final = tuple(int(codec) for codec in Compression)

NEEDED: Final = ("re2", "google.protobuf", "opentelemetry.proto.metrics.v1.metrics_pb2")
"""Modules of the extra ``telemetry``; subscriptions select clients by regular expressions."""

_logger = EventLogger("moldau.broker.client_metrics")


@dataclass(slots=True)
class Counts:
    """Counters of client telemetry since the broker started."""

    pushes: int = 0
    throttled: int = 0
    unknown_subscriptions: int = 0
    unreadable: int = 0
    left_out: int = 0  # points that found no room, or have no form here


class ClientMetrics:
    """Subscriptions, instances and series of one broker."""

    def __init__(
        self,
        environment: Environment,
        read: Callable[[Buffer], tuple[list[Point], int, Labels]],
        bytes_max: Callable[[], int],
        load: Callable[[], None] = lambda: None,
    ) -> None:
        """``read`` decodes uncompressed metrics; ``bytes_max`` returns the present ``telemetry.max.bytes``.

        ``load`` prepares ``read``. It takes tens of milliseconds, so it runs with the first subscription: neither with
        each start of a broker, nor with the first push.
        """
        self._environment = environment
        self._load = load
        self._read = read
        self._bytes_max = bytes_max
        self.instances = Instances()
        self.lane = trio.Lock()
        """Held while a push is read and until other tasks have had their turn."""
        self.counts = Counts()

    def follow(self, image: MetadataImage) -> None:
        """Takes the subscriptions of new metadata."""
        named = [
            (name, values) for (kind, name), values in sorted(image.configs.items()) if kind == RESOURCE_CLIENT_METRICS
        ]
        found = [_subscription(name, values) for name, values in named]
        if named:
            self._load()
        self.instances.replace_subscriptions([subscription for subscription in found if subscription is not None])

    def get(self, request: GetTelemetrySubscriptionsRequest, client: Client) -> GetTelemetrySubscriptionsResponse:
        """Answers which metrics a client is to push; a client without an instance id gets one."""
        instance_id = request.client_instance_id if request.client_instance_id.int else self._fresh_id()
        found = self.instances.get(instance_id, client, self._environment.clock.monotonic_ms())
        if isinstance(found, ErrorCode):
            self._count(found)
            return refusal_of_get(request, found)
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance_id,
            subscription_id=found.subscription_id,
            accepted_compression_types=[int(codec) for codec in OFFERED],
            push_interval_ms=found.interval_ms,
            telemetry_max_bytes=self._bytes_max(),
            delta_temporality=True,
            requested_metrics=list(found.metrics),
        )

    def push(self, request: PushTelemetryRequest, client: Client) -> PushTelemetryResponse:
        """Takes the metrics of a client."""
        push = Push(
            instance_id=request.client_instance_id,
            subscription_id=request.subscription_id,
            terminating=request.terminating,
            compression_type=request.compression_type,
            size=len(request.metrics),
        )
        now_ms = self._environment.clock.monotonic_ms()
        error = self.instances.push(push, client, now_ms, bytes_max=self._bytes_max(), codecs=_CODECS)
        if error is ErrorCode.NONE and push.size:
            error = self._store(request)
            if error is not ErrorCode.NONE:
                self.instances.failed(push.instance_id, error)
        self._count(error)
        return PushTelemetryResponse(error_code=error)

    def expire(self) -> None:
        """Forgets silent clients, of which no request of another client may remind the broker."""
        self.instances.expire(self._environment.clock.monotonic_ms())

    def points(self) -> Iterator[tuple[uuid.UUID, str, Point]]:
        """Yields instance id, client id and point of each series."""
        for instance_id, client_id, series in self.instances.all_series():
            for point in series.points():
                yield instance_id, client_id, point

    def _store(self, request: PushTelemetryRequest) -> ErrorCode:
        try:
            data = decompress(Compression(request.compression_type), request.metrics, self._bytes_max())
            points, left_out, labels = self._read(data)
        except OversizedRecordsError:
            return ErrorCode.TELEMETRY_TOO_LARGE
        except (CorruptRecordError, ValueError) as error:
            self.counts.unreadable += 1
            _logger.debug("metrics-unreadable", instance=request.client_instance_id, error=error)
            return ErrorCode.INVALID_RECORD
        self.counts.pushes += 1
        series = self.instances.series(request.client_instance_id)
        series.client_labels = labels
        self.counts.left_out += left_out + series.store(points)
        return ErrorCode.NONE

    def _count(self, error: ErrorCode) -> None:
        if error is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            self.counts.throttled += 1
        elif error is ErrorCode.UNKNOWN_SUBSCRIPTION_ID:
            self.counts.unknown_subscriptions += 1

    def _fresh_id(self) -> uuid.UUID:
        while True:
            found = uuid.UUID(int=self._environment.random.getrandbits(128), version=4)
            if found not in self.instances:
                return found


def refusal_of_get(request: GetTelemetrySubscriptionsRequest, error: ErrorCode) -> GetTelemetrySubscriptionsResponse:
    """Returns the answer to a client that may not ask now."""
    response = refusal(request, error, version=0)
    assert isinstance(response, GetTelemetrySubscriptionsResponse)
    return response


def client_metrics(environment: Environment, bytes_max: Callable[[], int]) -> ClientMetrics | None:
    """Returns the telemetry of a broker; None without the extra ``telemetry``: the broker then offers none."""
    missing = [name for name in NEEDED if not _is_installed(name)]
    if missing:
        _logger.info("client-telemetry-off", reason=f"{missing[0]} is missing: install moldau[telemetry]")
        return None
    return ClientMetrics(environment, _points_of, bytes_max, load=_load)


def _is_installed(name: str) -> bool:
    """Returns whether a module can be imported, without its import."""
    try:
        return find_spec(name) is not None
    except ImportError:  # of its package
        return False


def _load() -> None:
    """Imports what reads metrics."""
    import moldau_broker.server.client_metrics.otlp  # noqa: F401


def _points_of(metrics: Buffer) -> tuple[list[Point], int, Labels]:
    from moldau_broker.server.client_metrics.otlp import points_of

    return points_of(metrics)


def _subscription(name: str, values: Mapping[str, str]) -> Subscription | None:
    """Returns a subscription; None, with a line in the log, if RE2 cannot match one of its expressions."""
    config = CLIENT_METRICS_CONFIG.parse(values)
    tests = []
    for pattern in config.get_list("match"):
        selector, _, expression = pattern.partition("=")
        try:
            tests.append((selector.strip(), compile_regex(expression.strip())))
        except KafkaError as error:
            _logger.warning("subscription-ignored", subscription=name, match=pattern, error=error)
            return None
    return Subscription(
        metrics=tuple(config.get_list("metrics")), interval_ms=config.get_int("interval.ms"), match=tuple(tests)
    )
