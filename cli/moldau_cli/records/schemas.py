"""Keys and values with a schema: bare with a schema file, in Confluent's wire format with a registry.

The bare formats are an Avro datum, a Protobuf message and JSON text. ``protobuf`` has what belongs to Protobuf.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

from moldau.serialization.core.plain import json_value
from moldau_cli.errors import UsageError
from moldau_cli.records.formats import DataFormat
from moldau_cli.records.marked_formats import MarkedAvro

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from moldau.serialization import Schema, SerializationContext
    from moldau.serialization.registry import SchemaRegistry
    from moldau_cli.records.formats import Encoding

PARSED_MAX: Final = 1000
"""Schemas of a registry that a reader keeps in their parsed form."""
_LATEST: Final = {"use.latest.version": "true", "auto.register.schemas": "false"}


def reader_of(encoding: Encoding, registry: SchemaRegistry | None) -> Any:  # noqa: ANN401 - a deserializer of any value
    """Returns the deserializer of a field.

    Raises:
        UsageError: the schema file cannot be used, or a library is missing.
    """
    try:
        if encoding.format is DataFormat.AVRO:
            return MarkedAvro(_avro_reader(encoding, registry))
        if encoding.format is DataFormat.PROTOBUF:
            from moldau_cli.records import protobuf

            return protobuf.reader_of(encoding, registry)
        return _json_reader(encoding, registry)
    except ImportError as error:
        raise UsageError(str(error)) from error


async def writer_of(encoding: Encoding, registry: SchemaRegistry | None, topic: str) -> Any:  # noqa: ANN401 - see above
    """Returns the serializer of a field.

    Raises:
        UsageError: the schema cannot be used, or a library is missing.
        RegistryError: the registry does not have the subject, or does not answer.
    """
    try:
        text, config = None, None
        if registry is not None and encoding.schema is None:
            found = (await registry.latest(f"{topic}-{encoding.field}")).schema
            if found.type != _registry_type(encoding):
                raise UsageError(f"the schema of {topic}-{encoding.field} is of type {found.type}")
            text, config = found.text, _LATEST
        if encoding.format is DataFormat.AVRO:
            return MarkedAvro(_avro_writer(encoding, registry, text, config))
        if encoding.format is DataFormat.PROTOBUF:
            from moldau_cli.records import protobuf

            return protobuf.writer_of(encoding, registry, text, config)
        return _json_writer(encoding, registry, text, config)
    except ImportError as error:
        raise UsageError(str(error)) from error


def _registry_type(encoding: Encoding) -> str:
    return {DataFormat.AVRO: "AVRO", DataFormat.PROTOBUF: "PROTOBUF"}.get(encoding.format, "JSON")


def read_schema(path: Path, option: str) -> bytes:
    """Returns the bytes of a schema file; ``option`` names it in errors."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror}") from error


def _text(encoding: Encoding) -> str | None:
    if encoding.schema is None:
        return None
    option = f"--{encoding.field}-schema"
    try:
        return read_schema(encoding.schema, option).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: {encoding.schema} is no text: {error}") from error


# --- Avro


