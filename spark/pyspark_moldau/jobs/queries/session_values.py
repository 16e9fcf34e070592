"""The values of sessions: how they travel to Python and back, and the functions of the columns.

Values that pandas or Python would change travel as texts. Pandas makes floats of integers that have a null
among them, and takes NaN for null; Python's times end with the year 9999, and Spark's do not. Each column has a
*carrier*, the name of the way in which its values travel; it is empty for values that travel as they are.

Arrays, structs and maps whose parts would change have a carrier for each part. A struct travels with numbers for the
names of its fields, which may be equal, and a map as the array of its entries, because Python refuses structs as keys.
The state of a session holds arrays as lists, structs as tuples and maps as lists of pairs.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

PLAIN: Final = ""
WHOLE: Final = "whole"
DOUBLE: Final = "double"
TIME: Final = "time"
"""Microseconds since 1970 (UTC)."""
DATE: Final = "date"
"""Days since 1970."""
INTERVAL: Final = "interval"
"""Microseconds: Spark fails at an interval that has other fields than days to seconds."""
MONTHS: Final = "months"


class Form(Enum):
    """The kinds of values that have parts."""

    ARRAY = "array"
    STRUCT = "struct"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Nested:
    """The carrier of values with parts: carriers of the element, of each field, or of key and value.

    ``names`` are those of the fields of a struct.
    """

    form: Form
    parts: tuple[Carrier, ...]
    names: tuple[str, ...] = ()


Carrier: TypeAlias = str | Nested
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _order(value: Any) -> tuple[bool, Any]:  # noqa: ANN401 - a value of a column
    """Returns what a value is ordered by: NaN is above all others, as in Spark."""
    return value != value, value


FUNCTIONS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "sum": lambda values: sum(_known(values)) if _known(values) else None,
    "min": lambda values: min(_known(values), default=None, key=_order),
    "max": lambda values: max(_known(values), default=None, key=_order),
    "count": lambda values: len(_known(values)),
    "list": lambda values: values,
}
"""The functions of columns, over the values of a session in the order of their event times."""


def carrier_of(kind: DataType) -> Carrier:
    """Returns the carrier of a column of Spark."""
    from pyspark.sql.types import (
        ArrayType,
        DateType,
        DayTimeIntervalType,
        DoubleType,
        FloatType,
        IntegralType,
        MapType,
        StructType,
        TimestampType,
        YearMonthIntervalType,
    )

    if isinstance(kind, IntegralType):
        return WHOLE
    if isinstance(kind, DoubleType | FloatType):
        return DOUBLE
    if isinstance(kind, TimestampType):
        return TIME
    if isinstance(kind, DateType):
        return DATE
    if isinstance(kind, DayTimeIntervalType):
        return INTERVAL
    if isinstance(kind, YearMonthIntervalType):
        return MONTHS
    if isinstance(kind, ArrayType):
        found = Nested(Form.ARRAY, (carrier_of(kind.elementType),))
    elif isinstance(kind, StructType):
        found = Nested(Form.STRUCT, tuple(carrier_of(field.dataType) for field in kind.fields), tuple(kind.names))
    elif isinstance(kind, MapType):
        found = Nested(Form.MAP, (carrier_of(kind.keyType), carrier_of(kind.valueType)))
    else:
        return PLAIN
    has_equal_names = len({*found.names}) < len(found.names)  # Arrow refuses them
    return PLAIN if all(part == PLAIN for part in found.parts) and not has_equal_names else found


def has_collation(kind: DataType) -> bool:
    """Returns whether a text with a collation is in a type."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(kind, ArrayType | MapType | StructType):
        return any(map(has_collation, _kinds(kind)))
    return isinstance(kind, StringType) and not kind.isUTF8BinaryCollation()


def given(column: Column, kind: DataType) -> Column:
    """Returns the column that pandas gets, of a column of type ``kind``."""
    carrier = carrier_of(kind)
    return _given(column.cast(_numbered(kind, carrier)) if isinstance(carrier, Nested) else column, carrier)


