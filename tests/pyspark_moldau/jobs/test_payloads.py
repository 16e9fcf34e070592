"""Goal: values in JSON, Avro and Protobuf become the right columns, and a value that does not fit is reported.

Method: values are encoded by the libraries of the formats, or damaged by hand; a registry runs as an HTTP server.
"""

import base64
import datetime
import http.server
import io
import itertools
import json
import struct
import threading
import uuid
from decimal import Decimal
from types import SimpleNamespace

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from pyspark_moldau.jobs.config.job_config import PayloadConfig
from pyspark_moldau.jobs.errors import JobConfigError, JobError, PoisonError
from pyspark_moldau.jobs.payloads import avro_codec
from pyspark_moldau.jobs.payloads.decoding import decode_values, decoder_of

MOMENT = datetime.datetime(2013, 1, 1, 5, 15, tzinfo=datetime.UTC)
JSON_SCHEMA = {
    "type": "object",
    "required": ["carrier"],
    "properties": {
        "carrier": {"type": "string", "maxLength": 2},
        "delay": {"type": ["integer", "null"]},
        "scheduled": {"type": "string", "format": "date-time"},
        "legs": {"type": "array", "items": {"type": "object", "properties": {"miles": {"type": "number"}}}},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
    },
}
AVRO_SCHEMA = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
        {"name": "scheduled", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["CARGO", "PEOPLE"]}},
        {"name": "legs", "type": {"type": "array", "items": {"type": "record", "name": "Leg", "fields": [
            {"name": "miles", "type": "double"}]}}},
        {"name": "spare", "type": ["null", "air.Leg"]},
        {"name": "tags", "type": {"type": "map", "values": "long"}},
    ],
}  # fmt: skip
FLIGHT = {
    "carrier": "UA",
    "delay": 11,
    "scheduled": MOMENT,
    "price": Decimal("19.90"),
    "kind": "CARGO",
    "legs": [{"miles": 1400.0}],
    "spare": None,
    "tags": {"a": 1},
}


def json_payload(schema=None):
    return PayloadConfig(format="json", schema=json.dumps(schema or JSON_SCHEMA).encode())


def avro_value(schema_id, value, schema):
    stream = io.BytesIO(struct.pack(">bI", 0, schema_id))
    stream.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def only_error(payload, value):
    (decoded,), (error,) = decode_values(decoder_of(payload), [value])
    assert decoded.as_py() is None
    assert error is not None
    return error


