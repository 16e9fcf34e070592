"""Goal: values in Confluent's wire format are exchanged with confluent-kafka's serializers in both directions.

Method: one registry over real HTTP; each format writes with one library and reads with the other, under trio and
asyncio; schemas evolve, refer to others and are missing.
"""

import asyncio
import dataclasses
import json
import ssl
from decimal import Decimal

import httpx
import pytest
import trio
import trio.testing
import trustme
from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField
from confluent_kafka.serialization import SerializationContext as TheirContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pydantic import BaseModel, Field

from moldau import ConfigError
from moldau.serialization import (
    AvroSerde,
    JsonSchemaSerde,
    ProtobufSerde,
    RegistryError,
    Schema,
    SchemaReference,
    SchemaRegistry,
    SerializationContext,
    SerializationError,
)
from moldau.serialization.core.values import SchemaNeeded
from support.schema_registry import schema_registry

CONTEXT = SerializationContext("flights", "value")
THEIRS = TheirContext("flights", MessageField.VALUE)
FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"], "default": None}],
}
JSON_FLIGHT = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Flight",
    "type": "object",
    "properties": {"carrier": {"type": "string"}, "delay": {"type": "integer"}},
    "required": ["carrier"],
}
VALUE = {"carrier": "UA", "delay": 7}


class Flight(BaseModel):
    carrier: str
    delay: int | None = None


class AliasedFlight(BaseModel):
    airline: str = Field(alias="carrier")
    delay: int | None = None


@dataclasses.dataclass
class PlainFlight:
    carrier: str
    delay: int | None


@pytest.fixture(scope="module")
def server():
    with schema_registry() as served:
        yield served


@pytest.fixture
def registry(server):
    with server.state.lock:
        for part in (server.state.ids, server.state.by_id, server.state.subjects, server.state.incompatible):
            part.clear()
        server.state.requests.clear()
        server.state.failures.clear()
        server.state.authorization = None
    return SchemaRegistry({"schema.registry.url": server.url, "retries.wait.ms": 1})


@pytest.fixture
def theirs(server):
    with SchemaRegistryClient({"url": server.url}) as client:
        yield client


async def with_registry(call, *args):
    """Acts as a client: calls, fetches missing schemas, and calls again."""
    while True:
        try:
            return call(*args)
        except SchemaNeeded as needed:
            await needed.registry.resolve(needed.need)


def serialized(serde, value, context=CONTEXT):
    return trio.run(with_registry, serde.serialize, value, context)


def deserialized(serde, data, context=CONTEXT):
    return asyncio.run(with_registry(serde.deserialize, data, context))


def messages():
    """Returns two message classes: one of a file that imports another, and one nested in it."""
    pool = descriptor_pool.DescriptorPool()
    common = descriptor_pb2.FileDescriptorProto(name="air/common.proto", package="air", syntax="proto3")
    carrier = common.message_type.add(name="Carrier")
    carrier.field.add(name="code", number=1, type=9, label=1)
    pool.Add(common)
    file = descriptor_pb2.FileDescriptorProto(name="air/flight.proto", package="air", syntax="proto3")
    file.dependency.append("air/common.proto")
    file.message_type.add(name="Other")
    flight = file.message_type.add(name="Flight")
    flight.field.add(name="carrier", number=1, type=11, label=1, type_name=".air.Carrier")
    flight.field.add(name="delay", number=2, type=5, label=1)
    leg = flight.nested_type.add(name="Leg")
    leg.field.add(name="code", number=1, type=9, label=1)
    pool.Add(file)
    names = ("air.Flight", "air.Flight.Leg", "air.Other", "air.Carrier")
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (FLIGHT, VALUE),
        ({"type": "bytes"}, b"abc"),
        ({"type": "bytes"}, b"ab" * 33),
        ({"type": "string"}, "abc"),
        ({"type": "array", "items": "bytes"}, [b"abc"]),
    ],
)
def test_avro_is_exchanged_both_ways(registry, theirs, schema, value):
    ours = AvroSerde(registry, schema)
    written = AvroSerializer(theirs, json.dumps(schema))(value, THEIRS)
    assert deserialized(ours, written) == value
    own = serialized(ours, value)
    assert own == written
    assert AvroDeserializer(theirs)(own, THEIRS) == value


def test_bare_bytes_are_read_as_what_the_reader_has(registry):
    bare = serialized(AvroSerde(registry, '"bytes"'), b"")
    assert deserialized(AvroSerde(registry, ["null", "bytes"]), bare) == b""
    assert deserialized(AvroSerde(registry, '"string"'), bare[:5] + b"abc") == "abc"
    cents = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
    price = AvroSerde(registry, cents)
    assert deserialized(price, serialized(price, Decimal("1.25"))) == Decimal("1.25")


