"""Goal: whatever a registry answers, serializers end with a typed error, keep secrets, and write nothing wrong.

Method: the registry's client with answers in place of the network; serdes are called as clients call them.
"""

import base64
import json

import fastavro
import httpx
import pytest
import trio
import trio.testing
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pydantic import BaseModel
from trio.testing import MockClock

from moldau.runtime.tls import reloading
from moldau.serialization import (
    AvroSerde,
    JsonSchemaSerde,
    ProtobufSerde,
    RegistryError,
    Schema,
    SchemaRegistry,
    SerializationContext,
    SerializationError,
)
from moldau.serialization import registry as registry_module
from moldau.serialization.core.registry_requests import SchemaById
from moldau.serialization.core.subjects import SubjectPolicy
from moldau.serialization.core.values import SchemaNeeded
from moldau.serialization.core.wire_format import frame
from moldau.serialization.json_validation import compiled
from moldau.serialization.lookups import REQUESTS_MAX, SchemaLookups
from support.certificates import authority

CONTEXT = SerializationContext("flights", "value")
FLIGHT = {"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}]}
VALUE = {"carrier": "UA"}
STEPS_MAX = 200
"""Answers that one call may need; a call that asks for the same again and again needs more."""


class Answers:
    """Answers by method and path; an answer is a JSON document, or status and body."""

    def __init__(self, answers=(), otherwise=None, **settings):
        self.answers = dict(answers)
        self.otherwise = otherwise
        self.requests = []
        self.headers = {}
        given = {"schema.registry.url": "http://registry", "max.retries": 0} | settings
        self.registry = SchemaRegistry(given, transport=httpx.MockTransport(self.answer))

    def answer(self, request):
        asked = f"{request.method} {request.url.raw_path.decode()}"
        self.requests.append(asked)
        self.headers = request.headers
        found = self.answers.get(asked, self.otherwise)
        if found is None:
            return httpx.Response(404, json={"error_code": 40403, "message": "Schema not found"})
        if isinstance(found, tuple):
            return httpx.Response(found[0], content=found[1])
        return httpx.Response(200, json=found)


def version(text, number=7, kind="AVRO", references=(), **more):
    document = {"subject": "s", "version": 1, "id": number, "schema": text, "schemaType": kind}
    return document | {"references": list(references)} | more


def reference(name, subject, at=1):
    return {"name": name, "subject": subject, "version": at}


async def with_registry(call, *args):
    for _ in range(STEPS_MAX):
        try:
            return call(*args)
        except SchemaNeeded as needed:
            await needed.registry.resolve(needed.need)
    raise AssertionError("the same answers are asked for without end")


def run(call, *args):
    return trio.run(with_registry, call, *args)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"5", b"null", b"{}", b'{"id": -1}'])
def test_an_answer_of_another_service_is_a_registry_error(body):
    answers = Answers(otherwise=(200, body))
    registry = answers.registry
    schema = Schema('"string"')
    calls = [
        lambda: registry.schema(1),
        lambda: registry.latest("s"),
        lambda: registry.look_up("s", schema),
        lambda: registry.is_compatible("s", schema),
        lambda: registry.register("s", schema),
    ]
    for call in calls:
        with pytest.raises(RegistryError, match="the answer is not that of a schema registry") as caught:
            trio.run(call)
        assert not caught.value.retriable


@pytest.mark.parametrize("body", [b"5", b"null", b'{"a": 1}', b"[[]]"])
def test_lists_of_another_service_are_errors_of_the_registry(body):
    registry = Answers(otherwise=(200, body)).registry
    if body in (b"5", b"null"):
        with pytest.raises(RegistryError, match="is not that of a schema registry"):
            trio.run(registry.subjects)
    with pytest.raises(RegistryError, match="is not that of a schema registry"):
        trio.run(registry.versions, "s")


@pytest.mark.parametrize("body", [b'{"id": 1', b"<html>", b"", b"[" * 100_000], ids=["cut", "HTML", "empty", "deep"])
def test_a_body_that_is_no_json_is_an_error_of_the_registry(body):
    with pytest.raises(RegistryError, match="the answer is no JSON"):
        trio.run(Answers(otherwise=(200, body)).registry.schema, 1)


