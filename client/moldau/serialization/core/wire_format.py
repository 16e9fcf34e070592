"""Confluent's wire format: a zero byte, the schema's id in four bytes (big endian), and the encoded value.

A Protobuf value has the indexes of its message in the schema's file between id and message, as zigzag varints: their
number, then one index per level of nesting. A single zero byte stands for the first message of the file. Clients and
pipeline jobs share this module. Pure.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from moldau.serialization.core.values import SerializationError

if TYPE_CHECKING:
    from collections.abc import Iterable

HEADER: Final = struct.Struct(">bI")
MAGIC: Final = 0
GUID_MAGIC: Final = 1
INDEXES_MAX: Final = 100
"""Message indexes that a value may have. Real files nest a few levels deep; more means damaged bytes."""


class WireFormatError(SerializationError):
    """Bytes are not in Confluent's wire format."""


def split_frame(data: bytes) -> tuple[int, bytes]:
    """Returns the schema's id and the bytes behind it.

    Raises:
        WireFormatError: the data is too short or begins with another byte.
    """
    if len(data) < HEADER.size:
        raise WireFormatError(f"{len(data)} bytes: Confluent's wire format begins with 5 bytes, magic and schema id")
    magic, schema_id = HEADER.unpack_from(data)
    if magic != MAGIC:
        hint = "; 1 is that of a schema's GUID, which is not supported" if magic == GUID_MAGIC else ""
        raise WireFormatError(f"first byte {data[0]}: Confluent's wire format begins with 0{hint}")
    return schema_id, data[HEADER.size :]


def frame(schema_id: int) -> bytes:
    """Returns the five bytes in front of a value."""
    return HEADER.pack(MAGIC, schema_id)


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Returns a message's indexes and where the message begins.

    Raises:
        WireFormatError: the indexes are damaged.
    """
    count, at = _read_varint(data, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise WireFormatError(f"{count} message indexes; at most {INDEXES_MAX} are plausible")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        indexes.append(index)
    return tuple(indexes) or (0,), at


def write_indexes(indexes: Iterable[int]) -> bytes:
    """Returns the bytes of a message's indexes."""
    levels = tuple(indexes)
    if levels == (0,):
        return b"\0"
    return b"".join(zigzag(each) for each in (len(levels), *levels))


def read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    """Returns the zigzag varint that begins at an offset, as Avro's long has it too, and the offset behind it.

    Raises:
        IndexError: it is cut off, or has more than ten bytes.
    """
    result = shift = 0
    while shift < 64:
        byte = data[at]
        result |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at
    raise IndexError("a number has more than ten bytes")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    try:
        return read_zigzag(data, at)
    except IndexError:
        raise WireFormatError("the message indexes are cut off") from None


def zigzag(value: int) -> bytes:
    """Returns the zigzag varint of a number."""
    rest = value << 1 if value >= 0 else (~value << 1) | 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)
