"""Goal: each type of each format becomes the same column wherever it stands, and its values are read back.

Method: the types of JSON Schema, Avro and Protobuf, in each place of a schema that may hold one, with extreme values.
"""

import datetime
import io
import itertools
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from pyspark_moldau.jobs.config.job_config import PayloadConfig
from pyspark_moldau.jobs.errors import JobConfigError
from pyspark_moldau.jobs.payloads.decoding import decode_values, decoder_of

MOMENT = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC)
DAY = datetime.date(2013, 1, 2)
STAMP = pa.timestamp("us", tz="UTC")
LONG, INT = 2**63 - 1, 2**31 - 1


def struct(kind):
    return pa.struct([pa.field("x", kind)])


def read(payload, value):
    """Returns the type of the column ``a``, and the value that it has."""
    decoded, errors = decode_values(decoder_of(payload), [value])
    assert errors == [None]
    return decoded.type.field("a").type, decoded.to_pylist()[0]["a"]


def same(value):
    return value


JSON_TYPES = {
    "string": ({"type": "string"}, pa.string(), [("", ""), ("é", "é")]),
    "text of another format": ({"type": "string", "format": "email"}, pa.string(), [("a@b.example", "a@b.example")]),
    "string beside items": ({"type": "string", "items": {"type": "integer"}}, pa.string(), [("x", "x")]),
    "integer": ({"type": "integer"}, pa.int64(), [(LONG, LONG), (-LONG - 1, -LONG - 1), (7.0, 7)]),
    "number": ({"type": "number"}, pa.float64(), [(1.5, 1.5), (2, 2.0), (1e308, 1e308)]),
    "boolean": ({"type": "boolean"}, pa.bool_(), [(True, True), (False, False)]),
    "moment": ({"type": "string", "format": "date-time"}, STAMP, [("2013-01-01T00:15:00-05:00", MOMENT)]),
    "day": ({"type": "string", "format": "date"}, pa.date32(), [("2013-01-02", DAY)]),
}
JSON_PLACES = {
    "plain": (same, same, same, same),
    "may be null": (lambda schema: schema | {"type": [schema["type"], "null"]}, same, same, same),
    "list": (
        lambda schema: {"type": "array", "items": schema},
        pa.list_,
        lambda value: [value, value],
        lambda value: [value, value],
    ),
    "map": (
        lambda schema: {"type": "object", "additionalProperties": schema},
        lambda kind: pa.map_(pa.string(), kind),
        lambda value: {"k": value, "l": value},
        lambda value: [("k", value), ("l", value)],
    ),
    "struct": (
        lambda schema: {"type": "object", "properties": {"x": schema}},
        struct,
        lambda value: {"x": value, "y": 1},
        lambda value: {"x": value},
    ),
    "struct beside a map": (
        lambda schema: {"type": "object", "properties": {"x": schema}, "additionalProperties": {"type": "integer"}},
        struct,
        lambda value: {"x": value, "y": 1},
        lambda value: {"x": value},
    ),
    "map without properties": (
        lambda schema: {"type": "object", "properties": {}, "additionalProperties": schema},
        lambda kind: pa.map_(pa.string(), kind),
        lambda value: {"k": value},
        lambda value: [("k", value)],
    ),
}
"""The places of a type: the schema there, its column, its value, and the value that is read."""
OUTER = ("plain", "list", "map", "struct")


def json_payload(schema):
    return PayloadConfig(format="json", schema=json.dumps(schema).encode())


def json_object(schema):
    return json_payload({"type": "object", "properties": {"a": schema}})


@pytest.mark.parametrize("name", JSON_TYPES)
def test_each_type_of_json_becomes_its_column(name):
    schema, column, values = JSON_TYPES[name]
    for outer, inner in itertools.product(OUTER, JSON_PLACES):
        wrap_schema, wrap_column, wrap_value, wrap_found = JSON_PLACES[outer]
        schema_of, column_of, value_of, found_of = JSON_PLACES[inner]
        payload = json_object(wrap_schema(schema_of(schema)))
        for value, found in values:
            given = wrap_value(value_of(value))
            assert read(payload, json.dumps({"a": given}).encode()) == (
                wrap_column(column_of(column)),
                wrap_found(found_of(found)),
            ), (outer, inner)
        if inner == "may be null":
            nothing = read(payload, json.dumps({"a": wrap_value(None)}).encode())
            assert nothing == (wrap_column(column), wrap_found(None)), outer