@pytest.mark.parametrize(
    ("status", "body", "is_about_schema"),
    [
        (404, {"error_code": 40403, "message": "Schema 1 not found"}, True),
        (404, {"error_code": 40401, "message": "Subject not found"}, True),
        (404, {"error_code": 404, "message": "HTTP 404 Not Found"}, False),
        (404, "<html>", False),
        (409, {"error_code": 409, "message": "incompatible"}, True),
        (422, {"error_code": 42201, "message": "invalid schema"}, True),
        (401, {"error_code": 401, "message": "Unauthorized"}, False),
        (503, {}, False),
    ],
)
def test_only_the_registry_can_say_that_a_schema_is_missing(status, body, is_about_schema):
    """A record at fault may go to a dead-letter topic; a proxy without a registry behind it is no record's fault."""
    with pytest.raises(RegistryError, match=f"answers {status}") as caught:
        trio.run(Answers(otherwise=(status, json.dumps(body).encode())).registry.schema, 1)
    assert caught.value.is_about_schema is is_about_schema


class FirstAway(httpx.AsyncBaseTransport):
    """Answers of the second address; the first one is down, or silent."""

    def __init__(self, *, is_silent):
        self.is_silent = is_silent

    async def handle_async_request(self, request):
        await trio.sleep(60 if self.is_silent and request.url.host == "first" else 0.01)
        if request.url.host == "first":
            raise httpx.ConnectError("down")
        return httpx.Response(200, json=version('"string"'))

    def registry(self):
        urls = {"schema.registry.url": "http://first,http://second", "max.retries": 0}
        return SchemaRegistry(urls, transport=self)


def test_each_of_several_tasks_asks_all_addresses():
    """Two tasks that left the first address at a time were both sent back to it, and one called the registry away."""
    registry = FirstAway(is_silent=False).registry()

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(registry.schema, number)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_caller_that_waits_less_gets_to_the_next_address():
    """With a limit below the registry's request.timeout.ms no call ever reached the address behind a silent one."""
    lookups = SchemaLookups("max.block.ms", 5000)
    needed = SchemaNeeded(FirstAway(is_silent=True).registry(), SchemaById(1))

    async def main():
        with pytest.raises(RegistryError, match=r"within max\.block\.ms"):
            await lookups.resolve(needed)
        await lookups.resolve(needed)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_errors_do_not_show_logins():
    urls = {"schema.registry.url": "http://ann:s3cret@registry"}
    for answer in ((401, b"{}"), (200, b"<html>")):
        with pytest.raises(RegistryError, match="GET http://registry/schemas/ids/1") as caught:
            trio.run(Answers(otherwise=answer, **urls).registry.schema, 1)
        assert "s3cret" not in str(caught.value)
    answers = Answers(otherwise=[], **{"bearer.auth.token": lambda: "t0ken\n"})
    assert trio.run(answers.registry.subjects) == []
    assert answers.headers["authorization"] == "Bearer t0ken"
    for token in ("t0ken\nx: y", "t0kén"):
        with pytest.raises(RegistryError, match=r"bearer\.auth\.token: the token has characters") as caught:
            trio.run(Answers(otherwise=[], **{"bearer.auth.token": lambda: token}).registry.subjects)  # noqa: B023
        assert "t0k" not in str(caught.value)


def test_a_wrong_host_name_is_an_error_of_the_registry():
    registry = SchemaRegistry({"schema.registry.url": "http://\N{SNOWMAN}.example:8081", "max.retries": 0})
    with pytest.raises(RegistryError, match="the schema registry does not answer"):
        trio.run(registry.subjects)


def test_renewed_certificates_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr(reloading, "CHECK_MS", 0.0)
    trust = tmp_path / "trust.pem"
    trust.write_text(authority(0).trust)
    registry = SchemaRegistry({"schema.registry.url": "https://registry", "ssl.truststore.location": str(trust)})
    first = registry._context("https://registry")
    assert registry._context("https://registry") is first
    trust.write_text(authority(0).trust + authority(1).trust)
    assert len(registry._context("https://registry").get_ca_certs()) == 2


def test_damaged_headers_are_serialization_errors():
    serde = AvroSerde(Answers().registry, FLIGHT)
    for data, text in (
        (b"", "0 bytes"),
        (b"\0\0\0", "3 bytes"),
        (b"{....}", "first byte 123: Confluent's wire format begins with 0$"),
        (b"\1" + bytes(20), "first byte 1: .*GUID, which is not supported"),
    ):
        with pytest.raises(SerializationError, match=text):
            serde.deserialize(data, CONTEXT)


# --- references


