"""The subject under which a schema is registered, and the serializer's way to a schema's id. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

from moldau.runtime.config import SERIALIZER_CONFIG, Config
from moldau.serialization.core.registry_requests import (
    LookUpSchema,
    RegisteredSchema,
    RegisterSchema,
    Schema,
    SchemaById,
    SubjectVersion,
)
from moldau.serialization.core.values import SerializationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from moldau.serialization.core.registry_requests import Need
    from moldau.serialization.core.values import SerializationContext

DEPTH_MAX = 20
"""Levels of references that a schema may have. Real ones have a few; a circle would never end."""
REFERENCES_MAX = 1000
"""Versions of subjects that a serializer keeps because schemas refer to them."""


class KnownSchemas(Protocol):
    """The cache of a schema registry."""

    def known(self, need: Need) -> RegisteredSchema:
        """Returns the registry's answer.

        Raises:
            SchemaNeeded: it is not in the cache.
        """
        ...


class SubjectPolicy:
    """Chooses the subject of a value and finds the schema to write it with, as the configuration says."""

    def __init__(self, registry: KnownSchemas, config: Mapping[str, object] | Config | None) -> None:
        """Takes the keys of ``SERIALIZER_CONFIG``.

        Raises:
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        parsed = config if isinstance(config, Config) else SERIALIZER_CONFIG.parse(config or {})
        self._registry = registry
        self._strategy = parsed.get_str("subject.name.strategy")
        self._registers = parsed.get_bool("auto.register.schemas")
        self._uses_latest = parsed.get_bool("use.latest.version")
        self._normalizes = parsed.get_bool("normalize.schemas")
        self._referred: dict[SubjectVersion, Schema] = {}

    @property
    def uses_latest(self) -> bool:
        """Whether values are written with the latest schema of their subject."""
        return self._uses_latest

    def subject(self, context: SerializationContext, record_name: str | None) -> str:
        """Returns the subject of a value.

        Raises:
            SerializationError: the strategy needs the name of a record, and the schema has none.
        """
        if self._strategy == "TopicNameStrategy":
            return f"{context.topic}-{context.field}"
        if not record_name:
            raise SerializationError(
                f"subject.name.strategy = {self._strategy} needs a schema with a record's name (JSON Schema: a title)"
            )
        return record_name if self._strategy == "RecordNameStrategy" else f"{context.topic}-{record_name}"

    def writer(self, context: SerializationContext, schema: Schema, record_name: str | None) -> RegisteredSchema:
        """Returns the registered schema with which a value of ``schema`` is written.

        Raises:
            SerializationError: the latest schema is of another type, or has rules that this client does not know.
        """
        subject = self.subject(context, record_name)
        return self.latest(subject, schema.type) if self._uses_latest else self.registered(subject, schema)

    def latest(self, subject: str, kind: str) -> RegisteredSchema:
        """Returns the latest schema of a subject, of which it was asked for last.

        Raises:
            SerializationError: it is of another type than ``kind``, or has rules that this client does not know.
        """
        found = self._registry.known(SubjectVersion(subject))
        problem = ""
        if found.schema.type != kind:
            problem = f"is of type {found.schema.type}, not {kind}"
        elif found.has_write_rules:
            problem = "has rules for its writers, such as encryption, which this client does not carry out"
        if problem:
            raise SerializationError(f"the latest schema {problem}", subject=subject, schema_id=found.id)
        return found

    def registered(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Returns a schema with its id; registers it first where the configuration allows that."""
        if self._registers:
            return self._registry.known(RegisterSchema(subject, schema, self._normalizes))
        return self._registry.known(LookUpSchema(subject, schema, self._normalizes))

    def reference_version(self, subject: str, schema: Schema) -> int:
        """Returns the version of a schema that another one refers to; registers it where that is allowed."""
        self.registered(subject, schema)
        found = self._registry.known(LookUpSchema(subject, schema, self._normalizes)).version
        assert found is not None, "an answer to LookUpSchema has a version"
        return found

    def by_id(self, schema_id: int, kind: str) -> RegisteredSchema:
        """Returns the schema with an id.

        Raises:
            SerializationError: it is of another type than ``kind``.
        """
        found = self._registry.known(SchemaById(schema_id))
        if found.schema.type != kind:
            raise SerializationError(
                f"schema {schema_id} is of type {found.schema.type}, not {kind}", schema_id=schema_id
            )
        return found

    def references(self, schema: Schema) -> Iterator[tuple[str, Schema]]:
        """Yields name and schema of each schema that is referred to, once each, those of deeper levels first.

        Raises:
            SerializationError: there are more than ``DEPTH_MAX`` levels.
        """
        return self._references(schema, 0, set())

    def _references(self, schema: Schema, depth: int, met: set[SubjectVersion]) -> Iterator[tuple[str, Schema]]:
        if depth > DEPTH_MAX:
            raise SerializationError(f"the schema has more than {DEPTH_MAX} levels of references")
        for each in schema.references:
            need = SubjectVersion(each.subject, each.version, with_deleted=True)
            if need in met:
                continue
            met.add(need)
            found = self._referred_schema(need)
            yield from self._references(found, depth + 1, met)
            yield each.name, found

    def _referred_schema(self, need: SubjectVersion) -> Schema:
        # Kept here too: a small cache of the registry may not hold all references of one schema at a time.
        found = self._referred.get(need)
        if found is None:
            found = self._registry.known(need).schema
            if len(self._referred) >= REFERENCES_MAX:
                self._referred.clear()
            self._referred[need] = found
        return found


def document_of(schema: str | Mapping[str, Any] | list[Any]) -> tuple[Any, str]:
    """Returns a schema given as JSON text or as Python values in both forms.

    Raises:
        SerializationError: it is no JSON, or is nested too deeply.
    """
    try:
        return (json.loads(schema), schema) if isinstance(schema, str) else (schema, json.dumps(schema))
    except (ValueError, TypeError, RecursionError) as error:
        raise SerializationError(f"the schema is no JSON: {error}") from error