JSON_WRONG = {
    "array without items": ({"type": "array"}, "type array without items"),
    "items by place": ({"type": "array", "items": [{"type": "string"}]}, "type array without items"),
    "object of anything": ({"type": "object"}, "type object without items, properties or additionalProperties"),
    "object without properties": ({"type": "object", "properties": {}}, "type object without items"),
    "closed object": ({"type": "object", "additionalProperties": False}, "type object without items"),
    "null alone": ({"type": "null"}, "expected one type besides null, got 'null'"),
    "no type": ({}, "expected one type besides null, got None"),
    "enum": ({"enum": ["a"]}, "expected one type besides null, got enum alone; write a type beside it"),
    "two types": ({"type": ["string", "number", "null"]}, "expected one type besides null, got"),
}


@pytest.mark.parametrize("name", JSON_WRONG)
def test_what_is_no_column_of_json_is_refused_with_its_place(name):
    schema, message = JSON_WRONG[name]
    places = {"plain": "", "list": "/items", "map": "/additionalProperties", "struct": "/properties/x"}
    for outer, inner in itertools.product(places, repeat=2):
        wrapped = JSON_PLACES[outer][0](JSON_PLACES[inner][0](schema))
        with pytest.raises(
            JobConfigError, match=f"^JSON Schema /properties/a{places[outer]}{places[inner]}: {message}"
        ):
            decoder_of(json_object(wrapped))


@pytest.mark.parametrize(
    "schema",
    [
        *({"properties": {"a": {"type": "string"}}} | kind for kind in ({}, {"type": ["object"]}, {"type": "array"})),
        *({"type": "object"} | rest for rest in ({}, {"properties": {}}, {"additionalProperties": {"type": "string"}})),
        *([], "object", 1, None, True),
    ],
    ids=json.dumps,
)
def test_a_json_schema_is_of_an_object_with_properties(schema):
    with pytest.raises(JobConfigError, match="the JSON Schema must have type object, and properties"):
        decoder_of(json_payload(schema))


CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9}
AVRO_TYPES = {
    "boolean": ("boolean", pa.bool_(), [(True, True), (False, False)]),
    "int": ("int", pa.int32(), [(INT, INT), (-INT - 1, -INT - 1)]),
    "long": ("long", pa.int64(), [(LONG, LONG), (-LONG - 1, -LONG - 1)]),
    "float": ("float", pa.float32(), [(0.5, 0.5)]),
    "double": ("double", pa.float64(), [(0.1, 0.1), (1e308, 1e308)]),
    "bytes": ("bytes", pa.binary(), [(b"", b""), (b"\xff\0", b"\xff\0")]),
    "string": ("string", pa.string(), [("", ""), ("é", "é")]),
    "in a longer form": ({"type": "string", "avro.java.string": "String"}, pa.string(), [("x", "x")]),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), [("A", "A"), ("B", "B")]),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), [(b"\0\xff", b"\0\xff")]),
    "day": ({"type": "int", "logicalType": "date"}, pa.date32(), [(DAY, DAY)]),
    "millis": ({"type": "long", "logicalType": "timestamp-millis"}, STAMP, [(MOMENT, MOMENT)]),
    "micros": ({"type": "long", "logicalType": "timestamp-micros"}, STAMP, [(MOMENT, MOMENT)]),
    "decimal without scale": (CENTS, pa.decimal128(9, 0), [(Decimal(-125), Decimal(-125))]),
    "decimal": (CENTS | {"scale": 2}, pa.decimal128(9, 2), [(Decimal("-1.25"), Decimal("-1.25"))]),
    "largest decimal": (CENTS | {"precision": 38}, pa.decimal128(38, 0), [(Decimal(10**20), Decimal(10**20))]),
    "fixed decimal": (
        {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
        pa.decimal128(9, 2),
        [(Decimal("1.25"), Decimal("1.25"))],
    ),
}
AVRO_PLACES = {
    "plain": (same, same, same, same),
    "null first": (lambda kind: ["null", kind], same, same, same),
    "null last": (lambda kind: [kind, "null"], same, same, same),
    "alone in a union": (lambda kind: [kind], same, same, same),
    "list": (lambda kind: {"type": "array", "items": kind}, pa.list_, lambda value: [value], lambda value: [value]),
    "map": (
        lambda kind: {"type": "map", "values": kind},
        lambda kind: pa.map_(pa.string(), kind),
        lambda value: {"k": value},
        lambda value: [("k", value)],
    ),
    "record": (
        lambda kind: {"type": "record", "name": "In", "fields": [{"name": "x", "type": kind}]},
        struct,
        lambda value: {"x": value},
        lambda value: {"x": value},
    ),
}