def diamond(levels):
    """Returns answers for schemas of which each refers twice to the next level."""
    answers = {}
    for level in range(levels):
        below = f"L{level + 1}"
        fields = [{"name": name, "type": below} for name in "ab"]
        references = [reference(below, f"s{level + 1}"), reference(below, f"s{level + 1}")]
        if level == levels - 1:
            fields, references = [{"name": "x", "type": "int"}], []
        text = json.dumps({"type": "record", "name": f"L{level}", "fields": fields})
        answers[f"GET /subjects/s{level}/versions/1?deleted=true"] = version(text, 100 + level, references=references)
    answers["GET /schemas/ids/1"] = answers["GET /subjects/s0/versions/1?deleted=true"]
    return answers


def test_each_reference_is_read_once():
    """Also one that was deleted softly, and one that several schemas refer to."""
    answers = Answers(diamond(18))
    policy = SubjectPolicy(answers.registry, None)
    root = run(policy.by_id, 1, "AVRO").schema
    found = run(lambda schema: list(policy.references(schema)), root)
    assert [name for name, _ in found] == [f"L{level}" for level in range(17, 0, -1)]
    assert len(answers.requests) == 18


def test_shared_references_decode():
    value = {"a": {"x": 1}, "b": {"x": 2}}
    assert run(AvroSerde(Answers(diamond(2)).registry).deserialize, frame(1) + b"\2\4", CONTEXT) == value


def test_a_small_cache_holds_a_schema_with_many_references():
    """Each answer would push out one that the same schema needs, so the serializer would ask without end."""
    names = [f"R{number}" for number in range(20)]
    answers = {
        f"GET /subjects/{name}/versions/1?deleted=true": version(
            json.dumps({"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]})
        )
        for name in names
    }
    text = json.dumps({"type": "record", "name": "All", "fields": [{"name": name, "type": name} for name in names]})
    answers["GET /schemas/ids/1"] = version(text, 1, references=[reference(name, name) for name in names])
    serde = AvroSerde(Answers(answers, **{"cache.capacity": 16}).registry)
    value = run(serde.deserialize, frame(1) + bytes([2] * 20), CONTEXT)
    assert value == {name: {"x": 1} for name in names}


def imported_messages(count):
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name="all.proto", package="air", syntax="proto3")
    for number in range(count):
        part = descriptor_pb2.FileDescriptorProto(name=f"p{number}.proto", package="air", syntax="proto3")
        part.message_type.add(name=f"P{number}")
        pool.Add(part)
        file.dependency.append(part.name)
    file.message_type.add(name="All")
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("air.All"))


def test_a_small_cache_holds_many_imports():
    message = imported_messages(20)
    answers = Answers(otherwise=version("x", 3, "PROTOBUF"), **{"cache.capacity": 16})
    assert run(ProtobufSerde(answers.registry, message).serialize, message(), CONTEXT) == frame(3) + b"\0"


# --- the latest version


LATEST = {"use.latest.version": True}
LATEST_VALUE = "GET /subjects/flights-value/versions/latest"


def test_the_latest_version_registers_nothing():
    message = imported_messages(1)
    text = base64.standard_b64encode(message.DESCRIPTOR.file.serialized_pb).decode()
    answers = Answers({LATEST_VALUE: version(text, 5, "PROTOBUF")})
    serde = ProtobufSerde(answers.registry, message, config=LATEST)
    assert run(serde.serialize, message(), CONTEXT) == frame(5) + b"\0"
    assert answers.requests == [LATEST_VALUE]


def test_the_latest_version_must_be_of_the_serdes_type():
    answers = Answers({LATEST_VALUE: version(json.dumps(FLIGHT))})
    message = imported_messages(0)
    for serde, value, kind in (
        (JsonSchemaSerde(answers.registry, {"type": "object"}, config=LATEST), VALUE, "JSON"),
        (ProtobufSerde(answers.registry, message, config=LATEST), message(), "PROTOBUF"),
    ):
        with pytest.raises(SerializationError, match=f"the latest schema is of type AVRO, not {kind}") as caught:
            run(serde.serialize, value, CONTEXT)
        assert (caught.value.subject, caught.value.schema_id) == ("flights-value", 7)


