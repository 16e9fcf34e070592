"""The limits of an accumulator, and the bound of a record's size. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.records import Compression

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.values import Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The configuration of an accumulator; times in milliseconds, sizes in bytes."""

    batch_size: int = 65536
    linger_ms: float = 5
    buffer_memory: int = 32 * 1024 * 1024
    delivery_timeout_ms: float = 120_000
    in_flight_max: int = 5
    request_size_max: int = 1024 * 1024
    retries: int = 2**31 - 1
    retry_backoff_ms: float = 100
    retry_backoff_max_ms: float = 1000
    compression: Compression = Compression.NONE
    compression_level: int | None = None
    is_idempotent: bool = True
    is_transactional: bool = False


def record_size_bound(
    key: Buffer | None, value: Buffer | None, headers: Iterable[tuple[str, Buffer | None]] = ()
) -> int:
    """Returns an upper bound of the size of a batch of one record, uncompressed."""
    size = 61 + 36 + (0 if key is None else len(key)) + (0 if value is None else len(value))
    for name, field_value in headers:
        size += 10 + 4 * len(name) + (0 if field_value is None else len(field_value))
    return size
