"""One record as commands read and write it. Pure."""

from __future__ import annotations

import json
from typing import NamedTuple
from uuid import UUID

Headers = tuple[tuple[str, bytes | None], ...]


class Content(NamedTuple):
    """A key or a value: its bytes, and what a deserializer made of them (the bytes themselves without one).

    ``is_json`` says that the format has JSON on the command line: a text has quotes then, and None beside bytes is the
    null of JSON.
    """

    raw: bytes | None
    value: object
    is_json: bool = False


class Raw(bytes):
    """Bytes of a key or value that no serializer changes."""


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


def text_of(content: Content, null: bytes = b"") -> bytes:
    """Returns a key or value as ``produce`` reads it in the same format, and ``null`` for one that is not there.

    Bytes, texts and UUIDs are as they are, values of formats that have JSON are JSON.
    """
    value = content.value
    if value is None and content.raw is None:
        return null
    if isinstance(value, bytes):
        return value
    if isinstance(value, str | UUID) and not content.is_json:
        return str(value).encode("utf-8", "backslashreplace")
    if isinstance(value, float):
        return json.dumps(value).encode()
    # JSON can hold half of a surrogate pair, UTF-8 cannot
    return json_text(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def json_text(
    content: object,
    *,
    indent: int | None = None,
    ensure_ascii: bool = True,
    separators: tuple[str, str] | None = None,
) -> str:
    """Returns a value as JSON, a UUID as text."""

    return json.dumps(
        content, indent=indent, ensure_ascii=ensure_ascii, separators=separators, default=str, allow_nan=False
    )
