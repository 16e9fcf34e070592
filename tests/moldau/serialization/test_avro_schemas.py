"""Goal: a reader's schema may name a type where the writer's defines it, and the other way round.

Method: values go through ``fastavro`` with both schemas in the form of ``linked``.
"""

import io

import fastavro
import pytest

from moldau.serialization.core.avro_schemas import PARTS_MAX, linked

CODE = {"type": "enum", "name": "Code", "symbols": ["JFK", "EWR"]}
STOP = {
    "type": "record",
    "name": "Stop",
    "fields": [{"name": "code", "type": CODE}, {"name": "next", "type": ["null", "Stop"]}],
}


def record(**types):
    return {
        "type": "record",
        "name": "Flight",
        "namespace": "air",
        "fields": [{"name": name, "type": kind} for name, kind in types.items()],
    }


def parsed(schema):
    return linked(fastavro.parse_schema(schema, named_schemas={}))


def written(schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (record(origin=CODE, target="Code"), record(target=["null", CODE])),
        (record(origin=CODE, target="Code"), record(target=["null", CODE], origin=["null", "Code"])),
        (record(target=CODE), record(other=["null", CODE], target=["null", "Code"])),
    ],
)
def test_a_definition_and_a_name_are_one_type(writer, reader):
    for each in reader["fields"]:
        each["default"] = None
    value = {"origin": "EWR", "target": "JFK", "other": None}
    data = written(parsed(writer), {name: value[name] for name in ("origin", "target")})
    found = fastavro.schemaless_reader(io.BytesIO(data), parsed(writer), parsed(reader))
    assert found == {each["name"]: value[each["name"]] for each in reader["fields"]}


def test_a_type_may_contain_itself():
    schema = record(first=STOP, last=["null", "Stop"])
    stop = {"code": "JFK", "next": {"code": "EWR", "next": {"code": "JFK", "next": None}}}
    value = {"first": stop, "last": stop}
    data = written(parsed(schema), value)
    assert data == written(fastavro.parse_schema(schema, named_schemas={}), value)
    reader = record(last=["null", STOP], first="Stop")
    for each in (schema, reader):
        assert fastavro.schemaless_reader(io.BytesIO(data), parsed(schema), parsed(each)) == value


def test_a_schema_that_would_be_too_large_stays_as_it_is():
    """Each level names the one below twice: an error of ``fastavro`` would write out a million records."""
    kind = {"type": "record", "name": "L0", "fields": [{"name": "a", "type": "int"}]}
    for level in range(1, 21):
        below = f"L{level - 1}"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": below}]
        kind = {"type": "record", "name": f"L{level}", "fields": fields}
    whole = fastavro.parse_schema(kind, named_schemas={})
    assert PARTS_MAX < 2**20
    assert linked(whole) is whole
