"""Search for the first record at or after a time, and for the largest time, in one batch (ListOffsets), in steps.

A compressed batch is decompressed as a whole: a small one at once, a larger one by a ``LongStep`` that the caller runs
outside the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.records import (
    BATCH_HEADER_BYTES,
    DECOMPRESSED_BYTES_MAX,
    Compression,
    CorruptRecordError,
    OversizedRecordsError,
    find_timestamp,
    uncompressed_records,
)
from moldau.records.decompression import LongStep
from moldau_broker.log.values import NO_TIMESTAMP, TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Generator

    from moldau.records import BatchHeader
    from moldau_broker.log.config import LogConfig

_INLINE_BYTES = 128 * 1024
"""Decompressed bytes of a batch that is searched without a ``LongStep``."""

Step = LongStep | None


def unpacked_bytes_max(config: LogConfig) -> int:
    """Returns the largest size of a stored batch's records: the larger of the topic's limit and the default."""
    return max(config.max_message_uncompressed_bytes, DECOMPRESSED_BYTES_MAX)


def find_in_batch(
    header: BatchHeader, data: bytes, timestamp_ms: int, start_offset: int, config: LogConfig
) -> Generator[Step, None, TimestampOffset | None]:
    """Returns the first record of the batch at or after a time and an offset; yields where other tasks may run.

    Raises:
        CorruptRecordError: The batch is damaged.
    """
    if header.compression is Compression.NONE:
        found = find_timestamp(data, BATCH_HEADER_BYTES, len(data), header, timestamp_ms, start_offset)
        return _result(found, header)
    yield None

    def look(bytes_max: int) -> tuple[int, int] | None:
        return find_timestamp(*uncompressed_records(data, 0, header, bytes_max), header, timestamp_ms, start_offset)

    try:
        return _result(look(_INLINE_BYTES), header)
    except OversizedRecordsError:
        pass
    outcome: list[tuple[int, int] | CorruptRecordError | None] = []

    def run() -> None:
        try:
            outcome.append(look(unpacked_bytes_max(config)))
        except CorruptRecordError as error:
            outcome.append(error)

    yield LongStep(run)
    assert outcome, "the long step was not run"
    if isinstance(outcome[0], CorruptRecordError):
        raise outcome[0]
    return _result(outcome[0], header)


def largest_in_batch(
    header: BatchHeader, data: bytes, start_offset: int, config: LogConfig
) -> Generator[Step, None, int]:
    """Returns the largest timestamp of a batch's records from an offset on, by halving the range of times.

    -1 if no record of that range has one.

    Raises:
        CorruptRecordError: The batch is damaged.
    """
    low, high = NO_TIMESTAMP, header.max_timestamp
    while low < high:
        middle = (low + high + 1) // 2
        found = yield from find_in_batch(header, data, middle, start_offset, config)
        if found is None:
            high = middle - 1
        else:
            low = found.timestamp_ms
        yield None
    return low


def _result(found: tuple[int, int] | None, header: BatchHeader) -> TimestampOffset | None:
    if found is None:
        return None
    offset, timestamp_ms = found
    return TimestampOffset(timestamp_ms=timestamp_ms, offset=offset, leader_epoch=header.partition_leader_epoch)
