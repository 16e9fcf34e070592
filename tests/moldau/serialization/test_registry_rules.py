"""Goal: serdes prepare each schema once, and the registry's client repeats requests as its keys say.

Method: counted calls of the libraries behind the serdes, and a registry on virtual time that fails when a test says so.
"""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import fastavro
import fastjsonschema
import httpx
import pytest
import trio
import trio.testing
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from moldau.serialization import (
    AvroSerde,
    JsonSchemaSerde,
    ProtobufSerde,
    RegistryError,
    SchemaRegistry,
    SerializationContext,
    SerializationError,
    avro,
    json_schema,
    protobuf,
)
from moldau.serialization.core.registry_requests import RegisteredSchema, Schema, SchemaById
from moldau.serialization.core.wire_format import frame

CONTEXT = SerializationContext("flights", "value")
KEPT = 3


class Known:
    """A registry that has answered everything: a text for each id, and the latest version of the subject."""

    def __init__(self, kind: str, texts: list[str]) -> None:
        self.kind, self.texts, self.latest = kind, texts, 1

    def known(self, need: Any) -> RegisteredSchema:
        number = need.id if isinstance(need, SchemaById) else self.latest
        return RegisteredSchema(number, Schema(self.texts[number - 1], self.kind), "flights-value", 90 - number)


def avro_text(number: int) -> str:
    more = [{"name": f"extra{each}", "type": "int", "default": 1} for each in range(number)]
    return json.dumps({"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}, *more]})


def file_of(number: int) -> descriptor_pb2.FileDescriptorProto:
    """A file in which so many other messages stand before the one that is meant."""
    file = descriptor_pb2.FileDescriptorProto(name="air/flight.proto", package="air", syntax="proto2")
    for other in range(number):
        file.message_type.add(name=f"Other{other}")
    meant = file.message_type.add(name="Flight")
    meant.field.add(name="carrier", number=1, type=9, label=2)  # a string, required
    return file


def made_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file_of(0))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("air.Flight"))


Flight = made_class()


def avro_reader(registry: Known) -> Any:
    serde = AvroSerde(registry, avro_text(0))

    def use(number: int) -> None:
        written = fastavro_bytes(json.loads(registry.texts[number - 1]))
        assert serde.deserialize(frame(number) + written, CONTEXT)["carrier"] == "UA"

    return use


def fastavro_bytes(schema: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {"carrier": "UA"})
    return stream.getvalue()


def latest_writer(make: Any, value: Any) -> Any:
    def of(registry: Known) -> Any:
        serde = make(registry)

        def use(number: int) -> None:
            registry.latest = number
            assert serde.serialize(value, CONTEXT).startswith(frame(number))

        return use

    return of


LATEST = {"auto.register.schemas": False, "use.latest.version": True}
CACHES = {
    "avro-reads": ("AVRO", avro_text, avro_reader, avro, "PARSED_MAX", (fastavro, "parse_schema")),
    "avro-writes": (
        "AVRO",
        avro_text,
        latest_writer(lambda registry: AvroSerde(registry, config=LATEST), {"carrier": "UA"}),
        avro,
        "PARSED_MAX",
        (fastavro, "parse_schema"),
    ),
    "json-writes": (
        "JSON",
        lambda number: json.dumps({"type": "object", "title": "Flight", "minProperties": number and 1, "x": number}),
        latest_writer(
            lambda registry: JsonSchemaSerde(registry, {"title": "Flight"}, config=LATEST), {"carrier": "UA"}
        ),
        json_schema,
        "COMPILED_MAX",
        (fastjsonschema, "compile"),
    ),
    "protobuf-writes": (
        "PROTOBUF",
        lambda number: base64.b64encode(file_of(number).SerializeToString()).decode(),
        latest_writer(lambda registry: ProtobufSerde(registry, Flight, config=LATEST), Flight(carrier="UA")),
        protobuf,
        "FILES_MAX",
        (protobuf, "_messages_in"),
    ),
}


@pytest.mark.parametrize("name", CACHES)
def test_a_schema_is_prepared_once_while_it_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing one takes a thousand times as long as a record. A serde keeps a bounded number of them."""
    kind, text, make, module, bound, (owner, function) = CACHES[name]
    calls = []
    prepare = getattr(owner, function)

    def counted(*args: Any, **more: Any) -> Any:
        calls.append(True)
        return prepare(*args, **more)

    use = make(Known(kind, [text(number) for number in range(1, KEPT + 3)]))
    monkeypatch.setattr(owner, function, counted)
    monkeypatch.setattr(module, bound, KEPT)

    def prepared(number: int) -> bool:
        before = len(calls)
        use(number)
        return len(calls) > before

    ids = range(1, KEPT + 1)
    assert [prepared(number) for number in ids] == [True] * KEPT
    assert [prepared(number) for number in (*ids, *ids)] == [False] * (2 * KEPT)
    assert prepared(KEPT + 1), "it takes the place of the others"
    assert [prepared(KEPT + 1), prepared(1), prepared(1), prepared(KEPT + 1)] == [False, True, False, False]


def test_a_message_without_its_required_field_is_an_error() -> None:
    serde = ProtobufSerde(Known("PROTOBUF", [base64.b64encode(file_of(0).SerializeToString()).decode()]), Flight)
    with pytest.raises(SerializationError, match="missing required field") as caught:
        serde.serialize(Flight(), CONTEXT)
    assert (caught.value.subject, caught.value.schema_id) == ("flights-value", 1)


def test_avro_bytes_are_read_as_a_whole() -> None:
    """Bytes that are left over, or that end too early, are not of the writer's schema."""
    serde = AvroSerde(Known("AVRO", [avro_text(2)]))
    whole = fastavro_bytes(json.loads(avro_text(2)))
    assert serde.deserialize(frame(1) + whole, CONTEXT) == {"carrier": "UA", "extra0": 1, "extra1": 1}
    wrong = [whole[:size] for size in range(len(whole))] + [whole + b"\0" * size for size in range(1, 4)]
    for body in wrong:
        with pytest.raises(SerializationError, match="not of the Avro schema") as caught:
            serde.deserialize(frame(1) + body, CONTEXT)
        assert caught.value.schema_id == 1
        if len(body) > len(whole):
            assert f": {len(body) - len(whole)} bytes are left" in str(caught.value)


