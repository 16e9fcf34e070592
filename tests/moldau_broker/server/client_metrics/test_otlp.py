"""Goal: pushed metrics become points in Prometheus' form, and hostile ones stay within the bounds.

Method: messages built with OpenTelemetry's own classes.
"""

import pytest
from opentelemetry.proto.metrics.v1 import metrics_pb2

from moldau_broker.server.client_metrics.core.series import CLIENT_SERIES_MAX, Point
from moldau_broker.server.client_metrics.otlp import LABELS_MAX, PARTS_MAX, TEXT_MAX, points_of

DELTA, CUMULATIVE = 1, 2


def message():
    data = metrics_pb2.MetricsData()
    return data, data.resource_metrics.add().scope_metrics.add().metrics


def add_sum(metrics, name, value, temporality, *, monotonic=True):
    metric = metrics.add(name=name)
    metric.sum.aggregation_temporality = temporality
    metric.sum.is_monotonic = monotonic
    metric.sum.data_points.add(as_int=value)


def test_sums_and_gauges_become_points() -> None:
    data, metrics = message()
    add_sum(metrics, "org.apache.kafka.producer.connection.creation.total", 3, DELTA)
    add_sum(metrics, "moldau_broker_fenced", 4, CUMULATIVE)
    add_sum(metrics, "org.apache.kafka.x", -1, DELTA, monotonic=False)
    gauge = metrics.add(name="org.apache.kafka.producer.node.request.latency.avg").gauge.data_points.add(as_double=1.5)
    gauge.attributes.add(key="node.id").value.int_value = 2
    gauge.attributes.add(key="client_id").value.string_value = "forged"
    owner = data.resource_metrics[0].resource.attributes
    for key, text in (("group_member_id", "m"), ("group_id", "g"), ("client_rack", ""), ("client_id", "forged")):
        owner.add(key=key).value.string_value = text
    assert points_of(data.SerializeToString()) == (
        [
            Point(
                name="org_apache_kafka_producer_connection_creation_total",
                labels=(),
                is_counter=True,
                is_delta=True,
                value=3.0,
            ),
            Point(name="client_moldau_broker_fenced_total", labels=(), is_counter=True, is_delta=False, value=4.0),
            Point(name="org_apache_kafka_x", labels=(), is_counter=False, is_delta=True, value=-1.0),
            Point(
                name="org_apache_kafka_producer_node_request_latency_avg",
                labels=(("node_id", "2"),),
                is_counter=False,
                is_delta=False,
                value=1.5,
            ),
        ],
        0,
        (("group_id", "g"), ("group_member_id", "m")),
    )


def test_hostile_metrics_stay_within_the_bounds() -> None:
    data, metrics = message()
    gauge = metrics.add(name='x"}\n' * 1000).gauge
    for number in range(CLIENT_SERIES_MAX + 5):
        found = gauge.data_points.add(as_int=number)
        for label in range(LABELS_MAX + 3):
            found.attributes.add(key=f"{label}\n").value.string_value = "v" * 1000
    metrics.add(name="h").histogram.data_points.add(count=1)
    points, left_out, _ = points_of(data.SerializeToString())
    assert (len(points), left_out) == (CLIENT_SERIES_MAX, 6)
    assert points[0].name.startswith("client_x___")
    assert len(points[0].name) <= TEXT_MAX + len("client_")
    assert len(points[0].labels) == LABELS_MAX
    assert all(name.startswith("_") and "\n" not in name and len(text) == TEXT_MAX for name, text in points[0].labels)


def test_no_label_of_a_client_has_the_name_of_one_of_the_broker() -> None:
    """A series with a label twice makes a scrape of the whole page fail; ``__name__`` is the name of the metric."""
    data, metrics = message()
    found = metrics.add(name="x").gauge.data_points.add(as_int=1)
    for name in ("client_id", "client.id", "client-instance-id", "__name__", ".-name__", "topic"):
        found.attributes.add(key=name).value.string_value = "v"
    points, _, _ = points_of(data.SerializeToString())
    assert points[0].labels == (("topic", "v"),)


def test_bytes_that_are_no_metrics_are_refused() -> None:
    with pytest.raises(ValueError, match="no MetricsData"):
        points_of(b"\xff\xff\xff")


@pytest.mark.parametrize("kind", ["resources", "attributes", "scopes", "metrics"])
def test_many_empty_parts_are_refused(kind) -> None:
    """A part without content takes two bytes, and compressed almost none."""
    data, metrics = message()
    resource = data.resource_metrics[0]
    parts = {
        "resources": data.resource_metrics,
        "attributes": resource.resource.attributes,
        "scopes": resource.scope_metrics,
        "metrics": metrics,
    }[kind]
    for _ in range(PARTS_MAX - 2):
        parts.add()
    assert points_of(data.SerializeToString()) == ([], 0, ())
    for _ in range(2):
        parts.add()
    with pytest.raises(ValueError, match=f"more than {PARTS_MAX} parts"):
        points_of(data.SerializeToString())


def labels_of(names):
    data = metrics_pb2.MetricsData()
    point = data.resource_metrics.add().scope_metrics.add().metrics.add(name="m").gauge.data_points.add(as_int=1)
    for name in names:
        point.attributes.add(key=name).value.string_value = name
    return points_of(data.SerializeToString())[0][0].labels


def test_labels_beyond_the_bound_are_dropped_by_name():
    """As ``LABELS_MAX`` says; else one series of a client becomes two."""
    names = [f"l{number:02}" for number in range(LABELS_MAX + 1)]
    wanted = tuple((name, name) for name in names[:LABELS_MAX])
    assert labels_of(names) == wanted
    assert labels_of(names[::-1]) == wanted
