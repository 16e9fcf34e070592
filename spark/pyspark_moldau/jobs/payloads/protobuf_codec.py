"""Protobuf values in Confluent's wire format, decoded by ``protobuf`` with a compiled schema.

The schema file is a descriptor set: ``protoc --include_imports --descriptor_set_out=flight.desc flight.proto``. After
the schema's id stand the message's indexes in its file, as zigzag varints; a single zero byte stands for the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from moldau.serialization.core.message_indexes import message_indexes
from pyspark_moldau.jobs.errors import JobConfigError, PoisonError
from pyspark_moldau.jobs.payloads.framing import read_indexes, split_frame

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_TIMESTAMP = "google.protobuf.Timestamp"
_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}
"""Column types as Spark's own ``from_protobuf`` chooses them; enums are their names."""


class ProtobufDecoder:
    """Decodes values in Confluent's wire format as one message type."""

    def __init__(self, schema: bytes, message: str) -> None:
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(schema)
            pool = descriptor_pool.DescriptorPool()
            for file in files.file:
                pool.Add(file)
            descriptor = pool.FindMessageTypeByName(message)
        except (DecodeError, TypeError) as error:
            raise JobConfigError(
                f"the schema file is no descriptor set: {error}; make one with protoc --include_imports "
                "--descriptor_set_out=FILE"
            ) from error
        except KeyError as error:
            known = [f"{file.package}.{each.name}".lstrip(".") for file in files.file for each in file.message_type]
            raise JobConfigError(f"message: the descriptor set has no {message}; it has {', '.join(known)}") from error
        self._descriptor = descriptor
        self._class = message_factory.GetMessageClass(descriptor)
        self._indexes = message_indexes(descriptor)
        self.type = _struct_of(descriptor, ())

    def decode(self, value: bytes) -> object:
        """Returns one value as the struct's Python form.

        Raises:
            PoisonError: It is not in the wire format, of another message type, or damaged.
        """
        _, rest = split_frame(value)
        indexes, at = read_indexes(rest)
        if indexes != self._indexes:
            raise PoisonError(
                f"message indexes {list(indexes)}: {self._descriptor.full_name} has {list(self._indexes)}"
            )
        try:
            return _values_of(self._class.FromString(rest[at:]))
        except (DecodeError, ValueError, OverflowError) as error:
            raise PoisonError(f"not a {self._descriptor.full_name}: {error}") from error


def _struct_of(descriptor: Descriptor, within: tuple[str, ...]) -> pa.DataType:
    if descriptor.full_name in within:
        raise JobConfigError(f"the message {descriptor.full_name} contains itself; Spark has no such column type")
    if not descriptor.fields:
        raise JobConfigError(f"the message {descriptor.full_name} has no fields, so it makes no column")
    inner = (*within, descriptor.full_name)
    return pa.struct([pa.field(field.name, _field_type(field, inner)) for field in descriptor.fields])


def _field_type(field: FieldDescriptor, within: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_single_type(entry["key"], within), _single_type(entry["value"], within))
    single = _single_type(field, within)
    return pa.list_(single) if field.is_repeated else single


def _single_type(field: FieldDescriptor, within: tuple[str, ...]) -> pa.DataType:
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        return _struct_of(field.message_type, within)
    return _TYPES[field.cpp_type]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _values_of(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of_value = field.message_type.fields_by_name["value"]
            found[field.name] = [(key, _single(of_value, each)) for key, each in value.items()]
        elif field.is_repeated:
            found[field.name] = [_single(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _single(field, value)
    return found


def _single(field: FieldDescriptor, value: Any) -> object:  # noqa: ANN401 - a field's value
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.full_name == _TIMESTAMP:
            return value.seconds * 1_000_000 + value.nanos // 1000
        return _values_of(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