def test_json_schema_is_exchanged_both_ways(registry, theirs):
    text = json.dumps(JSON_FLIGHT)
    ours = JsonSchemaSerde(registry, text)
    written = JSONSerializer(text, theirs)(VALUE, THEIRS)
    assert deserialized(ours, written) == VALUE
    own = serialized(ours, VALUE)
    assert own[:5] == written[:5]
    assert JSONDeserializer(text, schema_registry_client=theirs)(own, THEIRS) == VALUE


def test_protobuf_is_exchanged_both_ways(registry, theirs):
    flight, leg, other, carrier = messages()
    for value in (flight(carrier=carrier(code="UA"), delay=7), leg(code="1"), other()):
        ours = ProtobufSerde(registry, type(value))
        written = ProtobufSerializer(type(value), theirs, {"use.deprecated.format": False})(value, THEIRS)
        assert deserialized(ours, written) == value
        own = serialized(ours, value)
        assert own == written
        assert ProtobufDeserializer(type(value), {"use.deprecated.format": False}, theirs)(own, THEIRS) == value


def test_another_message_of_the_file_is_recognized(registry):
    flight, leg, *_ = messages()
    data = serialized(ProtobufSerde(registry, leg), leg(code="1"))
    with pytest.raises(SerializationError, match=r"message indexes \[1, 0\]: air.Flight has \[1\]") as caught:
        deserialized(ProtobufSerde(registry, flight), data)
    assert caught.value.schema_id == 2
    with pytest.raises(SerializationError, match=r"must be a air.Flight, not a Leg"):
        serialized(ProtobufSerde(registry, flight), leg())


@pytest.mark.parametrize("model", [Flight, AliasedFlight, PlainFlight])
def test_models_are_written_and_read(registry, model):
    value = model(carrier="UA", delay=None)
    for serde in (AvroSerde(registry, FLIGHT, model=model), JsonSchemaSerde(registry, model=model)):
        context = SerializationContext(type(serde).__name__, "value")
        assert deserialized(serde, serialized(serde, value, context), context) == value


class Gate(BaseModel):
    number: int = Field(gt=0)


def test_objects_that_their_model_refuses_are_not_written(registry):
    schema = {"type": "record", "name": "Gate", "fields": [{"name": "number", "type": "int"}]}
    value = Gate.model_construct(number=0)
    for serde in (AvroSerde(registry, schema, model=Gate), JsonSchemaSerde(registry, model=Gate)):
        context = SerializationContext(type(serde).__name__, "value")
        with pytest.raises(SerializationError, match=r"it does not fit (?s:.*)greater than 0") as caught:
            serialized(serde, value, context)
        assert caught.value.schema_id is not None


def test_values_that_fit_no_schema_name_subject_and_id(registry):
    for serde in (AvroSerde(registry, FLIGHT), JsonSchemaSerde(registry, JSON_FLIGHT)):
        with pytest.raises(SerializationError, match="it does not fit") as caught:
            serialized(serde, {"delay": "late"})
        assert caught.value.subject == "flights-value"
        assert caught.value.schema_id is not None


def test_no_avro_value_is_written_as_another_one(registry):
    """``fastavro`` makes 7 of 7.9, and false of a boolean that is None."""
    fields = [{"name": "delay", "type": "int"}, {"name": "open", "type": "boolean"}]
    serde = AvroSerde(registry, {"type": "record", "name": "Gate", "fields": fields})
    for value, text in (({"delay": 7.9, "open": True}, "Gate.delay: 7.9"), ({"delay": 7, "open": None}, "Gate.open")):
        with pytest.raises(SerializationError, match=f"it does not fit the Avro schema: .*{text}") as caught:
            serialized(serde, value)
        assert (caught.value.subject, caught.value.schema_id) == ("flights-value", 1)


def test_readers_resolve_older_schemas(registry):
    older = AvroSerde(registry, {**FLIGHT, "fields": FLIGHT["fields"][:1]})
    data = serialized(older, {"carrier": "UA"})
    assert deserialized(AvroSerde(registry, FLIGHT), data) == {"carrier": "UA", "delay": None}
    assert deserialized(AvroSerde(registry), data) == {"carrier": "UA"}
    with pytest.raises(SerializationError, match="only reads"):
        serialized(AvroSerde(registry), {})


