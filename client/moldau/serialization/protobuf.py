"""Protobuf messages in Confluent's wire format, with Google's ``protobuf``.

The registry gets the descriptor of the message's file, in base64, and each imported file as a schema of its own under
its file name. It takes such schemas beside ``.proto`` texts, so no compiler is needed when a program runs.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Generic, TypeVar

from moldau.serialization.core.message_indexes import message_indexes
from moldau.serialization.core.registry_requests import Schema, SchemaReference
from moldau.serialization.core.subjects import DEPTH_MAX, SubjectPolicy
from moldau.serialization.core.values import SerializationError
from moldau.serialization.core.wire_format import frame, read_indexes, split_frame, write_indexes

try:
    from google.protobuf.message import DecodeError, EncodeError, Message
except ImportError as error:
    raise ImportError("ProtobufSerde needs protobuf: pip install 'moldau[registry]'") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor, FileDescriptor

    from moldau.runtime.config import Config
    from moldau.serialization.core.registry_requests import RegisteredSchema
    from moldau.serialization.core.values import SerializationContext
    from moldau.serialization.registry import SchemaRegistry

M = TypeVar("M", bound="Message")

_KNOWN_PREFIXES = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every registry knows; they are no references."""


class ProtobufSerde(Generic[M]):
    """Writes and reads messages of one generated class."""

    def __init__(
        self, registry: SchemaRegistry, message: type[M], *, config: Mapping[str, object] | Config | None = None
    ) -> None:
        """Takes the generated class.

        Raises:
            TypeError: it is no class of messages.
            ConfigError: a key is unknown or has a value that is not allowed.
        """
        if not isinstance(message, type) or not issubclass(message, Message):
            raise TypeError(f"ProtobufSerde: message must be a generated class of messages, not {message!r}")
        self._class = message
        self._policy = SubjectPolicy(registry, config)
        descriptor: Descriptor = message.DESCRIPTOR
        self._name = descriptor.full_name
        self._file: FileDescriptor = descriptor.file
        self._indexes = message_indexes(descriptor)
        self._head = write_indexes(self._indexes)
        self._schema: Schema | None = None
        self._imported: dict[str, int] = {}

    def serialize(self, value: M, context: SerializationContext) -> bytes:
        """Returns header, message indexes and the bytes of a message.

        Raises:
            SerializationError: it is of another class, or lacks required fields.
        """
        if not isinstance(value, self._class):
            raise SerializationError(f"it must be a {self._name}, not a {type(value).__name__}")
        written = self._written(context)
        try:
            body: bytes = value.SerializeToString()
            return frame(written.id) + self._head + body
        except EncodeError as error:
            raise SerializationError(str(error), subject=written.subject, schema_id=written.id) from error

    def _written(self, context: SerializationContext) -> RegisteredSchema:
        if self._policy.uses_latest:  # nothing is registered then, nor are the imports
            return self._policy.latest(self._policy.subject(context, self._name), "PROTOBUF")
        if self._schema is None:
            self._schema = self._schema_of(self._file, 0)
        return self._policy.writer(context, self._schema, self._name)

    def deserialize(self, data: bytes, context: SerializationContext) -> M:
        """Returns a message; the writer's schema is not asked for.

        Raises:
            SerializationError: the bytes hold another message of the schema, or are damaged.
        """
        schema_id, rest = split_frame(data)
        indexes, at = read_indexes(rest)
        if indexes != self._indexes:
            raise SerializationError(
                f"message indexes {list(indexes)}: {self._name} has {list(self._indexes)}", schema_id=schema_id
            )
        try:
            message: M = self._class.FromString(rest[at:])
            return message
        except DecodeError as error:
            raise SerializationError(f"not a {self._name}: {error}", schema_id=schema_id) from error

    def _schema_of(self, file: FileDescriptor, depth: int) -> Schema:
        """Returns the schema of a file after its imports are registered."""
        if depth > DEPTH_MAX:
            raise SerializationError(f"{self._file.name} has more than {DEPTH_MAX} levels of imports")
        references = []
        for each in file.dependencies:
            if not each.name.startswith(_KNOWN_PREFIXES):
                version = self._imported.get(each.name)
                if version is None:
                    version = self._policy.reference_version(each.name, self._schema_of(each, depth + 1))
                    self._imported[each.name] = version
                references.append(SchemaReference(each.name, each.name, version))
        return Schema(base64.standard_b64encode(file.serialized_pb).decode("ascii"), "PROTOBUF", tuple(references))
