"""Goal: formats, shapes and escapes write records as kcat does. Method: pure functions on rows made by hand."""

import json
import math

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from moldau_cli.errors import UsageError
from moldau_cli.records import formats
from moldau_cli.records.core.escapes import unescape
from moldau_cli.records.core.format import parse_format
from moldau_cli.records.core.lines import LineRules, parse_document, parse_line
from moldau_cli.records.core.shapes import Shape, writer_of
from moldau_cli.records.core.values import Content, Row
from moldau_cli.records.formats import HAVE_JSON, DataFormat, Encoding, deserializer_of


def row(key=b"k", value=b"v", headers=(), value_view=None):
    view = value if value_view is None else value_view
    return Row("t", 3, 42, 1_700_000_000_000, Content(key, key), Content(value, view), tuple(headers))


def serializer_of(data_format):
    return trio.run(formats.serializer_of, Encoding(field="value", format=data_format), None, "t")


def read(data, data_format):
    """Returns a value as ``consume`` reads it."""
    reader = deserializer_of(Encoding(field="value", format=data_format), None)
    return Content(None, None) if data is None else reader.deserialize(data, None)


def sent(value, data_format):
    """Returns the bytes of a value that ``produce`` has read."""
    return None if value is None else serializer_of(data_format).serialize(value, None)


def copied(data, data_format):
    """Returns the bytes of a value that went through ``consume --output jsonl`` and ``produce --input jsonl``."""
    line = writer_of(Shape.JSONL)(row()._replace(value=read(data, data_format)))
    return sent(
        parse_document(line, LineRules(topic="t", json_value=data_format in HAVE_JSON), "line").value, data_format
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (r"%t %p %o %k %s %h %T\n", b"t 3 42 k v a=b,c= 1700000000000\n"),
        (r"%S %K", b"1 1"),
        (r"%R%s", b"\0\0\0\x01v"),
        (r"100%% \x41\\n", b"100% A\\n"),
        ("é", "é".encode()),
    ],
)
def test_tokens_are_those_of_kcat(text, written):
    assert parse_format(text)(row(headers=[("a", b"b"), ("c", None)])) == written


def test_null_has_a_text_and_a_length_of_its_own():
    nothing = row(key=None, value=None)
    assert parse_format("%k|%s|%K|%S", b"NULL")(nothing) == b"NULL|NULL|-1|-1"
    assert parse_format("%R")(nothing) == b"\xff\xff\xff\xff"
    assert parse_format("%s|%S", b"NULL")(row(value=b"")) == b"|0"


@pytest.mark.parametrize("text", ["%q", "%", "100%"])
def test_an_unknown_token_is_an_error(text):
    with pytest.raises(UsageError, match="unknown token"):
        parse_format(text)


def test_deserialized_values_are_written_as_json():
    assert parse_format("%s %S")(row(value=b"12345", value_view={"a": [1, "ü"]})) == '{"a":[1,"ü"]} 5'.encode()


@pytest.mark.parametrize(
    ("text", "data"),
    [
        *((r"\t", b"\t"), (r"\x00\xff", b"\0\xff"), (r"\0", b"\0"), (r"\;", b";"), ("\\", b"\\")),
        *((r"\x", b"x"), (r"\xg", b"xg"), (r"\x7g", b"\x07g")),
    ],
)
def test_escapes(text, data):
    assert unescape(text) == data


def test_text_has_delimiters():
    assert writer_of(Shape.TEXT, delimiter=b"\0", key_delimiter=b"=")(row()) == b"k=v\0"
    assert writer_of(Shape.TEXT, null=b"-")(row(value=None)) == b"-\n"
    assert writer_of(Shape.RAW)(row(value=b"\xff", value_view="decoded")) == b"\xff"


def test_the_dump_shows_bytes_and_text():
    lines = writer_of(Shape.HEX)(row(key=None, value=bytes(range(60, 78)), headers=[("h", b"")])).decode().splitlines()
    assert lines == [
        "t [3] at 42, timestamp 1700000000000",
        "key: null",
        "value: 18 bytes",
        "00000000  3c 3d 3e 3f 40 41 42 43 44 45 46 47 48 49 4a 4b  |<=>?@ABCDEFGHIJK|",
        "00000010  4c 4d                                            |LM|",
        "header h: 0 bytes",
    ]


