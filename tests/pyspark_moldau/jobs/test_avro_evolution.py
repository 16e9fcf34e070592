"""Goal: an Avro value is read by the reader's logical types wherever it stands in the writer's schema.

Method: each pair of types of a writer and a reader stands in each place where two versions of a schema may have it.
"""

import datetime
import io
import json
from decimal import Decimal

import fastavro
import pytest

from moldau.serialization.core.avro_defaults import without_defaults
from pyspark_moldau.jobs.config.job_config import PayloadConfig
from pyspark_moldau.jobs.payloads import avro_codec
from pyspark_moldau.jobs.payloads.decoding import decode_values, decoder_of

MOMENT = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC)
LONG_MS = 1_357_017_300_000
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DAYS = {"type": "int", "logicalType": "date"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}

PAIRS = {
    "both": (MILLIS, MOMENT, MILLIS, MOMENT),
    "reader": ("long", LONG_MS, MILLIS, MOMENT),
    "writer": (MILLIS, MOMENT, "long", LONG_MS),
    "other unit": (MICROS, MOMENT, MILLIS, MOMENT),
    "int": ("int", 1500, MILLIS, datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=datetime.UTC)),
    "optional int": (
        ["null", "int"],
        1500,
        ["null", MICROS],
        datetime.datetime(1970, 1, 1, 0, 0, 0, 1500, datetime.UTC),
    ),
    "days": (DAYS, datetime.date(1970, 1, 3), MILLIS, datetime.datetime(1970, 1, 1, 0, 0, 0, 2000, datetime.UTC)),
    "int or long": (["int", "long"], LONG_MS, MILLIS, MOMENT),
    "int without a logical type": ("int", 1500, "long", 1500),
    "decimal": (CENTS, Decimal("1.25"), CENTS, Decimal("1.25")),
    "decimal of the reader": ("bytes", b"\x7d", CENTS, Decimal("1.25")),
    "decimal of the writer": (CENTS, Decimal("1.25"), "bytes", b"\x7d"),
}
"""The writer's type, its value, the reader's type, and the value that is read."""


def record(*fields, name="R", namespace="air"):
    return {"type": "record", "name": name, "namespace": namespace, "fields": [dict(each) for each in fields]}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def inner(kind):
    return record(field("x", kind), name="I")


def plain(wrote, value, read, found):
    return record(field("a", wrote)), {"a": value}, record(field("a", read)), {"a": found}


def renamed(wrote, value, read, found):
    return record(field("a", wrote)), {"a": value}, record(field("b", read, aliases=["a"])), {"b": found}


def nested(wrote, value, read, found):
    return plain(inner(wrote), {"x": value}, inner(read), {"x": found})


def used_twice(wrote, value, read, found):
    return (
        record(field("a", inner(wrote)), field("b", "I")),
        {"a": {"x": value}, "b": {"x": value}},
        record(field("a", inner(read)), field("b", "air.I")),
        {"a": {"x": found}, "b": {"x": found}},
    )


def defined_where_it_was_dropped(wrote, value, read, found):
    """The reader has no field any more in which the writer defines a type that a later field names."""
    return (
        record(field("old", inner(wrote)), field("b", ["null", "I"])),
        {"old": {"x": value}, "b": {"x": value}},
        record(field("b", ["null", inner(read)])),
        {"b": {"x": found}},
    )


def defined_in_a_dropped_array(wrote, value, read, found):
    return (
        record(field("old", {"type": "array", "items": inner(wrote)}), field("b", "air.I")),
        {"old": [{"x": value}], "b": {"x": value}},
        record(field("b", inner(read))),
        {"b": {"x": found}},
    )


PLACES = (plain, renamed, nested, used_twice, defined_where_it_was_dropped, defined_in_a_dropped_array)


def written(schema, value):
    stream = io.BytesIO(b"\0\0\0\0\x07")
    stream.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def decoded(monkeypatch, writer, value, reader):
    """Returns the value and the error that a job reads."""
    return read(monkeypatch, writer, written(fastavro.parse_schema(writer), value), reader)


def read(monkeypatch, writer, data, reader):
    text = json.dumps({"schema": json.dumps(writer)}).encode()
    monkeypatch.setattr(avro_codec.urllib.request, "urlopen", lambda request, timeout: io.BytesIO(text))
    decoder_of.cache_clear()
    payload = PayloadConfig(format="avro", schema=json.dumps(reader).encode(), registry="http://registry")
    values, errors = decode_values(decoder_of(payload), [data])
    decoder_of.cache_clear()
    return values.to_pylist()[0], errors[0]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("place", PLACES)
