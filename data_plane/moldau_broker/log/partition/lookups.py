"""Searches in a log: offsets by timestamp (ListOffsets), aborted transactions of a read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import CorruptLogFileError, LogError
from moldau_broker.log.files.batches import scan_headers
from moldau_broker.log.files.transaction_index import select_aborted
from moldau_broker.log.partition.timestamps import find_in_batch, largest_in_batch
from moldau_broker.log.values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    AbortedTransaction,
    ReadResult,
    TimestampOffset,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from moldau.records import BatchHeader
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.files.transaction_index import AbortedEntry
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.partition.timestamps import Step

SEGMENTS_PER_STEP: Final = 16
"""Segments that a search looks at before other tasks may run; after a start the first look at one reads its indexes."""
HEADERS_PER_STEP: Final = 512
"""Headers of batches that a search looks at before other tasks may run."""


def search_timestamp(log: SegmentedLog, timestamp_ms: int) -> Generator[Step, None, TimestampOffset | None]:
    """Finds the first record at or after a time, or for a special timestamp (ListOffsets); None if there is none.

    Searches by time look only at records on this disk. Yields None where other tasks may run, and long steps that the
    caller must run; the log may change meanwhile.
    The caller limits the answer to records that its client may see.

    Raises:
        CorruptRecordError: The batch is damaged.
        LogError: CORRUPT_MESSAGE, the log is too damaged to find the batch.
    """
    try:
        return (yield from _search(log, timestamp_ms))
    except CorruptLogFileError as error:
        raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error


def _search(log: SegmentedLog, timestamp_ms: int) -> Generator[Step, None, TimestampOffset | None]:
    start = log.log_start_offset
    if timestamp_ms != EARLIEST_TIMESTAMP:
        start = max(start, log.segments.first_base_offset)
    if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        return TimestampOffset(timestamp_ms=-1, offset=start, leader_epoch=log.epochs.epoch_for_offset(start))
    if timestamp_ms == LATEST_TIMESTAMP:
        return TimestampOffset(timestamp_ms=-1, offset=log.log_end_offset, leader_epoch=log.epochs.latest_epoch)
    if timestamp_ms == MAX_TIMESTAMP:
        return (yield from _search_largest(log, start))
    return (yield from _search_time(log, timestamp_ms, start))


def _search_time(log: SegmentedLog, timestamp_ms: int, start: int) -> Generator[Step, None, TimestampOffset | None]:
    while True:
        batch = yield from _batch_with_timestamp(log, timestamp_ms, start)
        if batch is None:
            return None
        header, data = batch
        found = yield from find_in_batch(header, data, timestamp_ms, start, log.config)
        if found is not None:
            return found
        start = header.next_offset


def _search_largest(log: SegmentedLog, start: int) -> Generator[Step, None, TimestampOffset | None]:
    limits: list[tuple[int, LogSegment]] = []
    for looked, segment in enumerate(_segments(log), 1):
        limits.append((segment.max_entry().timestamp_ms, segment))
        if looked % SEGMENTS_PER_STEP == 0:
            yield None
    largest = max((limit for limit, _ in limits), default=NO_TIMESTAMP)
    if largest < 0:
        return None
    found = yield from _search_time(log, largest, start)
    if found is not None:
        return found
    # It is that of a record below the log start offset, or of a batch that compaction has emptied.
    largest = yield from _largest_visible(log, limits, start)
    return (yield from _search_time(log, largest, start)) if largest >= 0 else None


def _largest_visible(
    log: SegmentedLog, limits: Sequence[tuple[int, LogSegment]], start: int
) -> Generator[Step, None, int]:
    """Returns the largest timestamp of the records from an offset on; ``limits`` are those of the segments."""
    largest = NO_TIMESTAMP
    for limit, segment in sorted(limits, key=lambda each: each[0], reverse=True):
        if limit <= largest:
            break
        position = -1
        while segment in log.segments.all:  # else the log has dropped or closed it in the last step
            begin = segment.position_of(start) if position < 0 else position
            if begin >= segment.size:
                break
            position = begin
            for at, header in islice(scan_headers(segment.file, begin, segment.size), HEADERS_PER_STEP):
                position = at + header.size_bytes
                if header.record_count == 0 or header.max_timestamp <= largest:
                    continue
                if header.base_offset < start:
                    data = segment.file.read(at, header.size_bytes)
                    largest = max(largest, (yield from largest_in_batch(header, data, start, log.config)))
                    break  # the log may have changed
                largest = header.max_timestamp
            if position == begin:
                raise CorruptLogFileError(segment.file.path, position, "no batch header")
            yield None
    return largest


def _batch_with_timestamp(
    log: SegmentedLog, timestamp_ms: int, start_offset: int
) -> Generator[Step, None, tuple[BatchHeader, bytes] | None]:
    for looked, segment in enumerate(_segments(log), 1):
        if segment.max_entry().timestamp_ms >= timestamp_ms:
            found = segment.find_timestamp(timestamp_ms, start_offset)
            if found is not None:
                return found
        if looked % SEGMENTS_PER_STEP == 0:
            yield None
    return None


def _segments(log: SegmentedLog) -> Iterator[LogSegment]:
    """Yields the segments in order. The log may change in between: each is the next one of the log as it is then."""
    base_offset = -1
    while (index := log.segments.index_of(base_offset) + 1) < len(log.segments.all):
        segment = log.segments.all[index]
        yield segment
        base_offset = segment.base_offset


def aborted_transactions(log: SegmentedLog, result: ReadResult, upper_bound_offset: int) -> list[AbortedTransaction]:
    """Returns the aborted transactions that a ``read_committed`` consumer needs for ``result``.

    They are ordered by their markers.
    """
    if not result.ranges:
        return []
    upper = min(upper_bound_offset, _end_of(log, result))
    return local_aborted(log, result.fetch_offset, upper)


def local_aborted(log: SegmentedLog, markers_from: int, upper_bound_offset: int) -> list[AbortedTransaction]:
    """Returns the transactions with a record below an offset whose abort marker lies in a segment on this broker.

    ``markers_from`` is the offset from which on markers count: that of the read, or the end of the remote segments that
    were searched before.
    """
    found: list[AbortedEntry] = []
    for segment in log.segments.all[max(0, log.segments.index_of(markers_from)) :]:
        if select_aborted(segment.aborted_entries(), markers_from, upper_bound_offset, found):
            break
    return [AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset) for entry in found]


def _end_of(log: SegmentedLog, result: ReadResult) -> int:
    """Returns an offset at or above the end of ``result``, from the index."""
    segments = log.segments
    index = segments.index_of(result.segment_base_offset)
    if index < 0 or segments.all[index].base_offset != result.segment_base_offset:
        return log.log_end_offset
    end = segments.all[index].offset_index.first_at_or_after_position(result.segment_position + result.size_bytes)
    return end.offset if end is not None else log.next_base_offset(index)
