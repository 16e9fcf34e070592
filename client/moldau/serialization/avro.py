"""Avro values in Confluent's wire format, with ``fastavro``."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, overload

from moldau.serialization.core.avro_bytes import is_bare, with_size, without_size
from moldau.serialization.core.avro_defaults import with_default_values, without_defaults
from moldau.serialization.core.avro_depth import DepthCheck
from moldau.serialization.core.avro_schemas import linked
from moldau.serialization.core.avro_values import check_of
from moldau.serialization.core.registry_requests import Schema
from moldau.serialization.core.subjects import SubjectPolicy, document_of
from moldau.serialization.core.values import SerializationError, T
from moldau.serialization.core.wire_format import HEADER, frame, split_frame

try:
    import fastavro
    from fastavro.read import LOGICAL_READERS
    from fastavro.schema import SchemaParseException, UnknownType
except ImportError as error:
    raise ImportError("AvroSerde needs fastavro: pip install 'moldau[registry]'") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.runtime.config import Config
    from moldau.serialization.core.avro_values import Check
    from moldau.serialization.core.registry_requests import RegisteredSchema
    from moldau.serialization.core.values import SerializationContext
    from moldau.serialization.registry import SchemaRegistry

_ADDED = ("__fastavro_parsed__", "__fastavro_parsed", "__named_schemas")
_WRONG_SCHEMA = (SchemaParseException, UnknownType, AttributeError, ValueError, KeyError, TypeError, RecursionError)
PARSED_MAX = 1000
"""Parsed schemas that a serde keeps."""


class AvroSerde(Generic[T]):
    """Writes and reads Avro values; readers resolve the writer's schema to their own.

    Values are the types of fastavro (a dict for a record), or objects of ``model``: a dataclass, a pydantic model or
    another type that pydantic knows.
    """

    @overload
    def __init__(
        self: AvroSerde[Any],
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | list[Any] | None = None,
        *,
        config: Mapping[str, object] | Config | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | list[Any] | None = None,
        *,
        model: type[T],
        config: Mapping[str, object] | Config | None = None,
    ) -> None: ...

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | list[Any] | None = None,
        *,
        model: type[T] | None = None,
        config: Mapping[str, object] | Config | None = None,
    ) -> None:
        """Takes the schema, as JSON text or parsed JSON.

        Without one the serde reads by the writers' schemas, and writes only with ``use.latest.version``.

        Raises:
            SerializationError: the text is no Avro schema.
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        self._policy = SubjectPolicy(registry, config)
        self._schema: Schema | None = None
        self._own: Any = None
        self._name: str | None = None
        if schema is not None:
            document, text = document_of(_plain(schema))
            self._schema = Schema(text, "AVRO")
            self._own = with_default_values(_parsed(document, {}), LOGICAL_READERS)
            self._name = self._own.get("name") if isinstance(self._own, dict) else None
        self._readable: dict[int, tuple[Any, DepthCheck]] = {}
        self._writable: dict[int, tuple[Any, DepthCheck, Check | None]] = {}
        self._model = None
        if model is not None:
            from moldau.serialization.models import adapter_of, plain_of

            self._model = adapter_of(model)
            self._plain_of = partial(plain_of, self._model)

    def serialize(self, value: T, context: SerializationContext) -> bytes:
        """Returns header and Avro's bytes of a value.

        Raises:
            SerializationError: the serde has no schema, or the value does not fit it.
        """
        written = self._written(context)
        own, depth, check = self._writable_of(written)
        stream = io.BytesIO()
        stream.write(frame(written.id))
        try:
            plain = value if self._model is None else self._plain_of(value)
            depth.check_value(plain)
            if check is not None:
                check(plain)
            fastavro.schemaless_writer(stream, own, plain, strict_allow_default=True)
            if is_bare(own):
                return frame(written.id) + without_size(stream.getvalue()[HEADER.size :])
            depth.check_bytes(stream.getvalue()[HEADER.size :])
        except Exception as error:
            raise SerializationError(
                f"it does not fit the Avro schema: {error!r}", subject=written.subject, schema_id=written.id
            ) from error
        return stream.getvalue()

    def _written(self, context: SerializationContext) -> RegisteredSchema:
        if self._schema is not None:
            return self._policy.writer(context, self._schema, self._name)
        if not self._policy.uses_latest:
            raise SerializationError("this AvroSerde has no schema, so it only reads; pass one to write")
        return self._policy.latest(self._policy.subject(context, None), "AVRO")

    def deserialize(self, data: bytes, context: SerializationContext) -> T:
        """Returns a value.

        Raises:
            SerializationError: the bytes are not of the writer's schema, or that cannot be read as the serde's own.
        """
        schema_id, body = split_frame(data)
        found = self._policy.by_id(schema_id, "AVRO")
        writer, depth = self._readable_of(found)
        if is_bare(writer):
            body = with_size(body)
        stream = io.BytesIO(body)
        try:
            depth.check_bytes(body)
            value: Any = fastavro.schemaless_reader(stream, writer, self._own)
        except Exception as error:
            reason = "not of the Avro schema"
            if isinstance(error, OverflowError) or (isinstance(error, ValueError) and str(error).startswith("year ")):
                reason = "a date or time lies outside of the years 1 to 9999 of Python's datetime"
            raise SerializationError(f"{reason}: {error!r}", schema_id=schema_id) from error
        if left := len(body) - stream.tell():
            raise SerializationError(f"not of the Avro schema: {left} bytes are left", schema_id=schema_id)
        if self._model is None:
            return value  # type: ignore[no-any-return]
        try:
            return self._model.validate_python(value)
        except ValueError as error:
            raise SerializationError(f"the value does not fit the model: {error}", schema_id=schema_id) from error

    def _readable_of(self, found: RegisteredSchema) -> tuple[Any, DepthCheck]:
        known = self._readable.get(found.id)
        if known is None:
            parsed = self._schema_of(found, with_defaults=False)
            known = parsed, DepthCheck(parsed)
            if len(self._readable) >= PARSED_MAX:
                self._readable.clear()
            self._readable[found.id] = known
        return known

    def _writable_of(self, written: RegisteredSchema) -> tuple[Any, DepthCheck, Check | None]:
        """Returns the schema to write by, and the checks of its values."""
        found = self._writable.get(written.id)
        if found is None:
            own = self._own if written.schema == self._schema else self._latest_of(written)
            found = own, DepthCheck(own), check_of(own)
            if len(self._writable) >= PARSED_MAX:
                self._writable.clear()
            self._writable[written.id] = found
        return found

    def _latest_of(self, written: RegisteredSchema) -> Any:  # noqa: ANN401 - as fastavro parsed it
        try:
            return with_default_values(self._schema_of(written, with_defaults=True), LOGICAL_READERS)
        except SerializationError:  # a registry may keep a default that does not fit; whole values need none
            return self._schema_of(written, with_defaults=False)

    def _schema_of(self, found: RegisteredSchema, *, with_defaults: bool) -> Any:  # noqa: ANN401 - as fastavro parsed it
        named: dict[str, Any] = {}
        for _, schema in self._policy.references(found.schema):
            _parsed(document_of(schema.text)[0], named, with_defaults=with_defaults)
        return _parsed(document_of(found.schema.text)[0], named, with_defaults=with_defaults)


def _plain(schema: Any) -> Any:  # noqa: ANN401 - a schema as JSON values or as fastavro parsed it
    """Returns a schema without what fastavro adds when it parses one; the registry would take it for attributes."""
    if isinstance(schema, dict):
        return {key: _plain(each) for key, each in schema.items() if key not in _ADDED}
    return [_plain(each) for each in schema] if isinstance(schema, list) else schema


def _parsed(document: Any, named: dict[str, Any], *, with_defaults: bool = True) -> Any:  # noqa: ANN401 - as fastavro parsed it
    # fastavro keeps referenced types beside a record only; anything else must contain them.
    contains = bool(named) and not (isinstance(document, dict) and document.get("type") == "record")
    try:
        given = document if with_defaults else without_defaults(document)
        return linked(fastavro.parse_schema(given, named_schemas=named, expand=contains))
    except _WRONG_SCHEMA as error:
        raise SerializationError(f"not an Avro schema: {error!r}") from error
