"""Goal: no value is written as another one because ``fastavro`` converts what a type of Avro does not hold.

Method: each value goes through the writer of ``fastavro``: what the check lets pass is read as it was given.
"""

import datetime
import io
from decimal import Decimal
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.serialization.core.avro_values import check_of

NODE = {
    "type": "record",
    "name": "air.Node",
    "fields": [
        {"name": "open", "type": "boolean"},
        {"name": "below", "type": {"type": "array", "items": "Node"}},
    ],
}
LEG = {"type": "record", "name": "Leg", "fields": [{"name": "delay", "type": "int"}]}
TIME = {"type": "long", "logicalType": "timestamp-millis"}
DAY = {"type": "int", "logicalType": "date"}
UUID_TEXT = {"type": "string", "logicalType": "uuid"}
PRICE = {"type": "fixed", "name": "Price", "size": 3, "logicalType": "decimal", "precision": 5, "scale": 2}


def checked(schema, value):
    check = check_of(fastavro.parse_schema(schema, named_schemas={}))
    if check is not None:
        check(value)


def through_fastavro(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value, strict_allow_default=True)
    return fastavro.schemaless_reader(io.BytesIO(stream.getvalue()), schema, None)


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ("int", 7.9, "the value: 7.9 is no whole number"),
        ("long", Decimal("2.5"), "is no whole number"),
        (TIME, 2.5, "is no whole number"),
        ("float", 1e300, "is no float of four bytes"),
        ("boolean", None, "the value: None is no boolean"),
        ("boolean", "no", "'no' is no boolean"),
        ("null", 5, "5 is no null"),
        ({"type": "array", "items": "string"}, "JFK", "the value: 'JFK' is no array"),
        ({"type": "array", "items": "string"}, {"JFK": 1}, "is no array"),
        ({"type": "map", "values": {"type": "array", "items": "int"}}, {"a": [1.5]}, "item of a value of the value"),
        (
            {"type": "record", "name": "Route", "fields": [{"name": "leg", "type": LEG}]},
            {"leg": {"delay": 0.5}},
            "Leg.delay",
        ),
        (NODE, {"open": True, "below": [{"open": None, "below": []}]}, "air.Node.open: None is no boolean"),
        (DAY, datetime.datetime(2026, 3, 1, 9, 30, tzinfo=datetime.UTC), "is no date, it has a time of day"),
        (["null", DAY], datetime.datetime(2026, 3, 1, 9, 30, tzinfo=datetime.UTC), "the value: .* is no date"),
        (PRICE, Decimal("-9E+5"), "is no decimal of 5 digits, 2 of them behind the point"),
        (["null", PRICE], Decimal("-9E+5"), "is no decimal"),
    ],
)
def test_a_value_that_would_become_another_is_refused(schema, value, text):
    assert through_fastavro(schema, value) != value
    with pytest.raises(ValueError, match=text):
        checked(schema, value)


@pytest.mark.parametrize("schema", [UUID_TEXT, ["null", UUID_TEXT]])
def test_a_text_that_no_reader_takes_for_a_uuid_is_refused(schema):
    with pytest.raises(ValueError, match="badly formed"):
        through_fastavro(schema, "N1")
    with pytest.raises(ValueError, match="the value: 'N1' is no UUID"):
        checked(schema, "N1")


def test_items_that_can_be_read_once_are_refused():
    """The check of the items used them up: an empty array was written, without an error."""
    for items in (iter([1, 2]), map(int, "12"), (each for each in (1, 2))):
        with pytest.raises(ValueError, match="the value: give its items as a list"):
            checked({"type": "array", "items": "int"}, items)
    checked({"type": "array", "items": "int"}, range(3))


def test_an_int_has_four_bytes():
    """Readers in Java refuse a longer one, although ``fastavro`` reads it."""
    with pytest.raises(ValueError, match="the value: 2147483648 is no int of four bytes"):
        checked("int", 2**31)
    checked("int", -(2**31))
    checked("long", 2**31)


def test_a_referenced_type_is_checked():
    named = {}
    fastavro.parse_schema(LEG, named_schemas=named)
    route = {"type": "record", "name": "Route", "fields": [{"name": "leg", "type": "Leg"}]}
    check = check_of(fastavro.parse_schema(route, named_schemas=named))
    with pytest.raises(ValueError, match=r"Leg\.delay: 0\.5 is no whole number"):
        check({"leg": {"delay": 0.5}})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("long", 7.0),
        ("int", True),
        ("float", float("inf")),
        (TIME, datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, Decimal("1.25")),
        ({"type": "array", "items": "int"}, (1, 2)),
        (["null", "boolean"], None),
        (["null", UUID_TEXT], None),
        (UUID_TEXT, UUID(int=7)),
        (DAY, datetime.date(2026, 3, 1)),
        (PRICE, Decimal("-999.99")),
        (PRICE, Decimal("0E+9")),
        (NODE, {"open": False, "below": [{"open": True, "below": []}]}),
    ],
)
def test_a_value_that_stays_the_same_is_taken(schema, value):
    written = through_fastavro(schema, value)
    assert written == (list(value) if isinstance(value, tuple) else value)
    checked(schema, value)


def test_a_date_may_be_the_beginning_of_a_day():
    """As fastavro and Confluent's client take it: nothing of the value is lost."""
    checked(DAY, datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC))


@given(st.sampled_from(["int", "long", "boolean", "null"]), st.none() | st.booleans() | st.integers() | st.floats())
def test_numbers_are_written_as_they_are_or_refused(schema, value):
    try:
        checked(schema, value)
        written = through_fastavro(schema, value)
    except (ValueError, OverflowError, TypeError):
        return
    assert written == value