def test_the_latest_version_needs_no_schema_of_the_serde():
    """It may refer to others, which its text alone does not hold."""
    leg = {"type": "record", "name": "Leg", "fields": [{"name": "flight", "type": "Flight"}]}
    answers = Answers(
        {
            LATEST_VALUE: version(json.dumps(leg), 5, references=[reference("Flight", "flight")]),
            "GET /subjects/flight/versions/1?deleted=true": version(json.dumps(FLIGHT)),
        }
    )
    serde = AvroSerde(answers.registry, config=LATEST)
    assert run(serde.serialize, {"flight": VALUE}, CONTEXT) == frame(5) + b"\4UA"
    with pytest.raises(SerializationError, match="has no schema, so it only reads"):
        AvroSerde(answers.registry).serialize(VALUE, CONTEXT)


RULE = {"name": "encrypt", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "ENCRYPT"}


@pytest.mark.parametrize(
    ("rules", "is_refused"),
    [
        ({"domainRules": [RULE]}, True),
        ({"encodingRules": [RULE | {"mode": "WRITE"}], "enableAt": "CLIENT"}, True),
        ({"domainRules": [RULE | {"mode": "READ"}], "migrationRules": [RULE]}, False),
        ({"domainRules": [RULE | {"disabled": True}]}, False),
        ({"domainRules": [RULE], "enableAt": "GATEWAY"}, False),
        ({}, False),
    ],
)
def test_rules_for_writers_are_not_passed_over(rules, is_refused):
    """A value would be written in the clear that must be encrypted."""
    answers = Answers({LATEST_VALUE: version(json.dumps(FLIGHT), ruleSet=rules)})
    serde = AvroSerde(answers.registry, FLIGHT, config=LATEST)
    if not is_refused:
        assert run(serde.serialize, VALUE, CONTEXT).startswith(frame(7))
        return
    with pytest.raises(SerializationError, match="the latest schema has rules for its writers"):
        run(serde.serialize, VALUE, CONTEXT)


class Carrier(BaseModel):
    carrier: str


@pytest.mark.parametrize("kind", ["schema", "model"])
def test_json_must_fit_the_schema_that_it_is_written_with(kind):
    latest = {"type": "object", "properties": {"carrier": {"maxLength": 2}}, "required": ["carrier"]}
    answers = Answers({LATEST_VALUE: version(json.dumps(latest), 5, "JSON")})
    own = {"schema": {"type": "object"}} if kind == "schema" else {"model": Carrier}
    serde = JsonSchemaSerde(answers.registry, **own, config=LATEST)
    give = dict if kind == "schema" else Carrier
    assert run(serde.serialize, give(carrier="UA"), CONTEXT) == frame(5) + b'{"carrier":"UA"}'
    with pytest.raises(SerializationError, match=r"it does not fit the JSON Schema: data\.carrier must be shorter"):
        run(serde.serialize, give(carrier="UAL"), CONTEXT)


def test_json_must_fit_the_serdes_own_schema_too():
    answers = Answers({LATEST_VALUE: version(json.dumps({"type": "object"}), 5, "JSON")})
    serde = JsonSchemaSerde(answers.registry, {"type": "object", "required": ["carrier"]}, config=LATEST)
    assert run(serde.serialize, VALUE, CONTEXT).startswith(frame(5))
    with pytest.raises(SerializationError, match=r"must contain \['carrier'\]"):
        run(serde.serialize, {}, CONTEXT)


# --- the cache, and bounds of answers


def test_the_cache_keeps_what_is_used():
    """The schema of a busy topic would else be asked for again with each sixteenth other one."""
    answers = Answers(otherwise=version('"string"'), **{"cache.capacity": 16})
    for number in (*range(1, 17), *range(2, 17), 1):
        trio.run(answers.registry.schema, number)
    assert len(answers.requests) == 16, "none gives way before there are more than the bound"
    trio.run(answers.registry.schema, 17)
    answers.requests.clear()
    trio.run(answers.registry.schema, 1)
    assert answers.requests == []
    trio.run(answers.registry.schema, 2)
    assert answers.requests == ["GET /schemas/ids/2"]


def test_an_application_gets_the_version_that_is_the_latest_now():
    answers = Answers({LATEST_VALUE: version('"string"', 5)})
    assert trio.run(answers.registry.latest, "flights-value").id == 5
    answers.answers[LATEST_VALUE] = version('"int"', 6)
    assert trio.run(answers.registry.latest, "flights-value").id == 6


@pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")  # of httpx, whose reader stops early
def test_no_more_is_read_of_an_answer_than_its_bound(monkeypatch):
    monkeypatch.setattr(registry_module, "ANSWER_BYTES_MAX", 1000)
    parts = []

    async def endless():
        while len(parts) < 1000:
            await trio.lowlevel.checkpoint()
            parts.append(b" " * 100)
            yield parts[-1]

    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=endless()))
    registry = SchemaRegistry({"schema.registry.url": "http://registry", "max.retries": 0}, transport=transport)
    with pytest.raises(RegistryError, match="the answer has more than 1000 bytes"):
        trio.run(registry.subjects)
    assert len(parts) == 11


