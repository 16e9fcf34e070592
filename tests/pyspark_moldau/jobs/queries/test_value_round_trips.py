"""Goal: each value of each type comes out of a session as it went in, however deep it lies in arrays, structs and maps.

Method: Spark's functions of columns are computed on values of the test, whose types Hypothesis draws.
"""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from pyspark_moldau.jobs.queries import session_values
from pyspark_moldau.jobs.queries.session_values import PLAIN, carrier_of, read, returned, summary_of

FUNCTIONS = ("first", "last", "list", "count")


@dataclass(frozen=True)
class Moment:
    micros: int


@dataclass(frozen=True)
class Day:
    number: int


@dataclass(frozen=True)
class Struct:
    """Names of fields may be equal, so they are pairs."""

    fields: tuple


@dataclass(frozen=True)
class Map:
    """Keys may be structs with NaN, so they are pairs."""

    entries: tuple


def cast(value, kind):
    """Returns what Spark casts a value to, by a type or its name."""
    if value is None:
        return None
    if isinstance(kind, types.ArrayType):
        return [cast(each, kind.elementType) for each in value]
    if isinstance(kind, types.MapType):
        return Map(tuple((cast(key, kind.keyType), cast(each, kind.valueType)) for key, each in value.entries))
    if isinstance(kind, types.StructType):
        pairs = zip(kind.fields, value.fields, strict=True)
        return Struct(tuple((field.name, cast(each, field.dataType)) for field, (_, each) in pairs))
    name = kind if isinstance(kind, str) else kind.simpleString()
    if name == "string":
        return value if isinstance(value, str) else {math.inf: "Infinity"}.get(value, str(value).replace("nan", "NaN"))
    if name in ("double", "float"):
        return float(value)
    if name in ("bigint", "int", "smallint", "tinyint"):
        return int(value)
    return value


class Cell:
    """A column of one row."""

    def __init__(self, value, name=None):
        self.value, self.name = value, name

    def cast(self, kind):
        return Cell(cast(self.value, kind))

    def alias(self, name):
        return Cell(self.value, name)

    def isNotNull(self):
        return self.value is not None

    def getField(self, name):
        (found,) = [None] if self.value is None else [each for key, each in self.value.fields if key == name]
        return Cell(found)


def pairs_of(struct):
    return tuple(each for _, each in struct.fields)


def on_values(function):
    return lambda cell: Cell(None if cell.value is None else function(cell.value))


COMPUTED = {
    "transform": lambda cell, f: Cell(None if cell.value is None else [f(Cell(each)).value for each in cell.value]),
    "when": lambda condition, cell: cell if condition else Cell(None),
    "struct": lambda *cells: Cell(Struct(tuple((cell.name, cell.value) for cell in cells))),
    "map_entries": on_values(lambda found: [Struct((("key", key), ("value", each))) for key, each in found.entries]),
    "map_from_entries": on_values(lambda found: Map(tuple(map(pairs_of, found)))),
    "unix_micros": on_values(lambda found: found.micros),
    "unix_date": on_values(lambda found: found.number),
    "timestamp_micros": on_values(Moment),
    "date_from_unix_date": on_values(Day),
}


@pytest.fixture(autouse=True, scope="module")
def computed():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pyspark.sql.functions", SimpleNamespace(**COMPUTED))
        yield


def for_python(value):
    """Returns a value of a column as pandas gets it."""
    if isinstance(value, Struct):
        return {name: for_python(each) for name, each in value.fields}
    return [for_python(each) for each in value] if isinstance(value, list) else value


def from_python(value):
    """Returns a value of a function of Python as Spark takes it."""
    if isinstance(value, dict):
        return Struct(tuple((name, from_python(each)) for name, each in value.items()))
    return [from_python(each) for each in value] if isinstance(value, list) else value


