"""Goal: a default of a reader's field is the value that a writer of it would have written.

Method: each default is read from a record without the field, and from one that has it.
"""

import datetime
import io
import json
from decimal import Decimal
from types import SimpleNamespace

import fastavro
import pytest
from fastavro.read import LOGICAL_READERS

from moldau.serialization.avro import AvroSerde
from moldau.serialization.core.avro_defaults import with_default_values, without_defaults
from moldau.serialization.core.avro_schemas import linked
from moldau.serialization.core.registry_requests import RegisteredSchema, Schema
from moldau.serialization.core.values import SerializationContext, SerializationError
from moldau.serialization.core.wire_format import frame

AT = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
AT_MS = 1_700_000_000_000
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
FIXED = {"type": "fixed", "name": "Two", "size": 2}
PART = {
    "type": "record",
    "name": "Part",
    "fields": [
        {"name": "at", "type": MILLIS},
        {"name": "code", "type": "bytes", "default": "\u00fe"},
        {"name": "next", "type": ["null", "Part"], "default": None},
    ],
}
CONTEXT = SerializationContext("flights", "value")
OLD = {"type": "record", "name": "Flight", "fields": [{"name": "origin", "type": "string"}]}
DEFAULTS = {
    "time": (MILLIS, AT_MS, AT),
    "decimal": (CENTS, "\u0001\u0000", Decimal("2.56")),
    "bytes": ("bytes", "\u00ff", b"\xff"),
    "fixed": (FIXED, "\u00ff\u0001", b"\xff\x01"),
    "union": (["bytes", "null"], "\u00ff", b"\xff"),
    "null": (["null", MILLIS], None, None),
    "array": ({"type": "array", "items": MILLIS}, [AT_MS], [AT]),
    "map": ({"type": "map", "values": "bytes"}, {"a": "\u00ff"}, {"a": b"\xff"}),
    "record": (PART, {"at": AT_MS}, {"at": AT, "code": b"\xfe", "next": None}),
    "number": ("double", 1, 1.0),
}
"""The type of a field, its default in JSON, and the value."""


def with_field(kind, default):
    return {**OLD, "fields": [*OLD["fields"], {"name": "f", "type": kind, "default": default}]}


def written(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


@pytest.mark.parametrize("case", DEFAULTS)
def test_a_default_is_the_value_that_it_stands_for(case):
    kind, default, value = DEFAULTS[case]
    new = with_field(kind, default)
    reader = with_default_values(linked(fastavro.parse_schema(new)), LOGICAL_READERS)
    for writer, fields in ((OLD, {}), (new, {"f": value})):
        data = written(writer, {"origin": "JFK", **fields})
        found = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(writer), reader)
        assert found == {"origin": "JFK", "f": value}


def test_defaults_within_a_recursive_type_are_values():
    reader = with_default_values(linked(fastavro.parse_schema(PART)), LOGICAL_READERS)
    old = {**PART, "fields": [PART["fields"][0], PART["fields"][2]]}
    data = written(old, {"at": AT, "next": {"at": AT, "next": None}})
    found = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(old), reader)
    assert (found["code"], found["next"]["code"]) == (b"\xfe", b"\xfe")


def test_a_default_that_does_not_fit_stays_as_it_is():
    kind = {"type": "array", "items": "bytes"}
    reader = with_default_values(linked(fastavro.parse_schema(with_field(kind, [7]))), LOGICAL_READERS)
    assert reader["fields"][1]["default"] == [7]


def test_a_serde_reads_defaults_as_values():
    """Bytes were a text, times were numbers, and a record lacked its own defaults."""
    old = RegisteredSchema(id=1, schema=Schema(json.dumps(OLD), "AVRO"))
    registry = SimpleNamespace(known=lambda need: old)
    data = frame(1) + written(OLD, {"origin": "JFK"})
    for kind, default, value in DEFAULTS.values():
        serde = AvroSerde(registry, with_field(kind, default))
        assert serde.deserialize(data, CONTEXT) == {"origin": "JFK", "f": value}


@pytest.mark.parametrize("has_schema", [True, False])
def test_a_serde_reads_without_the_defaults_of_writers(has_schema):
    """A registry keeps what older versions of Avro took; such records could not be read at all."""
    part = {"type": "record", "name": "Part", "fields": [{"name": "code", "type": "string", "default": None}]}
    fields = [*OLD["fields"], {"name": "parts", "type": {"type": "array", "items": part}, "default": {}}]
    writer = {**OLD, "fields": [*fields, {"name": "last", "type": ["null", "Part"], "default": 0}]}
    found = RegisteredSchema(id=1, schema=Schema(json.dumps(writer), "AVRO"))
    serde = AvroSerde(SimpleNamespace(known=lambda need: found), OLD if has_schema else None)
    value = {"origin": "JFK", "parts": [{"code": "x"}], "last": None}
    data = frame(1) + written(without_defaults(writer), value)
    assert serde.deserialize(data, CONTEXT) == ({"origin": "JFK"} if has_schema else value)


@pytest.mark.parametrize("latest", [True, False])
@pytest.mark.parametrize("case", DEFAULTS)
def test_a_serde_writes_defaults_by_a_schema_of_the_registry(case, latest):
    """So it does if another serde of the same schema, with the same registry, has asked first."""
    kind, default, value = DEFAULTS[case]
    text = json.dumps(with_field(kind, default))
    found = RegisteredSchema(id=1, schema=Schema(text, "AVRO"))
    registry = SimpleNamespace(known=lambda need: found)
    serde = AvroSerde(registry, None if latest else text, config={"use.latest.version": latest})
    data = serde.serialize({"origin": "JFK"}, CONTEXT)
    assert data == frame(1) + written(with_field(kind, default), {"origin": "JFK", "f": value})


def test_a_latest_schema_may_have_a_wrong_default():
    """A registry keeps what older versions of Avro took; a value with all fields needs no default."""
    latest = with_field("string", None)
    found = RegisteredSchema(id=1, schema=Schema(json.dumps(latest), "AVRO"))
    serde = AvroSerde(SimpleNamespace(known=lambda need: found), config={"use.latest.version": True})
    value = {"origin": "JFK", "f": "x"}
    assert serde.deserialize(serde.serialize(value, CONTEXT), CONTEXT) == value
    with pytest.raises(SerializationError, match="Field f is specified in the schema but missing"):
        serde.serialize({"origin": "JFK"}, CONTEXT)


def test_a_serde_that_forgets_its_schemas_writes_on(monkeypatch):
    """Another thread may make it forget between any two steps, as the cache that forgets at once does."""

    class Forgetful(dict):
        def __setitem__(self, key, value):
            pass

    found = RegisteredSchema(id=1, schema=Schema(json.dumps(OLD), "AVRO"))
    serde = AvroSerde(SimpleNamespace(known=lambda need: found), config={"use.latest.version": True})
    for name in [name for name, kept in vars(serde).items() if kept == {}]:
        monkeypatch.setattr(serde, name, Forgetful())
    assert serde.serialize({"origin": "JFK"}, CONTEXT) == frame(1) + b"\x06JFK"


@pytest.mark.parametrize("wrong", ["5", "[5]", '{"type":"record","name":"A","fields":[5]}', '{"type":null}'])
def test_a_writers_schema_that_is_none_is_named(wrong):
    found = RegisteredSchema(id=1, schema=Schema(wrong, "AVRO"))
    serde = AvroSerde(SimpleNamespace(known=lambda need: found), OLD)
    with pytest.raises(SerializationError, match="not an Avro schema"):
        serde.deserialize(frame(1) + b"x", CONTEXT)
