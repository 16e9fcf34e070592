"""Basic types of serializers: their protocols, the context of a call, and their errors. Pure.

Theory of operation: a serializer performs no I/O. If it needs something from a schema registry that is not in the
registry's cache, it raises ``SchemaNeeded``. The client then asks the registry and calls the serializer again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from moldau.values import Buffer, Portable

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from moldau.cluster.metadata import TopicPartition

    KeyIn = TypeVar("KeyIn", default=Buffer)
    ValueIn = TypeVar("ValueIn", default=Buffer)
    KeyOut = TypeVar("KeyOut", default=bytes)
    ValueOut = TypeVar("ValueOut", default=bytes)
else:  # defaults of type variables are for type checkers only (PEP 696)
    from typing import TypeVar

    KeyIn = TypeVar("KeyIn")
    ValueIn = TypeVar("ValueIn")
    KeyOut = TypeVar("KeyOut")
    ValueOut = TypeVar("ValueOut")

Given = TypeVar("Given", contravariant=True)
Found = TypeVar("Found", covariant=True)
T = TypeVar("T")

Field = Literal["key", "value"]
Headers = tuple[tuple[str, Buffer | None], ...]


@dataclass(frozen=True, slots=True)
class SerializationContext:
    """Where the value of a call belongs."""

    topic: str
    field: Field
    headers: Headers = ()


class Serializer(Protocol[Given]):
    """Turns values into bytes. ``None`` stays ``None``: no serializer receives it."""

    def serialize(self, value: Given, context: SerializationContext) -> Buffer | None:
        """Returns the bytes of a value; any exception becomes a ``SerializationError``."""
        ...


class Deserializer(Protocol[Found]):
    """Turns bytes into values. ``None`` stays ``None``: no deserializer receives it."""

    def deserialize(self, data: bytes, context: SerializationContext) -> Found:
        """Returns the value of the bytes; any exception becomes a ``RecordDeserializationError``."""
        ...


SerializerLike = Serializer[T] | Callable[[T], Buffer | None]
"""A serializer, or a function of the value."""

DeserializerLike = Deserializer[T] | Callable[[bytes], T]
"""A deserializer, or a function of the bytes."""


class SerializationError(Portable, ValueError):
    """A key or value cannot be turned into bytes, or bytes cannot be turned into a value.

    ``subject`` and ``schema_id`` name the schema where a registry is involved and they are known.
    """

    def __init__(self, detail: str, *, subject: str | None = None, schema_id: int | None = None) -> None:
        super().__init__(detail)
        self.subject = subject
        self.schema_id = schema_id


class RecordDeserializationError(SerializationError):
    """A consumed record cannot be deserialized; the consumer's position is the record's offset.

    ``seek`` to ``offset + 1`` skips the record. ``key``, ``value`` and ``headers`` are its bytes (KIP-1036), and
    ``cluster`` is as in ``ConsumedBatch``.
    """

    def __init__(
        self,
        detail: str,
        *,
        field: Field,
        topic_partition: TopicPartition,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        subject: str | None = None,
        schema_id: int | None = None,
    ) -> None:
        super().__init__(detail, subject=subject, schema_id=schema_id)
        self.field = field
        self.topic_partition = topic_partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers
        self.cluster = 0


class RegistryError(Exception):
    """The schema registry refused a request, or did not answer.

    ``status`` is the HTTP status, 0 without an answer; ``code`` is the registry's own, such as 40403. Another server
    at the address has no such codes.
    """

    def __init__(self, detail: str, *, status: int = 0, code: int = 0) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code

    @property
    def is_about_schema(self) -> bool:
        """Whether the registry's answer is about the schema: it is unknown, invalid or incompatible."""
        # A proxy in front of the registry, or a wrong path, answers 404 too, and says nothing about a schema.
        return self.status in (409, 422) or (self.status == 404 and self.code // 100 == 404)

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in (0, 408, 429) or self.status >= 500


class Resolvable(Protocol):
    """A registry that can be asked for what a serializer needs."""

    async def resolve(self, need: object) -> None:
        """Asks the registry and puts the answer into its cache."""


class SchemaNeeded(Exception):
    """Asks the caller to await ``registry.resolve(need)`` and to call the serializer again."""

    def __init__(self, registry: Resolvable, need: object) -> None:
        super().__init__(f"the registry's answer to {need} is not in the cache")
        self.registry = registry
        self.need = need
        self.field: Field = "value"
