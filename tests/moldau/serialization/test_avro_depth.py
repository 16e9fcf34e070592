"""Goal: no Avro value ends the process by its depth. Method: values and bytes of types that contain themselves.

``fastavro`` recurses in C, so without the check each of these tests ends its process with SIGSEGV.
"""

import io
import json
from types import SimpleNamespace

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.serialization.avro import AvroSerde
from moldau.serialization.core.avro_depth import LEVELS_MAX, DepthCheck
from moldau.serialization.core.registry_requests import RegisteredSchema, Schema
from moldau.serialization.core.values import SerializationContext, SerializationError
from moldau.serialization.core.wire_format import frame

CONTEXT = SerializationContext("flights", "value")
ENOUGH = 100_000


def record(*fields):
    return {"type": "record", "name": "Node", "fields": [{"name": name, "type": kind} for name, kind in fields]}


CHAIN = record(("number", "int"), ("next", ["null", "Node"]))
TREE = record(("name", "string"), ("below", {"type": "array", "items": "Node"}))
TABLE = record(("within", {"type": "map", "values": "Node"}))
RICH = record(
    ("flags", {"type": "array", "items": {"type": "fixed", "name": "Flag", "size": 3}}),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}),
    ("again", {"type": "map", "values": ["double", "Kind", "Flag", "bytes", "boolean", "float", "null"]}),
    ("below", {"type": "array", "items": ["null", "long", "Node"]}),
)


def serde_of(schema):
    found = RegisteredSchema(id=1, schema=Schema(json.dumps(schema), "AVRO"))
    return AvroSerde(SimpleNamespace(known=lambda need: found), schema)


@pytest.mark.parametrize(
    ("schema", "level"), [(CHAIN, b"\x02\x02"), (TREE, b"\x00\x02"), (TREE, b"\x02a\x01\x02"), (TABLE, b"\x02\x02a")]
)
def test_bytes_of_great_depth_are_refused(schema, level):
    with pytest.raises(SerializationError, match="nested more than 1000 levels deep"):
        serde_of(schema).deserialize(frame(1) + level * ENOUGH + b"\0" * ENOUGH, CONTEXT)


def test_values_of_great_depth_are_refused():
    chain, ring = None, {"number": 1}
    for number in range(ENOUGH):
        chain = {"number": number, "next": chain}
    ring["next"] = ring
    for each in (chain, ring):
        with pytest.raises(SerializationError, match="nested more than 1000 levels deep"):
            serde_of(CHAIN).serialize(each, CONTEXT)
    while chain is not None:  # the end of the test would free it by recursion
        chain = chain["next"]


def test_long_values_of_little_depth_are_read():
    value = {"name": "é" * 2000, "below": [{"name": str(each), "below": []} for each in range(5000)]}
    serde = serde_of(TREE)
    assert serde.deserialize(serde.serialize(value, CONTEXT), CONTEXT) == value


def test_what_is_written_can_be_read():
    """Bytes may have more levels than the value: a union is none there."""
    schema = record(("next", ["null", {"type": "array", "items": ["null", "Node"]}]))
    value = {"next": None}
    for _ in range(LEVELS_MAX // 2 - 2):
        value = {"next": [value]}
    with pytest.raises(SerializationError, match="levels deep"):
        serde_of(schema).serialize(value, CONTEXT)


def test_only_types_that_contain_themselves_are_checked():
    assert not DepthCheck(fastavro.parse_schema(record(("of", "string"), ("also", ["null", "long"])))).is_needed
    assert not DepthCheck("string").is_needed
    assert DepthCheck(fastavro.parse_schema(CHAIN)).is_needed


MAPS = st.dictionaries(st.text(max_size=3), st.one_of(st.floats(), st.binary(max_size=9), st.booleans(), st.none()))
NODES = st.recursive(
    st.fixed_dictionaries(
        {"flags": st.just([b"abc", b"def"]), "kind": st.just("b"), "again": MAPS, "below": st.just([None, -(2**63)])}
    ),
    lambda inner: st.fixed_dictionaries(
        {"flags": st.just([]), "kind": st.just("a"), "again": MAPS, "below": st.lists(inner, max_size=3)}
    ),
    max_leaves=10,
)


@given(NODES, st.integers(990, 1010))
def test_the_walk_follows_the_bytes_of_fastavro(value, levels):
    """A chain behind any node is found too deep at its right level, so the walk is at the right byte."""
    node = {"type": "record", "name": "Both", "fields": [{"name": "n", "type": RICH}, {"name": "c", "type": CHAIN}]}
    schema = fastavro.parse_schema(json.loads(json.dumps(node).replace('"Node"', '"Rich"', 2)))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema["fields"][0]["type"], value)
    data = stream.getvalue() + b"\x02\x02" * levels + b"\0\0"
    check = DepthCheck(schema)
    if levels >= LEVELS_MAX:
        with pytest.raises(ValueError, match="levels deep"):
            check.check_bytes(data)
    else:
        check.check_bytes(data)
        check.check_bytes(data[:-9])


def test_billions_of_nulls_cost_no_time():
    """They have no bytes; a check that counted each would never end."""
    schema = record(("nulls", {"type": "array", "items": "null"}), ("below", {"type": "array", "items": "Node"}))
    billions = b"\xfe\xff\xff\xff\xff\xff\x7f\0"  # 2^48 - 1 of them, and the end of the array
    check = DepthCheck(fastavro.parse_schema(schema))
    check.check_bytes((billions + b"\x02") * 500 + b"\0" * 1000)
    with pytest.raises(ValueError, match="nested more than 1000 levels deep"):
        check.check_bytes((billions + b"\x02") * 1001)
