"""The closed segments of a log as the object store gets them.

A segment is copied by a task that runs beside appends, flushes, rolls and retention. So what it copies is taken from
the log in the event loop (``segments_to_copy``), and read in a thread from files that stay open.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import CorruptLogFileError, LogError
from moldau_broker.log.files.batches import scan_headers
from moldau_broker.log.files.checkpoint import encode_epochs, read_file
from moldau_broker.log.files.index import OffsetIndex, TimeIndex
from moldau_broker.log.files.transaction_index import encode_aborted
from moldau_broker.log.values import SegmentParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.log.files.checkpoint import EpochEntry
    from moldau_broker.log.files.handle import SharedFile
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.segmented_log import SegmentedLog


class SegmentContent:
    """The bytes of a closed segment's ``.log`` (a ``moldau.runtime.ports.objects.Content``)."""

    __slots__ = ("file", "size_bytes")

    def __init__(self, file: SharedFile, size_bytes: int) -> None:
        self.file = file
        self.size_bytes = size_bytes

    def read(self, position: int, count: int) -> bytes:
        """Returns ``count`` bytes from ``position`` on; fewer only at the end. Blocks; may be called in any thread.

        Raises:
            OSError: The bytes could not be read, or the segment was truncated meanwhile.
        """
        count = max(0, min(count, self.size_bytes - position))
        data = self.file.read(position, count)
        if len(data) != count:
            raise OSError(errno.EIO, f"{len(data)} of {count} bytes at {position}: truncated", self.file.path)
        return data


class SegmentToCopy:
    """One closed segment: what its name in the store says, its bytes, and the files beside them.

    Its ``.log`` is opened at the first use of ``content`` and stays readable until ``release``, also if the log deletes
    the segment meanwhile.
    """

    __slots__ = (
        "_aborted",
        "_content",
        "_epochs",
        "_index",
        "_log",
        "_segments",
        "base_offset",
        "last_epoch",
        "last_offset",
        "max_timestamp_ms",
        "size_bytes",
    )

    def __init__(self, log: SegmentedLog, segments: Sequence[LogSegment], index: int, end_offset: int) -> None:
        """Takes segment ``index`` of ``segments``, which are those of the log and end at ``end_offset`` there.

        Raises:
            CorruptLogFileError: The segment is damaged.
            OSError: A file could not be read.
        """
        segment = segments[index]
        entries = log.epochs.entries
        self._log = log
        self._segments = segments
        self._index = index
        self._content: SegmentContent | None = None
        self.base_offset = segment.base_offset
        self.last_offset = end_offset - 1
        """Inclusive; the next segment of the log begins at the next offset."""
        self.last_epoch = log.epochs.epoch_for_offset(self.last_offset)
        """-1 if the log does not know it."""
        self.max_timestamp_ms = max(-1, segment.max_entry().timestamp_ms)
        self.size_bytes = segment.size
        if segment.unreadable_from is not None:
            raise CorruptLogFileError(segment.file.path, segment.unreadable_from, "no batch header")
        self._aborted = tuple(segment.aborted_entries())
        self._epochs: Sequence[EpochEntry] = [entry for entry in entries if entry.start_offset < end_offset]

    @property
    def end_offset(self) -> int:
        """Offset (exclusive) at which it ends."""
        return self.last_offset + 1

    @property
    def has_aborted(self) -> bool:
        """Whether its transaction index has entries."""
        return bool(self._aborted)

    @property
    def content(self) -> SegmentContent:
        """The bytes of ``.log``.

        Raises:
            OSError: The file could not be opened; the log was deleted, or the segment from the log.
        """
        if self._content is None:
            self._content = SegmentContent(self._segments[self._index].file, self.size_bytes)
        return self._content

    def release(self) -> None:
        """Lets the file close."""
        self._content = None

    # Parts -----------------------------------------------------------------------------------------------------------

    def parts(self) -> SegmentParts:
        """Returns the contents of the files beside ``.log``; blocks, and may be called in any thread.

        Indexes and snapshots that are lost or damaged are made from the batches.

        Raises:
            OSError: A file could not be read; the log may have deleted the segment.
        """
        segment = self._segments[self._index]
        offset_index = self._entries_of(segment.offset_index.path, OffsetIndex)
        time_index = self._entries_of(segment.time_index.path, TimeIndex)
        if offset_index is None or time_index is None:
            offset_index, time_index = self._index_batches()
        return SegmentParts(
            offset_index=offset_index,
            time_index=time_index,
            transaction_index=b"".join(map(encode_aborted, self._aborted)),
            producer_snapshot=self._log.snapshots.at_end_of(self._segments, self._index, self.end_offset),
            leader_epochs=encode_epochs(self._epochs),
        )

    def _entries_of(self, path: str, kind: type[OffsetIndex | TimeIndex]) -> bytes | None:
        """Returns the content of an index; None if it is missing, has lost its entries, or does not rise."""
        try:
            data = read_file(self._log.disk, path)
        except FileNotFoundError:
            return None
        if len(data) % kind.LAYOUT.size or (not data and self.size_bytes > self._log.config.index_interval_bytes):
            return None
        last = (-1, -1)
        for entry in kind.LAYOUT.iter_unpack(data):
            if entry[0] <= last[0] or entry[1] <= last[1]:
                return None
            last = entry
        position_max = self.size_bytes - 1 if kind is OffsetIndex else self.last_offset - self.base_offset
        return data if last[1] <= position_max else None

    def _index_batches(self) -> tuple[bytes, bytes]:
        """Returns both indexes, made from the headers of the batches, with an entry for the last one."""
        offsets, times = bytearray(), bytearray()
        interval, since_entry = self._log.config.index_interval_bytes, 0
        largest, largest_at, written = -1, 0, -1
        for position, header in scan_headers(self.content.file, 0, self.size_bytes):
            relative = header.last_offset - self.base_offset
            if header.max_timestamp > largest:
                largest, largest_at = header.max_timestamp, relative
            if since_entry > interval or (position + header.size_bytes == self.size_bytes and position > 0):
                offsets += OffsetIndex.LAYOUT.pack(relative, position)
                since_entry = 0
                if largest > written:
                    times += TimeIndex.LAYOUT.pack(largest, largest_at)
                    written = largest
            since_entry += header.size_bytes
        if largest > written:
            times += TimeIndex.LAYOUT.pack(largest, largest_at)
        return bytes(offsets), bytes(times)


def segments_to_copy(log: SegmentedLog, from_offset: int, upper_bound_offset: int) -> list[SegmentToCopy]:
    """Returns the closed segments that end at most at ``upper_bound_offset``, from that with ``from_offset`` on.

    A damaged segment, and those behind it, are left out.

    Raises:
        LogError: CORRUPT_MESSAGE, the first of them is damaged.
        OSError: A file could not be read.
    """
    found: list[SegmentToCopy] = []
    segments = tuple(log.segments.all)
    for index in range(max(0, log.segments.index_of(from_offset)), len(segments) - 1):
        end_offset = segments[index + 1].base_offset
        if end_offset > upper_bound_offset:
            break
        try:
            found.append(SegmentToCopy(log, segments, index, end_offset))
        except CorruptLogFileError as error:
            if not found:
                raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
            break
    return found