def test_a_reader_may_define_what_a_writer_names(registry):
    code = {"type": "enum", "name": "Code", "symbols": ["JFK", "EWR"]}
    fields = [{"name": "origin", "type": code}, {"name": "target", "type": "Code"}]
    data = serialized(AvroSerde(registry, FLIGHT | {"fields": fields}), {"origin": "JFK", "target": "EWR"})
    own = AvroSerde(registry, FLIGHT | {"fields": [{"name": "target", "type": ["null", code]}]})
    assert deserialized(own, data) == {"target": "EWR"}


LEG = {"type": "record", "name": "Leg", "fields": [{"name": "flight", "type": "air.Flight"}]}


@pytest.mark.parametrize(
    ("outer", "own", "value"),
    [
        ({"type": "array", "items": "air.Flight"}, {"type": "array", "items": FLIGHT}, [VALUE, VALUE]),
        (LEG, {**LEG, "fields": [{"name": "flight", "type": FLIGHT}]}, {"flight": VALUE}),
    ],
)
def test_references_of_avro_schemas_are_followed(registry, outer, own, value):
    async def main():
        await registry.register("air.Flight", Schema(json.dumps(FLIGHT)))
        references = (SchemaReference("air.Flight", "air.Flight", 1),)
        await registry.register("flights-value", Schema(json.dumps(outer), references=references))

    trio.run(main)
    serde = AvroSerde(registry, own, config={"use.latest.version": True})
    data = serialized(serde, value)
    assert data[:5] == b"\0\0\0\0\x02"
    assert deserialized(AvroSerde(registry), data) == value


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        ("TopicNameStrategy", "flights-value"),
        ("RecordNameStrategy", "air.Flight"),
        ("TopicRecordNameStrategy", "flights-air.Flight"),
    ],
)
def test_subjects_follow_the_strategy(registry, server, strategy, subject):
    serde = AvroSerde(registry, FLIGHT, config={"subject.name.strategy": strategy})
    serialized(serde, VALUE)
    assert list(server.state.subjects) == [subject]


def test_confluent_finds_our_subject_by_record_name(registry, theirs, server):
    serialized(AvroSerde(registry, FLIGHT, config={"subject.name.strategy": "RecordNameStrategy"}), VALUE)
    before = dict(server.state.subjects)
    options = {"auto.register.schemas": False, "subject.name.strategy": record_subject_name_strategy}
    AvroSerializer(theirs, json.dumps(FLIGHT), conf=options)(VALUE, THEIRS)
    assert server.state.subjects == before


def test_a_strategy_needs_a_name(registry):
    serde = JsonSchemaSerde(registry, {"type": "object"}, config={"subject.name.strategy": "RecordNameStrategy"})
    with pytest.raises(SerializationError, match="RecordNameStrategy needs a schema with a record's name"):
        serialized(serde, {})


def test_schemas_are_not_registered_unasked(registry, server):
    serde = AvroSerde(registry, FLIGHT, config={"auto.register.schemas": "false"})
    with pytest.raises(RegistryError, match=r"404 \(error code 40401\)") as caught:
        serialized(serde, VALUE)
    assert caught.value.is_about_schema
    assert server.state.subjects == {}


def test_answers_are_asked_for_once(registry, server):
    serde = AvroSerde(registry, FLIGHT)
    data = [serialized(serde, VALUE) for _ in range(3)]
    assert [deserialized(serde, each) for each in data] == [VALUE] * 3
    assert server.state.requests == [("POST", "/subjects/flights-value/versions"), ("GET", "/schemas/ids/1")]


def test_the_cache_is_bounded(server):
    small = SchemaRegistry({"schema.registry.url": server.url, "cache.capacity": 16})

    async def main():
        for number in range(40):
            await small.register(f"s{number}", Schema(json.dumps({"type": "fixed", "name": f"f{number}", "size": 1})))

    trio.run(main)
    assert len(small._cache) == 16


def test_passing_failures_are_retried_and_lasting_ones_not(registry, server):
    server.state.failures = [503, 429, 500]
    assert trio.run(registry.subjects) == []
    server.state.failures = [503] * 4
    with pytest.raises(RegistryError, match="answers 503") as caught:
        trio.run(registry.subjects)
    assert caught.value.retriable
    server.state.requests.clear()
    server.state.failures = [422]
    with pytest.raises(RegistryError, match="answers 422"):
        trio.run(registry.subjects)
    assert len(server.state.requests) == 1


