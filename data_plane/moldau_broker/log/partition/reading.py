"""Selection of the segment bytes that answer a read."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from moldau_broker.log.errors import CorruptLogFileError, OffsetInRemoteStorageError
from moldau_broker.log.files.found_batches import begin_of_check, ordered_end
from moldau_broker.log.values import FileSlice, ReadResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.records import BatchHeader
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
        next_base = bases[index] if index < len(segments) else end_offset
        if start >= segment.size:
            if offset < next_base and segment.files.found.end and segment.may_hide(offset):
                raise CorruptLogFileError(segment.file.path, start, f"no batch in order with offset {offset}")
            continue  # the rest of the segment was compacted away
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
        if header is not None and segment.files.found.end:  # else this process has appended the batches
            count = min(count, _ordered_bytes(segment, start, header, start + count, offset, next_base))
        return ReadResult(
            fetch_offset=offset,
            ranges=(FileSlice(segment.files.log, start, count),),
            size_bytes=count,
            segment_base_offset=segment.base_offset,
            segment_position=start,
        )
    return nothing_at(offset)


def _ordered_bytes(segment: LogSegment, start: int, header: BatchHeader, end: int, offset: int, next_base: int) -> int:
    """Returns how many bytes from ``start`` on hold batches in order, of those up to ``end`` or somewhat more.

    The batch at ``start``, with ``header``, was found as the first that ends at or above ``offset``.

    Raises:
        CorruptLogFileError: It is out of order, or the one that was to hold ``offset`` is.
        OSError: A file could not be read.
    """
    files, found = segment.files, segment.files.found
    if header.base_offset <= offset and found.are_checked(start, end):
        return end - start
    begin = begin_of_check(files.log, segment.offset_index, start, offset)
    if found.are_checked(begin, end):
        return end - start
    known = segment.base_offset if begin == 0 else None
    ordered = ordered_end(files.log, begin, start, end, segment.size, known, next_base)
    if ordered < start and header.base_offset <= offset:  # the wrong batch is another one
        begin, known = start, None
        ordered = ordered_end(files.log, begin, start, end, segment.size, known, next_base)
    if ordered <= start:
        raise CorruptLogFileError(files.log.path, ordered, f"no batch in order with offset {offset}")
    # Nothing says that the first batch of a walk is not too low, unless it is the first of the segment.
    found.add(begin if known is not None else begin + segment.header_at(begin).size_bytes, ordered)
    return ordered - start


def nothing_at(offset: int) -> ReadResult:
    """Returns the empty result of a read at ``offset``."""
    return ReadResult(fetch_offset=offset, ranges=(), size_bytes=0, segment_base_offset=-1, segment_position=-1)


def _limit(first_bytes: int, count: int, max_bytes: int, min_one_batch: bool) -> tuple[int, bool]:
    """Returns how many of ``count`` bytes to send, and whether even the first batch is too large for that."""
    if first_bytes <= max_bytes:
        return max_bytes, False
    return (min(first_bytes, count), False) if min_one_batch else (0, True)