# --- JSON Schema and Avro documents


def test_values_are_read_as_they_were_written():
    """The validator would fill in the defaults of the schema."""
    schema = {"type": "object", "properties": {"delay": {"type": "integer", "default": 0}}}
    serde = JsonSchemaSerde(Answers().registry, schema)
    assert serde.deserialize(frame(1) + b"{}", CONTEXT) == {}


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/x.json", "file:///etc/hostname", "other.json"])
def test_a_reference_opens_no_address(address):
    with pytest.raises(SerializationError, match=r"refers to .*, which is none of its references"):
        JsonSchemaSerde(Answers().registry, {"$ref": address})


def test_a_latest_schema_may_refer_to_others():
    code = version(json.dumps({"maxLength": 2}), 6, "JSON")
    latest = {"$id": "http://air/flight.json", "properties": {"carrier": {"$ref": "code.json"}}}
    answers = Answers(
        {
            LATEST_VALUE: version(json.dumps(latest), 5, "JSON", [reference("code.json", "code")]),
            "GET /subjects/code/versions/1?deleted=true": code,
        }
    )
    serde = JsonSchemaSerde(answers.registry, {"type": "object"}, config=LATEST)
    assert run(serde.serialize, VALUE, CONTEXT).startswith(frame(5))
    with pytest.raises(SerializationError, match="must be shorter"):
        run(serde.serialize, {"carrier": "UAL"}, CONTEXT)


@pytest.mark.parametrize(("address", "is_meant"), [("http://air/code.json", True), ("http://air/postcode.json", False)])
def test_a_reference_is_found_by_its_whole_name(address, is_meant):
    references = [("code.json", Schema(json.dumps({"maxLength": 2}), "JSON"))]
    if is_meant:
        with pytest.raises(ValueError, match="must be shorter"):
            compiled({"$ref": address}, references)("UAL")
    else:
        with pytest.raises(SerializationError, match="which is none of its references"):
            compiled({"$ref": address}, references)


@pytest.mark.parametrize("names", [("code.json", "v1/code.json"), ("v1/code.json", "code.json")])
@pytest.mark.parametrize("address", ["v1/code.json", "http://air/v1/code.json"])
def test_of_references_that_end_alike_the_longest_counts(names, address):
    longest = {"code.json": 2, "v1/code.json": 3}
    references = [(name, Schema(json.dumps({"maxLength": longest[name]}), "JSON")) for name in names]
    check = compiled({"$ref": address}, references)
    check("UAL")
    with pytest.raises(ValueError, match="must be shorter than or equal to 3"):
        check("UALX")


def test_half_of_a_surrogate_pair_fits_a_schema():
    """JSON may hold it as an escape, so a record that was read can be written again."""
    answers = Answers({LATEST_VALUE: version(json.dumps({"type": "object"}), 5, "JSON")})
    serde = JsonSchemaSerde(answers.registry, {"type": "object"}, config=LATEST)
    assert run(serde.serialize, {"item": "\ud800"}, CONTEXT) == frame(5) + b'{"item":"\\ud800"}'


def test_no_number_becomes_infinity():
    serde = JsonSchemaSerde(Answers().registry, {"type": "number"})
    with pytest.raises(SerializationError, match="1e400 is too large for a float"):
        serde.deserialize(frame(5) + b"1e400", CONTEXT)
    assert serde.deserialize(frame(5) + b"1e308", CONTEXT) == 1e308


def test_a_number_that_no_float_holds_does_not_fit():
    """Checks of multipleOf raised OverflowError, both ways."""
    schema = {"multipleOf": 0.5}
    answers = Answers({LATEST_VALUE: version(json.dumps(schema), 5, "JSON")})
    serde = JsonSchemaSerde(answers.registry, schema, config=LATEST)
    with pytest.raises(SerializationError, match="a number cannot be checked"):
        serde.deserialize(frame(5) + b"1" + b"0" * 400, CONTEXT)
    with pytest.raises(SerializationError, match="a number cannot be checked"):
        run(serde.serialize, 10**400, CONTEXT)


def test_a_multiple_of_zero_does_not_fit():
    """It raised ZeroDivisionError."""
    with pytest.raises(ValueError, match="a number cannot be checked"):
        compiled({"multipleOf": 0})(5)


