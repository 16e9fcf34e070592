"""Formats without a schema: text, numbers, UUIDs, JSON and msgpack. Pure.

Texts and numbers have the bytes of Kafka's own serializers: UTF-8, and numbers of fixed length with the most
significant byte first.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.serialization.core.values import SerializationContext


def _refuse(wanted: str, value: object) -> TypeError:
    return TypeError(f"must be {wanted}, not {type(value).__name__}")


class StringSerde:
    """Texts, by default in UTF-8, as Kafka's StringSerializer."""

    def __init__(self, encoding: str = "utf-8") -> None:
        "".encode(encoding)  # an unknown encoding fails here
        self._encoding = encoding

    def serialize(self, value: str, context: SerializationContext) -> bytes:
        """Returns the encoded text."""
        if not isinstance(value, str):
            raise _refuse("a str", value)
        return value.encode(self._encoding)

    def deserialize(self, data: bytes, context: SerializationContext) -> str:
        """Returns the text."""
        return data.decode(self._encoding)


class BytesSerde:
    """Bytes as they are."""

    def serialize(self, value: bytes, context: SerializationContext) -> bytes:
        """Returns the bytes."""
        return value

    def deserialize(self, data: bytes, context: SerializationContext) -> bytes:
        """Returns the bytes."""
        return data


class _Integer:
    _format: struct.Struct
    _name: str

    def serialize(self, value: int, context: SerializationContext) -> bytes:
        """Returns the bytes, the most significant one first."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise _refuse("an int", value)
        try:
            return self._format.pack(value)
        except struct.error:
            bits = self._format.size * 8 - 1
            raise ValueError(f"{value} is no {self._name}: it lies outside -2**{bits} to 2**{bits} - 1") from None

    def deserialize(self, data: bytes, context: SerializationContext) -> int:
        """Returns the number."""
        return int(_unpack(self._format, self._name, data))


def _unpack(form: struct.Struct, name: str, data: bytes) -> Any:  # noqa: ANN401 - a number of the format
    if len(data) != form.size:
        raise ValueError(f"{len(data)} bytes are no {name}, which has {form.size}")
    return form.unpack(data)[0]


class ShortSerde(_Integer):
    """Integers of two bytes, as Kafka's ShortSerializer."""

    _format, _name = struct.Struct(">h"), "short"


class IntegerSerde(_Integer):
    """Integers of four bytes, as Kafka's IntegerSerializer."""

    _format, _name = struct.Struct(">i"), "integer"


class LongSerde(_Integer):
    """Integers of eight bytes, as Kafka's LongSerializer."""

    _format, _name = struct.Struct(">q"), "long"


class DoubleSerde:
    """Floating-point numbers of eight bytes, as Kafka's DoubleSerializer."""

    _format = struct.Struct(">d")

    def serialize(self, value: float, context: SerializationContext) -> bytes:
        """Returns the bytes."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _refuse("a float", value)
        return self._format.pack(value)

    def deserialize(self, data: bytes, context: SerializationContext) -> float:
        """Returns the number."""
        return float(_unpack(self._format, "double", data))


class UUIDSerde:
    """UUIDs as text, as Kafka's UUIDSerializer."""

    def serialize(self, value: UUID, context: SerializationContext) -> bytes:
        """Returns the text of the UUID in UTF-8."""
        if not isinstance(value, UUID):
            raise _refuse("a UUID", value)
        return str(value).encode()

    def deserialize(self, data: bytes, context: SerializationContext) -> UUID:
        """Returns the UUID."""
        return UUID(data.decode())


class JsonSerde:
    """JSON in UTF-8. NaN and infinity are refused: they are no JSON."""

    def __init__(self, *, default: Callable[[Any], Any] | None = None) -> None:
        """Takes a function that turns other objects into JSON's types, as ``json.dumps`` does."""
        self._encoder = json_encoder(default)

    def serialize(self, value: Any, context: SerializationContext) -> bytes:  # noqa: ANN401 - any JSON value
        """Returns the JSON text in UTF-8."""
        return json_bytes(value, self._encoder)

    def deserialize(self, data: bytes, context: SerializationContext) -> Any:  # noqa: ANN401 - any JSON value
        """Returns the JSON value."""
        return json_value(data)


def json_encoder(default: Callable[[Any], Any] | None = None) -> json.JSONEncoder:
    """Returns an encoder for ``json_bytes``; ``default`` is that of ``json.dumps``."""
    return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default)


def json_bytes(value: Any, encoder: json.JSONEncoder) -> bytes:  # noqa: ANN401 - any JSON value
    """Returns the JSON text of a value in UTF-8.

    A text with half of a surrogate pair, which a reader gets from ``"\\ud800"``, is no UTF-8: it is written as such an
    escape again.
    """
    try:
        return encoder.encode(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=encoder.default).encode()


def json_value(data: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Returns the value of a JSON text.

    Raises:
        ValueError: it is no JSON, or has a number that is too large for a float, such as ``1e400``.
    """
    return json.loads(data, parse_constant=no_constant, parse_float=_finite)


def _finite(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise ValueError(f"{text[:20]} is too large for a float")
    return found


def no_constant(name: str) -> None:
    """Refuses NaN and infinity, which Python's JSON reader accepts.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"{name} is no JSON number")


class MsgpackSerde:
    """Values in msgpack; needs the package msgpack."""

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError as error:
            raise ImportError("MsgpackSerde needs msgpack: pip install msgpack") from error
        self._msgpack = msgpack

    def serialize(self, value: Any, context: SerializationContext) -> bytes:  # noqa: ANN401 - any msgpack value
        """Returns the bytes of the value."""
        packed: bytes = self._msgpack.packb(value)
        return packed

    def deserialize(self, data: bytes, context: SerializationContext) -> Any:  # noqa: ANN401 - any msgpack value
        """Returns the value; keys of maps may be of all types that Python can hash, as ``serialize`` takes them."""
        return self._msgpack.unpackb(data, strict_map_key=False)
