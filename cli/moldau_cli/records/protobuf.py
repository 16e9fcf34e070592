"""Protobuf on the command line: messages as values of JSON.

A schema file is a descriptor set: ``protoc --include_imports --descriptor_set_out=flight.desc flight.proto``. A
registry must hold descriptors, as Moldau's clients register them, because ``.proto`` texts would need a compiler.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from typing import TYPE_CHECKING, Any

from moldau_cli.errors import UsageError
from moldau_cli.records.schemas import PARSED_MAX, read_schema, serde_of

if TYPE_CHECKING:
    from moldau.serialization import SerializationContext
    from moldau.serialization.registry import SchemaRegistry
    from moldau_cli.records.formats import Encoding


_STANDARD = ("any", "descriptor", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
"""Files of Google's that a registry knows by itself, so that schemas name them as no references."""


def _message_of(value: object, message_class: Any) -> Any:  # noqa: ANN401 - a generated class, and a message of it
    """Returns the message that a value of JSON describes."""
    from google.protobuf import json_format

    return json_format.ParseDict(value, message_class())


def _values_of(message: Any) -> object:  # noqa: ANN401 - a message of any class
    from google.protobuf import json_format

    found: object = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


class _BareProtobuf:
    """Protobuf messages without a header."""

    def __init__(self, message_class: Any) -> None:  # noqa: ANN401 - a generated class
        self._class = message_class

    def serialize(self, value: object, context: SerializationContext) -> bytes:
        """Returns the bytes of a message."""
        written: bytes = _message_of(value, self._class).SerializeToString()
        return written

    def deserialize(self, data: bytes, context: SerializationContext) -> object:
        """Returns a message as a value of JSON."""
        return _values_of(self._class.FromString(data))


class _RegisteredProtobuf:
    """Messages of one class in Confluent's wire format."""

    def __init__(self, serde: Any, message_class: Any) -> None:  # noqa: ANN401 - a ProtobufSerde, and its class
        self._serde = serde
        self._class = message_class

    def serialize(self, value: object, context: SerializationContext) -> bytes:
        """Returns header, message indexes and the bytes of a message."""
        written: bytes = self._serde.serialize(_message_of(value, self._class), context)
        return written

    def deserialize(self, data: bytes, context: SerializationContext) -> object:
        """Returns a message as a value of JSON."""
        return _values_of(self._serde.deserialize(data, context))


class _RegistryProtobuf:
    """Messages in Confluent's wire format, of the classes that the registry describes."""

    def __init__(self, registry: SchemaRegistry) -> None:
        from moldau.serialization.core.subjects import SubjectPolicy

        self._policy = SubjectPolicy(registry, None)
        self._classes: dict[tuple[int, tuple[int, ...]], Any] = {}

    def deserialize(self, data: bytes, context: SerializationContext) -> object:
        """Returns a message as a value of JSON; asks for its schema where that is not known yet."""
        from moldau.serialization.core.wire_format import read_indexes, split_frame

        schema_id, rest = split_frame(data)
        indexes, at = read_indexes(rest)
        known = self._classes.get((schema_id, indexes))
        if known is None:
            known = self._class_of(schema_id, indexes)
            if len(self._classes) >= PARSED_MAX:
                self._classes.clear()
            self._classes[schema_id, indexes] = known
        return _values_of(known.FromString(rest[at:]))

    def _class_of(self, schema_id: int, indexes: tuple[int, ...]) -> Any:  # noqa: ANN401 - a generated class
        from google.protobuf import descriptor_pb2

        found = self._policy.by_id(schema_id, "PROTOBUF").schema
        imported: dict[str, Any] = {}  # by name: two subjects may hold the same file
        for _, schema in self._policy.references(found):
            file = _file_of(schema.text, schema_id)
            imported.setdefault(file.name, file)
        own = _file_of(found.text, schema_id)
        files = descriptor_pb2.FileDescriptorSet(file=[*imported.values(), own])
        return _class_in(files, _name_at(own, indexes), f"schema {schema_id}")


def _file_of(text: str, schema_id: int) -> Any:  # noqa: ANN401 - a FileDescriptorProto
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise ValueError(
            f"the registry holds schema {schema_id} as .proto text; give a descriptor set and a message name"
        ) from error


def _name_at(file: Any, indexes: tuple[int, ...]) -> str:  # noqa: ANN401 - a FileDescriptorProto
    messages, names = file.message_type, [file.package] if file.package else []
    for index in indexes:
        if not 0 <= index < len(messages):
            raise ValueError(f"{file.name} has no message at {list(indexes)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _class_in(files: Any, name: str, origin: str) -> Any:  # noqa: ANN401 - a FileDescriptorSet, and a generated class
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    present = {file.name for file in files.file}
    for module in _STANDARD:
        known = importlib.import_module(f"google.protobuf.{module}_pb2")
        if known.DESCRIPTOR.name not in present:
            pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    try:
        for file in files.file:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except TypeError as error:
        raise UsageError(f"{origin}: the descriptors do not fit together: {error}; use --include_imports") from error
    except KeyError as error:
        known_names = [f"{file.package}.{each.name}".lstrip(".") for file in files.file for each in file.message_type]
        raise UsageError(f"{origin} has no message {name}; it has {', '.join(known_names)}") from error


def _message_class(encoding: Encoding) -> Any:  # noqa: ANN401 - a generated class
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    assert encoding.schema is not None, "the options were checked"
    option = f"--{encoding.field}-schema"
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(read_schema(encoding.schema, option))
    except DecodeError as error:
        raise UsageError(
            f"{option}: {encoding.schema} is no descriptor set; make one with protoc --include_imports "
            "--descriptor_set_out=FILE"
        ) from error
    names = [f"{file.package}.{each.name}".lstrip(".") for file in files.file for each in file.message_type]
    if encoding.message is None and len(names) != 1:
        raise UsageError(f"--{encoding.field}-message is missing; {encoding.schema} has {', '.join(names) or 'none'}")
    return _class_in(files, encoding.message or names[0], str(encoding.schema))


def reader_of(encoding: Encoding, registry: SchemaRegistry | None) -> object:
    """Returns the deserializer of a field.

    Raises:
        UsageError: the descriptor set cannot be used.
    """
    if registry is None:
        return _BareProtobuf(_message_class(encoding))
    if encoding.schema is None:
        return _RegistryProtobuf(registry)
    return writer_of(encoding, registry, None, None)


def writer_of(
    encoding: Encoding, registry: SchemaRegistry | None, latest: str | None, config: dict[str, str] | None
) -> object:
    """Returns the serializer of a field; ``latest`` is the registry's schema where no file is given.

    Raises:
        UsageError: the descriptor set cannot be used.
    """
    if registry is None:
        return _BareProtobuf(_message_class(encoding))
    if encoding.schema is not None:
        message = _message_class(encoding)
    else:
        from google.protobuf import descriptor_pb2

        assert latest is not None, "the latest version was asked for"
        file = _file_of(latest, 0)
        message = _class_in(descriptor_pb2.FileDescriptorSet(file=[file]), encoding.message or _name_at(file, (0,)), "")
    return _RegisteredProtobuf(serde_of(encoding, "ProtobufSerde", registry, message, config=config), message)
