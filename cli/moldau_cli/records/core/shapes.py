"""Output of records: as text, JSON, a hexadecimal dump, or the bare bytes. Pure."""

from __future__ import annotations

import base64
import enum
import json
import math
from typing import TYPE_CHECKING, Final

from moldau_cli.records.core.values import Raw, json_text, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_cli.output import Json
    from moldau_cli.records.core.values import Content, Row

_DUMP_BYTES: Final = 16


class Shape(enum.StrEnum):
    """The forms in which ``moldau consume`` writes records."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    HEX = "hex"
    RAW = "raw"


def writer_of(
    shape: Shape, *, delimiter: bytes = b"\n", key_delimiter: bytes | None = None, null: bytes = b""
) -> Callable[[Row], bytes]:
    """Returns the function that writes a record.

    ``text`` writes the value, after the key where ``key_delimiter`` is given, and ends with ``delimiter``. ``json`` and
    ``jsonl`` write one document per record, indented or on one line. ``raw`` writes the bytes of the value alone.
    """
    match shape:
        case Shape.TEXT:
            if key_delimiter is None:
                return lambda row: text_of(row.value, null) + delimiter
            between = key_delimiter
            return lambda row: text_of(row.key, null) + between + text_of(row.value, null) + delimiter
        case Shape.JSONL:
            return lambda row: _json(row, None) + b"\n"
        case Shape.JSON:
            return lambda row: _json(row, 2) + b"\n"
        case Shape.HEX:
            return lambda row: "\n".join(_dump(row)).encode() + b"\n"
        case Shape.RAW:
            return lambda row: row.value.raw or b""


def document_of(row: Row) -> dict[str, Json]:
    """Returns a record as JSON; ``produce --input jsonl`` reads the same keys.

    Bytes that are neither text nor a deserialized value stand as base64 under ``key_base64`` or ``value_base64``. So do
    those of a null that a deserializer returned: ``null`` is a record without a key or value.
    """
    document: dict[str, Json] = {
        "topic": row.topic,
        "partition": row.partition,
        "offset": row.offset,
        "timestamp": row.timestamp,
        **_field("key", _shown(row.key)),
        **_field("value", _shown(row.value)),
    }
    if row.headers:
        document["headers"] = [{"name": name, **_field("value", value)} for name, value in row.headers]
    return document


def _json(row: Row, indent: int | None) -> bytes:
    return json_text(document_of(row), indent=indent).encode()


def _shown(content: Content) -> object:
    if content.value is None and content.raw is not None:
        return Raw(content.raw)
    if isinstance(content.value, float) and not math.isfinite(content.value):
        return json.dumps(content.value)  # a text, because JSON has no such number
    return content.value


def _field(name: str, value: object) -> dict[str, Json]:
    if isinstance(value, bytes):
        if isinstance(value, Raw):
            return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
        try:
            return {name: value.decode("utf-8")}
        except UnicodeDecodeError:
            return {f"{name}_base64": base64.b64encode(value).decode("ascii")}
    return {name: value}  # type: ignore[dict-item]  # a value of JSON, or a UUID


def _dump(row: Row) -> Iterator[str]:
    """Yields a line about the record, and lines of 16 bytes with their text, as ``hexdump -C`` writes them."""
    yield f"{row.topic} [{row.partition}] at {row.offset}, timestamp {row.timestamp}"
    for name, content in (("key", row.key), ("value", row.value), *((f"header {n}", _same(v)) for n, v in row.headers)):
        if content.raw is None:
            yield f"{name}: null"
            continue
        yield f"{name}: {len(content.raw)} bytes"
        for at in range(0, len(content.raw), _DUMP_BYTES):
            part = content.raw[at : at + _DUMP_BYTES]
            shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
            yield f"{at:08x}  {part.hex(' '):<{_DUMP_BYTES * 3 - 1}}  |{shown}|"


def _same(raw: bytes | None) -> Content:
    from moldau_cli.records.core.values import Content

    return Content(raw, raw)
