"""Reads of one remote segment, and searches over several, as generators that ask for bytes (``requests``).

The offset index gives the position of a batch before the wanted one, and a walk over headers leads from there. As for
local segments, an index is only a hint: an entry counts if the bytes at its position are the header of a batch that may
stand there. If they are not, the walk begins at an earlier entry, and at last at the start of the segment. So a damaged
index costs time and never gives a wrong answer. Damage of the batches themselves is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.records import BATCH_HEADER_BYTES
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import parse, plausible
from moldau_broker.log.files.index import OffsetIndex, TimeIndex, floor_in
from moldau_broker.log.files.transaction_index import decode_entries, select_aborted
from moldau_broker.log.partition.lookups import HEADERS_PER_STEP
from moldau_broker.log.partition.timestamps import find_in_batch, largest_in_batch
from moldau_broker.log.values import NO_TIMESTAMP, AbortedTransaction, TimestampOffset
from moldau_broker.remote_log.core.errors import CorruptRemoteSegmentError
from moldau_broker.remote_log.core.names import AUXILIARY, LOG
from moldau_broker.remote_log.core.requests import ReadParts, ReadRange, answered_buffer, answered_parts

if TYPE_CHECKING:
    import struct
    from collections.abc import Iterable, Iterator, Sequence

    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.files.transaction_index import AbortedEntry
    from moldau_broker.log.values import SegmentParts
    from moldau_broker.remote_log.core.names import RemoteSegment
    from moldau_broker.remote_log.core.requests import Reader

_WALK_BYTES = 16 * 1024
"""Bytes asked for at a time on a walk from an index entry: a few intervals of the index."""

_Place = tuple[int, "BatchHeader"]


class RemoteRead(NamedTuple):
    """Whole batches of one segment."""

    data: bytes
    """The first batch holds the fetch offset or is the first one after it."""
    end_offset: int
    """Offset after the last batch, where the next read goes on. Without a batch, the segment's end if it has no further
    batch below the bound, else the fetch offset."""
    first_batch_incomplete: bool = False
    """The limit was smaller than the first batch, and ``min_one_batch`` was false."""


class AbortedSearch(NamedTuple):
    """Aborted transactions whose markers lie in remote segments."""

    transactions: list[AbortedTransaction]
    """Ordered by their markers."""
    markers_to: int
    """All markers below this offset were looked at."""
    is_complete: bool
    """Whether no later marker ends a transaction of the read. If not, the local segments are next
    (``lookups.local_aborted`` from ``markers_to`` on)."""


def read(
    segment: RemoteSegment,
    parts: SegmentParts,
    offset: int,
    *,
    max_bytes: int,
    upper_bound_offset: int,
    min_one_batch: bool = False,
) -> Reader[RemoteRead]:
    """Reads the whole batches from ``offset``, which the segment holds, up to ``upper_bound_offset`` (exclusive).

    Returns at most ``max_bytes``, or with ``min_one_batch`` at least one batch however large it is (KIP-74). A batch
    that reaches to the bound or beyond is left out.

    Raises:
        CorruptRemoteSegmentError: There is no batch where one should be. Batches before the damage are returned.
    """
    assert segment.base_offset <= offset <= segment.last_offset, f"{offset} is not in {segment.name}"
    if offset >= upper_bound_offset:
        return RemoteRead(b"", offset)
    bytes_ = _Bytes(segment)
    place = yield from _locate(bytes_, parts, offset)
    if place is None:
        return RemoteRead(b"", segment.end_offset)
    position, header = place
    if header.last_offset >= upper_bound_offset:
        return RemoteRead(b"", offset)
    if header.size_bytes > max_bytes:
        if not min_one_batch:
            return RemoteRead(b"", offset, first_batch_incomplete=True)
        max_bytes = header.size_bytes
    yield from bytes_.need(position, min(max_bytes, segment.size_bytes - position))
    count, end_offset = bytes_.whole_batches(position, upper_bound_offset, max_bytes)
    return RemoteRead(bytes_.copy(position, count), end_offset)


def search_timestamp(
    segments: Iterable[RemoteSegment], timestamp_ms: int, start_offset: int, config: LogConfig
) -> Reader[TimestampOffset | None]:
    """Finds the first record at or after an offset and a time (0 or later, milliseconds); None if there is none.

    ``segments`` are as ``RemoteLog.segments_from`` the offset. The caller searches the local log from their end on if
    the answer is None.

    Raises:
        CorruptRecordError: The batch is damaged.
        CorruptRemoteSegmentError: A segment is too damaged to find the batch.
    """
    for segment in segments:
        if segment.max_timestamp_ms < timestamp_ms:
            continue
        parts = answered_parts((yield ReadParts(segment)))
        start_offset = max(start_offset, segment.base_offset)
        found = yield from _search_segment(_Bytes(segment), parts, timestamp_ms, start_offset, config)
        if found is not None:
            return found
        start_offset = segment.end_offset
    return None


def search_largest(
    segments: Sequence[RemoteSegment], above_ms: int, start_offset: int, config: LogConfig
) -> Reader[TimestampOffset | None]:
    """Finds the first record at or after an offset that has the largest timestamp, if that is at or above ``above_ms``.

    ``segments`` are as ``RemoteLog.segments_from`` the offset. The name of a segment tells its largest timestamp, which
    may be that of a record below the offset, or of a batch that compaction has emptied. Only then batches are read.

    Raises:
        Exception: As ``search_timestamp``.
    """
    least = max(above_ms, 0)
    largest = max((segment.max_timestamp_ms for segment in segments), default=NO_TIMESTAMP)
    if largest < least:
        return None
    found = yield from search_timestamp(segments, largest, start_offset, config)
    if found is not None:
        return found
    largest = NO_TIMESTAMP
    for segment in sorted(segments, key=lambda each: each.max_timestamp_ms, reverse=True):
        if segment.max_timestamp_ms < least or segment.max_timestamp_ms <= largest:
            break
        largest = max(largest, (yield from _largest_of(segment, max(start_offset, segment.base_offset), config)))
    return (yield from search_timestamp(segments, largest, start_offset, config)) if largest >= least else None


def aborted_transactions(
    segments: Iterable[RemoteSegment], fetch_offset: int, end_offset: int
) -> Reader[AbortedSearch]:
    """Returns the aborted transactions that a ``read_committed`` consumer needs for a read that ended at an offset.

    ``segments`` are as ``RemoteLog.segments_from`` the fetch offset, without holes.

    Raises:
        CorruptRemoteSegmentError: An index of aborted transactions is damaged.
    """
    found: list[AbortedEntry] = []
    markers_from, complete = fetch_offset, False
    for segment in segments:
        if segment.has_aborted:
            parts = answered_parts((yield ReadParts(segment)))
            complete = select_aborted(_aborted_entries(segment, parts), markers_from, end_offset, found)
        markers_from = segment.end_offset
        if complete:
            break
    transactions = [
        AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset) for entry in found
    ]
    return AbortedSearch(transactions, markers_from, complete)


def _aborted_entries(segment: RemoteSegment, parts: SegmentParts) -> list[AbortedEntry]:
    try:
        return decode_entries(segment.name + AUXILIARY, parts.transaction_index, segment.base_offset)
    except CorruptLogFileError as error:
        raise CorruptRemoteSegmentError(segment.name + AUXILIARY, error.position, error.reason) from error


# Walks ---------------------------------------------------------------------------------------------------------------


class _Bytes:
    """A window over the ``.log`` of one segment: the bytes of the last answer."""

    __slots__ = ("_data", "_start", "segment")

    def __init__(self, segment: RemoteSegment) -> None:
        self.segment = segment
        self._start = 0
        self._data: Buffer = b""

    def need(self, position: int, count: int) -> Reader[None]:
        """Asks for a range if the window does not hold it."""
        if not self._start <= position <= position + count <= self._start + len(self._data):
            answer = answered_buffer((yield ReadRange(self.segment, position, count)))
            if len(answer) != count:
                raise self.damage(position, f"the object holds {len(answer)} of {count} bytes")
            self._start, self._data = position, answer

    def copy(self, position: int, count: int) -> bytes:
        """Returns bytes that the window holds."""
        start = position - self._start
        with memoryview(self._data) as view:
            return bytes(view[start : start + count])

    def header_at(self, position: int) -> Reader[BatchHeader | None]:
        """Returns the header at a position; None if no batch of the segment can begin there."""
        left = self.segment.size_bytes - position
        if left < BATCH_HEADER_BYTES:
            return None
        if not self._start <= position <= self._start + len(self._data) - BATCH_HEADER_BYTES:
            yield from self.need(position, min(_WALK_BYTES, left))
        return self._fitting(position)

    def _fitting(self, position: int) -> BatchHeader | None:
        segment = self.segment
        header = parse(self._data, position - self._start)
        fits = (
            plausible(header)
            and position + header.size_bytes <= segment.size_bytes
            and header.last_offset <= segment.last_offset
        )
        return header if fits else None

    def whole_batches(self, position: int, upper_bound_offset: int, max_bytes: int) -> tuple[int, int]:
        """Returns the bytes of the batches in the window that follow each other from a position on, and their end.

        Ends before a batch that reaches to the bound, that the window does not hold whole, or that is damaged.
        """
        end = min(position + max_bytes, self._start + len(self._data))
        at, offset = position, 0
        while at + BATCH_HEADER_BYTES <= end:
            header = self._fitting(at)
            if (
                header is None
                or header.base_offset < offset
                or header.last_offset >= upper_bound_offset
                or at + header.size_bytes > end
            ):
                break
            at += header.size_bytes
            offset = header.next_offset
        return at - position, offset

    def damage(self, position: int, reason: str) -> CorruptRemoteSegmentError:
        """Returns the error for damage at a position of the ``.log``."""
        return CorruptRemoteSegmentError(self.segment.name + LOG, position, reason)

    def walk(self, position: int, offset: int) -> Reader[_Place | None]:
        """Returns position and header of the first batch that ends at or above ``offset``; None if there is none.

        Raises:
            CorruptRemoteSegmentError: A batch on the way has no header, or begins below the one before it.
        """
        expected = self.segment.base_offset
        while position < self.segment.size_bytes:
            header = yield from self.header_at(position)
            if header is None or header.base_offset < expected:
                raise self.damage(position, "no batch header" if header is None else f"offset {header.base_offset}")
            if header.last_offset >= offset:
                return position, header
            expected = header.next_offset
            position += header.size_bytes
        return None


def _entries_below(layout: struct.Struct, data: bytes, key: int) -> Iterator[tuple[int, ...]]:
    """Yields the last index entry not above ``key``, then earlier ones in steps that double."""
    count = len(data) // layout.size
    index = floor_in(layout, data, count, key)
    if not count or layout.unpack_from(data, index * layout.size)[0] > key:
        return
    step = 1
    while index >= 0:
        yield layout.unpack_from(data, index * layout.size)
        index -= step
        step *= 2


def _locate(bytes_: _Bytes, parts: SegmentParts, offset: int) -> Reader[_Place | None]:
    """Returns the place that ``_Bytes.walk`` finds from the start of the segment on, by a shorter way."""
    segment = bytes_.segment
    for relative, position in _entries_below(OffsetIndex.LAYOUT, parts.offset_index, offset - segment.base_offset):
        if not 0 < position < segment.size_bytes:
            continue
        entry_offset = segment.base_offset + relative
        header = yield from bytes_.header_at(position)
        if header is None or not segment.base_offset < header.base_offset <= min(offset, entry_offset):
            continue
        try:
            return (yield from bytes_.walk(position, offset))
        except CorruptRemoteSegmentError:
            if header.last_offset == entry_offset:
                raise  # the entry was right, the batches are damaged
    return (yield from bytes_.walk(0, offset))


def _search_segment(
    bytes_: _Bytes, parts: SegmentParts, timestamp_ms: int, start_offset: int, config: LogConfig
) -> Reader[TimestampOffset | None]:
    place = yield from _first_candidate(bytes_, parts, timestamp_ms, start_offset)
    while place is not None:
        position, header = place
        if header.max_timestamp >= timestamp_ms:
            yield from bytes_.need(position, header.size_bytes)
            data = bytes_.copy(position, header.size_bytes)
            found = yield from find_in_batch(header, data, timestamp_ms, start_offset, config)
            if found is not None:
                return found
        place = yield from bytes_.walk(position + header.size_bytes, header.next_offset)
    return None


def _largest_of(segment: RemoteSegment, start_offset: int, config: LogConfig) -> Reader[int]:
    """Returns the largest timestamp of a segment's records from an offset on, -1 if there is none."""
    bytes_ = _Bytes(segment)
    parts = answered_parts((yield ReadParts(segment)))
    place = yield from _locate(bytes_, parts, start_offset)
    largest, count = NO_TIMESTAMP, 0
    while place is not None:
        position, header = place
        if header.record_count and header.max_timestamp > largest:
            if header.base_offset < start_offset:
                yield from bytes_.need(position, header.size_bytes)
                data = bytes_.copy(position, header.size_bytes)
                largest = max(largest, (yield from largest_in_batch(header, data, start_offset, config)))
            else:
                largest = header.max_timestamp
        count += 1
        if count % HEADERS_PER_STEP == 0:
            yield None
        place = yield from bytes_.walk(position + header.size_bytes, header.next_offset)
    return largest


def _first_candidate(
    bytes_: _Bytes, parts: SegmentParts, timestamp_ms: int, start_offset: int
) -> Reader[_Place | None]:
    """Returns a batch at or above ``start_offset`` with no record of that time in the batches between the two."""
    segment = bytes_.segment
    for entry_ms, relative in _entries_below(TimeIndex.LAYOUT, parts.time_index, timestamp_ms):
        offset = segment.base_offset + relative
        if offset <= start_offset:
            break
        if offset > segment.last_offset:
            continue
        place = yield from _locate(bytes_, parts, offset)
        if place is not None and place[1].last_offset == offset and place[1].max_timestamp == entry_ms:
            return place
    return (yield from _locate(bytes_, parts, start_offset))
