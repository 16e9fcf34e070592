"""Formats of keys and values on the command line: plain ones, and Avro, Protobuf and JSON Schema.

Input text becomes a value (``TextSerializer``), and consumed bytes become a value beside their bytes
(``ContentDeserializer``). With a schema registry, values have Confluent's wire format; with a schema file alone they
are bare.
"""

from __future__ import annotations

import base64
import enum
import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from moldau_cli.errors import UsageError
from moldau_cli.records.core.values import Content, Raw

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from moldau.serialization import SerializationContext
    from moldau.serialization.registry import SchemaRegistry


class DataFormat(enum.StrEnum):
    """The formats of keys and values; the numbers are Kafka's, the most significant byte first."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"
    SHORT = "short"
    INTEGER = "integer"
    LONG = "long"
    DOUBLE = "double"
    UUID = "uuid"
    MSGPACK = "msgpack"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    JSON_SCHEMA = "json-schema"


WITH_SCHEMA: Final = frozenset({DataFormat.AVRO, DataFormat.PROTOBUF, DataFormat.JSON_SCHEMA})
_SERDES: Final = {
    DataFormat.STRING: "StringSerde",
    DataFormat.JSON: "JsonSerde",
    DataFormat.SHORT: "ShortSerde",
    DataFormat.INTEGER: "IntegerSerde",
    DataFormat.LONG: "LongSerde",
    DataFormat.DOUBLE: "DoubleSerde",
    DataFormat.UUID: "UUIDSerde",
}
_READERS: Final[dict[DataFormat, Callable[[str], object]]] = {
    DataFormat.STRING: str,
    DataFormat.SHORT: int,
    DataFormat.INTEGER: int,
    DataFormat.LONG: int,
    DataFormat.DOUBLE: float,
    DataFormat.UUID: UUID,
}
"""How input text becomes a value; other formats take JSON, except those of bytes."""
HAVE_JSON: Final = frozenset(DataFormat) - _READERS.keys() - {DataFormat.BYTES, DataFormat.HEX, DataFormat.BASE64}
"""Formats whose keys and values are JSON on the command line, in both directions."""


class _Hex:
    """Bytes as hexadecimal digits."""

    def serialize(self, value: str, context: SerializationContext) -> bytes:
        return bytes.fromhex(value)

    def deserialize(self, data: bytes, context: SerializationContext) -> str:
        return data.hex()


class _Base64:
    """Bytes as base64."""

    def serialize(self, value: str, context: SerializationContext) -> bytes:
        return base64.b64decode(value, validate=True)

    def deserialize(self, data: bytes, context: SerializationContext) -> str:
        return base64.b64encode(data).decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How keys, or values, are written: the format, and what says more about it.

    ``field`` is ``key`` or ``value``, ``schema`` the path of a file, ``message`` the full name of a Protobuf message.
    """

    field: str
    format: DataFormat = DataFormat.BYTES
    schema: Path | None = None
    message: str | None = None

    def check(self, *, has_registry: bool) -> None:
        """Checks that the options of one field fit together.

        Raises:
            UsageError: they do not.
        """
        options = [f"--{self.field}-schema"] * (self.schema is not None)
        options += [f"--{self.field}-message"] * (self.message is not None)
        if self.format not in WITH_SCHEMA and options:
            raise UsageError(f"{options[0]} needs --{self.field}-format avro, protobuf or json-schema")
        if self.format in WITH_SCHEMA and self.schema is None and not has_registry:
            raise UsageError(
                f"--{self.field}-format {self.format.value} needs --registry, or --{self.field}-schema for bare values"
            )
        if self.message is not None and self.format is not DataFormat.PROTOBUF:
            raise UsageError(f"--{self.field}-message needs --{self.field}-format protobuf")