def descriptor_set():
    """Two messages, the second with everything in it, and one inside it."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="Other").field.add(name="x", number=1, type=field.TYPE_INT32, label=1)
    flight = file.message_type.add(name="Flight")
    leg = flight.nested_type.add(name="Leg")
    leg.field.add(name="miles", number=1, type=field.TYPE_DOUBLE, label=1)
    entry = flight.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_INT64, label=1)
    kind = flight.enum_type.add(name="Kind")
    kind.value.add(name="CARGO", number=0)
    kind.value.add(name="PEOPLE", number=1)
    flight.field.add(name="carrier", number=1, type=field.TYPE_STRING, label=1)
    flight.field.add(name="delay", number=2, type=field.TYPE_SINT32, label=1, proto3_optional=True, oneof_index=0)
    flight.oneof_decl.add(name="_delay")
    flight.field.add(name="big", number=3, type=field.TYPE_UINT64, label=1)
    flight.field.add(
        name="scheduled", number=4, type=field.TYPE_MESSAGE, label=1, type_name=".google.protobuf.Timestamp"
    )
    flight.field.add(name="kind", number=5, type=field.TYPE_ENUM, label=1, type_name=".air.Flight.Kind")
    flight.field.add(name="legs", number=6, type=field.TYPE_MESSAGE, label=3, type_name=".air.Flight.Leg")
    flight.field.add(name="tags", number=7, type=field.TYPE_MESSAGE, label=3, type_name=".air.Flight.TagsEntry")
    flight.field.add(name="data", number=8, type=field.TYPE_BYTES, label=1)
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return descriptor_pb2.FileDescriptorSet(file=[stamp, file])


def proto_payload(message="air.Flight"):
    return PayloadConfig(format="protobuf", schema=descriptor_set().SerializeToString(), message=message)


def proto_class(name):
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_set().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def test_json_becomes_columns():
    document = {
        "carrier": "UA",
        "delay": 2.0,
        "scheduled": "2013-01-01T00:15:00-05:00",
        "legs": [{"miles": 3}, {}],
        "tags": {"a": 1},
        "unknown": 1,
    }
    text = json.dumps(document).encode()
    decoded, errors = decode_values(decoder_of(json_payload()), [text, None, b"\0\0\0\0\7" + text, b'{"carrier":"B6"}'])
    assert errors == [None, None, None, None]
    first, tombstone, framed, short = decoded.to_pylist()
    assert first == framed
    assert tombstone is None
    assert first["delay"] == 2
    assert first["scheduled"] == MOMENT
    assert first["legs"] == [{"miles": 3.0}, {"miles": None}]
    assert first["tags"] == [("a", 1)]
    assert short == {"carrier": "B6", "delay": None, "scheduled": None, "legs": None, "tags": None}


@pytest.mark.parametrize("text", ["2013-01-01t05:15:00z", "2013-01-01T05:15:00.000000000Z"])
def test_each_form_of_a_moment_is_read(text):
    """RFC 3339 allows letters in lower case, and any number of digits."""
    decoded, errors = decode_values(decoder_of(json_payload()), [b'{"carrier":"UA","scheduled":"%s"}' % text.encode()])
    assert errors == [None]
    assert decoded.to_pylist()[0]["scheduled"] == MOMENT


def test_a_default_fills_no_missing_property():
    """Neither in the object nor in one within, and not where the default itself does not fit."""
    part = {"type": "object", "properties": {"miles": {"type": "number", "default": 7}}}
    schema = {
        "type": "object",
        "allOf": [{"$ref": "#/definitions/named"}],
        "definitions": {"named": {"required": ["carrier"], "properties": {"delay": {"default": 0}}}},
        "properties": {
            "carrier": {"type": "string"},
            "delay": {"type": "integer", "default": "none"},
            "leg": part,
        },
    }
    (decoded, missing), errors = decode_values(
        decoder_of(json_payload(schema)), [b'{"carrier":"UA","leg":{}}', b'{"delay":1}']
    )
    assert decoded.as_py() == {"carrier": "UA", "delay": None, "leg": {"miles": None}}
    assert errors[0] is None
    assert (missing.as_py(), "carrier" in errors[1]) == (None, True)


def test_a_schema_is_not_fetched_from_an_address():
    schema = {**JSON_SCHEMA, "allOf": [{"$ref": "http://127.0.0.1:1/other.json"}]}
    with pytest.raises(JobConfigError, match=r"refers to http://127.0.0.1:1/other.json"):
        decoder_of(json_payload(schema))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"carrier":"UA","legs":[{"miles":NaN}]}', "NaN is no JSON number"),
        (b'{"carrier":"UA","legs":[{"miles":1e400}]}', "is too large for a double"),
        (b'{"carrier":"UA","legs":[{"miles":-1e400}]}', "is too large for a double"),
        (b'{"carrier":"UA","delay":1e400}', "must be integer"),
        (b"[" * 100_000, "not JSON"),
        (b'{"delay":1}', "carrier"),
        (b'{"carrier":"long"}', "shorter than or equal to 2"),
        (b'{"carrier":"UA","delay":"x"}', "delay"),
        (b'{"carrier":"UA","scheduled":"yesterday"}', "scheduled"),
        (b'{"carrier":"UA","scheduled":"2013-01-01T00:15:00"}', ""),
        (b'{"carrier":"UA","delay":99999999999999999999}', "does not fit its column"),
        (b'{"carrier":"\\ud800"}', "does not fit its column"),
        (b'{"carrier":"UA","tags":{"\\ud800":"x"}}', r"tags.\ud800 must be integer"),
        (b"\0\0", "2 bytes"),
    ],
)
def test_poison_json_is_reported(value, message):
    error = only_error(json_payload(), value)
    assert message in error
    assert error.encode().decode() == error  # a column holds it


WHOLE = {
    "7.0": 7,
    "-0.0": 0,
    "1e3": 1000,
    "9007199254740993.0": 2**53 + 1,
    "-9007199254740993.0": -(2**53) - 1,
    "900719925474099300E-2": 2**53 + 1,
    "9223372036854775807.0": 2**63 - 1,
    "0.000e99999999999999999999": 0,
}
FRACTIONS = ["7.5", "1e-1", "1.0000000000000000000001", "9007199254740992.5", "1e-400", "-1e-99999999999999999999"]


@pytest.mark.parametrize("text", WHOLE)
def test_a_whole_number_with_a_point_is_exact(text):
    """A double would make 9007199254740992 of 9007199254740993.0."""
    decoded, errors = decode_values(decoder_of(json_payload()), [b'{"carrier":"UA","delay":%s}' % text.encode()])
    assert (decoded[0].as_py()["delay"], errors) == (WHOLE[text], [None])


@pytest.mark.parametrize("text", FRACTIONS)
def test_a_fraction_that_a_double_loses_is_poison(text):
    assert "delay must be integer" in only_error(json_payload(), b'{"carrier":"UA","delay":%s}' % text.encode())
    value = b'{"carrier":"UA","legs":[{"miles":%s}]}' % text.encode()
    decoded, _ = decode_values(decoder_of(json_payload()), [value])
    assert decoded[0].as_py()["legs"][0]["miles"] == float(text)


@pytest.mark.parametrize("digits", [300, 308, 309, 400, 4000])
@pytest.mark.parametrize("sign", [b"", b"-"])
def test_a_whole_number_beyond_a_double_is_poison(sign, digits):
    """It is valid JSON, and a number to the schema; Python's conversion overflows, which must not end the task."""
    values = [b'{"carrier":"UA","legs":[{"miles":%s}]}' % miles for miles in (b"1", sign + b"1" + b"0" * digits, b"2")]
    decoded, errors = decode_values(decoder_of(json_payload()), values)
    fits = digits <= 308
    assert [error is None for error in errors] == [True, fits, True]
    assert [each and each["legs"][0]["miles"] for each in decoded.to_pylist()] == [
        1.0,
        float(sign + b"1" + b"0" * digits) if fits else None,
        2.0,
    ]