class Failing:
    """A registry whose addresses answer with the given statuses, one after the other, and then with a list."""

    def __init__(self, statuses: list[int], **settings: object) -> None:
        self.statuses, self.asked, self.headers = statuses, [], []
        given = {"schema.registry.url": "http://one/,http://two", "retries.wait.ms": 100, "retries.max.wait.ms": 350}
        self.registry = SchemaRegistry(given | settings, transport=httpx.MockTransport(self.answer))

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((round(trio.current_time() * 1_000 - self.began), request.url.host))
        self.headers.append(request.headers)
        if self.statuses:
            return httpx.Response(self.statuses.pop(0), json={"error_code": 50_001, "message": "no"})
        return httpx.Response(200, json=["a", "b"])

    def run(self, calls: int = 1) -> list[str]:
        async def main() -> list[str]:
            self.began = trio.current_time() * 1_000
            for _ in range(calls):
                found = await self.registry.subjects()
            return found

        return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_waits_between_attempts_double_up_to_their_bound() -> None:
    """Each attempt asks all addresses at once; only then the client waits."""
    failing = Failing([503] * 9, **{"max.retries": 4})
    assert failing.run() == ["a", "b"]
    times = [0, 100, 300, 650, 1_000]
    assert failing.asked == [(time, host) for time in times for host in ("one", "two")]


@pytest.mark.parametrize(
    ("status", "attempts"), [(503, 2), (500, 2), (429, 2), (408, 2), (404, 1), (401, 1), (422, 1), (302, 1)]
)
def test_failures_that_last_are_not_repeated(status: int, attempts: int) -> None:
    failing = Failing([status] * 20, **{"max.retries": 1})
    with pytest.raises(RegistryError) as caught:
        failing.run()
    assert caught.value.status == status
    assert len(failing.asked) == (2 * attempts if attempts > 1 else 1)


def test_the_address_that_answered_last_is_asked_first() -> None:
    failing = Failing([503, 200], **{"max.retries": 0})
    failing.statuses = [503]
    failing.run(calls=3)
    assert [host for _, host in failing.asked] == ["one", "two", "two", "two"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"basic.auth.user.info": "ann:s3:cr=t"}, b"Basic " + base64.b64encode(b"ann:s3:cr=t")),
        ({"basic.auth.user.info": "ann:"}, b"Basic " + base64.b64encode(b"ann:")),
        ({"bearer.auth.token": "abc\n"}, b"Bearer abc"),
        ({}, None),
    ],
)
def test_each_request_has_the_login(settings: dict[str, object], expected: bytes | None) -> None:
    failing = Failing([503], **settings)
    failing.run()
    sent = [headers.get("authorization") for headers in failing.headers]
    assert sent == [None if expected is None else expected.decode()] * 2


def test_a_function_gives_a_token_for_each_request() -> None:
    tokens = iter("abcd")
    failing = Failing([503], **{"bearer.auth.token": lambda: next(tokens)})
    failing.run(calls=2)
    assert [headers["authorization"] for headers in failing.headers] == ["Bearer a", "Bearer b", "Bearer c"]


def test_a_document_has_the_type_of_the_registry() -> None:
    """Other servers of the interface refuse a document of an unknown type; a request without one has no type."""
    failing = Failing([])
    failing.run()

    async def main() -> None:
        failing.began = 0.0
        with pytest.raises(RegistryError):
            await failing.registry.register("s", Schema('"string"'))

    trio.run(main)
    kind = "application/vnd.schemaregistry.v1+json"
    assert [headers.get("content-type") for headers in failing.headers] == [None, kind]
    assert {headers["accept"] for headers in failing.headers} == {kind}


@pytest.mark.parametrize(("imports", "fits"), [(1, True), (2, True), (3, False)])
def test_imports_have_a_bounded_depth(imports: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "DEPTH_MAX", 2)
    pool = descriptor_pool.DescriptorPool()
    for number in reversed(range(imports + 1)):
        file = descriptor_pb2.FileDescriptorProto(name=f"{number}.proto", package=f"p{number}", syntax="proto3")
        file.message_type.add(name="M")
        if number < imports:
            file.dependency.append(f"{number + 1}.proto")
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("p0.M"))
    serde = ProtobufSerde(Known("PROTOBUF", [""]), message)
    if fits:
        assert serde.serialize(message(), CONTEXT) == frame(1) + b"\0"
    else:
        with pytest.raises(SerializationError, match=r"0\.proto has more than 2 levels of imports"):
            serde.serialize(message(), CONTEXT)
