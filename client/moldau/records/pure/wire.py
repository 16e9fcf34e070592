"""How a record is read byte by byte in plain Python: the twin of ``_wire.pxd``, shared by the other twins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TypeAlias

    Buffer: TypeAlias = bytes | bytearray | memoryview

(
    VARINT,
    LENGTH,
    KEY,
    VALUE,
    HEADER_COUNT,
    HEADER_KEY,
    HEADER_VALUE,
    END,
    OFFSET,
    RANGE,
    TRAILING,
    SEQUENCE,
    COUNT,
) = range(1, 14)
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)


class Broken(Exception):
    """Carries the number of a reason out of the parser."""

    def __init__(self, reason: int) -> None:
        self.reason = reason


def read_varlong(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Returns the zigzag varint of up to 64 bits at ``at`` and where it ends.

    Raises:
        Broken: the record is damaged.
    """
    raw = 0
    shift = 0
    while True:
        if at >= end:
            raise Broken(VARINT)
        byte = data[at]
        at += 1
        if shift == 63 and byte > 1:
            raise Broken(VARINT)
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7


def read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Returns the zigzag varint of up to 32 bits at ``at`` and where it ends.

    Raises:
        Broken: the record is damaged.
    """
    if at >= end:
        raise Broken(VARINT)
    byte = data[at]
    at += 1
    raw = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if at >= end:
            raise Broken(VARINT)
        byte = data[at]
        at += 1
        if shift == 28 and byte > 0x0F:
            raise Broken(VARINT)
        raw |= (byte & 0x7F) << shift
        shift += 7
    return (raw >> 1) ^ -(raw & 1), at


Parsed = tuple[int, int, int, int, int, int, int, int, int]
# timestamp delta, offset delta, key at, key size, value at, value size, headers at, header count, end


def parse_record(data: memoryview, at: int, end: int) -> Parsed:
    """Returns the places of the fields of the record at ``at``.

    Raises:
        Broken: the record is damaged.
    """
    size, at = read_varint(data, at, end)
    if size < 0 or size > end - at:
        raise Broken(LENGTH)
    end = at + size
    if at >= end:
        raise Broken(END)
    timestamp_delta, at = read_varlong(data, at + 1, end)
    offset_delta, at = read_varint(data, at, end)
    key_size, at = read_varint(data, at, end)
    if key_size < -1 or key_size > end - at:
        raise Broken(KEY)
    key_at = at
    at += max(key_size, 0)
    value_size, at = read_varint(data, at, end)
    if value_size < -1 or value_size > end - at:
        raise Broken(VALUE)
    value_at = at
    at += max(value_size, 0)
    header_count, at = read_varint(data, at, end)
    if header_count < 0 or header_count > (end - at) // 2:
        raise Broken(HEADER_COUNT)
    headers_at = at
    for _ in range(header_count):
        size, at = read_varint(data, at, end)
        if size < 0 or size > end - at:
            raise Broken(HEADER_KEY)
        size, at = read_varint(data, at + size, end)
        if size < -1 or size > end - at:
            raise Broken(HEADER_VALUE)
        at += max(size, 0)
    if at != end:
        raise Broken(END)
    return timestamp_delta, offset_delta, key_at, key_size, value_at, value_size, headers_at, header_count, end


def view_of(buffer: Buffer, start: int, end: int) -> memoryview:
    """Returns the bytes of ``buffer``, without a copy.

    Raises:
        ValueError: ``start..end`` does not lie within them.
    """
    data = memoryview(buffer).cast("B")
    if start < 0 or start > end or end > len(data):
        raise ValueError(f"range {start}..{end} does not lie within {len(data)} bytes")
    return data


def fits(number: int) -> bool:
    """Returns whether ``number`` fits 64 bits."""
    return INT64_MIN <= number <= INT64_MAX