def test_one_bad_value_leaves_its_neighbours():
    """A number that is too large fails in Arrow, after the schema accepted it."""
    values = [b'{"carrier":"%d","delay":%d}' % (n, 10**20 if n == 2 else n) for n in range(5)]
    decoded, errors = decode_values(decoder_of(json_payload()), values)
    assert [each and each["delay"] for each in decoded.to_pylist()] == [0, 1, None, 3, 4]
    assert [error is None for error in errors] == [True, True, False, True, True]


def test_each_value_of_a_batch_is_read_as_if_alone():
    """Values that fit, nulls, texts that are no JSON, and numbers that are too large for their column, in any order."""
    decoder = decoder_of(json_payload())
    kinds = [b'{"carrier":"UA","delay":1}', None, b"{", b'{"carrier":"UA","delay":%d}' % 10**20]
    alone = {value: decode_values(decoder, [value]) for value in kinds}
    for values in itertools.product(kinds, repeat=4):
        decoded, errors = decode_values(decoder, values)
        assert decoded.to_pylist() == [alone[value][0][0].as_py() for value in values]
        assert errors == [alone[value][1][0] for value in values]


def test_avro_becomes_columns():
    payload = PayloadConfig(format="avro", schema=json.dumps(AVRO_SCHEMA).encode())
    value = avro_value(5, FLIGHT, AVRO_SCHEMA)
    decoded, errors = decode_values(decoder_of(payload), [value])
    assert errors == [None]
    assert decoded.to_pylist() == [FLIGHT | {"tags": [("a", 1)]}]
    for broken in (value[:-1], value + b"x", b"", b"\1" + value[1:], value[:5], b"\0\0\0\0\5" + b"\xff" * 40):
        only_error(payload, broken)


@pytest.fixture
def registry():
    """A schema registry: 1 lacks a field, 2 is the reader's, 3 is not Avro, 4 answers 500, 5 is no registry's."""
    old = AVRO_SCHEMA | {"fields": [field for field in AVRO_SCHEMA["fields"] if field["name"] != "delay"]}
    answers = {
        "/schemas/ids/1": (200, {"schema": json.dumps(old)}),
        "/schemas/ids/2": (200, {"schema": json.dumps(AVRO_SCHEMA), "schemaType": None}),
        "/schemas/ids/3": (200, {"schema": "syntax", "schemaType": "PROTOBUF"}),
        "/schemas/ids/4": (500, {}),
        "/schemas/ids/5": (404, {"error_code": 404}),
    }
    asked, logins = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            logins.append(self.headers["Authorization"])
            code, document = answers.get(self.path, (404, {"error_code": 40403}))
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", asked, old, logins
        server.shutdown()
        thread.join()


