"""Parsed Avro schemas in the form in which ``fastavro`` resolves a writer's schema to a reader's. Pure.

A schema defines a named type once, and names it elsewhere. Where one of two schemas has the definition and the other
one, in a union, the name, ``fastavro`` fails with a ``TypeError``, although the types are the same. So here definitions
stand everywhere, except within themselves. All places share the object of a type, so schemas do not grow in memory.
"""

from __future__ import annotations

from typing import Any, Final

_NAMED: Final = ("record", "enum", "fixed", "error")
PARTS_MAX: Final = 10_000
"""Parts that a schema with definitions may have, each counted in all its places: errors of ``fastavro`` write them out.
A larger one stays as it is."""


def linked(schema: Any) -> Any:  # noqa: ANN401 - a schema as fastavro parsed it
    """Returns a parsed schema with definitions in the place of names; other parts stay as they are."""
    named = schema.get("__named_schemas", {}) if isinstance(schema, dict) else {}
    links = _Links(named)
    made = links.of(schema)
    return made if links.parts <= PARTS_MAX else schema


class _Links:
    """Makes the links of one schema. ``_open`` holds the types in whose definition the walk is.

    ``parts`` counts the parts that the walk has met; a type that is met again counts with all its parts.
    """

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._made: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self.parts = 0
        self._open: set[str] = set()

    def of(self, part: Any) -> Any:  # noqa: ANN401 - a part of a parsed schema
        """Returns a part of the schema with its links."""
        if isinstance(part, list):
            return [self.of(each) for each in part]
        if isinstance(part, str):
            self.parts += self._sizes.get(part, 1)
            if part in self._made or part not in self._named or part in self._open:
                return self._made.get(part, part)
            return self.of(self._named[part])
        if part.get("type") not in _NAMED:
            return self._inside(part)
        name = part["name"]
        if name not in self._made:
            before = self.parts
            self._open.add(name)
            self._made[name] = self._inside(part)
            self._open.remove(name)
            self._sizes[name] = self.parts - before
        return self._made[name]

    def _inside(self, part: dict[str, Any]) -> dict[str, Any]:
        self.parts += 1
        changed: dict[str, Any] = {key: self.of(part[key]) for key in ("items", "values") if key in part}
        if isinstance(part.get("type"), dict | list):
            changed["type"] = self.of(part["type"])
        if "fields" in part:
            changed["fields"] = [field | {"type": self.of(field["type"])} for field in part["fields"]]
        return part | changed