def _given(column: Column, carrier: Carrier) -> Column:
    from pyspark.sql import functions

    if carrier == PLAIN:
        return column
    if isinstance(carrier, Nested):
        parts = carrier.parts
        match carrier.form:
            case Form.ARRAY:
                return functions.transform(column, lambda each: _given(each, parts[0]))
            case Form.STRUCT:
                fields = (_given(column.getField(f"_{n}"), part).alias(f"_{n}") for n, part in enumerate(parts))
                return functions.when(column.isNotNull(), functions.struct(*fields))
            case Form.MAP:
                return functions.transform(
                    functions.map_entries(column),
                    lambda entry: functions.struct(
                        _given(entry.getField("key"), parts[0]).alias("_0"),
                        _given(entry.getField("value"), parts[1]).alias("_1"),
                    ),
                )
    if carrier == DOUBLE:
        column = column.cast("double")  # the text of a float is that of another double
    elif carrier == TIME:
        column = functions.unix_micros(column)
    elif carrier == DATE:
        column = functions.unix_date(column)
    elif carrier == INTERVAL:
        column = (column.cast("interval second").cast("decimal(19,6)") * 1_000_000).cast("bigint")
    elif carrier == MONTHS:
        column = column.cast("interval month").cast("int")
    return column.cast("string")


def read(value: Any, carrier: Carrier) -> Any:  # noqa: ANN401 - a value of a column
    """Returns a value that pandas has got, as the state holds it."""
    if value is None or carrier == PLAIN:
        return value
    if not isinstance(carrier, Nested):
        return float(value) if carrier == DOUBLE else int(value)
    parts = carrier.parts
    match carrier.form:
        case Form.ARRAY:
            return [read(each, parts[0]) for each in value]
        case Form.STRUCT:
            return tuple(read(value[f"_{number}"], part) for number, part in enumerate(parts))
        case Form.MAP:
            return [(read(entry["_0"], parts[0]), read(entry["_1"], parts[1])) for entry in value]


def summary_of(function: str, carrier: Carrier, values: Iterable[Any], zone: str = "UTC") -> Any:  # noqa: ANN401 - a value of a column
    """Returns what a function makes of the values of a session, as it travels back to Spark.

    ``zone`` is the time zone of the Spark session: states of earlier releases hold times inside of arrays, structs and
    maps as its local times.
    """
    found = FUNCTIONS[function](
        [_number(value) for value in values] if carrier in (TIME, DATE, INTERVAL) else [*values]
    )
    if function == "count" or carrier in (PLAIN, WHOLE):
        return found
    return _sent(found, _result(function, carrier), zone)


def _sent(value: Any, carrier: Carrier, zone: str) -> Any:  # noqa: ANN401 - a value of a column
    """Returns a value of the state as it travels; states of earlier releases hold what pandas made of the columns."""
    if value is None or carrier == PLAIN:
        return value
    if not isinstance(carrier, Nested):
        return repr(float(value)) if carrier == DOUBLE else repr(int(_number(value, zone)))
    parts = carrier.parts
    match carrier.form:
        case Form.ARRAY:
            if not isinstance(value, list) and isinstance(parts[0], str):
                value = [None if each != each else each for each in value]  # an array of numpy has NaN for null
            return [_sent(each, parts[0], zone) for each in value]
        case Form.STRUCT:
            fields = [value.get(name) for name in carrier.names] if isinstance(value, dict) else value
            pairs = zip(fields, parts, strict=True)
            return {f"_{number}": _sent(field, part, zone) for number, (field, part) in enumerate(pairs)}
        case Form.MAP:
            entries = value.items() if isinstance(value, dict) else value
            return [{"_0": _sent(key, parts[0], zone), "_1": _sent(each, parts[1], zone)} for key, each in entries]


def returned(kind: DataType, function: str, carrier: Carrier) -> tuple[DataType, Callable[[Column], Column]]:
    """Returns the type of a summary as it travels, and the function that makes a column of type ``kind`` of it."""
    if function == "count" or carrier in (PLAIN, WHOLE):
        return kind, lambda column: column
    result = _result(function, carrier)
    return _travelling(kind, result), lambda column: _made(column, kind, result)