def test_the_next_address_answers(server):
    both = SchemaRegistry({"schema.registry.url": f"http://127.0.0.1:1,{server.url}", "max.retries": 0})
    assert isinstance(trio.run(both.subjects), list)
    none = SchemaRegistry({"schema.registry.url": "http://127.0.0.1:1", "max.retries": 0})
    with pytest.raises(RegistryError, match=r"GET http://127.0.0.1:1/subjects: the schema registry does not answer"):
        trio.run(none.subjects)


def test_time_limits_hold_in_virtual_time():
    class Silent(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request):
            await trio.sleep_forever()

    silent = SchemaRegistry(
        {"schema.registry.url": "http://registry", "request.timeout.ms": 2000, "max.retries": 2}, transport=Silent()
    )

    async def main():
        with pytest.raises(RegistryError, match="does not answer within 2 s"):
            await silent.subjects()
        return trio.current_time()

    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(main, clock=clock) == 2 + 1 + 2 + 2 + 2


def test_credentials_are_sent(registry, server):
    server.state.require_basic("ann:secret")
    with pytest.raises(RegistryError, match=r"answers 401.*set basic.auth.user.info or bearer.auth.token"):
        trio.run(registry.subjects)
    known = SchemaRegistry({"schema.registry.url": server.url, "basic.auth.user.info": "ann:secret"})
    assert trio.run(known.subjects) == []
    server.state.authorization = "Bearer t2"
    tokens = iter(["t1", "t2"])
    bearer = SchemaRegistry({"schema.registry.url": server.url, "bearer.auth.token": lambda: next(tokens)})
    with pytest.raises(RegistryError, match="answers 401"):
        trio.run(bearer.subjects)
    assert trio.run(bearer.subjects) == []


def test_tls_is_checked_against_the_trust_store(tmp_path):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)
    with schema_registry(context) as secure:
        good = SchemaRegistry({"schema.registry.url": secure.url, "ssl.truststore.location": str(trusted)})
        assert trio.run(good.subjects) == []
        bad = SchemaRegistry({"schema.registry.url": secure.url, "max.retries": 0})
        with pytest.raises(RegistryError, match="certificate verify failed"):
            trio.run(bad.subjects)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, r"schema\.registry\.url"),
        ({"schema.registry.url": "localhost:8081"}, "must begin with http://"),
        ({"schema.registry.url": "http://h", "basic.auth.user.info": "ann"}, "USER:PASSWORD"),
        ({"schema.registry.url": "http://h", "basic.auth.user.inf": "ann"}, r"basic\.auth\.user\.info"),
    ],
)
def test_wrong_settings_are_named(settings, text):
    with pytest.raises(ConfigError, match=text):
        SchemaRegistry(settings)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://ann:hidden@[::1", r"schema\.registry\.url = 'http://\[::1': is no URL"),
        ("htp://ann:hidden@host:8081", r"schema\.registry\.url = 'htp://host:8081': must begin with http://"),
        ("ann:hidden@host:8081", r"schema\.registry\.url = 'host:8081': must begin with http://"),
    ],
)
def test_a_wrong_address_is_shown_without_its_login(url, text):
    with pytest.raises(ConfigError, match=text) as caught:
        SchemaRegistry({"schema.registry.url": url})
    assert "hidden" not in str(caught.value)


def test_wrong_schemas_are_refused(registry):
    for make, text in (
        (lambda: AvroSerde(registry, '{"type": "recor"}'), "not an Avro schema"),
        (lambda: AvroSerde(registry, "{"), "the schema is no JSON"),
        (lambda: JsonSchemaSerde(registry, {"type": "objec"}), "the JSON Schema is wrong"),
        (lambda: JsonSchemaSerde(registry, {"properties": 5}), "the JSON Schema is wrong"),
        (
            lambda: JsonSchemaSerde(registry, {"pattern": r"^\p{L}+$"}),
            r"\+\$', which Python's re does not read: bad escape",
        ),
    ):
        with pytest.raises(SerializationError, match=text):
            make()
    with pytest.raises(TypeError, match="either a schema or a model"):
        JsonSchemaSerde(registry)
    with pytest.raises(TypeError, match="generated class of messages"):
        ProtobufSerde(registry, dict)


def test_applications_ask_the_registry(registry):
    async def main():
        schema = Schema(json.dumps(FLIGHT))
        number = await registry.register("s", schema)
        assert await registry.subjects() == ["s"]
        assert await registry.versions("s") == [1]
        assert (await registry.latest("s")).id == number
        assert (await registry.version("s", 1)).schema == schema
        assert (await registry.look_up("s", schema)).version == 1
        assert await registry.schema(number) == schema
        assert await registry.is_compatible("s", schema)
        with pytest.raises(RegistryError, match=r"40402"):
            await registry.version("s", 9)

    trio.run(main)
