"""JSON values, checked by a JSON Schema (drafts 4, 6 and 7), from whose properties the columns come.

``date-time`` and ``date`` strings become timestamps and dates. A property that a value does not have is null, whatever
``default`` the schema names for it: a default is an annotation, and a table must not show what was not sent. A value
may carry Confluent's five bytes in front; JSON text never begins with a zero byte.
"""

from __future__ import annotations

import datetime
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa

from moldau.serialization.core.values import SerializationError
from moldau.serialization.json_validation import compiled
from pyspark_moldau.jobs.errors import JobConfigError, PoisonError
from pyspark_moldau.jobs.payloads.framing import split_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_COMBINED = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
"""Keywords that may stand in the place of a type."""
_EXACT_CHARACTERS: Final = 16
"""A point and 15 digits: a double keeps so many, so one without a fraction is made of a text without a fraction."""
_SCALARS = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


class JsonDecoder:
    """Decodes values by one JSON Schema."""

    def __init__(self, schema: bytes) -> None:
        try:
            document = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise JobConfigError(f"the schema file is no JSON: {error}") from error
        if not isinstance(document, dict) or document.get("type") != "object" or not document.get("properties"):
            raise JobConfigError("the JSON Schema must have type object, and properties: they become the columns")
        try:
            self._validate = compiled(document)
        except SerializationError as error:
            raise JobConfigError(str(error)) from error
        self.type, self._convert = _type_of(document, "")

    def decode(self, value: bytes) -> object:
        """Returns one value as the struct's Python form.

        Raises:
            PoisonError: It is no JSON, or the schema forbids it.
        """
        text = split_frame(value)[1] if value[:1] == b"\0" else value
        try:
            document = json.loads(text, parse_constant=_no_constant, parse_float=_number)
        except (ValueError, RecursionError) as error:
            raise PoisonError(f"not JSON: {error}") from error
        try:
            self._validate(document)
            return self._convert(document) if self._convert else document
        except (ValueError, OverflowError, RecursionError) as error:
            raise PoisonError(f"against the schema: {error}") from error
        except (AttributeError, TypeError) as error:  # drafts 4 to 7 do not look at a type beside a $ref
            raise PoisonError(f"does not fit its column: {error}") from error


class _RoundedFraction(float):
    """A double without a fraction, made of a text that has one; a check for integers must refuse it."""

    def is_integer(self) -> bool:
        """Returns False: the number in the text is no integer."""
        return False


def _number(text: str) -> float:
    """Returns a number with a point or an exponent; one that is whole as an int where a double cannot hold it."""
    found = float(text)
    if not found.is_integer():
        return found
    mantissa, _, exponent = text.lower().partition("e")
    if not exponent and len(text) <= _EXACT_CHARACTERS:
        return found
    if not found:  # its exponent may be too long for a Decimal
        return found if not mantissa.strip("-.0") else _RoundedFraction(found)
    exact = Decimal(text)
    if exact != exact.to_integral_value():
        return _RoundedFraction(found)
    return found if exact == found else int(exact)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _type_of(schema: Mapping[str, Any] | bool, place: str) -> tuple[pa.DataType, Callable[[Any], Any] | None]:
    """Returns the Arrow type of a schema, and the function that turns a checked value into it, if one is needed."""
    kinds = schema if isinstance(schema, bool) else schema.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    names = [name for name in names if name != "null"]
    if isinstance(schema, bool) or len(names) != 1:
        found = [] if isinstance(schema, bool) else [name for name in _COMBINED if name in schema]
        got = f"{' and '.join(found)} alone; write a type beside it" if kinds is None and found else repr(kinds)
        raise JobConfigError(f"JSON Schema {place or '/'}: expected one type besides null, got {got}")
    kind = names[0]
    if kind in _SCALARS:
        return _SCALARS[kind], _optional(_CONVERSIONS.get(kind))
    if kind == "string":
        match schema.get("format"):
            case "date-time":
                return pa.timestamp("us", tz="UTC"), _optional(_moment)
            case "date":
                return pa.date32(), _optional(datetime.date.fromisoformat)
        return pa.string(), None
    if kind == "array" and isinstance(schema.get("items"), dict):
        element, convert = _type_of(schema["items"], f"{place}/items")
        each = convert
        return pa.list_(element), _optional((lambda found: [each(one) for one in found]) if each else None)
    if kind == "object" and isinstance(schema.get("properties"), dict) and schema["properties"]:
        return _struct_of(schema["properties"], place)
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        element, of_values = _type_of(schema["additionalProperties"], f"{place}/additionalProperties")
        change = of_values or (lambda one: one)
        return pa.map_(pa.string(), element), _optional(lambda found: [(k, change(v)) for k, v in found.items()])
    raise JobConfigError(f"JSON Schema {place or '/'}: type {kind} without items, properties or additionalProperties")


def _struct_of(properties: Mapping[str, Any], place: str) -> tuple[pa.DataType, Callable[[Any], Any] | None]:
    fields, conversions = [], {}
    for name, schema in properties.items():
        kind, convert = _type_of(schema, f"{place}/properties/{name}")
        fields.append(pa.field(name, kind))
        conversions[name] = convert

    def change(found: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: convert(found[name]) if convert and name in found else found.get(name)
            for name, convert in conversions.items()
        }

    return pa.struct(fields), _optional(change)


def _optional(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if convert is None:
        return None
    function = convert
    return lambda value: None if value is None else function(value)


def _double(number: float) -> float:
    found = float(number)
    if math.isinf(found):  # the parser makes infinity of numbers such as 1e400
        raise ValueError("a number is too large for a double")
    return found


def _whole(number: float) -> int:
    found = int(number)  # of 7.0 too, which JSON Schema takes for an integer
    if found != number or isinstance(number, _RoundedFraction):
        raise ValueError(f"{number!r} is no integer")
    return found


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"integer": _whole, "number": _double}


def _moment(text: str) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(text.upper())  # RFC 3339 allows t and z, Python only the first
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment
