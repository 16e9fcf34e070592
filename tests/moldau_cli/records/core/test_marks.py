"""Goal: what JSON lacks stands under marks, and comes back. Method: values of Avro and msgpack, drawn and by hand."""

import datetime
import json
import math
from decimal import Decimal

import msgpack
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from moldau_cli.records.core.lines import LineRules, parse_document, parse_line
from moldau_cli.records.core.marks import READERS, Pairs, marked, unmarked
from moldau_cli.records.core.shapes import Shape, writer_of
from moldau_cli.records.core.values import Row
from moldau_cli.records.formats import DataFormat, Encoding, deserializer_of, serializer_of

UTC = datetime.UTC
NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=UTC)
TWIN = {1: "a", "1": "b"}


def refuse(name):
    raise AssertionError(f"{name} is no JSON")


def shown(value):
    """Returns the JSON of a value, after a way through text."""
    return json.loads(json.dumps(marked(value, {}), allow_nan=False), parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (b"\0\xff", {"$base64": "AP8="}),
        (b"text", {"$base64": "dGV4dA=="}),
        (NOON, {"$time": "2026-03-01T12:00:00+00:00"}),
        (NOON.replace(tzinfo=None, microsecond=7), {"$time": "2026-03-01T12:00:00.000007"}),
        (datetime.date(2026, 3, 1), {"$time": "2026-03-01"}),
        (datetime.time(12, 0, 0, 5000), {"$time": "12:00:00.005000"}),
        (Decimal("1.50"), {"$decimal": "1.50"}),
        (-math.inf, {"$float": "-Infinity"}),
        ({"a": [1, b"", ("x", None)]}, {"a": [1, {"$base64": ""}, ["x", None]]}),
        ({7: 1, None: 2, True: 3, 1.5: 4}, {"7": 1, "null": 2, "true": 3, "1.5": 4}),
        (TWIN, {"$map": [[1, "a"], ["1", "b"]]}),
        ({b"\xff": b""}, {"$map": [[{"$base64": "/w=="}, {"$base64": ""}]]}),
        ({"$base64": "AP8="}, {"$$base64": "AP8="}),
        ({"$$time": 1}, {"$$$time": 1}),
        ({"$base64": 1, "b": 2}, {"$base64": 1, "b": 2}),
        ({"$other": 1}, {"$other": 1}),
    ],
    ids=str,
)
def test_what_json_lacks_has_a_mark(value, written):
    assert shown(value) == written


def test_a_map_may_have_keys_that_python_cannot_hash():
    assert shown(Pairs([([1], "a"), ("b", Pairs())])) == {"$map": [[[1], "a"], ["b", {}]]}


TEXTS = st.text(max_size=3) | st.sampled_from(["$base64", "$$base64", "$map", "$time"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | TEXTS
    | st.binary(max_size=4)
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.dates()
    | st.times()
    | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.binary(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_marked_values_come_back_as_they_were(value):
    found = unmarked(shown(value), READERS)
    assert found == value
    assert shown(found) == shown(value)


@pytest.mark.parametrize(
    "value",
    [
        {"$base64": "?"},
        {"$base64": 5},
        {"$time": "noon"},
        {"$decimal": "x"},
        {"$float": "1.5"},
        {"$map": [[1, 2], [1, 3]]},
        {"$map": [[[1], 2]]},
        {"$map": [1]},
        {"$ext": [5, "AP8="]},
    ],
    ids=json.dumps,
)
def test_a_wrong_mark_is_named(value):
    (mark,) = value
    with pytest.raises(ValueError, match=f"\\{mark} cannot hold"):
        unmarked([value], READERS)


def copied(data, options):
    """Returns the bytes of values that went through lines, and through documents, of both commands."""
    encoding = Encoding(field="value", **options)
    content = deserializer_of(encoding, None).deserialize(data, None)
    serializer = trio.run(serializer_of, encoding, None, "t")
    row = Row("t", 0, 0, 0, content, content, ())
    rules = LineRules(topic="t", json_value=True)
    line = parse_line(writer_of(Shape.TEXT)(row)[:-1], rules, "line")
    document = parse_document(writer_of(Shape.JSONL)(row), rules, "line")
    return [serializer.serialize(record.value, None) for record in (line, document)]


PACKED = [
    b"\0\xff",
    {"data": b"x", "text": "eA==", "$base64": "eA=="},
    {"$time": "2026-03-01T12:00:00Z"},
    msgpack.Timestamp(5, 7),
    msgpack.Timestamp(-1, 999_999_999),
    msgpack.Timestamp(1_772_366_400),
    msgpack.Timestamp(2**62, 3),
    msgpack.ExtType(5, b"x"),
    {b"k": [1, {"n": b""}]},
    TWIN,
    math.inf,
]


@pytest.mark.parametrize("value", PACKED, ids=str)
def test_msgpack_comes_back_as_it_was(value):
    data = msgpack.packb(value)
    assert copied(data, {"format": DataFormat.MSGPACK}) == [data, data]


def test_msgpacks_own_types_are_shown():
    def value_of(data):
        reader = deserializer_of(Encoding(field="value", format=DataFormat.MSGPACK), None)
        return reader.deserialize(data, None).value

    assert value_of(msgpack.packb(msgpack.Timestamp(5, 7))) == {"$time": "1970-01-01T00:00:05.000000007+00:00"}
    assert value_of(msgpack.packb({1: {2: b"x"}})) == {"1": {"2": {"$base64": "eA=="}}}
    assert value_of(b"\xd4\xfe\x01") == {"$ext": [-2, "AQ=="]}  # a number that msgpack keeps for itself
    assert value_of(b"\x81\x91\x01\x02") == {"$map": [[[1], 2]]}


SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "raw", "type": ["string", "bytes"]},
        {"name": "id", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}, "string"]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "hour", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "rest", "type": {"type": "map", "values": ["double", "bytes"]}},
    ],
}


def test_avro_comes_back_as_it_was(tmp_path):
    path = tmp_path / "schema.avsc"
    path.write_text(json.dumps(SCHEMA))
    options = {"format": DataFormat.AVRO, "schema": path}
    value = {
        "raw": {"$base64": "AP8="},
        "id": {"$base64": "AAE="},
        "at": {"$time": "2026-03-01T12:00:00.000007+00:00"},
        "day": {"$time": "2026-03-01"},
        "hour": {"$time": "12:00:00.005000"},
        "price": {"$decimal": "1.50"},
        "key": "123e4567-e89b-12d3-a456-426614174000",
        "rest": {"$$base64": {"$float": "NaN"}},
    }
    encoding = Encoding(field="value", **options)
    data = trio.run(serializer_of, encoding, None, "t").serialize(json.dumps(value).encode(), None)
    assert deserializer_of(encoding, None).deserialize(data, None).value == value
    assert copied(data, options) == [data, data]
