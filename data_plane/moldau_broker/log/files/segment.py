"""One segment of a log: a file of batches with its indexes.

Reads find a batch by the offset index and a short walk over headers. The positions of the newest batches of the active
segment are kept in memory (``BatchTail``), so that fetches there read only their data. An index entry is used only
if the batch at its position confirms it; otherwise the index is rebuilt from the log. So a damaged index costs time but
never gives a wrong answer. ``SegmentFiles`` owns the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batch_tail import TAIL_BATCHES, BatchTail
from moldau_broker.log.files.batches import BatchReader, batch_problem, plausible, read_header, rising_end, scan_headers
from moldau_broker.log.files.found_batches import ends_below
from moldau_broker.log.files.index import RELATIVE_MAX, TimestampEntry
from moldau_broker.log.files.names import LOG_SUFFIX
from moldau_broker.log.files.segment_files import SegmentFiles
from moldau_broker.log.values import NO_TIMESTAMP, StagedBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.records import BatchHeader
    from moldau.runtime.ports.environment import Disk
    from moldau.values import Buffer
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.files.batches import Batch
    from moldau_broker.log.files.handle import SharedFile
    from moldau_broker.log.files.index import OffsetIndex, OffsetPosition, TimeIndex
    from moldau_broker.log.files.open_files import OpenFiles
    from moldau_broker.log.files.transaction_index import AbortedEntry, TransactionIndex

_LOOKUP_BYTES = 4096
"""Bytes read at a time to walk from an index entry to a batch: about one interval of the index."""

_SIZE = StagedBatch._fields.index("size")


class LogSegment:
    """One segment of a log: its batches and how to find them.

    Invariants: ``size`` is the end of the last whole batch; only the last segment of a log is appended to.

    The class has many methods because appends, look-ups, recovery and truncation must keep the same counters in step
    with the file. The file formats are in ``index``, ``segment_files`` and ``transaction_index``.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_first_timestamp",
        "_index_interval",
        "_last_offset_left",
        "_lost",
        "_max_entry",
        "_offset_index",
        "_preallocated",
        "_tail",
        "_time_index",
        "base_offset",
        "created_ms",
        "files",
        "preallocate",
        "size",
        "unreadable_from",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        config: LogConfig,
        created_ms: int,
        suffix: str = "",
        files: OpenFiles | None = None,
    ) -> None:
        """Creates the log file if it is missing; the others are opened when they are needed.

        Raises:
            OSError: The file could not be created or measured.
        """
        self.files = SegmentFiles(disk, directory, base_offset, config.segment_index_bytes, suffix, files)
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size = self.files.found.end
        # Appending uses the indexes of a segment that is not settled: no use of its files has to be noted.
        self._offset_index = self.files.offset_index
        self._time_index = self.files.time_index
        self.preallocate = config.segment_bytes if config.preallocate else 0
        self._preallocated = 0
        self._index_interval = config.index_interval_bytes
        self._bytes_since_entry = 0
        self._max_entry: TimestampEntry | None = (
            None  # largest timestamp and its batch's last offset; None: not read yet
        )
        self._first_timestamp: int | None = None
        self._tail = BatchTail()
        self.unreadable_from: int | None = None
        """Position where a walk over the headers ended too early; batches behind it are unreadable. Else None."""
        self._lost: OffsetPosition | None = None
        """The index entry of a last batch that the file has lost, where it ends between two batches or is empty."""
        self._last_offset_left = base_offset - 1  # up to ``unreadable_from``, where that is set

    # Files -----------------------------------------------------------------------------------------------------------

    def path(self, kind: str) -> str:
        """Returns the path of one of the segment's files."""
        return self.files.path(kind)

    @property
    def file(self) -> SharedFile:
        """The log file, see ``SegmentFiles.log``."""
        return self.files.log

    @property
    def offset_index(self) -> OffsetIndex:
        """Maps offsets to positions."""
        return self.files.offset_index

    @property
    def time_index(self) -> TimeIndex:
        """Maps timestamps to offsets."""
        return self.files.time_index

    @property
    def transaction_index(self) -> TransactionIndex:
        """Lists aborted transactions."""
        return self.files.transaction_index

    # Appending -------------------------------------------------------------------------------------------------------

    def should_roll(
        self, config: LogConfig, jitter_ms: int, size: int, max_timestamp: int, last_offset: int, now_ms: int
    ) -> bool:
        """Returns whether the segment must be closed before ``size`` more bytes are appended to it.

        The bytes are a batch that ends at ``last_offset`` and all that is staged before it. The age and the indexes of
        an empty segment are ignored. The age goes by message timestamps if there are any, else since the creation.
        """
        if self.size + size > config.roll_bytes or not 0 <= last_offset - self.base_offset <= RELATIVE_MAX:
            return True
        if self.size == 0:
            return False
        first = self._first_timestamp
        if first is None:
            first = self.first_timestamp()
        age_ms = max_timestamp - first if first >= 0 and max_timestamp >= 0 else now_ms - self.created_ms
        return age_ms > config.roll_ms - jitter_ms or self._offset_index.is_full or self._time_index.is_full

    def first_timestamp(self) -> int:
        """Returns the largest timestamp of the first batch, -1 if there is none."""
        if self._first_timestamp is None:
            header = read_header(self.file, 0) if self.size else None
            if header is None:
                return NO_TIMESTAMP
            self._first_timestamp = header.max_timestamp
        return self._first_timestamp

    def append(self, buffers: Sequence[Buffer], batches: Sequence[StagedBatch]) -> None:
        """Writes the batches with one gathered write and indexes them.

        Raises:
            OSError: The write failed. Nothing is indexed.
        """
        size = self.size
        total = batches[0][_SIZE] if len(batches) == 1 else sum([batch[_SIZE] for batch in batches])
        if self.preallocate > self._preallocated:
            self._preallocated = self.preallocate
            self.file.preallocate(self._preallocated)
        new_size = self.files.log.append(buffers)
        assert new_size == size + total, f"{self.file.path} has {new_size} bytes, expected {size + total}"
        self._note(batches)

    def _note(self, batches: Sequence[StagedBatch]) -> None:
        """Indexes batches that follow each other from position ``size`` on."""
        position = self.size
        if self._first_timestamp is None and position == 0:
            self._first_timestamp = batches[0].max_timestamp
        largest_ms, largest_at = self._max_entry or self.max_entry()
        risen, since_entry = False, self._bytes_since_entry
        tail = self._tail
        last_offsets, positions = tail.last_offsets, tail.positions
        for _, last_offset, size, max_timestamp in batches:
            if max_timestamp > largest_ms:
                largest_ms, largest_at, risen = max_timestamp, last_offset, True
            if since_entry > self._index_interval:
                self._offset_index.append(last_offset, position)
                self._time_index.maybe_append(largest_ms, largest_at)
                since_entry = 0
            since_entry += size
            last_offsets.append(last_offset)
            positions.append(position)
            position += size
        if risen:
            self._max_entry = TimestampEntry(largest_ms, largest_at)
        self._bytes_since_entry = since_entry
        if len(positions) >= 2 * TAIL_BATCHES:
            tail.shorten()
        self.size = position

    def abandon_write(self) -> None:
        """Removes the bytes of an append that failed.

        Raises:
            OSError: The file could not be truncated.
        """
        self._preallocated = 0
        if self.file.size > self.size:
            self.file.truncate(self.size)

    # Finding batches -------------------------------------------------------------------------------------------------

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Returns position and header of the first batch that ends at or above ``offset``; None if there is none.

        Raises:
            CorruptLogFileError: A batch on the way has no header, so the batches behind it are unreadable.
            OSError: The file could not be read.
        """
        position = self._tail.position_of(offset)
        if position is not None:
            header = self.header_at(position)
            assert header.last_offset >= offset, f"{self.file.path}: batch at {position} ends below {offset}"
            return position, header
        if self._tail.last_offsets and offset > self._tail.last_offsets[-1]:
            return None
        if self._lost is not None and offset > self._last_offset_left:
            raise CorruptLogFileError(self.file.path, self.size, "the file was longer once")
        entry = self._lookup(offset)
        if entry is not None:
            start = end = entry.position
            for position, header in scan_headers(self.file, start, self.size, _LOOKUP_BYTES):
                if end == start and start > 0 and not self.base_offset < header.base_offset <= offset:
                    break
                if header.last_offset >= offset:
                    return position, header
                end = position + header.size_bytes
            if end == self.size:
                return None
            if end == self.unreadable_from:  # the indexes have been built again since then
                raise CorruptLogFileError(self.file.path, end, "no batch header")
        self.rebuild_indexes()
        end = self.offset_index.lookup(offset).position
        for position, header in scan_headers(self.file, end, self.size):
            if header.last_offset >= offset:
                return position, header
            end = position + header.size_bytes
        if end != self.size:
            raise CorruptLogFileError(self.file.path, end, "no batch header")
        return None

    def _lookup(self, offset: int) -> OffsetPosition | None:
        """Returns the unchecked index entry where a walk to ``offset`` begins; None if the index is damaged."""
        try:
            entry = self.offset_index.lookup(offset)
        except CorruptLogFileError:
            return None  # The index is only a hint; the log itself has the answer.
        return entry if 0 <= entry.position < max(1, self.size) else None

    def locate(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Returns the position of the first batch that ends at or above ``offset``, the size if there is none.

        The header is returned if it was read on the way.
        """
        position = self._tail.position_of(offset)
        if position is not None:
            return position, None
        return self.find(offset) or (self.size, None)

    def position_of(self, offset: int) -> int:
        """Returns the position that ``locate`` finds."""
        return self.locate(offset)[0]

    def may_hide(self, offset: int) -> bool:
        """Returns whether damage at the end of the segment may hide ``offset``, which ``locate`` did not find."""
        if self._has_all_below(offset):
            return False
        if self.unreadable_from is None:
            self.rebuild_indexes()
        return not self._has_all_below(offset)

    def _has_all_below(self, offset: int) -> bool:
        entry = self._lookup(offset)
        return entry is not None and ends_below(self.file, entry, offset, self.size)

    def header_at(self, position: int) -> BatchHeader:
        """Returns the header of the batch at ``position``, which ``position_of`` returned."""
        header = read_header(self.file, position)
        assert header is not None, f"{self.file.path}: no batch at {position}"
        return header

    def batch_bytes_at(self, position: int, header: BatchHeader | None) -> int:
        """Returns the size of the batch at ``position``, which ``locate`` returned with ``header``.

        The newest batches are known in memory; the header of another is read if it is not given.
        """
        if header is None:
            size = self._tail.size_at(position, self.size)
            if size is not None:
                return size
            header = self.header_at(position)
        return header.size_bytes

    def _checked_lookup(self, offset: int) -> int:
        """Returns where a batch begins, at or before the one that holds ``offset``; rebuilds a damaged index."""
        try:
            entry = self.offset_index.lookup(offset)
            if entry.position == 0 or self._confirms(entry, offset):
                return entry.position
        except CorruptLogFileError:
            pass  # The index is only a hint; the log itself has the answer.
        self.rebuild_indexes()
        return self.offset_index.lookup(offset).position

    def _confirms(self, entry: OffsetPosition, offset: int) -> bool:
        if not 0 < entry.position < self.size:
            return False
        header = read_header(self.file, entry.position)
        return (
            header is not None
            and plausible(header)
            and self.base_offset < header.base_offset <= offset
            and header.base_offset <= entry.offset
            and entry.position + header.size_bytes <= self.size
        )

    def mend_indexes(self) -> None:
        """Rebuilds the indexes of a closed segment after a clean stop, and detects whether the file lost its end.

        The last entry of the offset index points to the last batch (``seal``). If it lies beyond the file, and the file
        does not hold its offset, the file was longer once. If only the position in the entry is damaged, the file holds
        its offset.

        Raises:
            OSError: A file could not be read or written.
        """
        try:
            self._lost = self.offset_index.last()
        except CorruptLogFileError:
            self._lost = None
        self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Rebuilds both sparse indexes from the headers of the batches, up to the first one out of order.

        No checksum covers base offsets, so a damaged one may have any value.

        Raises:
            OSError: A file could not be read or written.
        """
        self.offset_index.reset()
        self.time_index.reset()
        size = self.size
        self._restart_notes()
        expected = self.base_offset
        for position, header in scan_headers(self.file, 0, size):
            assert position == self.size
            if not self.offset_index.fits(header.last_offset):
                break
            if header.base_offset < expected:
                self._forget_from(header.base_offset)
                break
            expected = header.last_offset + 1
            staged = StagedBatch(header.base_offset, header.last_offset, header.size_bytes, header.max_timestamp)
            self._note((staged,))
        self.unreadable_from = self.size if self.size < size else None
        self._last_offset_left = expected - 1
        self._keep_lost(size)
        # These batches were found on the disk, and may have wrong offsets: those of the tail are sent without a check.
        self._tail.clear()
        self.size = size
        self.spill_indexes()

    def _forget_from(self, offset: int) -> None:
        """Drops index entries that are not below ``offset``, so that batches behind it rise above all entries."""
        self.offset_index.truncate_to_offset(offset)
        self.time_index.truncate_to_offset(offset)
        self._max_entry = self.time_index.last() or TimestampEntry(NO_TIMESTAMP, self.base_offset)

    @property
    def has_lost_its_end(self) -> bool:
        """Whether the file was longer once, though it ends with a whole batch."""
        return self._lost is not None

    def _keep_lost(self, size: int) -> None:
        """Keeps the index entry of a lost last batch for the next start, or forgets it if no batch was lost."""
        lost = self._lost
        if lost is None:
            return
        if self.unreadable_from is None and lost.position >= size and lost.offset > self._last_offset_left:
            self.unreadable_from = size
            self.offset_index.append(*lost)
        else:
            self._lost = None

    def _restart_notes(self) -> None:
        """Resets all counters, so that ``_note`` can index all batches from the first on."""
        self.size = 0
        self._tail.clear()
        self._bytes_since_entry = 0
        self._max_entry = TimestampEntry(NO_TIMESTAMP, self.base_offset)
        self._first_timestamp = None

    # Timestamps ------------------------------------------------------------------------------------------------------

    def max_entry(self) -> TimestampEntry:
        """Returns the largest timestamp and the last offset of its batch; -1 and the base offset if empty.

        Covers only the readable part where ``unreadable_from`` is set.

        Raises:
            OSError: A file could not be read.
            CorruptLogFileError: A batch on the way has no header.
        """
        if self._max_entry is None:
            self._max_entry = self._load_max_entry()
        return self._max_entry

    def _load_max_entry(self) -> TimestampEntry:
        """Reads it from the last entry of the time index, checked against its batch, and from the batches after it."""
        self.unreadable_from = None
        last = self.time_index.last()
        if last is not None:
            found = self.find(last.offset)
            if found is None or found[1].last_offset != last.offset or found[1].max_timestamp != last.timestamp_ms:
                self.rebuild_indexes()
                assert self._max_entry is not None
                return self._max_entry
        largest = last if last is not None else TimestampEntry(NO_TIMESTAMP, self.base_offset)
        end = self._checked_lookup(largest.offset)
        for position, header in scan_headers(self.file, end, self.size):
            if header.max_timestamp > largest.timestamp_ms and header.last_offset >= largest.offset:
                largest = TimestampEntry(header.max_timestamp, header.last_offset)
            end = position + header.size_bytes
        if end != self.size:
            self.unreadable_from = end
        return largest

    def find_timestamp(self, timestamp_ms: int, start_offset: int) -> tuple[BatchHeader, bytes] | None:
        """Returns header and bytes of the first batch at or after an offset and a time; None if there is none.

        The batch ends at or after ``start_offset``, and its largest timestamp is at or above ``timestamp_ms``.
        """
        entry = self.time_index.lookup(timestamp_ms)
        if entry.timestamp_ms >= 0:
            found = self.find(entry.offset)
            if found is None or found[1].last_offset != entry.offset or found[1].max_timestamp != entry.timestamp_ms:
                self.rebuild_indexes()
                entry = self.time_index.lookup(timestamp_ms)
        start = self._checked_lookup(max(entry.offset, start_offset))
        for position, header in scan_headers(self.file, start, self.size):
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            return header, self.file.read(position, header.size_bytes)
        return None

    def aborted_entries(self) -> Sequence[AbortedEntry]:
        """Returns the aborted transactions whose marker lies in the segment."""
        return self.transaction_index.entries()

    # Recovery and truncation -----------------------------------------------------------------------------------------

    def recover(self, accept: Callable[[Batch], str | None]) -> str | None:
        """Reads the whole segment, rebuilds its indexes, and cuts it at the first bad batch.

        ``accept`` gets each batch whose bytes are sound, and returns why it does not fit, or None. Returns why the
        segment was cut, None if it was whole.

        Raises:
            OSError: A file could not be read or written.
        """
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        end = self.file.size
        self._restart_notes()
        reader = BatchReader(self.file, 0, end)
        problem: str | None = None
        for batch in reader:
            header = batch.header
            problem = batch_problem(header, batch.data) or accept(batch)
            if problem is not None:
                break
            staged = StagedBatch(header.base_offset, header.last_offset, header.size_bytes, header.max_timestamp)
            self._note((staged,))
        problem = problem or reader.problem
        # Truncation also releases space that was reserved beyond the content.
        self.file.truncate(self.size)
        return f"byte {self.size} of {self.path(LOG_SUFFIX)}: {problem}" if problem is not None else None

    def place_of_cut(self, offset: int) -> tuple[int, int]:
        """Returns the end offset of the log and the end of its file after a cut at ``offset``.

        A batch that holds ``offset`` is removed as a whole. If damage or a lost end lies before it, the cut is made
        there, because the batches behind it are unreadable.

        Raises:
            OSError: A file could not be read.
        """
        try:
            found = self.find(offset)
        except CorruptLogFileError:
            if self._lost is None:
                self.rebuild_indexes()  # up to the damage
            assert self.unreadable_from is not None, f"{self.file.path}: {offset} was not found in a whole segment"
            return min(offset, self._last_offset_left + 1), self.unreadable_from
        if found is None:
            return offset, self.size
        position, header = found
        if header.base_offset > offset:  # what lay between is compacted away, or lost: no checksum covers this offset
            return rising_end(self.file, self.base_offset, position)
        return min(offset, header.base_offset), position

    def cut(self, offset: int, position: int) -> None:
        """Removes all batches behind the cut that ``place_of_cut`` returned; durable on return.

        Call ``resume`` before the next append.

        Raises:
            OSError: A file could not be written.
        """
        if position == self.size and self._lost is None:
            return
        self._lost = None
        self.offset_index.truncate_to_offset(offset)
        self.time_index.truncate_to_offset(offset)
        self.transaction_index.truncate_to_offset(offset)
        self.file.truncate(position)
        self.file.sync()
        self.size = position
        self._preallocated = 0
        self._tail.cut(position)
        if position == 0:
            self.rebuild_indexes()
        else:
            self._max_entry = None

    def last_indexed_position(self) -> int:
        """Returns the position of the batch of the newest index entry; 0 if there is none."""
        last = self.offset_index.last()
        if last is None:
            return 0
        header = read_header(self.file, last.position) if 0 <= last.position < self.size else None
        if header is None or not plausible(header) or header.last_offset != last.offset:
            self.rebuild_indexes()
            last = self.offset_index.last()
        return last.position if last is not None else 0

    def resume(self, end_offset: int) -> None:
        """Restores the counters needed to resume indexing an existing segment of a log that ends at ``end_offset``.

        Raises:
            OSError: A file could not be read.
            CorruptLogFileError: The segment is too damaged to restore them.
        """
        self._bytes_since_entry = self.size - self.last_indexed_position()
        largest = self.max_entry()
        if largest.offset >= end_offset > self.base_offset:  # damaged: the next entries must rise above it
            self._max_entry = TimestampEntry(largest.timestamp_ms, end_offset - 1)

    # Life cycle ------------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Ends appending: releases reserved space and completes both indexes up to the last batch.

        Raises:
            OSError: A file could not be written.
            CorruptLogFileError: A batch has no header.
        """
        if self._preallocated > self.size:
            self.file.truncate(self.size)
            self._preallocated = 0
        self._index_last_batch()
        largest = self.max_entry()
        self.time_index.maybe_append(largest.timestamp_ms, largest.offset)
        self.spill_indexes()
        self._tail.clear()

    def _index_last_batch(self) -> None:
        """Adds the last batch to the offset index, so that a later loss of the file's end is detected."""
        if self.size == 0 or self.unreadable_from is not None:
            return
        if self._tail.positions:
            offset, position = self._tail.last_offsets[-1], self._tail.positions[-1]
        else:
            offset, position, end = self.base_offset, 0, 0
            for position, header in scan_headers(self.file, self.last_indexed_position(), self.size, _LOOKUP_BYTES):
                offset, end = header.last_offset, position + header.size_bytes
            if end != self.size:
                return
        last = self.offset_index.last()
        if self.offset_index.fits(offset) and (last is None or (last.position < position and last.offset < offset)):
            self.offset_index.append(offset, position)

    def spill_indexes(self) -> None:
        """Writes the index entries in memory to their files."""
        self.offset_index.spill()
        self.time_index.spill()
