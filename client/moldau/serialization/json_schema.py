"""JSON values with a JSON Schema, in Confluent's wire format; ``fastjsonschema`` or a pydantic model validates them."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, overload

from moldau.serialization.core.plain import json_bytes, json_encoder, json_value
from moldau.serialization.core.registry_requests import Schema
from moldau.serialization.core.subjects import SubjectPolicy, document_of
from moldau.serialization.core.values import SerializationError, T
from moldau.serialization.core.wire_format import frame, split_frame
from moldau.serialization.json_validation import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pydantic import TypeAdapter

    from moldau.runtime.config import Config
    from moldau.serialization.core.registry_requests import RegisteredSchema
    from moldau.serialization.core.values import SerializationContext
    from moldau.serialization.registry import SchemaRegistry


COMPILED_MAX = 1000
"""Latest schemas of subjects that a serde keeps in compiled form."""


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
        self._validate: Callable[[Any], None] | None = None
        self._compiled: dict[int, Callable[[Any], None]] = {}
        self._json_of: Callable[[T], bytes] = partial(json_bytes, encoder=json_encoder())
        if model is not None:
            from moldau.serialization.models import adapter_of, json_of, json_schema_of

            self._model = adapter_of(model)
            self._json_of = partial(json_of, self._model)
            schema = json_schema_of(self._model)
        assert schema is not None
        document, text = document_of(schema)
        self._schema = Schema(text, "JSON")
        self._name = document.get("title") if isinstance(document, dict) else None
        if self._model is None:
            self._validate = compiled(document)

    def serialize(self, value: T, context: SerializationContext) -> bytes:
        """Returns header and JSON text of a value.

        Raises:
            SerializationError: the value does not fit the schema or the model.
        """
        written = self._policy.writer(context, self._schema, self._name)
        checks = self._checks_of(written)
        try:
            data = self._json_of(value)
            if checks:
                plain = json.loads(data)
                for check in checks:
                    check(plain)
            return frame(written.id) + data
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
            value: Any = json_value(text)
            assert self._validate is not None, "a serde has a model or a schema"
            self._validate(value)
            return value  # type: ignore[no-any-return]
        except (ValueError, TypeError, RecursionError) as error:
            raise SerializationError(f"it does not fit the JSON Schema: {error}", schema_id=schema_id) from error

    def _checks_of(self, written: RegisteredSchema) -> list[Callable[[Any], None]]:
        """Returns the checks of a value before it is written: of the serde's own schema, and of the latest one."""
        checks = [] if self._validate is None else [self._validate]
        if written.schema.text == self._schema.text:
            return checks
        latest = self._compiled.get(written.id)
        if latest is None:
            references = self._policy.references(written.schema)
            # Formats are checked by the serde's own schema, as its author meant them.
            latest = compiled(document_of(written.schema.text)[0], references, with_formats=False)
            if len(self._compiled) >= COMPILED_MAX:
                self._compiled.clear()
            self._compiled[written.id] = latest
        return [*checks, latest]
