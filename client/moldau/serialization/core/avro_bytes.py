"""Values of the schema ``bytes``, which Confluent's serializers write without Avro's size in front. Pure."""

from __future__ import annotations

from typing import Any

from moldau.serialization.core.wire_format import read_zigzag, zigzag


def is_bare(schema: Any) -> bool:  # noqa: ANN401 - a schema as fastavro parsed it
    """Returns whether values of a schema have no size in front; decimals and bytes within other types have one."""
    return schema == "bytes" or (
        isinstance(schema, dict) and schema.get("type") == "bytes" and "logicalType" not in schema
    )


def with_size(data: bytes) -> bytes:
    """Returns the bytes in Avro's form."""
    return zigzag(len(data)) + data


def without_size(encoded: bytes) -> bytes:
    """Returns the bytes of Avro's form."""
    return encoded[read_zigzag(encoded, 0)[1] :]
