"""Puts the types of other subjects into an Avro schema that refers to them.

The registry keeps a schema as its producer wrote it: with the names of types that the schemas of its references define.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import fastavro

from moldau.serialization.core.avro_defaults import without_defaults

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark_moldau.jobs.payloads.avro_logical import Schema

LEVELS_MAX: Final = 20
"""Levels of references that a schema may have. Real ones have a few; a circle would never end."""
_NAMED: Final = ("record", "enum", "fixed", "error")


def whole(document: Mapping[str, Any], fetch: Callable[[str], Mapping[str, Any]]) -> Schema:
    """Returns the schema of a registry's answer with each type that it refers to, defined where it is first named.

    ``fetch`` returns the registry's answer for a path.

    Raises:
        ValueError: There are more than ``LEVELS_MAX`` levels of references, or an answer holds no schema.
        KeyError: An answer lacks a part.
    """
    found: Schema = without_defaults(json.loads(document["schema"]))
    if not document.get("references"):
        return found
    named: dict[str, Any] = {}
    _take(document, fetch, named, set(), 0)
    return _inlined(fastavro.parse_schema(found, named_schemas=named), named, set())


def _take(
    document: Mapping[str, Any],
    fetch: Callable[[str], Mapping[str, Any]],
    named: dict[str, Any],
    met: set[str],
    level: int,
) -> None:
    """Adds the types of all references, those of deeper levels first."""
    if level > LEVELS_MAX:
        raise ValueError(f"more than {LEVELS_MAX} levels of references")
    for each in document.get("references") or ():
        path = f"subjects/{quote(each['subject'], safe='')}/versions/{int(each['version'])}?deleted=true"
        if path not in met:
            met.add(path)
            answer = fetch(path)
            _take(answer, fetch, named, met, level + 1)
            fastavro.parse_schema(without_defaults(json.loads(answer["schema"])), named_schemas=named)


def _inlined(part: Schema, named: Mapping[str, Any], met: set[str]) -> Schema:
    """Returns a part of a parsed schema with definitions in the place of names that are not defined before it."""
    if isinstance(part, list):
        return [_inlined(each, named, met) for each in part]
    if isinstance(part, str):
        return part if part in met or part not in named else _inlined(named[part], named, met)
    made = {key: value for key, value in part.items() if not key.startswith("__")}
    if made["type"] in _NAMED:
        met.add(made["name"])
    for key in ("items", "values"):
        if isinstance(made.get(key), dict | list | str):
            made[key] = _inlined(made[key], named, met)
    if "fields" in made:
        made["fields"] = [field | {"type": _inlined(field["type"], named, met)} for field in made["fields"]]
    return made
