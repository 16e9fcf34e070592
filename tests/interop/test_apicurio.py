"""Goal: a schema registry of others keeps its schemas in a Moldau cluster, and serves Moldau's serializers.

Method: Apicurio Registry, whose only durable state is one partition; the broker that leads it is killed between two
schemas, and a second registry that starts afterwards knows both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from moldau.blocking import Admin, Consumer, Producer
from moldau.serialization import AvroSerde, JsonSchemaSerde, ProtobufSerde, SchemaRegistry
from moldau_jepsen.testing import cluster
from support.interop.apicurio import apicurio, apicurio_home

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.processes, pytest.mark.proof]
JOURNAL = "kafkasql-journal"
WAIT_MS = 60_000
FIELDS = [{"name": "carrier", "type": "string"}]
LATER = [*FIELDS, {"name": "delay", "type": ["null", "int"], "default": None}]
SHAPE = {"title": "Flight", "type": "object", "properties": {"carrier": {"type": "string"}}}


def flight(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": "Flight", "namespace": "air", "fields": fields}


def registry(url: str) -> SchemaRegistry:
    return SchemaRegistry({"schema.registry.url": url})


def test_a_registry_keeps_its_schemas_in_the_cluster(tmp_path: Path) -> None:
    program, reason = apicurio_home()
    if program is None:
        pytest.skip(reason)
    with cluster(brokers=3, controllers=1, links=False) as brokers:
        server = {"bootstrap.servers": brokers.bootstrap}

        def send(topic: str, serde: Any, value: Any) -> None:
            with Producer(server, value_serializer=serde) as producer:
                producer.send(topic, value).result(WAIT_MS)

        with apicurio(program, brokers.bootstrap, tmp_path / "one.log") as url:
            send("avro", AvroSerde(registry(url), flight(FIELDS)), {"carrier": "UA"})
            with Admin(server) as admin:
                journal = admin.describe_topics([JOURNAL])[JOURNAL]
            assert len(journal.partitions[0].isr) == 3
            brokers.kill(journal.partitions[0].leader)
            send("avro", AvroSerde(registry(url), flight(LATER)), {"carrier": "LH", "delay": 7})
            send("json", JsonSchemaSerde(registry(url), SHAPE), {"carrier": "AF"})
            send("protobuf", ProtobufSerde(registry(url), StringValue), StringValue(value="SN"))
        with apicurio(program, brokers.bootstrap, tmp_path / "two.log") as url:
            for topic, serde, values in (
                ("avro", AvroSerde(registry(url)), [{"carrier": "UA"}, {"carrier": "LH", "delay": 7}]),
                ("json", JsonSchemaSerde(registry(url), SHAPE), [{"carrier": "AF"}]),
                ("protobuf", ProtobufSerde(registry(url), StringValue), [StringValue(value="SN")]),
            ):
                reading = server | {"auto.offset.reset": "earliest"}
                with Consumer(reading, value_deserializer=serde) as consumer:
                    consumer.assign([(topic, 0)])
                    found = [record.value for _, record in zip(values, consumer, strict=False)]
                assert found == values
