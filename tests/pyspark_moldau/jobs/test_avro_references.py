"""Goal: a job reads Avro values whose schema refers to those of other subjects, as the client's serializers write them.

Method: a registry as a dictionary of answers; values are written by ``fastavro`` with the whole schema.
"""

import io
import itertools
import json

import fastavro
import pytest

from pyspark_moldau.jobs.config.job_config import PayloadConfig
from pyspark_moldau.jobs.errors import JobError
from pyspark_moldau.jobs.payloads import avro_codec
from pyspark_moldau.jobs.payloads.avro_references import LEVELS_MAX, whole
from pyspark_moldau.jobs.payloads.decoding import decode_values, decoder_of

ZONE = {"type": "enum", "name": "Zone", "namespace": "air", "symbols": ["EAST", "WEST"]}
AIRPORT = {
    "type": "record",
    "name": "Airport",
    "namespace": "air",
    "fields": [{"name": "code", "type": "string"}, {"name": "zone", "type": ["null", "Zone"], "default": None}],
}
FLIGHT = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {"name": "origin", "type": "Airport"},
        {"name": "via", "type": {"type": "array", "items": "air.Airport"}},
        {"name": "zone", "type": "Zone"},
        {"name": "next", "type": ["null", "Flight"], "default": None},
    ],
}
READER = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {
            "name": "origin",
            "type": AIRPORT | {"fields": [AIRPORT["fields"][0], {"name": "zone", "type": ["null", ZONE]}]},
        },
        {"name": "via", "type": {"type": "array", "items": "Airport"}},
        {"name": "zone", "type": "Zone"},
    ],
}
VALUE = {
    "origin": {"code": "JFK", "zone": "EAST"},
    "via": [{"code": "ORD", "zone": None}],
    "zone": "WEST",
    "next": None,
}


def answer(schema, *references):
    found = [{"name": name, "subject": subject, "version": version} for name, subject, version in references]
    return {"schema": json.dumps(schema), "references": found}


AIRPORT_ANSWER = answer(AIRPORT, ("air.Zone", "zone", 1))
ANSWERS = {
    "schemas/ids/1": answer(FLIGHT, ("air.Airport", "a/b", 3), ("air.Zone", "zone", 1)),
    "schemas/ids/2": answer(["air.Airport", "air.Zone"], ("air.Airport", "a/b", 3), ("air.Zone", "zone", 1)),
    "schemas/ids/3": answer(FLIGHT, ("air.Airport", "gone", 1)),
    "subjects/a%2Fb/versions/3?deleted=true": AIRPORT_ANSWER,
    "subjects/zone/versions/1?deleted=true": answer(ZONE),
}


@pytest.fixture
def asked(monkeypatch):
    """A registry; returns the paths that it was asked for."""
    paths = []

    def urlopen(request, timeout):
        paths.append(request.full_url.removeprefix("http://registry/"))
        if paths[-1] not in ANSWERS:
            refusal = io.BytesIO(b'{"error_code": 40401}')
            raise avro_codec.urllib.error.HTTPError(request.full_url, 404, "", {}, refusal)
        return io.BytesIO(json.dumps(ANSWERS[paths[-1]]).encode())

    monkeypatch.setattr(avro_codec.urllib.request, "urlopen", urlopen)
    return paths


def decoded(schema_id, reader=READER):
    named = {}
    for each in (ZONE, AIRPORT):
        fastavro.parse_schema(each, named_schemas=named)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(FLIGHT, named_schemas=named), VALUE)
    value = b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()
    payload = PayloadConfig(format="avro", schema=json.dumps(reader).encode(), registry="http://registry")
    return decode_values(decoder_of(payload), [value, value])


def test_types_of_other_subjects_are_read(asked):
    rows, errors = decoded(1)
    assert errors == [None] * 2
    assert rows.to_pylist() == [{name: VALUE[name] for name in ("origin", "via", "zone")}] * 2
    assert asked == [
        "schemas/ids/1",
        "subjects/a%2Fb/versions/3?deleted=true",
        "subjects/zone/versions/1?deleted=true",
    ], "each is asked for once"


def test_a_union_may_consist_of_references():
    airport, zone = whole(ANSWERS["schemas/ids/2"], ANSWERS.__getitem__)
    assert (airport["name"], zone) == ("air.Airport", "air.Zone")
    assert airport["fields"][1]["type"][1]["symbols"] == ["EAST", "WEST"], "it is defined where it is first named"
    assert fastavro.parse_schema([airport, zone])


REFERRED = {
    "enum": (ZONE, "WEST"),
    "fixed": ({"type": "fixed", "name": "Code", "namespace": "air", "size": 2}, b"JF"),
    "record": (
        {"type": "record", "name": "Leg", "namespace": "air", "fields": [{"name": "m", "type": "int"}]},
        {"m": 7},
    ),
}
"""A type of another subject, and a value of it."""
PLACES = {
    "field": (lambda name: name, lambda value: value),
    "union": (lambda name: ["null", name], lambda value: value),
    "array": (lambda name: {"type": "array", "items": name}, lambda value: [value, value]),
    "map": (lambda name: {"type": "map", "values": name}, lambda value: {"k": value}),
    "array of unions": (lambda name: {"type": "array", "items": ["null", name]}, lambda value: [None, value]),
    "record": (
        lambda name: {"type": "record", "name": "In", "fields": [{"name": "x", "type": name}]},
        lambda value: {"x": value},
    ),
}
"""Where a schema may name a type, and the value there."""


@pytest.mark.parametrize("kind", REFERRED)
def test_a_type_is_defined_where_it_is_first_named(kind):
    """In each place, and once: a second definition is no Avro schema."""
    definition, value = REFERRED[kind]
    name = f"air.{definition['name']}"
    path = "subjects/s/versions/1?deleted=true"
    for first, second in itertools.product(PLACES, repeat=2):
        fields = [{"name": "a", "type": PLACES[first][0](name)}]
        if (first, second) != ("record", "record"):  # both have the same name
            fields.append({"name": "b", "type": PLACES[second][0](definition["name"])})
        schema = {"type": "record", "name": "Out", "namespace": "air", "fields": fields}
        given = {"a": PLACES[first][1](value), "b": PLACES[second][1](value)}
        found = whole(answer(schema, (name, "s", 1)), {path: answer(definition)}.__getitem__)
        named, out = {}, io.BytesIO()
        fastavro.parse_schema(definition, named_schemas=named)
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=named), given)
        out.seek(0)
        read = fastavro.schemaless_reader(out, fastavro.parse_schema(found), None)
        assert read == {field["name"]: given[field["name"]] for field in fields}, (first, second)


def test_a_lost_reference_ends_the_task_with_its_name(asked):
    with pytest.raises(JobError, match=r"subjects/gone/versions/1\?deleted=true, to which a schema refers, does not"):
        decoded(3)


def test_levels_of_references_are_bounded():
    chain = {
        f"subjects/s{number}/versions/1?deleted=true": answer(
            {"type": "fixed", "name": f"F{number}", "size": 1}, ("next", f"s{number + 1}", 1)
        )
        for number in range(LEVELS_MAX + 2)
    }
    with pytest.raises(ValueError, match="more than 20 levels"):
        whole(answer("F0", ("F0", "s0", 1)), chain.__getitem__)


def test_subjects_that_refer_to_each_other_end():
    path = "subjects/zone/versions/1?deleted=true"
    own = answer(ZONE, ("air.Zone", "zone", 1))
    assert whole(answer("air.Zone", ("air.Zone", "zone", 1)), {path: own}.__getitem__)["name"] == "air.Zone"
