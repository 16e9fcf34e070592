"""Reads metrics that clients push: OpenTelemetry's ``MetricsData`` in Protobuf (OTLP), into points in Prometheus' form.

``opentelemetry-proto`` has the message classes. It belongs to the extra ``telemetry`` and is imported when a broker
starts, because the import takes tens of milliseconds.

Gauges and sums are read; clients of KIP-714 send nothing else. Kafka's own metrics keep their name, with dots as
underscores (``org_apache_kafka_...``). All other names get the prefix ``client_``, so that no client can send a metric
that looks like one of the broker. A counter ends with ``_total``. Attributes of the resource that KIP-714 names, as
the group of a client, become labels of all its metrics.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA, MetricsData

from moldau_broker.server.client_metrics.core.series import CLIENT_SERIES_MAX, NO_NAME, OTHER, Labels, Point

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT_MAX: Final = 200
"""Characters of a name, of a label's name and of its value; longer ones are cut."""
PARTS_MAX: Final = 20_000
"""Resources, their attributes, scopes and metrics of one push: walking them takes some 20 ms."""
LABELS_MAX: Final = 16
"""Labels of a point; further ones are dropped, in the order of their names."""
OWN_LABELS: Final = frozenset({"client_id", "client_instance_id"})
"""Labels that the broker sets; a client's labels of these names are dropped."""
RESERVED: Final = "__"
"""Prometheus keeps label names that begin with it for itself: ``__name__`` is the name of the metric."""
CLIENT_LABELS: Final = ("client_rack", "group_id", "group_instance_id", "group_member_id", "transactional_id")
"""Attributes of the resource that are labels (KIP-714)."""
_KAFKA: Final = "org_apache_kafka_"


def points_of(data: bytes | bytearray | memoryview) -> tuple[list[Point], int, Labels]:
    """Returns at most ``CLIENT_SERIES_MAX`` points, how many others the data have, and the labels of the client.

    Raises:
        ValueError: the bytes are no ``MetricsData``, or have more than ``PARTS_MAX`` parts.
    """
    try:
        message = MetricsData.FromString(bytes(data))
    except DecodeError as error:
        raise ValueError(f"the metrics are no MetricsData of OpenTelemetry: {error}") from error
    if not _is_walkable(message):
        raise ValueError(f"the metrics have more than {PARTS_MAX} parts")
    points: list[Point] = []
    left_out = 0
    for metric in _metrics(message):
        kind = metric.WhichOneof("data")
        if kind is None:
            continue
        values = getattr(metric, kind)
        if kind not in ("gauge", "sum") or len(points) >= CLIENT_SERIES_MAX:
            left_out += len(values.data_points)
            continue
        is_counter = kind == "sum" and values.is_monotonic
        is_delta = kind == "sum" and values.aggregation_temporality == AGGREGATION_TEMPORALITY_DELTA
        name = metric_name(metric.name, is_counter=is_counter)
        taken = values.data_points[: CLIENT_SERIES_MAX - len(points)]
        left_out += len(values.data_points) - len(taken)
        points += [
            Point(
                name=name,
                labels=_labels(value.attributes),
                is_counter=is_counter,
                is_delta=is_delta,
                value=float(value.as_int if value.WhichOneof("value") == "as_int" else value.as_double),
            )
            for value in taken
        ]
    return points, left_out, _client_labels(message)


def _is_walkable(message: MetricsData) -> bool:
    """Returns whether a message has at most ``PARTS_MAX`` parts; empty ones take two bytes each."""
    left = PARTS_MAX - len(message.resource_metrics)
    if left < 0:
        return False
    for resource in message.resource_metrics:
        left -= len(resource.resource.attributes) + len(resource.scope_metrics)
        if left < 0:
            return False
        for scope in resource.scope_metrics:
            left -= len(scope.metrics)
            if left < 0:
                return False
    return True


def _client_labels(message: MetricsData) -> Labels:
    found = {
        attribute.key: text
        for resource in message.resource_metrics
        for attribute in resource.resource.attributes
        if attribute.key in CLIENT_LABELS and (text := _text(attribute.value))
    }
    return tuple(sorted(found.items()))


def _metrics(message: MetricsData) -> Iterator[Any]:
    for resource in message.resource_metrics:
        for scope in resource.scope_metrics:
            yield from scope.metrics


def metric_name(name: str, *, is_counter: bool) -> str:
    """Returns the name that a metric has on the broker's page."""
    text = NO_NAME.sub("_", name[:TEXT_MAX])
    text = text if text.startswith(_KAFKA) else OTHER + text
    return text + "_total" if is_counter and not text.endswith("_total") else text


def _labels(attributes: Any) -> Labels:  # noqa: ANN401  (a repeated field has no type of its own)
    found: dict[str, str] = {}
    for attribute in heapq.nsmallest(LABELS_MAX, attributes, key=lambda each: each.key):
        name = NO_NAME.sub("_", attribute.key[:TEXT_MAX])
        if name and name not in OWN_LABELS and not name.startswith(RESERVED):
            found[name if not name[0].isdigit() else f"_{name}"] = _text(attribute.value)
    return tuple(sorted(found.items()))


def _text(value: Any) -> str:  # noqa: ANN401
    """Returns a label's value; lists and maps have none."""
    kind = value.WhichOneof("value")
    if kind == "bool_value":
        return "true" if value.bool_value else "false"
    return str(getattr(value, kind))[:TEXT_MAX] if kind in ("string_value", "int_value", "double_value") else ""
