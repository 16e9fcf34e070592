"""JSON values with a JSON Schema, in Confluent's wire format; ``fastjsonschema`` or a pydantic model validates them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Generic, overload

from moldau.serialization.core.plain import no_constant
from moldau.serialization.core.registry_requests import Schema
from moldau.serialization.core.subjects import SubjectPolicy, document_of
from moldau.serialization.core.values import SerializationError, T
from moldau.serialization.core.wire_format import frame, split_frame

try:
    import fastjsonschema
except ImportError as error:
    raise ImportError("JsonSchemaSerde needs fastjsonschema: pip install 'moldau[registry]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import TypeAdapter

    from moldau.runtime.config import Config
    from moldau.serialization.core.values import SerializationContext
    from moldau.serialization.registry import SchemaRegistry


class JsonSchemaSerde(Generic[T]):
    """Writes and reads JSON values that fit a schema.

    With a schema, values are those of ``json``, and drafts 4, 6 and 7 are checked. With a ``model`` the schema is the
    model's, values are objects of it, and pydantic checks them.
    """

    @overload
    def __init__(
        self: JsonSchemaSerde[Any],
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any],
        *,
        config: Mapping[str, object] | Config | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        registry: SchemaRegistry,
        schema: None = None,
        *,
        model: type[T],
        config: Mapping[str, object] | Config | None = None,
    ) -> None: ...

    def __init__(
        self,
        registry: SchemaRegistry,
        schema: str | Mapping[str, Any] | None = None,
        *,
        model: type[T] | None = None,
        config: Mapping[str, object] | Config | None = None,
    ) -> None:
        """Takes either the schema, as JSON text or parsed JSON, or the model.

        Raises:
            SerializationError: the text is no JSON Schema.
            TypeError: not exactly one of schema and model is given.
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        if (schema is None) == (model is None):
            raise TypeError("JsonSchemaSerde takes either a schema or a model")
        self._policy = SubjectPolicy(registry, config)
        self._model: TypeAdapter[T] | None = None
        self._validate: Callable[[Any], Any] | None = None
        if model is not None:
            from moldau.serialization.models import adapter_of, json_schema_of

            self._model = adapter_of(model)
            schema = json_schema_of(self._model)
        assert schema is not None
        document, text = document_of(schema)
        self._schema = Schema(text, "JSON")
        self._name = document.get("title") if isinstance(document, dict) else None
        if self._model is None:
            try:
                self._validate = fastjsonschema.compile(document)
            except fastjsonschema.JsonSchemaDefinitionException as error:
                raise SerializationError(f"the JSON Schema is wrong: {error}") from error

    def serialize(self, value: T, context: SerializationContext) -> bytes:
        """Returns header and JSON text of a value.

        Raises:
            SerializationError: the value does not fit the schema or the model.
        """
        written = self._policy.writer(context, self._schema, self._name)
        try:
            if self._model is not None:
                return frame(written.id) + self._model.dump_json(self._model.validate_python(value))
            text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            self._check(json.loads(text))
            return frame(written.id) + text.encode()
        except (ValueError, TypeError, RecursionError) as error:
            raise SerializationError(
                f"it does not fit the JSON Schema: {error}", subject=written.subject, schema_id=written.id
            ) from error

    def deserialize(self, data: bytes, context: SerializationContext) -> T:
        """Returns a value that fits the serde's own schema or model; the writer's schema is not asked for.

        Raises:
            SerializationError: it does not fit, or is no JSON.
        """
        schema_id, text = split_frame(data)
        try:
            if self._model is not None:
                return self._model.validate_json(text)
            value: Any = json.loads(text, parse_constant=no_constant)
            self._check(value)
            return value  # type: ignore[no-any-return]
        except (ValueError, TypeError, RecursionError) as error:
            raise SerializationError(f"it does not fit the JSON Schema: {error}", schema_id=schema_id) from error

    def _check(self, value: object) -> None:
        assert self._validate is not None
        try:
            self._validate(value)
        except fastjsonschema.JsonSchemaValueException as error:
            raise ValueError(error.message) from error