def avro_payload(kind):
    fields = [{"name": "a", "type": kind}]
    schema = {"type": "record", "name": "Out", "fields": fields}
    return schema, PayloadConfig(format="avro", schema=json.dumps(schema).encode())


def avro_value(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0\0\0\0\7" + stream.getvalue()


@pytest.mark.parametrize("name", AVRO_TYPES)
def test_each_type_of_avro_becomes_its_column(name):
    kind, column, values = AVRO_TYPES[name]
    for outer, inner in itertools.product(("plain", "list", "map", "record"), AVRO_PLACES):
        wrap_kind, wrap_column, wrap_value, wrap_found = AVRO_PLACES[outer]
        kind_of, column_of, value_of, found_of = AVRO_PLACES[inner]
        if (outer, inner) == ("record", "record"):
            continue  # both have the same name
        schema, payload = avro_payload(wrap_kind(kind_of(kind)))
        for value, found in values:
            given = avro_value(schema, {"a": wrap_value(value_of(value))})
            expected = (wrap_column(column_of(column)), wrap_found(found_of(found)))
            assert read(payload, given) == expected, (outer, inner)
        if inner.startswith("null"):
            nothing = read(payload, avro_value(schema, {"a": wrap_value(None)}))
            assert nothing == (wrap_column(column), wrap_found(None)), (outer, inner)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (["null"], "only a union of null and one other type"),
        (["null", "int", "string"], "only a union of null and one other type"),
        ("null", "the Avro type null cannot be a column"),
        (CENTS | {"precision": 39}, "Spark has no more than 38 digits"),
        ({"type": "array", "items": "Out"}, "the Avro record Out contains itself"),
    ],
)
def test_what_is_no_column_of_avro_is_refused(kind, message):
    with pytest.raises(JobConfigError, match=message):
        decoder_of(avro_payload(kind)[1])


FIELD = descriptor_pb2.FieldDescriptorProto
BIG = 2**64 - 1
PROTO_TYPES = {
    **{name: (getattr(FIELD, f"TYPE_{name}"), pa.int32(), [INT, -INT - 1]) for name in ("INT32", "SINT32", "SFIXED32")},
    **{
        name: (getattr(FIELD, f"TYPE_{name}"), pa.int64(), [LONG, -LONG - 1])
        for name in ("INT64", "SINT64", "SFIXED64")
    },
    **{name: (getattr(FIELD, f"TYPE_{name}"), pa.int64(), [2**32 - 1]) for name in ("UINT32", "FIXED32")},
    **{name: (getattr(FIELD, f"TYPE_{name}"), pa.decimal128(20, 0), [BIG]) for name in ("UINT64", "FIXED64")},
    "DOUBLE": (FIELD.TYPE_DOUBLE, pa.float64(), [0.1]),
    "FLOAT": (FIELD.TYPE_FLOAT, pa.float32(), [0.5]),
    "BOOL": (FIELD.TYPE_BOOL, pa.bool_(), [True]),
    "STRING": (FIELD.TYPE_STRING, pa.string(), ["é"]),
    "BYTES": (FIELD.TYPE_BYTES, pa.binary(), [b"\xff\0"]),
    "ENUM": (FIELD.TYPE_ENUM, pa.string(), [1, 7]),
    "TIMESTAMP": (FIELD.TYPE_MESSAGE, STAMP, [1_357_017_300_000_001, -1, 0]),
    "MESSAGE": (FIELD.TYPE_MESSAGE, struct(pa.int32()), [7]),
}
"""The type of a field, its column, and the values that are written."""
TYPE_NAMES = {"ENUM": ".p.Kind", "TIMESTAMP": ".google.protobuf.Timestamp", "MESSAGE": ".p.In"}


