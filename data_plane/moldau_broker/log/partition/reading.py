"""Selection of the segment bytes that answer a read."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from moldau_broker.log.errors import CorruptLogFileError, OffsetInRemoteStorageError
from moldau_broker.log.values import FileSlice, ReadResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.log.files.segment import LogSegment


def find_range(
    segments: Sequence[LogSegment],
    bases: Sequence[int],
    end_offset: int,
    offset: int,
    max_bytes: int,
    upper_bound_offset: int,
    min_one_batch: bool,
) -> ReadResult:
    """Finds the bytes for ``SegmentedLog.read``.

    ``bases`` are the base offsets of the segments, ``end_offset`` is the log end offset.

    Raises:
        OffsetInRemoteStorageError: The offset is below the first segment.
        CorruptLogFileError: The log is too damaged to find the batch.
        OSError: A file could not be read.
    """
    index = bisect_right(bases, offset) - 1
    if index < 0 and bases:
        raise OffsetInRemoteStorageError(offset, bases[0])
    while 0 <= index < len(segments):
        segment = segments[index]
        index += 1
        start, header = segment.locate(offset)
        if start >= segment.size:
            continue  # the rest of the segment was compacted away
        next_base = bases[index] if index < len(segments) else end_offset
        if header is not None and header.last_offset >= next_base:
            # The checksum does not cover the base offset: its reader would go on far behind the records in between.
            raise CorruptLogFileError(
                segment.file.path, start, f"offset {header.last_offset} in a segment that ends at {next_base}"
            )
        end = segment.size if upper_bound_offset >= next_base else segment.position_of(upper_bound_offset)
        count = end - start
        if count <= 0:
            break
        if count > max_bytes:
            count, incomplete = _limit(segment.batch_bytes_at(start, header), count, max_bytes, min_one_batch)
            if incomplete:
                return ReadResult(
                    fetch_offset=offset,
                    ranges=(),
                    size_bytes=0,
                    segment_base_offset=segment.base_offset,
                    segment_position=start,
                    first_batch_incomplete=True,
                )
        return ReadResult(
            fetch_offset=offset,
            ranges=(FileSlice(segment.files.log, start, count),),
            size_bytes=count,
            segment_base_offset=segment.base_offset,
            segment_position=start,
        )
    return nothing_at(offset)


def nothing_at(offset: int) -> ReadResult:
    """Returns the empty result of a read at ``offset``."""
    return ReadResult(fetch_offset=offset, ranges=(), size_bytes=0, segment_base_offset=-1, segment_position=-1)


def _limit(first_bytes: int, count: int, max_bytes: int, min_one_batch: bool) -> tuple[int, bool]:
    """Returns how many of ``count`` bytes to send, and whether even the first batch is too large for that."""
    if first_bytes <= max_bytes:
        return max_bytes, False
    return (min(first_bytes, count), False) if min_one_batch else (0, True)
