"""One record as commands read and write it. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]


class Content(NamedTuple):
    """A key or a value: its bytes, and what a deserializer made of them (the bytes themselves without one)."""

    raw: bytes | None
    value: object


class Row(NamedTuple):
    """A record to write. ``offset`` and ``timestamp`` are Kafka's (milliseconds since the Unix epoch)."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: Content
    value: Content
    headers: Headers


class NewRecord(NamedTuple):
    """A record to send.

    Key and value are bytes, or values of JSON for a serializer. ``origin`` names its line in error texts. ``partition``
    and ``timestamp`` (milliseconds) are None where the producer chooses.
    """

    key: object
    value: object
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None
    origin: str = ""


def text_of(content: object, null: bytes = b"") -> bytes:
    """Returns bytes and texts as they are, other values as JSON, and ``null`` for None."""
    if content is None:
        return null
    if isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode("utf-8", "surrogateescape")
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=plain).encode()


def plain(value: object) -> object:
    """Returns a value that JSON lacks as text: bytes as Avro's JSON does (ISO 8859-1), times in ISO 8601."""
    if isinstance(value, bytes):
        return value.decode("iso-8859-1")
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if callable(isoformat) else str(value)
