"""Confluent's wire format: a zero byte, the schema's id in four bytes (big endian), and the encoded value."""

from __future__ import annotations

import struct
from typing import Final

from pyspark_moldau.jobs.errors import PoisonError

HEADER: Final = struct.Struct(">bI")
MAGIC: Final = 0


def split_frame(value: bytes) -> tuple[int, bytes]:
    """Returns the schema's id and the rest.

    Raises:
        PoisonError: The value is too short or begins with another byte.
    """
    if len(value) < HEADER.size:
        raise PoisonError(f"{len(value)} bytes: Confluent's wire format begins with 5 bytes, magic and schema id")
    magic, schema_id = HEADER.unpack_from(value)
    if magic != MAGIC:
        raise PoisonError(f"first byte {value[0]}: Confluent's wire format begins with 0")
    return schema_id, value[HEADER.size :]
