"""Finds values that ``fastavro`` would write as other ones, because it converts what a type does not hold. Pure.

It writes 7.9 and 2**40 as an ``int``, None as the ``boolean`` false, a text as an ``array`` of its letters, and
anything as a ``null``. Within a union it refuses such values itself, but not those of logical types: it writes a
``date`` without the time of day, a ``uuid`` that is none and that no reader takes, and the last bytes of a decimal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, time
from decimal import Decimal
from functools import partial
from numbers import Number
from typing import Any, Final
from uuid import UUID

from moldau.cluster.arguments import shortened

Check = Callable[[Any], None]
"""Raises ``ValueError`` for a value that would be written as another one."""

FLOAT_LIMIT: Final = 2.0**128 - 2.0**103
"""From here on numbers are rounded to infinity in four bytes."""


def check_of(schema: Any) -> Check | None:  # noqa: ANN401 - a schema as fastavro parsed it
    """Returns the check of a parsed schema; None if it has no part to check."""
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    return _Checks(named).of(schema, "the value")


class _Checks:
    """Makes the checks of one schema; each named type has one, which recursive types use while it is made."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, Check | None] = {}

    def of(self, schema: Any, place: str) -> Check | None:  # noqa: ANN401 - a part of a parsed schema
        """Returns the check of a part of the schema; ``place`` names it in errors."""
        if isinstance(schema, list):
            return self._union(schema, place)
        if isinstance(schema, str):
            if schema in _SIMPLE:
                return partial(_SIMPLE[schema], place)
            return self._made[schema] if schema in self._made else self.of(self._named.get(schema, []), place)
        logical = self._logical(schema, place)
        if logical is not None:
            return logical
        match schema["type"]:
            case "record":
                return self._record(schema)
            case "array":
                return partial(_array, place, self.of(schema["items"], f"an item of {place}"))
            case "map":
                of_values = self.of(schema["values"], f"a value of {place}")
                return None if of_values is None else partial(_map, of_values)
            case "enum" | "fixed" | "bytes":
                return None
            case kind:
                return self.of(kind, place)

    @staticmethod
    def _logical(schema: Mapping[str, Any], place: str) -> Check | None:
        match schema["type"], schema.get("logicalType"):
            case "int", "date":
                return partial(_date, place)
            case "string", "uuid":
                return partial(_uuid, place)
            case "bytes" | "fixed", "decimal":
                return partial(_decimal, place, schema.get("precision", 0), schema.get("scale", 0))
            case _:
                return None

    def _union(self, branches: list[Any], place: str) -> Check | None:
        """Returns the check of an optional logical type; only ``fastavro`` knows which of several branches is meant."""
        others = [each for each in branches if each != "null"]
        if len(others) != 1 or not isinstance(others[0], dict):
            return None
        check = self._logical(others[0], place)
        return None if check is None else partial(_optional, check)

    def _record(self, schema: Mapping[str, Any]) -> Check | None:
        name = schema["name"]
        if name in self._made:
            return self._made[name]
        fields: list[tuple[str, Check]] = []
        self._made[name] = partial(_record, fields)
        for field in schema["fields"]:
            check = self.of(field["type"], f"{name}.{field['name']}")
            if check is not None:
                fields.append((field["name"], check))
        if not fields:
            self._made[name] = None
        return self._made[name]


def _record(fields: list[tuple[str, Check]], value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if type(value) is dict or isinstance(value, Mapping):
        for name, check in fields:
            if name in value:
                check(value[name])


def _array(place: str, check: Check | None, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if type(value) is not list and isinstance(value, str | bytes | bytearray | Mapping):
        raise _misfit(place, "array", value)
    if check is not None:
        if isinstance(value, Iterator):  # the check would use it up, and nothing would be written
            raise ValueError(f"{place}: give its items as a list, not as a {type(value).__name__}")
        for each in value:
            check(each)


def _map(check: Check, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if isinstance(value, Mapping):
        for each in value.values():
            check(each)


def _long(place: str, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    # A time for a logical type is no number.
    if type(value) is not int and isinstance(value, Number) and value != int(value):  # type: ignore[call-overload]
        raise _misfit(place, "whole number", value)


def _int(place: str, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    _long(place, value)
    if (type(value) is int or isinstance(value, Number)) and not -(2**31) <= value < 2**31:  # type: ignore[operator]
        raise _misfit(place, "int of four bytes", value)


def _float(place: str, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if isinstance(value, int | float) and FLOAT_LIMIT <= abs(value) < math.inf:
        raise _misfit(place, "float of four bytes", value)


def _boolean(place: str, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if value != bool(value):
        raise _misfit(place, "boolean", value)


def _null(place: str, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if value is not None:
        raise _misfit(place, "null", value)


def _optional(check: Check, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if value is not None:
        check(value)


def _date(place: str, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if isinstance(value, datetime) and value.time() != time():
        raise _misfit(place, "date, it has a time of day", value)
    _int(place, value)


def _uuid(place: str, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    if isinstance(value, str):
        try:
            UUID(value)
        except ValueError:
            raise _misfit(place, "UUID", value) from None


def _decimal(place: str, precision: int, scale: int, value: Any) -> None:  # noqa: ANN401 - a value for fastavro
    # fastavro counts the digits before it appends the zeros of the scale, and cuts a negative number to the size.
    if isinstance(value, Decimal) and value.is_finite() and value and value.adjusted() + scale >= precision:
        raise _misfit(place, f"decimal of {precision} digits, {scale} of them behind the point", value)


def _misfit(place: str, wanted: str, value: object) -> ValueError:
    return ValueError(f"{place}: {shortened(value)} is no {wanted}")


_SIMPLE: Final[Mapping[str, Callable[[str, Any], None]]] = {
    "int": _int,
    "long": _long,
    "float": _float,
    "boolean": _boolean,
    "null": _null,
}
