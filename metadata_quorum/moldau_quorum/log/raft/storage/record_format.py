"""Records in the files of a voter: framed and checksummed, so that torn writes and damage can be distinguished.

    magic "mlr1" | payload length u32 | crc32c u32 | synced u64 | type u8 | payload        (little endian)

The checksum covers all after itself, and starts from the file's sequence number, so that a record of another file is
invalid here. ``synced`` is how much of the file was known to be durable when the record was written. That settles what
an invalid record means: a crash may tear whatever had not been synced, in pieces and in any order, but if any valid
record behind the invalid one says that this place was durable before it was written, the disk has lost what it had
confirmed, and the file must not be used.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

from moldau.records.checksum import crc32c

MAGIC: Final = b"mlr1"
_HEADER: Final = struct.Struct("<4sIIQB")
_COVERED: Final = struct.Struct("<QB")
HEADER_BYTES: Final = _HEADER.size
PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Longer lengths are not believed."""


class RecordType(enum.IntEnum):
    """The kind of a payload: 1 to 7 occur in log segments, 16 to 18 in snapshots."""

    SEGMENT = 1
    ENTRY = 2
    HARD_STATE = 3
    RESET = 4
    SYNC_MARK = 5
    TRUNCATE = 6
    DURABLE_MARK = 7
    SNAPSHOT_HEADER = 16
    SNAPSHOT_PIECE = 17
    SNAPSHOT_FOOTER = 18


_TYPES: Final = frozenset(int(record_type) for record_type in RecordType)


class Record(NamedTuple):
    """A valid record."""

    position: int
    end: int
    """Position of the byte after the record."""
    type: int
    synced: int
    payload: bytes


def encode_record(sequence: int, synced: int, record_type: RecordType, payload: bytes) -> bytes:
    """Returns the bytes of a record for the file of that sequence number."""
    assert len(payload) <= PAYLOAD_BYTES_MAX, "payloads are bounded"
    checksum = crc32c(payload, crc32c(_COVERED.pack(synced, record_type), sequence & 0xFFFFFFFF))
    return _HEADER.pack(MAGIC, len(payload), checksum, synced, record_type) + payload


def record_length(header: bytes) -> int | None:
    """Returns the length of the whole record whose header this is; None if it is none."""
    if len(header) < HEADER_BYTES:
        return None
    magic, length, _, _, record_type = _HEADER.unpack_from(header)
    if magic != MAGIC or length > PAYLOAD_BYTES_MAX or record_type not in _TYPES:
        return None
    return HEADER_BYTES + int(length)


def read_record(sequence: int, buffer: bytes, position: int) -> Record | None:
    """Returns the record at ``position``; None if there is no valid one."""
    if position + HEADER_BYTES > len(buffer):
        return None
    magic, length, checksum, synced, record_type = _HEADER.unpack_from(buffer, position)
    end = position + HEADER_BYTES + length
    if magic != MAGIC or end > len(buffer) or length > PAYLOAD_BYTES_MAX or record_type not in _TYPES:
        return None
    payload = buffer[position + HEADER_BYTES : end]
    if crc32c(payload, crc32c(_COVERED.pack(synced, record_type), sequence & 0xFFFFFFFF)) != checksum:
        return None
    return Record(position=position, end=end, type=record_type, synced=synced, payload=payload)


def proof_of_damage(sequence: int, buffer: bytes, position: int) -> Record | None:
    """Returns a valid record behind ``position`` that proves ``position`` to have been durable; None without one."""
    start = buffer.find(MAGIC, position + 1)
    while start >= 0:
        record = read_record(sequence, buffer, start)
        if record is not None and record.synced > position:
            return record
        start = buffer.find(MAGIC, start + 1)
    return None