LEAVES = {
    types.LongType(): st.integers(-(2**63), 2**63 - 1),
    types.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    types.DoubleType(): st.floats(),
    types.FloatType(): st.floats(width=32),
    types.BooleanType(): st.booleans(),
    types.StringType(): st.text(max_size=3) | st.sampled_from(["NaN", "None", "7"]),
    types.TimestampType(): st.integers(-(2**60), 2**60).map(Moment),
    types.DateType(): st.integers(-(10**7), 10**7).map(Day),
}


def with_parts(kinds):
    named = st.lists(st.tuples(st.sampled_from(["a", "A", "a", "_1", "x.y"]), kinds), min_size=1, max_size=3)
    return (
        kinds.map(types.ArrayType)
        | named.map(lambda fields: types.StructType([types.StructField(*each) for each in fields]))
        | st.tuples(kinds, kinds).map(lambda pair: types.MapType(*pair))
    )


KINDS = st.recursive(st.sampled_from(list(LEAVES)), with_parts, max_leaves=5)


def values_of(kind, is_key=False):
    if isinstance(kind, types.ArrayType):
        found = st.lists(values_of(kind.elementType), max_size=2)
    elif isinstance(kind, types.StructType):
        parts = st.tuples(*(values_of(field.dataType) for field in kind.fields))
        found = parts.map(lambda parts: Struct(tuple(zip(kind.names, parts, strict=True))))
    elif isinstance(kind, types.MapType):
        entry = st.tuples(values_of(kind.keyType, is_key=True), values_of(kind.valueType))
        found = st.lists(entry, max_size=2).map(lambda entries: Map(tuple(entries)))
    else:
        found = LEAVES[kind]
    return found if is_key else st.none() | found


def same(one, other):
    """Compares values, in which NaN equals itself, by their texts: 0.0 is not -0.0."""
    return repr(one) == repr(other)


@given(st.data())
def test_a_value_comes_back_as_it_went_in(data):
    kind = data.draw(KINDS)
    values = data.draw(st.lists(values_of(kind), min_size=1, max_size=3))
    carrier = carrier_of(kind)
    held = [read(for_python(session_values.given(Cell(each), kind).value), carrier) for each in values]
    wanted = {"first": values[0], "last": values[-1], "list": values, "count": sum(each is not None for each in values)}
    for function in FUNCTIONS:
        result = {"list": types.ArrayType(kind), "count": types.LongType()}.get(function, kind)
        travelling, made = returned(result, function, carrier)
        sent = from_python(summary_of(function, carrier, held))
        assert fits(sent, travelling), (sent, travelling)
        assert same(made(Cell(sent)).value, wanted[function]), (function, kind)
    assert (carrier == PLAIN) == (travels_as_it_is(kind)), kind


def travels_as_it_is(kind):
    """Texts and booleans do, and what has no other parts, unless two fields of a struct have one name."""
    if isinstance(kind, types.ArrayType):
        return travels_as_it_is(kind.elementType)
    if isinstance(kind, types.MapType):
        return travels_as_it_is(kind.keyType) and travels_as_it_is(kind.valueType)
    if isinstance(kind, types.StructType):
        return all(travels_as_it_is(field.dataType) for field in kind.fields) and len({*kind.names}) == len(kind.names)
    return isinstance(kind, types.StringType | types.BooleanType)


def fits(value, kind):
    """Returns whether a value has the type in which it is sent; Spark would refuse it, or make null of it."""
    if value is None:
        return True
    if isinstance(kind, types.ArrayType):
        return isinstance(value, list) and all(fits(each, kind.elementType) for each in value)
    if isinstance(kind, types.MapType):
        return isinstance(value, Map)
    if isinstance(kind, types.StructType):
        assert len({*kind.names}) == len(kind.names), "Arrow refuses equal names"
        parts = zip(value.fields, kind.fields, strict=True)
        return all(name == field.name and fits(each, field.dataType) for (name, each), field in parts)
    return isinstance(value, str) if isinstance(kind, types.StringType) else not isinstance(value, str | list)
