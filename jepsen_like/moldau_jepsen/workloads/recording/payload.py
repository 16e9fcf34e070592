"""Builds the records of workloads and identifies records that come back.

A record's value begins with its number (8 bytes, big-endian); the workload's own content follows, then padding. Keys,
headers and padding are derived from the number, so that all kinds occur all the time: null, empty and short keys, and
no, several, empty, null and repeated headers.

The digest is a CRC-32 of timestamp, key, value and headers, each with its length, so that bytes that move from one
field to the next change the digest. If brokers replace timestamps (LogAppendTime), both sides use timestamp 0. The
number 0 means "not computed" in histories, so a CRC of 0 counts as 1.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from moldau.producer import Delivery, Producer
    from moldau.records import Record
    from moldau_jepsen.history import TopicPartition

VALUE_BYTES = 8
_HEAD = struct.Struct(">qiii")
_HEADER = struct.Struct(">ii")
_NULL = -1
_KEYS = (None, b"", b"key", b"another key")
_HEADERS: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
    (),
    (),
    (("trace", b"\x00\x01"),),
    (("trace", None), ("trace", b"")),
    (("", b"unnamed"), ("trace", b"twice"), ("trace", b"twice")),
)

Headers = Sequence[tuple[str, bytes | None]]


class Payload(NamedTuple):
    """The arguments of one send."""

    key: bytes | None
    value: bytes
    headers: Headers
    timestamp: int
    """Milliseconds since the Unix epoch."""
    timed: bool = True
    """Whether the timestamp must come back unchanged."""

    @property
    def digest(self) -> int:
        """See the module."""
        return digest_of(self.timestamp if self.timed else 0, self.key, self.value, self.headers)


def payload_of(
    value: int, timestamp: int, said: bytes = b"", padding_bytes: int = 0, *, variety: bool = True, timed: bool = True
) -> Payload:
    """Returns the record with the number ``value``; ``said`` is what it holds beside the number.

    Without ``variety`` it has neither key nor headers.
    """
    body = value.to_bytes(VALUE_BYTES, "big") + said + bytes((value & 0xFF,)) * padding_bytes
    if not variety:
        return Payload(None, body, (), timestamp, timed)
    return Payload(_KEYS[value % len(_KEYS)], body, _HEADERS[value % len(_HEADERS)], timestamp, timed)


async def send_payload(producer: Producer, partition: TopicPartition, payload: Payload) -> Delivery:
    """Sends a payload; errors are those of ``Producer.send``."""
    return await producer.send(
        partition.topic,
        payload.value,
        key=payload.key,
        headers=payload.headers,
        partition=partition.partition,
        timestamp=payload.timestamp,
    )


def digest_of(timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Returns the digest of a record: 1 to 2**32 - 1."""
    parts = [
        _HEAD.pack(timestamp, _NULL if key is None else len(key), _NULL if value is None else len(value), len(headers)),
        key or b"",
        value or b"",
    ]
    for name, content in headers:
        encoded = name.encode()
        parts += (_HEADER.pack(len(encoded), _NULL if content is None else len(content)), encoded, content or b"")
    return zlib.crc32(b"".join(parts)) or 1


def digest_of_record(record: Record, *, timed: bool) -> int:
    """Returns the digest of a received record."""
    return digest_of(record.timestamp if timed else 0, record.key, record.value, record.headers)


def number_of(value: bytes | None) -> int:
    """Returns the number at the beginning of a record's value."""
    return int.from_bytes((value or b"")[:VALUE_BYTES], "big")


def says_of(value: bytes | None) -> bytes:
    """Returns the rest of a record's value after its number, padding included."""
    return (value or b"")[VALUE_BYTES:]
