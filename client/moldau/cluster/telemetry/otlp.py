"""Writes metrics as OpenTelemetry's ``MetricsData`` in Protobuf (OTLP), with the classes of ``opentelemetry-proto``.

The package belongs to the extra ``client-metrics`` and is imported with the first push.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AGGREGATION_TEMPORALITY_CUMULATIVE,
    AGGREGATION_TEMPORALITY_DELTA,
    MetricsData,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moldau.cluster.telemetry.core.metrics import Point

_NS_PER_MS: Final = 1_000_000


def encode_metrics(points: Sequence[Point], resource: Mapping[str, str], now_ms: float, *, is_delta: bool) -> bytes:
    """Returns a ``MetricsData``. The bytes of two of them, one after the other, are a ``MetricsData`` with both."""
    message = MetricsData()
    owner = message.resource_metrics.add()
    for key, value in resource.items():
        owner.resource.attributes.add(key=key).value.string_value = value
    metrics = owner.scope_metrics.add().metrics
    temporality = AGGREGATION_TEMPORALITY_DELTA if is_delta else AGGREGATION_TEMPORALITY_CUMULATIVE
    for point in points:
        metric = metrics.add(name=point.name)
        if point.since_ms is None:
            value = metric.gauge.data_points.add()
        else:
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = temporality
            value = metric.sum.data_points.add(start_time_unix_nano=int(point.since_ms) * _NS_PER_MS)
        value.time_unix_nano = int(now_ms) * _NS_PER_MS
        value.as_double = point.value
        for key, text in point.labels:
            value.attributes.add(key=key).value.string_value = text
    encoded: bytes = message.SerializeToString()
    return encoded