@pytest.fixture
def schemas(monkeypatch):
    """A registry without a server: its address, and the schemas by id."""
    answers = {}

    def urlopen(request, timeout):
        address = request.full_url
        return io.BytesIO(json.dumps({"schema": json.dumps(answers[int(address.rpartition("/")[2])])}).encode())

    monkeypatch.setattr(avro_codec.urllib.request, "urlopen", urlopen)
    decoder_of.cache_clear()
    yield "http://registry", answers
    decoder_of.cache_clear()


def test_a_registry_gives_the_writers_schema(registry):
    host, asked, old, _ = registry
    payload = PayloadConfig(format="avro", schema=json.dumps(AVRO_SCHEMA).encode(), registry=f"http://{host}")
    shorter = {name: value for name, value in FLIGHT.items() if name != "delay"}
    values = [avro_value(1, shorter, old), avro_value(2, FLIGHT, AVRO_SCHEMA), avro_value(1, shorter, old)]
    decoded, errors = decode_values(decoder_of(payload), values)
    assert errors == [None] * 3
    assert [each["delay"] for each in decoded.to_pylist()] == [None, 11, None]
    assert asked == ["/schemas/ids/1", "/schemas/ids/2"]
    assert "no Avro schema with id 3" in only_error(payload, avro_value(3, FLIGHT, AVRO_SCHEMA))
    assert "no Avro schema with id 9" in only_error(payload, avro_value(9, FLIGHT, AVRO_SCHEMA))
    for number, said in ((4, "ids/4 answers 500$"), (5, "ids/5 answers 404; check the address")):
        with pytest.raises(JobError, match=said):  # not the record's fault
            decode_values(decoder_of(payload), [avro_value(number, FLIGHT, AVRO_SCHEMA)])


def test_an_unknown_schema_is_asked_for_again(monkeypatch):
    """The registry may know it later, and the query for dead letters may ask for the first time then."""
    now, asked, answers = [100.0], [], {}
    monkeypatch.setattr(avro_codec, "time", SimpleNamespace(monotonic=lambda: now[0]), raising=False)
    registry = avro_codec.Registry("http://registry")
    monkeypatch.setattr(registry, "_fetch", lambda number: asked.append(number) or answers.get(number))
    for _ in range(3):
        with pytest.raises(PoisonError, match="no Avro schema with id 9"):
            registry.schema(9)
    assert asked == [9]
    answers[9] = AVRO_SCHEMA
    now[0] += avro_codec.UNKNOWN_S
    assert [registry.schema(9), registry.schema(9)] == [AVRO_SCHEMA] * 2
    assert asked == [9, 9]


LONG_MS = 1_357_017_300_000
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
FIXED_CENTS = {"type": "fixed", "name": "Cents", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}


def record_of(*types):
    fields = [{"name": f"f{number}", "type": each} for number, each in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields}


LOGICAL = {
    "uuid": ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=5), str(uuid.UUID(int=5))),
    "time-millis": ({"type": "int", "logicalType": "time-millis"}, datetime.time(0, 0, 1), 1000),
    "time-micros": ({"type": "long", "logicalType": "time-micros"}, datetime.time(0, 0, 1), 1_000_000),
    "local": (
        ["null", {"type": "long", "logicalType": "local-timestamp-millis"}],
        MOMENT.replace(tzinfo=None),
        LONG_MS,
    ),
    "date": ({"type": "int", "logicalType": "date"}, MOMENT.date(), MOMENT.date()),
    "date of a string": ({"type": "string", "logicalType": "date"}, "2013-01-01", "2013-01-01"),
    "millis of an int": ({"type": "int", "logicalType": "timestamp-millis"}, 1000, 1000),
    "decimal of a string": ({"type": "string", "logicalType": "decimal", "precision": 9}, "1.25", "1.25"),
    "decimal without precision": ({"type": "bytes", "logicalType": "decimal"}, b"\x7d", b"\x7d"),
    "millis": (["null", MILLIS], MOMENT, MOMENT),
    "micros": ({"type": "array", "items": MICROS}, [MOMENT], [MOMENT]),
}


@pytest.mark.parametrize("name", LOGICAL)
def test_each_logical_type_of_avro_becomes_a_column(name):
    """A type that has no column of its own is read as the type beneath it."""
    kind, value, expected = LOGICAL[name]
    schema = record_of(kind)
    decoder = decoder_of(PayloadConfig(format="avro", schema=json.dumps(schema).encode()))
    decoded, errors = decode_values(decoder, [avro_value(5, {"f0": value}, schema)])
    assert errors == [None]
    assert decoded.to_pylist() == [{"f0": expected}]


