"""Defaults of Avro fields as the values that readers get. Pure.

A schema has its defaults in JSON: bytes as a text with a letter for each byte, a time as a number, a record without the
fields that have defaults themselves. ``fastavro`` gives a reader the JSON as it stands. So here the defaults of a
reader's schema become what ``fastavro`` makes of a value that was written. Those of a writer's schema are left out:
readers never use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAMED: Final = ("record", "enum", "fixed", "error")
_RECORDS: Final = ("record", "error")
_NUMBER: Final = (int, float)
_JSON: Final[dict[str, type | tuple[type, ...]]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": _NUMBER,
    "double": _NUMBER,
    "array": list,
    "map": dict,
    "record": dict,
    "error": dict,
}
"""The types of JSON values that are defaults of a type; those of other types are texts."""


def with_default_values(schema: Any, readers: Mapping[str, Callable[..., Any]]) -> Any:  # noqa: ANN401 - as fastavro parsed it
    """Returns a parsed schema with values as its defaults; ``readers`` are fastavro's ``LOGICAL_READERS``.

    A default that does not fit its type stays as it is.
    """
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    values = _Defaults(named, readers)
    made = values.of(schema)
    return made | {"__named_schemas": {name: values.of(each) for name, each in named.items()}} if named else made


def without_defaults(schema: Any) -> Any:  # noqa: ANN401 - a schema as JSON values
    """Returns a writer's schema without the defaults of its fields.

    Registries keep schemas of the time when Avro did not look at defaults, such as a text with the default null, which
    ``fastavro`` refuses.
    """
    if isinstance(schema, list):
        return [without_defaults(each) for each in schema]
    if isinstance(schema, str):
        return schema
    changed = {name: without_defaults(schema[name]) for name in ("type", "items", "values") if name in schema}
    if "fields" in schema:
        changed["fields"] = [
            {name: each for name, each in field.items() if name != "default"}
            | {"type": without_defaults(field["type"])}
            for field in schema["fields"]
        ]
    return schema | changed


class _Defaults:
    """Makes the defaults of one schema; each named type is made once."""

    def __init__(self, named: Mapping[str, Any], readers: Mapping[str, Callable[..., Any]]) -> None:
        self._named = named
        self._readers = readers
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, part: Any) -> Any:  # noqa: ANN401 - a part of a parsed schema
        """Returns a part of the schema with values as its defaults."""
        if isinstance(part, list):
            return [self.of(each) for each in part]
        if not isinstance(part, dict):
            return part
        if part["type"] not in _NAMED:
            return self._inside(part)
        if id(part) not in self._made:
            self._made[id(part)] = part, self._inside(part)
        return self._made[id(part)][1]

    def _inside(self, part: dict[str, Any]) -> dict[str, Any]:
        changed: dict[str, Any] = {key: self.of(part[key]) for key in ("items", "values") if key in part}
        if isinstance(part["type"], dict | list):
            changed["type"] = self.of(part["type"])
        if "fields" in part:
            changed["fields"] = [self._field(field) for field in part["fields"]]
        return part | changed

    def _field(self, field: dict[str, Any]) -> dict[str, Any]:
        changed = field | {"type": self.of(field["type"])}
        if "default" in field:
            try:
                changed["default"] = self._value(field["type"], field["default"])
            except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
                return changed
        return changed

    def _value(self, kind: Any, default: Any) -> Any:  # noqa: ANN401 - a part of a parsed schema, and a JSON value
        """Returns the value that a JSON value stands for.

        Raises:
            ValueError: it is not of this type; other errors of a conversion mean the same.
        """
        if isinstance(kind, list):
            kind = next((each for each in kind if self._fits(each, default)), "null")
        whole = self._whole(kind)
        if not self._fits(whole, default):
            raise ValueError(f"{default!r} is no default of {kind!r}")
        name = whole["type"]
        found = default
        if name in ("bytes", "fixed"):
            found = default.encode("latin-1")
        elif name in ("float", "double"):
            found = float(default)
        elif name == "array":
            found = [self._value(whole["items"], each) for each in default]
        elif name == "map":
            found = {key: self._value(whole["values"], each) for key, each in default.items()}
        elif name in _RECORDS:
            found = {
                field["name"]: self._value(
                    field["type"], default[field["name"]] if field["name"] in default else field["default"]
                )
                for field in whole["fields"]
            }
        convert = self._readers.get(f"{name}-{whole.get('logicalType')}")
        return found if convert is None else convert(found, whole, whole)

    def _whole(self, kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a part of a parsed schema
        """Returns a type with its definition."""
        if isinstance(kind, str):
            found: dict[str, Any] = self._named.get(kind, {"type": kind})
            return found
        return self._whole(kind["type"]) if isinstance(kind["type"], dict) else kind

    def _fits(self, kind: Any, default: object) -> bool:  # noqa: ANN401 - a part of a parsed schema
        wanted = _JSON.get(self._whole(kind)["type"], str)
        return isinstance(default, wanted) and (wanted is bool or not isinstance(default, bool))
