"""Serialization of whole records: the key's and the value's serializer, with errors that name the record's place. Pure.

``RecordEncoder`` and ``RecordDecoder`` raise ``SchemaNeeded`` while a registry's answer is missing; the client gets it
and calls again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from moldau.cluster import arguments
from moldau.cluster.arguments import shortened, shown
from moldau.serialization.core.values import (
    RecordDeserializationError,
    SchemaNeeded,
    SerializationContext,
    SerializationError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau.cluster.metadata import TopicPartition
    from moldau.records import Record
    from moldau.serialization.core.values import Deserializer, Field, RegistryError, Serializer
    from moldau.values import Buffer


class _Function:
    """A function in the place of a serializer or deserializer."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def serialize(self, value: Any, context: SerializationContext) -> Any:  # noqa: ANN401 - the function's types
        return self._function(value)

    def deserialize(self, data: bytes, context: SerializationContext) -> Any:  # noqa: ANN401 - the function's type
        return self._function(data)


def _checked(client: str, name: str, given: object, method: str) -> Any:  # noqa: ANN401 - one of two protocols
    if given is None:
        return None
    if isinstance(given, type):
        raise TypeError(f"{client}: {name} is the class {given.__name__}; pass an object of it: {given.__name__}(...)")
    arguments.check_no_coroutine(f"{client}: {name}", getattr(given, method, given))
    if callable(getattr(given, method, None)):
        return given
    if callable(given):
        return _Function(given)
    raise TypeError(f"{client}: {name} must be an object with {method}(), or a function, not {shown(given)}")


class RecordEncoder:
    """Serializes keys and values of the records of one producer."""

    def __init__(self, key: Serializer[Any] | None, value: Serializer[Any] | None) -> None:
        self._key = key
        self._value = value

    @staticmethod
    def of(key: object, value: object) -> RecordEncoder | None:
        """Returns the encoder of a producer's serializers, None if there are none.

        Raises:
            TypeError: one of them is no serializer and no function.
        """
        if key is None and value is None:
            return None
        return RecordEncoder(
            _checked("Producer", "key_serializer", key, "serialize"),
            _checked("Producer", "value_serializer", value, "serialize"),
        )

    def encode(
        self, topic: str, key: object, value: object, headers: Iterable[tuple[str, Buffer | None]]
    ) -> tuple[Buffer | None, Buffer | None]:
        """Returns the bytes of key and value.

        Raises:
            SchemaNeeded: the caller asks the registry and calls again.
            SerializationError: key or value cannot be serialized.
        """
        arguments.text("send", "topic", topic)
        given = tuple(headers)
        return (
            _serialized(self._key, key, SerializationContext(topic, "key", given)),
            _serialized(self._value, value, SerializationContext(topic, "value", given)),
        )


def _serialized(serializer: Serializer[Any] | None, value: object, context: SerializationContext) -> Buffer | None:
    if serializer is None or value is None:
        return cast("Buffer | None", value)  # ``send`` checks it as without serializers
    try:
        return serializer.serialize(value, context)
    except SchemaNeeded:
        raise
    except Exception as error:
        detail = f"{context.topic}: the {context.field} {shortened(value)} cannot be serialized{_why(error)}"
        raise _with_schema(SerializationError(detail), error) from error


def unregistered(topic: str, error: RegistryError) -> SerializationError:
    """Returns the error of a record whose schema the registry does not know or refuses."""
    return SerializationError(f"{topic}: the record cannot be serialized: {error}")


def _why(error: Exception) -> str:
    text = f": {error}" if isinstance(error, SerializationError) else f": {type(error).__name__}: {error}"
    found = _with_schema(SerializationError(""), error)
    if found.subject is not None:
        text += f" (subject {found.subject})"
    if found.schema_id is not None:
        text += f" (schema id {found.schema_id})"
    return text


def _with_schema(made: SerializationError, cause: Exception) -> SerializationError:
    if isinstance(cause, SerializationError):
        made.subject, made.schema_id = cause.subject, cause.schema_id
    return made


class RecordDecoder:
    """Deserializes keys and values of the records of one consumer."""

    def __init__(self, key: Deserializer[Any] | None, value: Deserializer[Any] | None) -> None:
        self._key = key
        self._value = value

    @staticmethod
    def of(key: object, value: object) -> RecordDecoder | None:
        """Returns the decoder of a consumer's deserializers, None if there are none.

        Raises:
            TypeError: one of them is no deserializer and no function.
        """
        if key is None and value is None:
            return None
        return RecordDecoder(
            _checked("Consumer", "key_deserializer", key, "deserialize"),
            _checked("Consumer", "value_deserializer", value, "deserialize"),
        )

    def decode(self, partition: TopicPartition, record: Record) -> tuple[object, object]:
        """Returns key and value of a record.

        Raises:
            SchemaNeeded: the caller asks the registry and calls again.
            RecordDeserializationError: key or value cannot be deserialized.
        """
        return (
            self._deserialized(self._key, "key", record.key, partition, record),
            self._deserialized(self._value, "value", record.value, partition, record),
        )

    def _deserialized(
        self,
        deserializer: Deserializer[Any] | None,
        field: Field,
        data: bytes | None,
        partition: TopicPartition,
        record: Record,
    ) -> object:
        if deserializer is None or data is None:
            return data
        try:
            return deserializer.deserialize(data, SerializationContext(partition.topic, field, record.headers))
        except SchemaNeeded as needed:
            needed.field = field
            raise
        except Exception as error:
            raise undecodable(partition, record, field, error) from error


def undecodable(
    partition: TopicPartition, record: Record, field: Field, cause: Exception
) -> RecordDeserializationError:
    """Returns the error of a consumed record; ``cause`` says what is wrong with its ``field``."""
    place = f"{partition.topic}-{partition.partition} at offset {record.offset}"
    made = RecordDeserializationError(
        f"{place}: the {field} cannot be deserialized{_why(cause)}; seek to {record.offset + 1} to skip the record",
        field=field,
        topic_partition=partition,
        offset=record.offset,
        timestamp=record.timestamp,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )
    _with_schema(made, cause)
    return made


def unreadable(partition: TopicPartition, record: Record, needed: SchemaNeeded, cause: Exception) -> SerializationError:
    """Returns the error of a consumed record whose schema the registry does not have."""
    made = undecodable(partition, record, needed.field, cause)
    made.schema_id = getattr(needed.need, "id", None)
    made.subject = getattr(needed.need, "subject", None)
    return made