def proto_file(name):
    """Returns a schema whose message ``Out`` has the type plain, optional, repeated and as the value of a map."""
    kind = PROTO_TYPES[name][0]
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    numbers = file.enum_type.add(name="Kind")
    numbers.value.add(name="A", number=0)
    numbers.value.add(name="B", number=1)
    file.message_type.add(name="In").field.add(name="x", number=1, type=FIELD.TYPE_INT32, label=1)
    out = file.message_type.add(name="Out")
    entry = out.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_SINT64, label=1)
    kinds = {"type": kind, "type_name": TYPE_NAMES.get(name)}
    entry.field.add(name="value", number=2, label=1, **kinds)
    out.field.add(name="a", number=1, label=1, **kinds)
    out.field.add(name="o", number=2, label=1, proto3_optional=True, oneof_index=0, **kinds)
    out.oneof_decl.add(name="_o")
    out.field.add(name="l", number=3, label=3, **kinds)
    out.field.add(name="m", number=4, label=3, type=FIELD.TYPE_MESSAGE, type_name=".p.Out.MEntry")
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return descriptor_pb2.FileDescriptorSet(file=[stamp, file])


def proto_class(files):
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Out"))


def filled(name, value, target):
    """Sets a message to a value."""
    if name == "TIMESTAMP":
        target.seconds, target.nanos = value // 1_000_000, value % 1_000_000 * 1000 + 999
    else:
        target.x = value


def found_of(name, value):
    """Returns the value that is read: the name of an enum, or its number where the schema has no name for it."""
    if name == "ENUM":
        return {1: "B"}.get(value, str(value))
    if name == "TIMESTAMP":
        return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=value)
    return {"x": value} if name == "MESSAGE" else Decimal(value) if "64" in name and value == BIG else value


@pytest.mark.parametrize("name", PROTO_TYPES)
def test_each_type_of_protobuf_becomes_its_column(name):
    """Plain, optional, repeated, and as the value of a map; an optional field that is not there is null."""
    _, column, values = PROTO_TYPES[name]
    files = proto_file(name)
    payload = PayloadConfig(format="protobuf", schema=files.SerializeToString(), message="p.Out")
    decoder = decoder_of(payload)
    assert decoder.type == pa.struct(
        [
            pa.field("a", column),
            pa.field("o", column),
            pa.field("l", pa.list_(column)),
            pa.field("m", pa.map_(pa.int64(), column)),
        ]
    )
    is_message = PROTO_TYPES[name][0] == FIELD.TYPE_MESSAGE
    for value in values:
        message = proto_class(files)()
        if is_message:
            for target in (message.a, message.o, message.l.add(), message.m[-5]):
                filled(name, value, target)
        else:
            message.a, message.o, message.m[-5] = value, value, value
            message.l.append(value)
        (found,), errors = decode_values(decoder, [b"\0\0\0\0\7\2\2" + message.SerializeToString()])
        expected = found_of(name, value)
        assert errors == [None]
        assert found.as_py() == {"a": expected, "o": expected, "l": [expected], "m": [(-5, expected)]}
    (empty,), errors = decode_values(decoder, [b"\0\0\0\0\7\2\2"])
    assert errors == [None]
    assert (empty.as_py()["o"], empty.as_py()["l"], empty.as_py()["m"]) == (None, [], [])
    if is_message:
        assert empty.as_py()["a"] is None
    else:
        assert empty.as_py()["a"] == ("A" if name == "ENUM" else type(found.as_py()["a"])())
