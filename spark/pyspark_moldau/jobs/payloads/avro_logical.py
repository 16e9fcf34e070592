"""Logical types of Avro: which of them the columns of a job have, and which of them a writer's values are read with.

``fastavro`` converts values by the logical types of the writer, while the columns come from the reader's schema. So the
writer's schema is aligned with the reader's before it is used: a logical type stands in it only where the reader has
one. Where the writer has one too, it is kept, because it says the unit or the scale of the values.

A writer may define a named type in a field that the reader does not have, and name it in a later one. Such a definition
is aligned with the reader's type of the same name; Avro compares names without their namespaces.

Times and dates are read as numbers, because Python's have the years 1 to 9999 only: microseconds and days since 1970,
of which Arrow makes its own. So an aligned schema has no logical type of microseconds and dates, and one of Moldau's
for milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fastavro.read import LOGICAL_READERS

if TYPE_CHECKING:
    from collections.abc import Mapping

Schema = str | dict[str, Any] | list[Any]
"""A schema as JSON has it, or as fastavro parsed it: a name, a complex type, or a union."""

CONVERTED: Final = {
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "decimal": ("bytes", "fixed"),
}
"""Logical types with a column type of their own, and the types beneath that Avro allows. Values of others are read as
the type beneath, and so are those of a logical type that stands at another type or has no precision, as Avro says."""
READ_AS: Final = {"timestamp-millis": "moldau-timestamp-millis", "timestamp-micros": None, "date": None}
"""Logical types that an aligned schema has in the place of others; None is none at all."""
LOGICAL_READERS["long-moldau-timestamp-millis"] = lambda number, *_: number * 1000
_NAMED: Final = ("record", "enum", "fixed")
_MEANING: Final = ("logicalType", "precision", "scale")


def logical_of(schema: Mapping[str, Any]) -> str | None:
    """Returns the logical type of a schema if it has a column type of its own."""
    found = schema.get("logicalType")
    if not isinstance(found, str) or schema["type"] not in CONVERTED.get(found, ()):
        return None
    precision = schema.get("precision", 0)
    return None if found == "decimal" and (type(precision) is not int or precision < 1) else found


class Alignment:
    """Aligns writers' schemas with one reader's schema, which fastavro has parsed."""

    def __init__(self, reader: Schema) -> None:
        self._reader = reader
        self._named: dict[str, dict[str, Any]] = {}
        self._by_short_name: dict[str, dict[str, Any]] = {}
        self._collect(reader)

    def aligned(self, writer: Schema) -> Schema:
        """Returns a writer's schema with logical types where the reader has them, and nowhere else."""
        return self._aligned(writer, self._reader)

    def _collect(self, schema: Schema) -> None:
        if isinstance(schema, list):
            for each in schema:
                self._collect(each)
        elif isinstance(schema, dict):
            if schema.get("type") in _NAMED and "name" in schema:
                self._named[schema["name"]] = schema
                for name in (schema["name"], *schema.get("aliases", ())):
                    self._by_short_name.setdefault(_short(name), schema)
            for part in [schema.get(name, "null") for name in ("type", "items", "values")]:
                self._collect(part)
            for field in schema.get("fields", ()):
                self._collect(field["type"])

    def _aligned(self, writer: Schema, reader: Schema) -> Schema:
        if isinstance(writer, list):
            return [self._aligned(each, reader) for each in writer]
        wanted = self._only(reader)
        if _kind_of(writer) == "int" and wanted.get("type") == "long" and logical_of(wanted) is not None:
            # fastavro gives an int that a reader takes for a long no logical type. Their bytes are the same.
            return self._with_meaning({"type": "long"}, wanted)
        if isinstance(writer, str):
            has_meaning = wanted.get("type") == writer and logical_of(wanted) is not None
            # In the longer form fastavro refuses whole numbers as defaults of a float or double.
            return self._with_meaning({"type": writer}, wanted) if has_meaning else writer
        kind = writer["type"]
        if isinstance(kind, dict | list):
            return self._aligned(kind, reader)
        if kind in _NAMED and kind != wanted.get("type"):
            wanted = self._by_short_name.get(_short(writer["name"]), wanted)
        has_counterpart = kind == wanted.get("type")
        if kind == "record":
            known = wanted["fields"] if has_counterpart else ()
            types = {name: each["type"] for each in known for name in (each["name"], *each.get("aliases", ()))}
            fields = [
                each | {"type": self._aligned(each["type"], types.get(each["name"], "null"))}
                for each in writer["fields"]
            ]
            return writer | {"fields": fields}
        for part in ("items", "values"):
            if part in writer:
                return writer | {part: self._aligned(writer[part], wanted[part] if has_counterpart else "null")}
        return self._with_meaning(writer, wanted if has_counterpart else {})

    def _only(self, reader: Schema) -> dict[str, Any]:
        """Returns the reader's type besides null, with its name resolved."""
        if isinstance(reader, list):
            reader = next((each for each in reader if each != "null"), "null")
        if isinstance(reader, str):
            return self._named.get(reader, {"type": reader})
        return self._only(reader["type"]) if isinstance(reader["type"], dict | list) else reader

    @staticmethod
    def _with_meaning(writer: dict[str, Any], reader: dict[str, Any]) -> dict[str, Any]:
        plain = {name: each for name, each in writer.items() if name not in _MEANING}
        if logical_of(reader) is None:
            return plain
        source = reader if logical_of(writer) is None else writer
        found = plain | {name: source[name] for name in _MEANING if name in source}
        read_as = READ_AS.get(found["logicalType"], found["logicalType"])
        return plain if read_as is None else found | {"logicalType": read_as}


def _kind_of(schema: str | dict[str, Any]) -> object:
    return schema if isinstance(schema, str) else schema["type"]


def _short(name: str) -> str:
    """Returns a name without its namespace."""
    return name.rpartition(".")[2]
