"""Checks that batches which this process found on the disk are in order, before they are sent.

No checksum covers the base offset of a batch (KIP-98, record batch format v2), because a leader sets it after the
producer computed the checksum. A flipped bit there leads a reader far behind the records in between, and its group
commits that offset. So the first read of bytes that a segment had when it was opened walks over their headers; what a
process has appended itself is in order. Each batch is sent once the one behind it, or the end of the segment, has
confirmed it. A batch costs about 1.5 microseconds, once.

Limit: a gap that a cleaning has left may hide an offset that is wrong by less than the gap.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from moldau.records.batch import batch_crc_valid
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import plausible, read_header, scan_headers

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau.runtime.ports.environment import File
    from moldau_broker.log.files.index import OffsetIndex, OffsetPosition

BATCHES_MAX: Final = 256
"""The most batches that one read walks over: about 0.4 ms for each partition of a fetch."""
RANGES_MAX: Final = 16
"""The most ranges that are remembered as checked; readers at more places have them checked again."""


class FoundBytes:
    """The bytes that a file had when it was opened, and those of them whose batches were seen to be in order."""

    __slots__ = ("_ranges", "end")

    def __init__(self, end: int) -> None:
        self.end = end
        """End of the bytes that were found; what follows was appended by this process."""
        self._ranges: list[tuple[int, int]] = []  # disjoint and not adjacent, rising

    def are_checked(self, start: int, end: int) -> bool:
        """Returns whether all bytes from ``start`` to ``end`` are checked, or were appended."""
        end = min(end, self.end)
        if start >= end:
            return True
        index = bisect_right(self._ranges, start, key=itemgetter(0)) - 1
        return index >= 0 and self._ranges[index][1] >= end

    def add(self, start: int, end: int) -> None:
        """Notes that the batches from ``start`` to ``end`` are in order."""
        if start >= end:
            return
        apart = []
        for low, high in self._ranges:
            if high < start or low > end:
                apart.append((low, high))
            else:
                start, end = min(start, low), max(end, high)
        if len(apart) >= RANGES_MAX:
            apart.remove(min(apart, key=lambda each: each[1] - each[0]))
        self._ranges = sorted([*apart, (start, end)])


def ends_below(file: File, entry: OffsetPosition, offset: int, size: int) -> bool:
    """Returns whether the batches from an index entry to the end of a segment, ``size``, all end below ``offset``.

    Else the last one has a wrong offset: it is not in order, or below the entry.

    Raises:
        OSError: The file could not be read.
    """
    end, peak, is_behind = entry.position, 0, False
    for position, header in scan_headers(file, entry.position, size):
        if header.last_offset >= offset:
            return False
        is_behind = header.base_offset < peak
        peak = max(peak, header.next_offset)
        end = position + header.size_bytes
    return end == size and not is_behind and (peak > entry.offset or size == 0)


def ordered_end(file: File, begin: int, start: int, end: int, size: int, offset: int | None, next_base: int) -> int:
    """Returns the end of the batches from ``begin`` on that are in order, ``end`` or more if all up to it are.

    At most ``BATCHES_MAX`` of them lie behind ``start``. The segment begins with ``offset`` if ``begin`` is its first
    byte, else ``offset`` is None. ``size`` is the end of the segment, and ``next_base`` the offset that follows it. Of
    two batches that contradict each other the first one counts if it begins where the one before it ends.

    Raises:
        OSError: The file could not be read.
    """
    before: tuple[int, BatchHeader] | None = None
    fits = False  # whether ``before`` begins where the one before it ends
    walked, count = begin, 0
    floor, expected = -1 if offset is None else offset, offset
    for position, header in scan_headers(file, begin, size):
        if header.last_offset >= next_base:
            return position
        if header.base_offset < floor:
            return position if fits or before is None else before[0]
        count += position >= start
        if position >= end or count > BATCHES_MAX:
            return position
        fits = header.base_offset == expected
        floor = expected = header.next_offset
        before = position, header
        walked = position + header.size_bytes
    if before is None or walked >= size or _is_whole(file, *before):
        return walked
    return before[0]


def _is_whole(file: File, position: int, header: BatchHeader) -> bool:
    """Returns whether the checksum confirms the length of a batch; no batch follows it."""
    data = file.read(position, header.size_bytes)
    return len(data) == header.size_bytes and batch_crc_valid(data, 0, header)


def begin_of_check(file: File, index: OffsetIndex, start: int, offset: int) -> int:
    """Returns the position of a batch before ``start``, from which a walk shows whether ``start`` is the right place.

    ``start`` is where ``offset`` was found. A wrong base offset may have hidden the batch that holds it, or may pretend
    to hold it, and an index entry may name that batch; so the walk begins at the entry before the nearest one. The
    position is ``start`` if the index cannot help.

    Raises:
        OSError: A file could not be read.
    """
    try:
        nearest = index.lookup(offset)
        entry = index.lookup(nearest.offset - 1)
    except CorruptLogFileError:
        return start
    if entry.position == 0:
        return 0
    if not 0 < entry.position < start:
        return start
    header = read_header(file, entry.position)
    is_begin = header is not None and plausible(header) and header.base_offset <= entry.offset
    return entry.position if is_begin else start
