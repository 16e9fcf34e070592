"""The values of sessions: how they travel to Python and back, and the functions of the columns.

Values that pandas or Python would change travel as texts. Pandas makes floats of integers that have a null
among them, and takes NaN for null; Python's times end with the year 9999, and Spark's do not. Each column has a
*carrier*, the name of the way in which its values travel; it is empty for values that travel as they are.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

PLAIN: Final = ""
WHOLE: Final = "whole"
DOUBLE: Final = "double"
TIME: Final = "time"
"""Microseconds since 1970 (UTC)."""
DATE: Final = "date"
"""Days since 1970."""
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


def carrier_of(kind: DataType) -> str:
    """Returns the carrier of a column of Spark."""
    from pyspark.sql.types import DateType, DoubleType, FloatType, IntegralType, TimestampType

    if isinstance(kind, IntegralType):
        return WHOLE
    if isinstance(kind, DoubleType | FloatType):
        return DOUBLE
    if isinstance(kind, TimestampType):
        return TIME
    return DATE if isinstance(kind, DateType) else PLAIN


def given(column: Column, carrier: str) -> Column:
    """Returns the column that pandas gets."""
    from pyspark.sql import functions

    if carrier == PLAIN:
        return column
    if carrier == DOUBLE:
        column = column.cast("double")  # the text of a float is that of another double
    elif carrier == TIME:
        column = functions.unix_micros(column)
    elif carrier == DATE:
        column = functions.unix_date(column)
    return column.cast("string")


def read(value: Any, carrier: str) -> Any:  # noqa: ANN401 - a value of a column
    """Returns a value that pandas has got, which is not null."""
    if carrier == PLAIN:
        return value
    return float(value) if carrier == DOUBLE else int(value)


def summary_of(function: str, carrier: str, values: Iterable[Any]) -> Any:  # noqa: ANN401 - a value of a column
    """Returns what a function makes of the values of a session, as it travels back to Spark."""
    found = FUNCTIONS[function]([_number(value) for value in values] if carrier in (TIME, DATE) else [*values])
    if function == "count" or carrier in (PLAIN, WHOLE):
        return found
    return [_text(each) for each in found] if isinstance(found, list) else _text(found)


def returned(kind: DataType, function: str, carrier: str) -> tuple[DataType, Callable[[Column], Column]]:
    """Returns the type of a summary as it travels, and the function that makes a column of type ``kind`` of it."""
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, StringType

    if function == "count" or carrier in (PLAIN, WHOLE):
        return kind, lambda column: column

    def made(column: Column) -> Column:
        if carrier == TIME:
            return functions.timestamp_micros(column.cast("bigint"))
        return functions.date_from_unix_date(column.cast("int"))

    # Lists of texts too: Spark fails at a null in a list of numbers that a function of Python has returned.
    travels: DataType = ArrayType(StringType()) if function == "list" else StringType()
    if carrier == DOUBLE:
        return travels, lambda column: column.cast(kind)
    return travels, (lambda column: functions.transform(column, made)) if function == "list" else made


def _known(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _text(value: float | None) -> str | None:
    return None if value is None else repr(value)


def _number(value: Any) -> Any:  # noqa: ANN401 - a value of a column
    """Returns the number of a time or date: states of earlier releases hold these themselves."""
    if isinstance(value, datetime.datetime):
        return (value.replace(tzinfo=datetime.UTC) - _EPOCH) // datetime.timedelta(microseconds=1)
    return (value - _EPOCH.date()).days if isinstance(value, datetime.date) else value