class TextSerializer:
    """Makes the bytes of a key or value from input: text as bytes, a value of JSON, or the bytes of the record."""

    def __init__(self, encoding: Encoding, serde: Any) -> None:  # noqa: ANN401 - a serializer of any value
        self._format = encoding.format
        self._serde = serde

    def serialize(self, value: object, context: SerializationContext) -> bytes:
        """Returns the bytes; any exception becomes an error that names the field."""
        if isinstance(value, Raw):
            return bytes(value)
        if isinstance(value, bytes):
            value = self._read(value)
        written: bytes = self._serde.serialize(value, context)
        return written

    def _read(self, data: bytes) -> object:
        text = data.decode("utf-8")
        if self._format in (DataFormat.HEX, DataFormat.BASE64):
            return text.strip()
        read: Callable[[str], object] = _READERS.get(self._format, json.loads)
        return read(text)


class ContentDeserializer:
    """Keeps the bytes of a key or value beside what a deserializer makes of them."""

    def __init__(self, encoding: Encoding, serde: Any) -> None:  # noqa: ANN401 - a deserializer of any value
        self._is_json = encoding.format in HAVE_JSON
        self._serde = serde

    def deserialize(self, data: bytes, context: SerializationContext) -> Content:
        """Returns both; any exception becomes an error that names the record."""
        return Content(data, self._serde.deserialize(data, context), self._is_json)


def registry_of(url: str | None, config_file: Path | None, settings: Mapping[str, str]) -> SchemaRegistry | None:
    """Returns the registry, None if neither a URL nor a file names one.

    ``settings`` are keys of the registry's configuration that are known otherwise.

    Raises:
        UsageError: the file or a value cannot be used.
    """
    from moldau.runtime.config import ConfigError, parse_config_text

    given: dict[str, object] = dict(settings)
    if config_file is not None:
        try:
            given.update(parse_config_text(config_file.read_text(encoding="utf-8"), str(config_file)))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"--registry-config: cannot read {config_file}: {reason}") from error
        except ConfigError as error:
            raise UsageError(f"--registry-config: {config_file}: {'; '.join(error.problems)}") from error
    if url is not None:
        given["schema.registry.url"] = url
    if not given:
        return None
    try:
        from moldau_cli.records.registry import WatchedRegistry

        return WatchedRegistry(given)
    except ImportError as error:
        raise UsageError(str(error)) from error
    except ConfigError as error:
        raise UsageError(f"--registry: {'; '.join(error.problems)}") from error


async def serializer_of(encoding: Encoding, registry: SchemaRegistry | None, topic: str) -> TextSerializer | None:
    """Returns the serializer of a field, None for bytes.

    Without a schema file, the registry's latest version of the subject ``<topic>-<field>`` is the schema.

    Raises:
        UsageError: the schema cannot be used.
        RegistryError: the registry refuses or does not answer.
    """
    encoding.check(has_registry=registry is not None)
    if encoding.format in WITH_SCHEMA:
        from moldau_cli.records.schemas import writer_of

        return TextSerializer(encoding, await writer_of(encoding, registry, topic))
    plain = _plain(encoding.format)
    return None if plain is None else TextSerializer(encoding, plain)


def deserializer_of(encoding: Encoding, registry: SchemaRegistry | None) -> ContentDeserializer | None:
    """Returns the deserializer of a field, None for bytes.

    Raises:
        UsageError: the schema cannot be used.
    """
    encoding.check(has_registry=registry is not None)
    if encoding.format in WITH_SCHEMA:
        from moldau_cli.records.schemas import reader_of

        return ContentDeserializer(encoding, reader_of(encoding, registry))
    plain = _plain(encoding.format)
    return None if plain is None else ContentDeserializer(encoding, plain)


def _plain(data_format: DataFormat) -> object | None:
    if data_format is DataFormat.BYTES:
        return None
    if data_format is DataFormat.HEX:
        return _Hex()
    if data_format is DataFormat.BASE64:
        return _Base64()
    if data_format is DataFormat.MSGPACK:
        from moldau_cli.records.marked_formats import MarkedMsgpack

        return MarkedMsgpack()
    module = importlib.import_module("moldau.serialization")
    serde_class: Any = getattr(module, _SERDES[data_format])
    serde: object = serde_class()
    return serde
