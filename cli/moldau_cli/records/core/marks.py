"""Values of Avro and msgpack as JSON: an object with one key that begins with ``$`` holds what JSON lacks. Pure.

| mark | value |
|---|---|
| ``{"$base64": "AP8="}`` | bytes |
| ``{"$time": "2026-03-01T12:00:00+00:00"}`` | a date, a time of the day, or both, in ISO 8601 |
| ``{"$decimal": "1.50"}`` | a decimal |
| ``{"$float": "NaN"}`` | a floating-point number that is none of JSON |
| ``{"$ext": [5, "AP8="]}`` | an extension type of msgpack: its number, and its bytes |
| ``{"$map": [[1, "a"], ["1", "b"]]}`` | a map whose keys have the same text, or are no texts and no plain values |

A map that looks like a mark gets one ``$`` more, so no value can be taken for another one. Keys that are numbers,
booleans or null become texts, as in other JSON: these alone come back as texts.
"""

from __future__ import annotations

import base64
import json
import math
import re
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from moldau_cli.output import Json

    More = Mapping[type, Callable[[Any], Json]]
    """How values of further types are marked."""
    Readers = Mapping[str, Callable[[Any], object]]
    """How the values of marks are read."""

_MARK: Final = re.compile(r"\$+(base64|decimal|ext|float|map|time)")
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_FLOATS: Final = ("NaN", "Infinity", "-Infinity")


class Pairs(list[tuple[object, object]]):
    """The keys and values of a map, also of one whose keys Python cannot hash."""


def marked(value: object, more: More) -> Json:
    """Returns a value as JSON; a value of an unknown type is its text."""
    kind = type(value)
    if kind in _PLAIN:
        return value  # type: ignore[return-value]  # a plain value is one of JSON
    if kind is dict:
        return _object(value.items(), more)  # type: ignore[attr-defined]  # it is a dict
    if kind is Pairs:
        return _object(value, more)  # type: ignore[arg-type]  # it is one
    if kind in more:
        return more[kind](value)
    if kind is list or kind is tuple:
        found: list[Json] = []
        for each in value:  # type: ignore[attr-defined]  # a comprehension would need a second frame for each level
            found.append(marked(each, more))  # noqa: PERF401
        return found
    return _single(value)


def _single(value: object) -> Json:
    match value:
        case bytes():
            return {"$base64": base64.b64encode(value).decode("ascii")}
        case float():
            return value if math.isfinite(value) else {"$float": json.dumps(value)}
        case date() | time():
            return {"$time": value.isoformat()}
        case Decimal():
            return {"$decimal": str(value)}
        case _:
            return str(value)


def _object(items: Iterable[tuple[object, object]], more: More) -> Json:
    pairs = [(key, marked(value, more)) for key, value in items]
    texts: dict[str, Json] = {}
    for key, value in pairs:
        text = key if type(key) is str else _text(key)
        if text is None or text in texts:
            return {"$map": [[marked(key, more), value] for key, value in pairs]}
        texts[text] = value
    if len(texts) == 1:
        ((text, value),) = texts.items()
        if _MARK.fullmatch(text):
            return {"$" + text: value}
    return texts


def _text(key: object) -> str | None:
    """Returns the text of a key as JSON's writers give it, None for a key that needs a mark."""
    is_plain = type(key) in _PLAIN or (isinstance(key, float) and math.isfinite(key))
    return json.dumps(key) if is_plain else None


def unmarked(value: object, readers: Readers) -> Any:  # noqa: ANN401 - a value for any serializer
    """Returns the value that ``marked`` has written.

    Raises:
        ValueError: a mark has no reader, or does not hold what it should.
    """
    if isinstance(value, list):
        return [unmarked(each, readers) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, held),) = value.items()
        if _MARK.fullmatch(key):
            return {key[1:]: unmarked(held, readers)} if key.startswith("$$") else _read(key, held, readers)
    return {key: unmarked(each, readers) for key, each in value.items()}


def _read(mark: str, held: object, readers: Readers) -> object:
    try:
        if mark == "$map":
            return _map(held, readers)
        return readers[mark](held)
    except (ValueError, TypeError, LookupError, InvalidOperation) as error:
        raise ValueError(f"{mark} cannot hold {json.dumps(held)}") from error


def _map(held: object, readers: Readers) -> dict[object, object]:
    pairs: list[tuple[object, object]] = unmarked(held, readers)
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def bytes_of(text: str) -> bytes:
    """Returns the bytes of base64.

    Raises:
        ValueError: the text is none.
    """
    return base64.b64decode(text, validate=True)


def time_of(text: str) -> date | time:
    """Returns a date (``2026-03-01``), a time of the day (``12:00:00``), or both, as Python's types.

    Raises:
        ValueError: the text is none in ISO 8601.
    """
    if "T" in text:
        return datetime.fromisoformat(text)
    return time.fromisoformat(text) if ":" in text else date.fromisoformat(text)


def _float(text: str) -> float:
    if text not in _FLOATS:
        raise ValueError(text)
    return float(text)


READERS: Final[Readers] = {"$base64": bytes_of, "$time": time_of, "$decimal": Decimal, "$float": _float}
"""Readers of all marks except those of msgpack."""