def _result(function: str, carrier: Carrier) -> Carrier:
    """Returns the carrier of what a function makes of values.

    Numbers in lists are texts too: Spark fails at a null in a list of numbers that a function of Python has returned.
    """
    return Nested(Form.ARRAY, (carrier,)) if function == "list" else carrier


def _kinds(kind: DataType) -> list[DataType]:
    """Returns the types of the parts of a type that has parts."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return [kind.elementType]
    if isinstance(kind, MapType):
        return [kind.keyType, kind.valueType]
    assert isinstance(kind, StructType)
    return [field.dataType for field in kind.fields]


def _numbered(kind: DataType, carrier: Carrier) -> DataType:
    """Returns a type with numbers for the names of fields: Spark finds no field by a name that two of them have."""
    from pyspark.sql.types import ArrayType, MapType

    if not isinstance(carrier, Nested):
        return kind
    parts = [_numbered(part, each) for part, each in zip(_kinds(kind), carrier.parts, strict=True)]
    match carrier.form:
        case Form.ARRAY:
            return ArrayType(parts[0])
        case Form.STRUCT:
            return _struct(parts)
        case Form.MAP:
            return MapType(parts[0], parts[1])


def _travelling(kind: DataType, carrier: Carrier) -> DataType:
    from pyspark.sql.types import ArrayType, StringType

    if not isinstance(carrier, Nested):
        return kind if carrier == PLAIN else StringType()
    parts = [_travelling(part, each) for part, each in zip(_kinds(kind), carrier.parts, strict=True)]
    match carrier.form:
        case Form.ARRAY:
            return ArrayType(parts[0])
        case Form.STRUCT:
            return _struct(parts)
        case Form.MAP:
            return ArrayType(_struct(parts))


def _struct(kinds: Iterable[DataType]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f"_{number}", kind) for number, kind in enumerate(kinds)])


def _made(column: Column, kind: DataType, carrier: Carrier) -> Column:
    """Returns the column of type ``kind`` that has travelled as ``column``."""
    from pyspark.sql import functions

    if carrier == PLAIN:
        return column
    if carrier == TIME:
        return functions.timestamp_micros(column.cast("bigint"))
    if carrier == DATE:
        return functions.date_from_unix_date(column.cast("int"))
    if carrier == INTERVAL:
        return (column.cast("decimal(19,0)") / 1_000_000).cast("decimal(19,6)").cast("interval second").cast(kind)
    if carrier == MONTHS:
        return column.cast("int").cast("interval month").cast(kind)
    if not isinstance(carrier, Nested):
        return column.cast(kind)
    kinds, parts = _kinds(kind), carrier.parts

    def fields(value: Column, names: Iterable[str]) -> Column:
        found = enumerate(zip(names, kinds, parts, strict=True))
        return functions.struct(
            *(_made(value.getField(f"_{n}"), each, part).alias(name) for n, (name, each, part) in found)
        )

    match carrier.form:
        case Form.ARRAY:
            return functions.transform(column, lambda each: _made(each, kinds[0], parts[0]))
        case Form.STRUCT:
            return functions.when(column.isNotNull(), fields(column, carrier.names))
        case Form.MAP:
            entries = functions.transform(column, lambda entry: fields(entry, ("key", "value")))
            return functions.map_from_entries(entries)


def _known(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _number(value: Any, zone: str = "UTC") -> Any:  # noqa: ANN401 - a value of a column
    """Returns the number of a time, date or interval: states of earlier releases hold these themselves."""
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.datetime):
        import pandas as pd

        time = pd.Timestamp(value).tz_localize(zone, ambiguous=False, nonexistent="shift_forward")
        return (time - _EPOCH) // datetime.timedelta(microseconds=1)
    return (value - _EPOCH.date()).days if isinstance(value, datetime.date) else value
