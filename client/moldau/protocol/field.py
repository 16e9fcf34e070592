"""Fields of messages: wire type, the versions that carry them, nullability, tag and default.

Each function returns a `FieldSpec` that the metaclass of `moldau.protocol.schema.Struct` collects; its declared
return type is the type of the value, so that a table reads and type-checks like a dataclass with defaults::

    class FetchTopic(Struct):
        topic: str = field.string("4-12")
        topic_id: UUID = field.uuid("13+")
        partitions: Sequence[FetchPartition] = field.array(FetchPartition, "4+")

A field with a ``tag`` is carried in the tagged section of every version that has it (KIP-482) and left out when it
equals its default. Defaults are Kafka's. Fields absent from a version decode to their default and are dropped when
encoding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID

from moldau.protocol.versions import VersionRange, parse_versions
from moldau.values import ZERO_UUID, Buffer

if TYPE_CHECKING:
    from moldau.protocol.schema import Struct

S = TypeVar("S", bound="Struct")


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One row of a message table.

    ``kind`` is a wire type (``"int32"``, ``"string"``, ``"struct"`` ...); with ``is_array`` it is the type of the
    elements.
    """

    kind: str
    versions: VersionRange
    nullable: VersionRange
    tag: int | None
    default: object
    is_array: bool = False
    struct: "type[Struct] | None" = None


def _spec(
    kind: str,
    versions: str,
    default: object,
    tag: int | None,
    nullable: str | None = None,
    *,
    is_array: bool = False,
    struct: "type[Struct] | None" = None,
) -> Any:  # noqa: ANN401  # the public functions below state the value's type
    return FieldSpec(kind, parse_versions(versions), parse_versions(nullable), tag, default, is_array, struct)


def boolean(versions: str, *, default: bool = False, tag: int | None = None) -> bool:
    """Declares one byte, 0 or 1."""
    value: bool = _spec("bool", versions, default, tag)
    return value


