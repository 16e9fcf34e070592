"""Refuses Avro values that are nested so deeply that ``fastavro`` would overflow the C stack of the process. Pure.

A type that contains itself can be nested without a bound, in some 5 KB of a record, and ``fastavro`` calls itself for
each level in C, where Python's limit of recursion does not hold: the process ends with SIGSEGV. Only such types are
checked, before ``fastavro`` gets a value or bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from moldau.serialization.core.wire_format import read_zigzag

LEVELS_MAX: Final = 1000
"""Unions, arrays and maps within one another. ``fastavro`` ends a process at 3000 or more, with a stack of 8 MB."""

_TOO_DEEP: Final = f"it is nested more than {LEVELS_MAX} levels deep"
_RECORDS: Final = ("record", "error")
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NOTHING: Final = ("skip", 0)
_VARINTS: Final = ("int", "long", "enum")
_Part = tuple[str, Any]
"""A kind, and what it needs: a number of bytes, or the parts within."""


class DepthCheck:
    """Checks values and bytes of one schema. ``is_needed`` is false if no type in it contains itself."""

    __slots__ = ("_part", "is_needed")

    def __init__(self, schema: Any) -> None:  # noqa: ANN401 - as fastavro parsed it
        """Takes a parsed schema."""
        parts = _Parts()
        self._part = parts.of(schema)
        self.is_needed = parts.is_recursive

    def check_bytes(self, data: bytes) -> None:
        """Checks the bytes of a value; damaged ones are left to ``fastavro``.

        Raises:
            ValueError: it is nested too deeply.
        """
        # Each level takes a byte or more.
        if not self.is_needed or len(data) <= LEVELS_MAX:
            return
        try:
            _walk(self._part, data)
        except IndexError:
            return

    def check_value(self, value: object) -> None:
        """Checks a value that is to be written.

        Raises:
            ValueError: it is nested too deeply, or contains itself.
        """
        if not self.is_needed:
            return
        left: list[tuple[Any, int]] = [(value, 1)]
        while left:
            each, level = left.pop()
            if isinstance(each, Mapping):
                inner = each.values()
            elif isinstance(each, list | tuple):
                inner = each  # type: ignore[assignment]
            else:
                continue
            if level > LEVELS_MAX:
                raise ValueError(_TOO_DEEP)
            left += [(one, level + 1) for one in inner if isinstance(one, Mapping | list | tuple)]


class _Parts:
    """Makes the parts of one schema; a named type is one part in all its places, also within itself."""

    def __init__(self) -> None:
        self._made: dict[str, _Part] = {}
        self._open: set[str] = set()
        self.is_recursive = False

    def of(self, schema: Any) -> _Part:  # noqa: ANN401 - a part of a parsed schema
        """Returns a part of the schema."""
        if isinstance(schema, list):
            return "union", [self.of(each) for each in schema]
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            return self.of(kind)
        name = kind if isinstance(schema, str) else schema.get("name", "")
        if name in self._made:
            self.is_recursive |= name in self._open
            return self._made[name]
        if kind in _RECORDS:
            fields: list[_Part] = []
            self._made[name] = "record", fields
            self._open.add(name)
            fields += [self.of(each["type"]) for each in schema["fields"]]
            self._open.remove(name)
            return self._made[name]
        if kind == "array":
            return kind, self.of(schema["items"])
        if kind == "map":
            return kind, self.of(schema["values"])
        found: _Part
        if kind in _VARINTS:
            found = ("varint", None)
        elif kind == "fixed":
            found = ("skip", schema["size"])
        else:
            found = ("skip", _SIZES[kind]) if kind in _SIZES else ("text", None)
        if kind in ("enum", "fixed"):
            self._made[name] = found
        return found


def _walk(part: _Part, data: bytes) -> None:
    """Follows the bytes of a value with a stack of its own.

    Raises:
        ValueError: the value is nested too deeply.
        IndexError: the bytes are damaged.
    """
    at = 0
    left: list[tuple[_Part, int, int]] = [(part, 0, 0)]  # with the level, and the items left in a block
    while left:
        (kind, inner), level, items = found = left.pop()
        if level > LEVELS_MAX:
            raise ValueError(_TOO_DEEP)
        if at > len(data):
            raise IndexError
        if kind == "record":
            left += [(each, level, 0) for each in reversed(inner)]
        elif kind == "skip":
            at += inner
        elif kind in ("array", "map"):
            if items == 0:
                items, at = read_zigzag(data, at)
                if items < 0:  # the size of the block follows
                    items, at = -items, read_zigzag(data, at)[1]
                if items == 0:
                    continue
                if kind == "array" and inner == _NOTHING:
                    items = 1  # nulls have no bytes, so a few can say that there are billions of them
            if kind == "map":
                size, at = read_zigzag(data, at)
                at += _length(size)
            left.append((found[0], level, items - 1))  # with 0 the next block begins
            left.append((inner, level + 1, 0))
        else:
            number, at = read_zigzag(data, at)
            if kind == "text":
                at += _length(number)
            elif kind == "union":
                left.append((inner[_length(number)], level + 1, 0))


def _length(number: int) -> int:
    if number < 0:
        raise IndexError
    return number