FAR = {
    "millis": (MILLIS, 2**60 // 1000, 2**60 // 1000 * 1000),
    "micros": (MICROS, -(2**60), -(2**60)),
    "date": ({"type": "int", "logicalType": "date"}, 20_000_000, 20_000_000),
}


@pytest.mark.parametrize("name", FAR)
def test_avro_times_beyond_those_of_python_are_read(name):
    kind, number, expected = FAR[name]
    plain = record_of(kind["type"], {"type": "array", "items": kind["type"]})
    schema = record_of(kind, {"type": "array", "items": kind})
    decoder = decoder_of(PayloadConfig(format="avro", schema=json.dumps(schema).encode()))
    value = avro_value(5, {"f0": number, "f1": [number]}, plain)
    decoded, errors = decode_values(decoder, [value])
    whole = pa.int32() if name == "date" else pa.int64()
    assert errors == [None]
    assert decoded.field(0).cast(whole).to_pylist() == [expected]
    assert decoded.field(1).values.cast(whole).to_pylist() == [expected]


def test_a_time_that_no_column_holds_is_poison():
    schema = record_of(MILLIS)
    decoder = decoder_of(PayloadConfig(format="avro", schema=json.dumps(schema).encode()))
    decoded, errors = decode_values(decoder, [avro_value(5, {"f0": 2**62}, record_of("long"))])
    assert decoded.to_pylist() == [None]
    assert errors[0].startswith("does not fit its column")


def test_a_named_decimal_may_be_used_twice():
    schema = record_of(FIXED_CENTS, ["null", "Cents"])
    decoder = decoder_of(PayloadConfig(format="avro", schema=json.dumps(schema).encode()))
    value = {"f0": Decimal("1.25"), "f1": Decimal("-2.50")}
    decoded, errors = decode_values(decoder, [avro_value(5, value, schema)])
    assert (errors, decoded.to_pylist()) == ([None], [value])


WRITERS = {
    "without, millis": ("long", LONG_MS, MILLIS, MOMENT),
    "without, in a union": (["null", "long"], LONG_MS, ["null", MILLIS], MOMENT),
    "without, in an array": (
        {"type": "array", "items": "long"},
        [LONG_MS],
        {"type": "array", "items": MILLIS},
        [MOMENT],
    ),
    "without, in a map": (
        {"type": "map", "values": "long"},
        {"a": LONG_MS},
        {"type": "map", "values": MILLIS},
        [("a", MOMENT)],
    ),
    "without, decimal": ("bytes", b"\x7d", CENTS, Decimal("1.25")),
    "another unit": (MICROS, MOMENT, MILLIS, MOMENT),
    "reader without": (MILLIS, MOMENT, "long", LONG_MS),
    "another type": ({"type": "long", "logicalType": "local-timestamp-millis"}, LONG_MS, MILLIS, MOMENT),
    "nested": (record_of("long") | {"name": "I"}, {"f0": LONG_MS}, record_of(MILLIS) | {"name": "I"}, {"f0": MOMENT}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_readers_logical_type_counts(name, schemas):
    """The producer's schema gained or lost a logical type, which changes no byte of a value."""
    url, answers = schemas
    wrote, value, read, expected = WRITERS[name]
    answers[7] = record_of(wrote)
    payload = PayloadConfig(format="avro", schema=json.dumps(record_of(read)).encode(), registry=url)
    decoded, errors = decode_values(decoder_of(payload), [avro_value(7, {"f0": value}, answers[7])])
    assert (errors, decoded.to_pylist()) == ([None], [{"f0": expected}])


def test_the_login_of_a_registry_is_sent_and_not_shown(registry):
    host, _, _, logins = registry
    payload = PayloadConfig(
        format="avro",
        schema=json.dumps(AVRO_SCHEMA).encode(),
        registry=f"http://{host}",
        registry_login="al:p@ss",
    )
    _, errors = decode_values(decoder_of(payload), [avro_value(2, FLIGHT, AVRO_SCHEMA)])
    assert errors == [None]
    assert logins == ["Basic " + base64.b64encode(b"al:p@ss").decode()]
    with pytest.raises(JobError, match="answers 500") as failure:
        decode_values(decoder_of(payload), [avro_value(4, FLIGHT, AVRO_SCHEMA)])
    assert "p@ss" not in str(failure.value)


def test_protobuf_becomes_columns():
    flight = proto_class("air.Flight")(carrier="UA", big=2**64 - 1, kind=1, legs=[{"miles": 2.5}], tags={"a": 1})
    flight.scheduled.FromDatetime(MOMENT)
    value = b"\0\0\0\0\5\2\2" + flight.SerializeToString()  # one index: 1
    decoded, errors = decode_values(decoder_of(proto_payload()), [value])
    assert errors == [None]
    assert decoded.to_pylist() == [
        {
            "carrier": "UA",
            "delay": None,
            "big": Decimal(2**64 - 1),
            "scheduled": MOMENT,
            "kind": "PEOPLE",
            "legs": [{"miles": 2.5}],
            "tags": [("a", 1)],
            "data": b"",
        }
    ]
    first = proto_payload("air.Other")
    other = proto_class("air.Other")(x=7).SerializeToString()
    assert decode_values(decoder_of(first), [b"\0\0\0\0\5\0" + other])[0].to_pylist() == [{"x": 7}]
    nested = decode_values(decoder_of(proto_payload("air.Flight.Leg")), [b"\0\0\0\0\5\4\2\0"])
    assert nested[0].to_pylist() == [{"miles": 0.0}]
    assert "message indexes [0]" in only_error(proto_payload(), b"\0\0\0\0\5\0" + other)
    assert "cut off" in only_error(proto_payload(), b"\0\0\0\0\5\x80")
    assert "plausible" in only_error(proto_payload(), b"\0\0\0\0\5\xfe\xff\x03")
    only_error(proto_payload(), value[:-3])


@pytest.mark.parametrize(
    "column",
    [
        {"type": "string", "format": "date-time"},
        {"type": "integer"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "object", "properties": {"k": {"type": "string"}}},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ],
    ids=json.dumps,
)
@pytest.mark.parametrize("value", [7.5, {"k": []}])
def test_a_value_that_only_a_reference_admits_is_poison(column, value):
    """JSON Schema leaves a type beside a ``$ref`` out of account, and the job failed in each task."""
    column = column | {"$ref": "#/definitions/any"}
    payload = json_payload({"type": "object", "properties": {"a": column}, "definitions": {"any": {}}})
    values, errors = decode_values(decoder_of(payload), [json.dumps({"a": value}).encode(), b"{}"])
    assert values.to_pylist() == [None, {"a": None}]
    assert errors[0] is not None
    assert errors[1] is None


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (PayloadConfig(format="json", schema=b"{"), "no JSON"),
        (PayloadConfig(format="json", schema=b'{"type":"string"}'), "type object"),
        (json_payload({"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}), "/properties/a"),
        (PayloadConfig(format="avro", schema=b'{"type":"recrod"}'), "no Avro schema"),
        (PayloadConfig(format="json", schema=b'{"a":' * 3000), "no JSON"),
        (json_payload({"type": "object", "properties": {"a": True}}), "/properties/a: expected one type"),
        (json_payload({"type": "object", "properties": {"a": {"anyOf": [{}]}}}), "/a: .* got anyOf alone; write"),
        (json_payload({"type": "object", "properties": {"a": {"$ref": "#"}}}), r"/a: .* got \$ref alone; write"),
        (json_payload({"type": "object", "properties": 5}), "the JSON Schema is wrong"),
        (PayloadConfig(format="avro", schema=b'"string"'), "must be a record"),
        (PayloadConfig(format="avro", schema=b"null"), "no Avro schema"),
        (PayloadConfig(format="avro", schema=b'{"type":"record","name":"N"}'), "no Avro schema: KeyError.*fields"),
        (PayloadConfig(format="avro", schema=json.dumps(record_of({"type": "array"})).encode()), "KeyError.*items"),
        (PayloadConfig(format="avro", schema=b'{"type":' * 3000), "no Avro schema: RecursionError"),
        (PayloadConfig(format="avro", schema=json.dumps(record_of(CENTS | {"precision": 40})).encode()), "38 digits"),
        (
            PayloadConfig(
                format="avro",
                schema=b'{"type":"record","name":"N","fields":[{"name":"n","type":["null","N"]}]}',
            ),
            "contains itself",
        ),
        (PayloadConfig(format="protobuf", schema=b"syntax = 'proto3'", message="air.Flight"), "descriptor set"),
        (proto_payload("air.Fligth"), "air.Other, air.Flight"),
    ],
)
def test_a_wrong_schema_is_refused(payload, message):
    with pytest.raises(JobConfigError, match=message):
        decoder_of(payload)
