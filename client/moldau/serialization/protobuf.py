"""Protobuf messages in Confluent's wire format, with Google's ``protobuf``.

The registry gets the descriptor of the message's file, in base64, and each imported file as a schema of its own under
its file name. It takes such schemas beside ``.proto`` texts, so no compiler is needed when a program runs.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Generic, TypeVar

from moldau.serialization.core.message_indexes import message_indexes, messages_of_file, messages_of_text
from moldau.serialization.core.registry_requests import Schema, SchemaReference
from moldau.serialization.core.subjects import DEPTH_MAX, SubjectPolicy
from moldau.serialization.core.values import SerializationError
from moldau.serialization.core.wire_format import frame, read_indexes, split_frame, write_indexes

try:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError, EncodeError, Message
except ImportError as error:
    raise ImportError("ProtobufSerde needs protobuf: pip install 'moldau[registry]'") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import Descriptor, FileDescriptor

    from moldau.runtime.config import Config
    from moldau.serialization.core.message_indexes import Messages
    from moldau.serialization.core.registry_requests import RegisteredSchema
    from moldau.serialization.core.values import SerializationContext
    from moldau.serialization.registry import SchemaRegistry

M = TypeVar("M", bound="Message")

_KNOWN_PREFIXES = ("google/protobuf/", "google/type/", "confluent/")
"""Files that every registry knows; they are no references."""
FILES_MAX = 1000
"""Files of the registry whose messages a serde keeps."""


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
        self._messages: dict[int, Messages] = {}

    def serialize(self, value: M, context: SerializationContext) -> bytes:
        """Returns header, message indexes and the bytes of a message.

        Raises:
            SerializationError: it is of another class, or lacks required fields, or the latest schema has no such
                message.
        """
        if not isinstance(value, self._class):
            raise SerializationError(f"it must be a {self._name}, not a {type(value).__name__}")
        written = self._written(context)
        head = self._head_in(written) if self._policy.uses_latest else self._head
        try:
            body: bytes = value.SerializeToString()
            return frame(written.id) + head + body
        except EncodeError as error:
            raise SerializationError(str(error), subject=written.subject, schema_id=written.id) from error

    def _written(self, context: SerializationContext) -> RegisteredSchema:
        if self._policy.uses_latest:  # nothing is registered then, nor are the imports
            return self._policy.latest(self._policy.subject(context, self._name), "PROTOBUF")
        if self._schema is None:
            self._schema = self._schema_of(self._file, 0)
        return self._policy.writer(context, self._schema, self._name)

    def deserialize(self, data: bytes, context: SerializationContext) -> M:
        """Returns a message; the writer's schema is asked for only if the message has another place in it.

        Raises:
            SerializationError: the bytes hold another message of the schema, or are damaged.
        """
        schema_id, rest = split_frame(data)
        indexes, at = read_indexes(rest)
        if indexes != self._indexes and indexes != self._indexes_in(schema_id):
            raise SerializationError(
                f"message indexes {list(indexes)}: {self._name} has {list(self._indexes)}", schema_id=schema_id
            )
        try:
            message: M = self._class.FromString(rest[at:])
            return message
        except DecodeError as error:
            raise SerializationError(f"not a {self._name}: {error}", schema_id=schema_id) from error

    def _head_in(self, latest: RegisteredSchema) -> bytes:
        """Returns the indexes of the message in the latest file, which may have others in front of it.

        Raises:
            SerializationError: the latest file does not have it.
        """
        found = self._messages_of(latest).get(self._name)
        if found is None:
            raise SerializationError(
                f"the latest schema has no message {self._name}", subject=latest.subject, schema_id=latest.id
            )
        return write_indexes(found)

    def _indexes_in(self, schema_id: int) -> tuple[int, ...] | None:
        """Returns the indexes of the message in the file of a writer; None if that does not have it."""
        known = self._messages.get(schema_id)
        if known is None:
            known = self._messages_of(self._policy.by_id(schema_id, "PROTOBUF"))
        return known.get(self._name)

    def _messages_of(self, found: RegisteredSchema) -> Messages:
        messages = self._messages.get(found.id)
        if messages is None:
            messages = _messages_in(found.schema.text)
            if len(self._messages) >= FILES_MAX:
                self._messages.clear()
            self._messages[found.id] = messages
        return messages  # another thread may have cleared them since

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


def _messages_in(text: str) -> Messages:
    """Returns the messages of a schema: a file as its descriptor in base64, or as ``.proto`` text."""
    try:
        return messages_of_file(FileDescriptorProto.FromString(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, DecodeError):
        return messages_of_text(text)