@given(
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=20),
    headers=st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.none() | st.binary(max_size=5))),
)
def test_json_lines_come_back_as_they_were(key, value, headers):
    """``consume --output jsonl`` and ``produce --input jsonl`` copy records without a loss."""
    line = writer_of(Shape.JSONL)(row(key, value, headers))
    assert line.count(b"\n") == 1
    back = parse_document(line, LineRules(topic="t"), "line")
    assert (back.key, back.value, back.headers) == (key, value, tuple(headers))
    assert (back.partition, back.timestamp) == (3, 1_700_000_000_000)
    assert json.loads(writer_of(Shape.JSON)(row(key, value, headers))) == json.loads(line)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("data_format", [DataFormat.JSON, DataFormat.MSGPACK])
@given(value=JSON_VALUES)
def test_values_of_json_come_back_as_they_were(data_format, value):
    """The text "3" became the number 3, "a b" ended the copy, and JSON's null became a tombstone."""
    if data_format is DataFormat.MSGPACK and not fits_msgpack(value):
        return
    data = serializer_of(data_format).serialize(value, None)
    assert copied(data, data_format) == data
    line = writer_of(Shape.TEXT)(row()._replace(value=read(data, data_format)))
    assert line.count(b"\n") == 1
    assert sent(parse_line(line[:-1], LineRules(), "line").value, data_format) == data


def fits_msgpack(value):
    if isinstance(value, list | dict):
        return all(map(fits_msgpack, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or -(2**63) <= value < 2**64


@pytest.mark.parametrize(
    ("data_format", "data"),
    [
        (DataFormat.STRING, b'"a"\n'),
        (DataFormat.HEX, b"\xff"),
        (DataFormat.BASE64, b"\xff\0"),
        (DataFormat.LONG, b"\xff" * 8),
        (DataFormat.DOUBLE, b"\x7f\xf0" + b"\0" * 6),
        (DataFormat.UUID, b"123e4567-e89b-12d3-a456-426614174000"),
        *((each, None) for each in (DataFormat.STRING, DataFormat.LONG, DataFormat.JSON, DataFormat.MSGPACK)),
    ],
)
def test_values_of_other_formats_come_back(data_format, data):
    assert copied(data, data_format) == data
    if data is not None and b"\n" not in data:
        line = writer_of(Shape.TEXT)(row()._replace(value=read(data, data_format)))
        assert sent(parse_line(line[:-1], LineRules(), "line").value, data_format) == data


def test_a_tombstone_is_not_the_null_of_json():
    assert parse_format("%s", b"NULL")(row()._replace(value=read(b"null", DataFormat.JSON))) == b"null"
    assert parse_format("%s", b"NULL")(row()._replace(value=read(None, DataFormat.JSON))) == b"NULL"
    line = json.loads(writer_of(Shape.JSONL)(row()._replace(value=read(b"null", DataFormat.JSON))))
    assert (line["value_base64"], "value" in line) == ("bnVsbA==", False)


def test_a_record_without_a_timestamp_comes_back():
    """``consume`` writes Kafka's -1, which ``produce`` refused; it gives such a record the time of sending."""
    line = writer_of(Shape.JSONL)(row(b"k", b"v")._replace(timestamp=-1))
    assert json.loads(line)["timestamp"] == -1
    assert parse_document(line, LineRules(topic="t"), "line").timestamp is None


@pytest.mark.parametrize(
    ("value", "text", "written"),
    [
        (math.nan, b"NaN", "NaN"),
        ("\ud800", rb"\ud800", "\ud800"),
        ({"a": "\ud800"}, rb'{"a":"\ud800"}', {"a": "\ud800"}),
    ],
)
def test_values_that_json_or_utf8_lack_are_written(value, text, written):
    """Any producer can write such texts and numbers: they ended the command, or gave what is no JSON."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    assert writer_of(Shape.TEXT)(row(value=b"x", value_view=value)) == text + b"\n"
    line = writer_of(Shape.JSONL)(row(value=b"x", value_view=value))
    assert json.loads(line, parse_constant=refuse)["value"] == written