def test_the_readers_logical_type_counts_in_each_place(monkeypatch, place, pair):
    writer, value, reader, expected = place(*PAIRS[pair])
    assert decoded(monkeypatch, writer, value, reader) == (expected, None)


def test_a_fixed_decimal_of_a_dropped_field_stays_one(monkeypatch):
    """Every record that named the type again became a dead letter."""
    cents = {"type": "fixed", "name": "Cents", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
    writer = record(field("old", cents), field("price", "Cents"))
    value = {"old": Decimal("1.25"), "price": Decimal("2.50")}
    assert decoded(monkeypatch, writer, value, record(field("price", cents))) == ({"price": Decimal("2.50")}, None)


def test_a_reader_may_define_what_a_writer_names(monkeypatch):
    """Every record became a dead letter if the job's schema made such a field optional and dropped the first one."""
    code = {"type": "enum", "name": "Code", "symbols": ["JFK", "EWR"]}
    writer = record(field("origin", code), field("target", "Code"))
    value = {"origin": "JFK", "target": "EWR"}
    for reader in (
        record(field("target", ["null", code])),
        record(field("target", ["null", code]), field("origin", ["null", "Code"])),
    ):
        names = [each["name"] for each in reader["fields"]]
        assert decoded(monkeypatch, writer, value, reader) == ({name: value[name] for name in names}, None)


DEFAULTS = {
    "time": (MILLIS, LONG_MS, MOMENT),
    "micros": (MICROS, LONG_MS * 1000, MOMENT),
    "decimal": (CENTS, "\u007d", Decimal("1.25")),
    "bytes": ("bytes", "\u00ff", b"\xff"),
    "array": ({"type": "array", "items": MILLIS}, [LONG_MS], [MOMENT]),
    "record": (
        record(field("x", MILLIS), field("y", "int", default=5), name="I"),
        {"x": LONG_MS},
        {"x": MOMENT, "y": 5},
    ),
    "null": (["null", MILLIS], None, None),
}
"""The type of a field that only the reader has, its default in JSON, and the value that is read."""


@pytest.mark.parametrize("case", DEFAULTS)
def test_a_new_field_has_the_value_of_its_default(monkeypatch, case):
    """A default in milliseconds became a time of January 1970, and one of a decimal made each record a dead letter."""
    kind, default, value = DEFAULTS[case]
    writer, reader = record(field("a", "int")), record(field("a", "int"), field("b", kind, default=default))
    assert decoded(monkeypatch, writer, {"a": 1}, reader) == ({"a": 1, "b": value}, None)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_whole_number_is_a_default_of_a_float(monkeypatch, kind):
    """Java writes such schemas. The job refused its own one, and failed with a writer's."""
    old, new = record(field("a", "int")), record(field("a", "int"), field("b", kind, default=0))
    assert decoded(monkeypatch, old, {"a": 1}, new) == ({"a": 1, "b": 0.0}, None)
    assert decoded(monkeypatch, new, {"a": 1, "b": 2.5}, new) == ({"a": 1, "b": 2.5}, None)
    assert decoded(monkeypatch, new, {"a": 1, "b": 2.5}, record(field("b", kind))) == ({"b": 2.5}, None)


def test_defaults_of_a_writer_do_not_matter(monkeypatch):
    """A registry keeps what older versions of Avro took; the job failed in each task."""
    leg = record(field("code", "string", default=None), name="Leg")
    writer = record(
        field("a", "int", default="none"),
        field("legs", {"type": "array", "items": leg}),
        field("last", ["null", "air.Leg"], default=0),
    )
    value = {"a": 1, "legs": [{"code": "JFK"}], "last": None}
    reader = record(
        field("a", "int"), field("legs", {"type": "array", "items": record(field("code", "string"), name="Leg")})
    )
    data = written(fastavro.parse_schema(without_defaults(writer)), value)
    assert read(monkeypatch, writer, data, reader) == ({"a": 1, "legs": [{"code": "JFK"}]}, None)


def test_a_field_of_great_depth_is_poison(monkeypatch):
    """A field that the job does not read ended the Python worker with SIGSEGV, and each new one again."""
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    writer, reader = record(field("dropped", node), field("kept", "int")), record(field("kept", "int"))
    value, error = read(monkeypatch, writer, b"\0\0\0\0\x07" + b"\x02" * 100_000 + b"\0\2", reader)
    assert value is None
    assert "levels deep" in error