class _BareAvro:
    """Avro data without a header."""

    def __init__(self, text: str, origin: str) -> None:
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType

        from moldau.serialization.core.avro_depth import DepthCheck
        from moldau.serialization.core.avro_values import check_of

        self._fastavro = fastavro
        try:
            self._schema: Any = fastavro.parse_schema(json.loads(text))
        except (SchemaParseException, UnknownType, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{origin} is no Avro schema: {error!r}") from error
        self._depth = DepthCheck(self._schema)
        self._check = check_of(self._schema)

    def serialize(self, value: object, context: SerializationContext) -> bytes:
        """Returns the bytes of a value that fits the schema."""
        self._depth.check_value(value)
        if self._check is not None:
            self._check(value)
        stream = io.BytesIO()
        self._fastavro.schemaless_writer(stream, self._schema, value, strict_allow_default=True)
        self._depth.check_bytes(stream.getvalue())
        return stream.getvalue()

    def deserialize(self, data: bytes, context: SerializationContext) -> object:
        """Returns the value of all the bytes."""
        self._depth.check_bytes(data)
        stream = io.BytesIO(data)
        value: object = self._fastavro.schemaless_reader(stream, self._schema, None)
        if left := len(data) - stream.tell():
            raise ValueError(f"{left} bytes are left behind the value; is it in Confluent's wire format (--registry)?")
        return value


def _avro_reader(encoding: Encoding, registry: SchemaRegistry | None) -> object:
    text = _text(encoding)
    if registry is None:
        assert text is not None, "the options were checked"
        return _BareAvro(text, str(encoding.schema))
    return serde_of(encoding, "AvroSerde", registry, text)


def _avro_writer(
    encoding: Encoding, registry: SchemaRegistry | None, latest: str | None, config: dict[str, str] | None
) -> object:
    if registry is None:
        return _avro_reader(encoding, None)
    # By the latest version the serde needs no text, which by itself lacks the schemas that it refers to.
    return serde_of(encoding, "AvroSerde", registry, None if latest else _text(encoding), config=config)


def serde_of(encoding: Encoding, name: str, *arguments: object, **more: object) -> object:
    """Returns a serde of ``moldau.serialization``; an error of its schema names the option."""
    import moldau.serialization as serialization

    try:
        found: object = getattr(serialization, name)(*arguments, **more)
    except serialization.SerializationError as error:
        raise UsageError(f"--{encoding.field}-schema: {error}") from error
    return found


# --- JSON Schema


class _BareJson:
    """JSON text that fits a schema."""

    def __init__(self, text: str, origin: str, references: Iterable[tuple[str, Schema]] = ()) -> None:
        from moldau.serialization.core.subjects import document_of
        from moldau.serialization.core.values import SerializationError
        from moldau.serialization.json_validation import compiled

        try:
            self._validate = compiled(document_of(text)[0], references)
        except SerializationError as error:
            raise UsageError(f"{origin}: {error}") from error

    def serialize(self, value: object, context: SerializationContext) -> bytes:
        """Returns the text of a value that fits."""
        self._validate(value)
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()

    def deserialize(self, data: bytes, context: SerializationContext) -> object:
        """Returns a value that fits."""
        value: object = json_value(data)
        self._validate(value)
        return value


class _RegistryJson:
    """JSON in Confluent's wire format; each value must fit the schema with which it was written."""

    def __init__(self, registry: SchemaRegistry) -> None:
        from moldau.serialization.core.subjects import SubjectPolicy

        self._policy = SubjectPolicy(registry, None)
        self._parsed: dict[int, _BareJson] = {}

    def deserialize(self, data: bytes, context: SerializationContext) -> object:
        """Returns a value; asks for its schema where that is not known yet."""
        from moldau.serialization.core.wire_format import split_frame

        schema_id, text = split_frame(data)
        if schema_id not in self._parsed:
            found = self._policy.by_id(schema_id, "JSON").schema
            parsed = _BareJson(found.text, f"schema {schema_id}", self._policy.references(found))
            if len(self._parsed) >= PARSED_MAX:
                self._parsed.clear()
            self._parsed[schema_id] = parsed
        return self._parsed[schema_id].deserialize(text, context)


def _json_reader(encoding: Encoding, registry: SchemaRegistry | None) -> object:
    text = _text(encoding)
    if registry is None:
        assert text is not None, "the options were checked"
        return _BareJson(text, str(encoding.schema))
    return _RegistryJson(registry) if text is None else serde_of(encoding, "JsonSchemaSerde", registry, text)


def _json_writer(
    encoding: Encoding, registry: SchemaRegistry | None, latest: str | None, config: dict[str, str] | None
) -> object:
    if registry is None:
        return _json_reader(encoding, None)
    return serde_of(encoding, "JsonSchemaSerde", registry, latest or _text(encoding), config=config)