def int8(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declares a signed integer of 8 bits."""
    value: int = _spec("int8", versions, default, tag)
    return value


def int16(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declares a signed integer of 16 bits."""
    value: int = _spec("int16", versions, default, tag)
    return value


def uint16(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declares an unsigned integer of 16 bits."""
    value: int = _spec("uint16", versions, default, tag)
    return value


def int32(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declares a signed integer of 32 bits."""
    value: int = _spec("int32", versions, default, tag)
    return value


def uint32(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declares an unsigned integer of 32 bits."""
    value: int = _spec("uint32", versions, default, tag)
    return value


def int64(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declares a signed integer of 64 bits."""
    value: int = _spec("int64", versions, default, tag)
    return value


def float64(versions: str, *, default: float = 0.0, tag: int | None = None) -> float:
    """Declares a floating-point number of 64 bits (IEEE 754)."""
    value: float = _spec("float64", versions, default, tag)
    return value


def uuid(versions: str, *, default: UUID = ZERO_UUID, tag: int | None = None) -> UUID:
    """Declares a UUID of 16 bytes."""
    value: UUID = _spec("uuid", versions, default, tag)
    return value


@overload
def string(versions: str, *, default: str = "", tag: int | None = None) -> str: ...
@overload
def string(versions: str, *, nullable: str, default: str | None = "", tag: int | None = None) -> str | None: ...
def string(
    versions: str, *, nullable: str | None = None, default: str | None = "", tag: int | None = None
) -> str | None:
    """Declares a UTF-8 string of at most 32767 bytes, in every version."""
    value: str | None = _spec("string", versions, default, tag, nullable)
    return value


@overload
def binary(versions: str, *, default: Buffer = b"", tag: int | None = None) -> Buffer: ...
@overload
def binary(versions: str, *, nullable: str, default: Buffer | None = b"", tag: int | None = None) -> Buffer | None: ...
def binary(
    versions: str, *, nullable: str | None = None, default: Buffer | None = b"", tag: int | None = None
) -> Buffer | None:
    """Declares opaque bytes (Kafka's type ``bytes``)."""
    value: Buffer | None = _spec("bytes", versions, default, tag, nullable)
    return value


def records(versions: str, *, nullable: str | None = None) -> Buffer | None:
    """Declares record batches back to back, opaque here; null by default."""
    value: Buffer | None = _spec("bytes", versions, None, None, nullable)
    return value


@overload
def array(struct: type[S], versions: str, *, tag: int | None = None) -> Sequence[S]: ...
@overload
def array(
    struct: type[S], versions: str, *, nullable: str, default: Sequence[S] | None = (), tag: int | None = None
) -> Sequence[S] | None: ...
def array(
    struct: type[S],
    versions: str,
    *,
    nullable: str | None = None,
    default: Sequence[S] | None = (),
    tag: int | None = None,
) -> Sequence[S] | None:
    """Declares an array of structs; decodes to a tuple."""
    value: Sequence[S] | None = _spec("struct", versions, default, tag, nullable, is_array=True, struct=struct)
    return value


@overload
def struct(struct: type[S], versions: str, *, tag: int | None = None) -> S: ...
@overload
def struct(
    struct: type[S], versions: str, *, nullable: str, default: None = None, tag: int | None = None
) -> S | None: ...
def struct(
    struct: type[S], versions: str, *, nullable: str | None = None, default: None = None, tag: int | None = None
) -> S | None:
    """Declares a nested struct; the default is a struct of defaults, or null where it may be null."""
    value: S | None = _spec("struct", versions, default, tag, nullable, struct=struct)
    return value


@overload
def int32_array(versions: str, *, tag: int | None = None) -> Sequence[int]: ...
@overload
def int32_array(
    versions: str, *, nullable: str, default: Sequence[int] | None = (), tag: int | None = None
) -> Sequence[int] | None: ...
def int32_array(
    versions: str, *, nullable: str | None = None, default: Sequence[int] | None = (), tag: int | None = None
) -> Sequence[int] | None:
    """Declares an array of signed integers of 32 bits."""
    value: Sequence[int] | None = _spec("int32", versions, default, tag, nullable, is_array=True)
    return value


def int64_array(versions: str, *, tag: int | None = None) -> Sequence[int]:
    """Declares an array of signed integers of 64 bits."""
    value: Sequence[int] = _spec("int64", versions, (), tag, is_array=True)
    return value


def int8_array(versions: str, *, tag: int | None = None) -> Sequence[int]:
    """Declares an array of signed integers of 8 bits."""
    value: Sequence[int] = _spec("int8", versions, (), tag, is_array=True)
    return value


def int16_array(versions: str, *, tag: int | None = None) -> Sequence[int]:
    """Declares an array of signed integers of 16 bits."""
    value: Sequence[int] = _spec("int16", versions, (), tag, is_array=True)
    return value


@overload
def uuid_array(versions: str, *, tag: int | None = None) -> Sequence[UUID]: ...
@overload
def uuid_array(
    versions: str, *, nullable: str, default: Sequence[UUID] | None = (), tag: int | None = None
) -> Sequence[UUID] | None: ...
def uuid_array(
    versions: str, *, nullable: str | None = None, default: Sequence[UUID] | None = (), tag: int | None = None
) -> Sequence[UUID] | None:
    """Declares an array of UUIDs."""
    value: Sequence[UUID] | None = _spec("uuid", versions, default, tag, nullable, is_array=True)
    return value


@overload
def string_array(versions: str, *, tag: int | None = None) -> Sequence[str]: ...
@overload
def string_array(
    versions: str, *, nullable: str, default: Sequence[str] | None = (), tag: int | None = None
) -> Sequence[str] | None: ...
def string_array(
    versions: str, *, nullable: str | None = None, default: Sequence[str] | None = (), tag: int | None = None
) -> Sequence[str] | None:
    """Declares an array of texts."""
    value: Sequence[str] | None = _spec("string", versions, default, tag, nullable, is_array=True)
    return value
