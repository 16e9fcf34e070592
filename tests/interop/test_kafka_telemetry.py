"""Goal: brokers of Apache Kafka take the metrics that our clients push (KIP-714).

Method: a node of Kafka with a plugin that writes each push to a file; OpenTelemetry's classes read it.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from moldau.admin import ConfigAlteration, ConfigResource, NewTopic, ResourceType
from moldau.blocking import Admin, Consumer, Producer
from support.interop.clients import wait_until
from support.interop.kafka_node import NEWEST, kafka, kafka_jars

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
PLUGIN = Path(__file__).parents[1] / "support/interop/TelemetryFile.java"


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Runs a node with the plugin; gives its address and the plugin's file."""
    jars, compiler = kafka_jars(NEWEST), shutil.which("javac")
    if compiler is None:
        pytest.skip("no javac: the plugin cannot be compiled")
    home = tmp_path_factory.mktemp("kafka")
    subprocess.run([compiler, "-cp", f"{jars}/*", "-d", str(home), str(PLUGIN)], check=True, timeout=300)
    pushes = home / "pushes"
    pushes.touch()
    with kafka(home, NEWEST, "metric.reporters=TelemetryFile\n", {"MOLDAU_TELEMETRY_FILE": str(pushes)}) as bootstrap:
        yield bootstrap, pushes


def taken(pushes):
    """Returns the pushes that the broker has taken: client id, instance id, whether it was the last, values."""
    found = []
    for line in pushes.read_text().splitlines():
        client_id, instance_id, last, data = line.split(" ")
        message = MetricsData.FromString(base64.b64decode(data))
        values = {
            metric.name: getattr(metric, metric.WhichOneof("data")).data_points[0].as_double
            for resource in message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        found.append((client_id, instance_id, last == "true", values))
    return found


def test_kafka_takes_our_pushes(node):
    bootstrap, pushes = node
    config = {"bootstrap.servers": bootstrap}
    with Admin(config) as admin:
        admin.create_topics([NewTopic("t", 1, 1)])
        changes = [ConfigAlteration(name="metrics", value="*"), ConfigAlteration(name="interval.ms", value="500")]
        admin.alter_configs({ConfigResource(type=ResourceType.CLIENT_METRICS, name="all"): changes})
        wait_until(lambda: admin.list_config_resources([ResourceType.CLIENT_METRICS]), "the subscription is known")
        assert admin.client_instance_id().int
    group = {"group.id": "g", "auto.offset.reset": "earliest", "client.id": "c"}
    with Producer({**config, "client.id": "p"}) as producer, Consumer({**config, **group}) as consumer:
        producer.send("t", b"value").result(30_000)
        shown = base64.urlsafe_b64encode(producer.client_instance_id().bytes).rstrip(b"=").decode()
        consumer.subscribe(["t"])
        wait_until(lambda: consumer.poll(500), "the record arrives")
        wait_until(lambda: len([each for each in taken(pushes) if each[0] == "p"]) >= 3, "three pushes arrive")
    wait_until(lambda: {each[0] for each in taken(pushes) if each[2]} == {"p", "c"}, "both clients push a last time")
    sent = [values for client_id, instance_id, _, values in taken(pushes) if (client_id, instance_id) == ("p", shown)]
    assert sum(values["org.apache.kafka.producer.record.send.total"] for values in sent) == 1, "changes, not totals"
    read = [values for client_id, _, _, values in taken(pushes) if client_id == "c"]
    assert sum(values["org.apache.kafka.consumer.fetch.manager.records.consumed.total"] for values in read) == 1
