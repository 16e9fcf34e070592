"""Goal: a reader learns why it gets no date or time. Method: numbers of Avro that Python's types do not hold."""

import datetime
import io
import json
from types import SimpleNamespace

import fastavro
import pytest

from moldau.serialization.avro import AvroSerde
from moldau.serialization.core.registry_requests import RegisteredSchema, Schema
from moldau.serialization.core.values import SerializationContext, SerializationError
from moldau.serialization.core.wire_format import frame

CONTEXT = SerializationContext("flights", "value")


def serde_of(schema):
    found = RegisteredSchema(id=1, schema=Schema(json.dumps(schema), "AVRO"))
    return AvroSerde(SimpleNamespace(known=lambda need: found))


@pytest.mark.parametrize(
    ("base", "logical", "number"),
    [
        ("int", "date", 3_000_000),
        ("long", "timestamp-millis", 253_402_300_800_000),
        ("long", "timestamp-millis", 2**62),
        ("long", "timestamp-micros", -(10**17)),
        ("long", "local-timestamp-millis", 253_402_300_800_000),
    ],
)
def test_a_time_that_python_does_not_hold_is_named(base, logical, number):
    """Java writes such times; the error said that the bytes are not of their schema."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, base, number)
    serde = serde_of({"type": base, "logicalType": logical})
    with pytest.raises(SerializationError, match="outside of the years 1 to 9999"):
        serde.deserialize(frame(1) + stream.getvalue(), CONTEXT)


def test_bytes_of_another_schema_are_named():
    with pytest.raises(SerializationError, match="not of the Avro schema"):
        serde_of(["null", "string"]).deserialize(frame(1) + b"\x0a", CONTEXT)


def test_milliseconds_have_no_place_for_microseconds():
    """They are cut off towards the past, as Confluent's serializers for Java and Python do it."""
    serde = serde_of({"type": "long", "logicalType": "timestamp-millis"})
    for given, kept in ((1999, 1000), (-1, -1000)):
        stream = io.BytesIO()
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        schema = {"type": "long", "logicalType": "timestamp-millis"}
        fastavro.schemaless_writer(stream, schema, epoch + datetime.timedelta(microseconds=given))
        found = serde.deserialize(frame(1) + stream.getvalue(), CONTEXT)
        assert found == epoch + datetime.timedelta(microseconds=kept)