def test_schemas_that_are_nested_too_deeply_are_refused():
    with pytest.raises(SerializationError, match="nested too deeply to be compiled"):  # it raised IndentationError
        compiled(json.loads('{"properties":{"a":' * 120 + "{}" + "}}" * 120))
    deep = '{"not":' * 3000 + "{}" + "}" * 3000
    with pytest.raises(SerializationError):
        JsonSchemaSerde(Answers().registry, deep)
    with pytest.raises(SerializationError):
        AvroSerde(Answers().registry, '{"type":"array","items":' * 3000 + '"int"' + "}" * 3000)


def test_a_parsed_avro_schema_is_registered_as_written():
    parsed = fastavro.parse_schema(
        {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "next", "type": ["null", "Flight"]}]}
    )
    serde = AvroSerde(Answers().registry, parsed)
    assert serde._schema is not None
    assert "fastavro" not in serde._schema.text
    assert "__named" not in serde._schema.text


# --- many tasks


class Slow(httpx.AsyncBaseTransport):
    """Answers after three seconds, or never."""

    def __init__(self, *, never=()):
        self.never = never
        self.requests = []

    async def handle_async_request(self, request):
        number = int(request.url.path.rpartition("/")[2])
        self.requests.append(number)
        await trio.sleep(1000 if number in self.never else 3)
        return httpx.Response(200, json={"schema": json.dumps(FLIGHT)})


@pytest.mark.parametrize("waiting", [2, REQUESTS_MAX, 3 * REQUESTS_MAX])
def test_tasks_that_need_the_same_schema_share_one_request(waiting):
    """A schema for which the registry gives no answer does not hold up the others, however many tasks need it."""
    slow, results = Slow(never={0}), []
    registry = SchemaRegistry({"schema.registry.url": "http://registry"}, transport=slow)
    lookups = SchemaLookups("max.block.ms", 5000)

    async def look_up(number):
        with pytest.raises(SchemaNeeded) as needed:
            registry.known(SchemaById(number))
        try:
            await lookups.resolve(needed.value)
        except RegistryError as error:
            results.append((number, trio.current_time() - began_s, str(error)))
        else:
            results.append((number, trio.current_time() - began_s, registry.known(SchemaById(number)).id))

    async def main():
        nonlocal began_s
        began_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in (0,) * waiting:
                nursery.start_soon(look_up, number)
            await trio.testing.wait_all_tasks_blocked()
            for number in (1, 1, 1, 2, 2):
                nursery.start_soon(look_up, number)

    began_s = 0.0
    trio.run(main, clock=MockClock(autojump_threshold=0))
    late = "the schema registry does not answer within max.block.ms = 5000 ms"
    assert sorted(results) == [(0, 5, late)] * waiting + [(1, 3, 1)] * 3 + [(2, 3, 2)] * 2
    assert sorted(slow.requests) == [0, 1, 2]
    assert lookups._turns == {}


@pytest.mark.parametrize(
    ("registers", "asked"),
    [("true", "/subjects/flights-value/versions?normalize=true"), ("false", "/subjects/flights-value?normalize=true")],
)
def test_schemas_are_compared_in_normal_form(registers, asked):
    """``normalize.schemas`` holds for the look-up of a schema, too: it is registered in normal form."""
    answers = Answers()
    config = {"normalize.schemas": "true", "auto.register.schemas": registers}
    policy = SubjectPolicy(answers.registry, config)
    with pytest.raises(SchemaNeeded) as caught:
        policy.registered("flights-value", Schema(json.dumps(FLIGHT)))
    with pytest.raises(RegistryError):
        trio.run(answers.registry.resolve, caught.value.need)
    assert answers.requests == [f"POST {asked}"]


@pytest.mark.parametrize("registers", ["true", "false"])
def test_the_version_of_an_import_is_looked_up_in_normal_form(registers):
    """A registry that compares texts as they are does not find an import that it registered in normal form."""
    normal = {
        "POST /subjects/base.proto/versions?normalize=true": {"id": 5},
        "POST /subjects/base.proto?normalize=true": version("in normal form", 5, "PROTOBUF") | {"version": 3},
    }
    policy = SubjectPolicy(Answers(normal).registry, {"normalize.schemas": "true", "auto.register.schemas": registers})
    assert run(policy.reference_version, "base.proto", Schema("as it was written", "PROTOBUF")) == 3
