"""One segment of a log: a file of batches with its indexes.

Reads find a batch by the offset index and a short walk over headers; the newest batches of the active segment are
found in memory (``_tail_*``), so that followers and consumers at the tail cost no read besides their data. An index
entry is believed only if the batch it points at bears it out: otherwise the index is rebuilt from the log. A damaged
index can cost time, never a wrong answer.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from moldau.records import decode_records
from moldau.runtime.environment import OpenMode
from moldau_broker.log.batches import BatchReader, batch_problem, plausible, read_header, scan_headers
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files import SharedFile
from moldau_broker.log.index import OffsetIndex, OffsetPosition, TimeIndex, TimestampEntry
from moldau_broker.log.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file,
)
from moldau_broker.log.transaction_index import TransactionIndex
from moldau_broker.log.values import NO_TIMESTAMP, StagedBatch, TimestampOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.records import BatchHeader
    from moldau.runtime.environment import Buffer, Disk
    from moldau_broker.log.batches import Batch
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.transaction_index import AbortedEntry

_TAIL_BATCHES = 1024
"""Newest batches of the active segment that are found without the index; twice that at most are held."""

_POSITION_MAX = (1 << 31) - 1
_LOOKUP_BYTES = 4096
"""Bytes read at a time to walk from an index entry to a batch: an interval of the index, mostly."""

_PREALLOCATION_STEP = 16 * 1024 * 1024
_PREALLOCATION_START = 4 * 1024 * 1024
"""A segment that reached this size is written to a lot: space is reserved ahead, which makes large appends cheaper."""


class LogSegment:
    """A segment.

    Invariants: ``size`` is the end of the last whole batch; only the last segment of a log is appended to.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_disk",
        "_first_timestamp",
        "_index_interval",
        "_last_offset_left",
        "_lost",
        "_max_entry",
        "_preallocated",
        "_tail_last_offsets",
        "_tail_positions",
        "base_offset",
        "created_ms",
        "directory",
        "file",
        "name_durable",
        "offset_index",
        "preallocate",
        "size",
        "suffix",
        "time_index",
        "transaction_index",
        "unreadable_from",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, config: LogConfig, created_ms: int, suffix: str = ""
    ) -> None:
        """Opens the segment's files, creating the missing. Raises ``OSError``, ``CorruptLogFileError`` (an index)."""
        self._disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.created_ms = created_ms
        self.name_durable = disk.exists(self.path(LOG_SUFFIX))
        self.file = SharedFile(disk.open(self.path(LOG_SUFFIX), OpenMode.WRITE))
        self.size = self.file.size
        bytes_max = config.segment_index_bytes
        self.offset_index = OffsetIndex(disk, self.path(INDEX_SUFFIX), base_offset, bytes_max)
        self.time_index = TimeIndex(disk, self.path(TIME_INDEX_SUFFIX), base_offset, bytes_max)
        self.transaction_index = TransactionIndex(disk, self.path(TRANSACTION_INDEX_SUFFIX), base_offset)
        self.preallocate = config.segment_bytes if config.preallocate else 0
        self._preallocated = 0
        self._index_interval = config.index_interval_bytes
        self._bytes_since_entry = 0
        self._max_entry: TimestampOffset | None = (
            None  # largest timestamp and its batch's last offset; None: not read yet
        )
        self._first_timestamp: int | None = None
        self._tail_last_offsets: list[int] = []
        self._tail_positions: list[int] = []
        self.unreadable_from: int | None = None
        """Position where a walk over the headers ended too early: what is behind it, nobody knows. None so far."""
        self._lost: OffsetPosition | None = None
        """What the index knows of the last batch, where the file ends before it: between two batches, or empty."""
        self._last_offset_left = base_offset - 1  # up to ``unreadable_from``, where that is set

    def path(self, kind: str) -> str:
        """Path of one of the segment's files."""
        return f"{self.directory}/{segment_file(self.base_offset, kind)}{self.suffix}"

    # Appending -------------------------------------------------------------------------------------------------------

    def should_roll(
        self, config: LogConfig, jitter_ms: int, size: int, max_timestamp: int, last_offset: int, now_ms: int
    ) -> bool:
        """Whether ``size`` bytes (a batch that ends at ``last_offset``, and what is staged before it) are too many or
        too late.

        The time and the indexes of an empty segment ask for nothing.
        """
        if self.size + size > min(config.segment_bytes, _POSITION_MAX) or not self.offset_index.fits(last_offset):
            return True
        return self.size > 0 and (
            self.age_ms(now_ms, max_timestamp) > config.roll_ms - jitter_ms
            or self.offset_index.is_full
            or self.time_index.is_full
        )

    def age_ms(self, now_ms: int, message_timestamp: int) -> int:
        """How long the segment has been written to.

        By message time where messages have one, else since its creation.
        """
        first = self.first_timestamp()
        return message_timestamp - first if first >= 0 and message_timestamp >= 0 else now_ms - self.created_ms

    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch, -1 if there is none."""
        if self._first_timestamp is None:
            header = read_header(self.file, 0) if self.size else None
            if header is None:
                return NO_TIMESTAMP
            self._first_timestamp = header.max_timestamp
        return self._first_timestamp

    def append(self, buffers: Sequence[Buffer], batches: Sequence[StagedBatch]) -> None:
        """Writes the batches with one gathered write and indexes them. Raises ``OSError``; then nothing is indexed."""
        size = self.size
        total = sum(batch.size for batch in batches)
        if size + total > self._preallocated and (self.preallocate or size >= _PREALLOCATION_START):
            self._preallocated = max(self.preallocate, size + total + _PREALLOCATION_STEP)
            self.file.preallocate(self._preallocated)
        new_size = self.file.append(buffers)
        assert new_size == size + total, f"{self.file.path} has {new_size} bytes, expected {size + total}"
        for batch in batches:
            self._note(batch)

    def _note(self, batch: StagedBatch) -> None:
        """Indexes a batch that lies at ``size``."""
        position = self.size
        last_offset = batch.last_offset
        largest = self._max_entry
        if largest is None:
            largest = self.max_entry()
        if batch.max_timestamp > largest.timestamp_ms:
            largest = self._max_entry = TimestampOffset(timestamp_ms=batch.max_timestamp, offset=last_offset)
        if self._first_timestamp is None and position == 0:
            self._first_timestamp = batch.max_timestamp
        if self._bytes_since_entry > self._index_interval:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(largest.timestamp_ms, largest.offset)
            self._bytes_since_entry = 0
        self._bytes_since_entry += batch.size
        self._tail_last_offsets.append(last_offset)
        self._tail_positions.append(position)
        if len(self._tail_positions) >= 2 * _TAIL_BATCHES:
            del self._tail_last_offsets[:_TAIL_BATCHES]
            del self._tail_positions[:_TAIL_BATCHES]
        self.size = position + batch.size

    def abandon_write(self) -> None:
        """Takes back the bytes of an append that failed. Raises ``OSError``."""
        self._preallocated = 0
        if self.file.size > self.size:
            self.file.truncate(self.size)

    # Finding batches -------------------------------------------------------------------------------------------------

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Position and header of the first batch whose last offset is at or above ``offset``; None if there is none.

        Raises ``CorruptLogFileError`` if a batch on the way has no header: then nobody knows what is behind it.
        """
        position = self._position_in_tail(offset)
        if position is not None:
            header = self.header_at(position)
            assert header.last_offset >= offset, f"{self.file.path}: batch at {position} ends below {offset}"
            return position, header
        if self._tail_last_offsets and offset > self._tail_last_offsets[-1]:
            return None
        if self._lost is not None and offset > self._last_offset_left:
            raise CorruptLogFileError(self.file.path, self.size, "the file ends, and was longer once")
        start = self._lookup(offset)
        if start is not None:
            end = start
            for position, header in scan_headers(self.file, start, self.size, _LOOKUP_BYTES):
                if end == start and start > 0 and not self.base_offset < header.base_offset <= offset:
                    break
                if header.last_offset >= offset:
                    return position, header
                end = position + header.size_bytes
            if end == self.size:
                return None
            if end == self.unreadable_from:  # the indexes have been built anew since then
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

    def _lookup(self, offset: int) -> int | None:
        """Where the index says that a walk to ``offset`` begins; None if the index is damaged. Not checked yet."""
        try:
            position = self.offset_index.lookup(offset).position
        except CorruptLogFileError:
            return None  # The index is a hint: whatever is wrong with it, the log itself has the answer.
        return position if 0 <= position < max(1, self.size) else None

    def locate(self, offset: int) -> tuple[int, BatchHeader | None]:
        """Position of the first batch whose last offset is at or above ``offset``, the size if there is none.

        The header is given where it was read on the way.
        """
        position = self._position_in_tail(offset)
        if position is not None:
            return position, None
        return self.find(offset) or (self.size, None)

    def position_of(self, offset: int) -> int:
        """The position that ``locate`` finds."""
        return self.locate(offset)[0]

    def header_at(self, position: int) -> BatchHeader:
        """Header of the batch that begins at ``position``, which ``position_of`` returned."""
        header = read_header(self.file, position)
        assert header is not None, f"{self.file.path}: no batch at {position}"
        return header

    def _position_in_tail(self, offset: int) -> int | None:
        tail = self._tail_last_offsets
        # The first batch of the tail is found only if it is the segment's first: what is before it is not known here.
        if not tail or offset > tail[-1] or (offset <= tail[0] and self._tail_positions[0] > 0):
            return None
        return self._tail_positions[bisect_left(tail, offset)]

    def _checked_lookup(self, offset: int) -> int:
        """A position at or before the batch that holds ``offset``, where a batch begins; mends a damaged index."""
        try:
            entry = self.offset_index.lookup(offset)
            if entry.position == 0 or self._bears_out(entry, offset):
                return entry.position
        except CorruptLogFileError:
            pass  # The index is a hint: whatever is wrong with it, the log itself has the answer.
        self.rebuild_indexes()
        return self.offset_index.lookup(offset).position

    def _bears_out(self, entry: OffsetPosition, offset: int) -> bool:
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
        """Builds the indexes of a closed segment anew after a clean stop; notices if the file has lost its end.

        The last entry of the offset index is that of the last batch (``seal``). Where it lies beyond the file, and the
        file does not hold its offset, the file was longer once. An entry whose position has rotted does not look like
        that: the file holds its offset. Raises ``OSError``.
        """
        try:
            self._lost = self.offset_index.last()
        except CorruptLogFileError:
            self._lost = None
        self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Builds both sparse indexes anew from the headers of the batches, up to the first that cannot follow.

        Base offsets are under no checksum: one that rotted says anything. Raises ``OSError``.
        """
        self.offset_index.reset()
        self.time_index.reset()
        size = self.size
        self._restart_notes()
        expected = self.base_offset
        for position, header in scan_headers(self.file, 0, size):
            assert position == self.size
            if header.base_offset < expected or not self.offset_index.fits(header.last_offset):
                break
            expected = header.last_offset + 1
            self._note(StagedBatch(header.base_offset, header.last_offset, header.size_bytes, header.max_timestamp))
        self.unreadable_from = self.size if self.size < size else None
        self._last_offset_left = expected - 1
        self._keep_lost(size)
        if self.unreadable_from is not None:
            # The tail ends where nothing more can be read, and not where the segment does: what is asked for behind it
            # was not compacted away.
            self._tail_last_offsets.clear()
            self._tail_positions.clear()
        self.size = size
        self.spill_indexes()

    @property
    def has_lost_its_end(self) -> bool:
        """Whether the file was longer once, though what is left ends with a whole batch."""
        return self._lost is not None

    def _keep_lost(self, size: int) -> None:
        """Leaves in the index what it knew of a batch behind the end, for the next start; forgets what is no loss."""
        lost = self._lost
        if lost is None:
            return
        if self.unreadable_from is None and lost.position >= size and lost.offset > self._last_offset_left:
            self.unreadable_from = size
            self.offset_index.append(*lost)
        else:
            self._lost = None

    def _restart_notes(self) -> None:
        """Forgets what is known of the batches, so that ``_note`` can be told all of them from the first on."""
        self.size = 0
        self._tail_last_offsets.clear()
        self._tail_positions.clear()
        self._bytes_since_entry = 0
        self._max_entry = TimestampOffset(timestamp_ms=NO_TIMESTAMP, offset=self.base_offset)
        self._first_timestamp = None

    # Timestamps ------------------------------------------------------------------------------------------------------

    def max_entry(self) -> TimestampOffset:
        """Largest timestamp and the last offset of the batch that has it.

        -1 and the base offset in an empty segment. Of what can be read, where ``unreadable_from`` is set. Raises
        ``OSError``, ``CorruptLogFileError``.
        """
        if self._max_entry is None:
            self._max_entry = self._load_max_entry()
        return self._max_entry

    def _load_max_entry(self) -> TimestampOffset:
        """From the time index's last entry, checked against its batch, and the batches after it."""
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
            if header.max_timestamp > largest.timestamp_ms:
                largest = TimestampEntry(header.max_timestamp, header.last_offset)
            end = position + header.size_bytes
        if end != self.size:
            self.unreadable_from = end
        return TimestampOffset(timestamp_ms=largest.timestamp_ms, offset=largest.offset)

    def find_timestamp(self, timestamp_ms: int, start_offset: int) -> TimestampOffset | None:
        """First record at or after ``start_offset`` whose timestamp is at or above ``timestamp_ms``.

        Raises ``CorruptRecordError`` if the batch that must hold it is damaged.
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
            data = self.file.read(position, header.size_bytes)
            for record in decode_records(data, 0, header):
                if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                    return TimestampOffset(
                        timestamp_ms=record.timestamp,
                        offset=record.offset,
                        leader_epoch=header.partition_leader_epoch,
                    )
        return None

    def aborted_entries(self) -> Sequence[AbortedEntry]:
        """Aborted transactions whose marker lies in the segment."""
        return self.transaction_index.entries()

    # Recovery and truncation -----------------------------------------------------------------------------------------

    def recover(self, accept: Callable[[Batch], str | None]) -> str | None:
        """Reads the whole segment, rebuilds its indexes, and cuts it at the first bad batch.

        ``accept`` is shown each batch whose bytes are sound and says why it does not fit, or None. Returns why the
        segment was cut, None if it was whole. Raises ``OSError``.
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
            self._note(StagedBatch(header.base_offset, header.last_offset, header.size_bytes, header.max_timestamp))
        problem = problem or reader.problem
        # Truncation also gives back what was reserved beyond the content.
        self.file.truncate(self.size)
        return f"byte {self.size} of {self.path(LOG_SUFFIX)}: {problem}" if problem is not None else None

    def place_of_cut(self, offset: int) -> tuple[int, int]:
        """Where the log ends, and its file, when it is cut at ``offset``. Raises ``OSError``.

        A batch that holds ``offset`` goes as a whole. Where damage or a lost end lies before it, the cut is there:
        nobody knows what is behind, and what is appended from there on takes its place.
        """
        try:
            found = self.find(offset)
        except CorruptLogFileError:
            if self._lost is None:
                self.rebuild_indexes()  # up to the damage
            assert self.unreadable_from is not None, f"{self.file.path}: {offset} could not be found in what is whole"
            return min(offset, self._last_offset_left + 1), self.unreadable_from
        if found is None:
            return offset, self.size
        position, header = found
        return min(offset, header.base_offset), position

    def cut(self, offset: int, position: int) -> None:
        """Drops what ``place_of_cut`` told to be behind the cut; durable on return. Raises ``OSError``.

        ``resume`` before anything is appended.
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
        while self._tail_positions and self._tail_positions[-1] >= position:
            self._tail_positions.pop()
            self._tail_last_offsets.pop()
        if position == 0:
            self.rebuild_indexes()
        else:
            self._max_entry = None

    def last_indexed_position(self) -> int:
        """Where the batch of the newest index entry begins, if it is one; else the start."""
        last = self.offset_index.last()
        if last is None:
            return 0
        header = read_header(self.file, last.position) if 0 <= last.position < self.size else None
        if header is None or not plausible(header) or header.last_offset != last.offset:
            self.rebuild_indexes()
            last = self.offset_index.last()
        return last.position if last is not None else 0

    def resume(self) -> None:
        """Prepares for appending to a segment that has batches: what the next index entries depend on.

        Raises ``OSError``, and ``CorruptLogFileError`` where they cannot be told for damage.
        """
        self._bytes_since_entry = self.size - self.last_indexed_position()
        self.max_entry()

    # Life cycle ------------------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Ends appending: gives back reserved space, and completes both indexes up to the last batch.

        Raises ``OSError``, ``CorruptLogFileError``.
        """
        if self._preallocated > self.size:
            self.file.truncate(self.size)
            self._preallocated = 0
        self._index_last_batch()
        largest = self.max_entry()
        self.time_index.maybe_append(largest.timestamp_ms, largest.offset)
        self.spill_indexes()
        self._tail_last_offsets.clear()
        self._tail_positions.clear()

    def _index_last_batch(self) -> None:
        """Gives the last batch an entry in the offset index, so that a file that is shorter later is known for it."""
        if self.size == 0 or self.unreadable_from is not None:
            return
        if self._tail_positions:
            offset, position = self._tail_last_offsets[-1], self._tail_positions[-1]
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
        """Writes index entries that are in memory to their files."""
        self.offset_index.spill()
        self.time_index.spill()

    def sync(self) -> None:
        """Makes content and indexes durable. Blocks."""
        self.file.sync()
        self.offset_index.sync()
        self.time_index.sync()
        self.transaction_index.sync()

    def paths(self) -> list[str]:
        """Paths of the segment's files, those that do not exist included."""
        return self.paths_of(self.directory, self.base_offset, self.suffix)

    @staticmethod
    def paths_of(directory: str, base_offset: int, suffix: str = "") -> list[str]:
        """Paths that the files of a segment would have."""
        return [f"{directory}/{segment_file(base_offset, kind)}{suffix}" for kind in SEGMENT_SUFFIXES]

    def change_suffix(self, suffix: str) -> None:
        """Renames the files. What is made to count gets its log file's name last, what ceases to count loses it first:
        so a log file never stands there without the indexes that belong to it.
        """
        for kind in SEGMENT_SUFFIXES if suffix == DELETED_SUFFIX else reversed(SEGMENT_SUFFIXES):
            source = self.path(kind)
            if self._disk.exists(source):
                self._disk.rename(source, source.removesuffix(self.suffix) + suffix)
        self.suffix = suffix
        self._take_names()

    def moved(self, directory: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self.directory = directory
        self._take_names()

    def _take_names(self) -> None:
        self.offset_index.renamed(self.path(INDEX_SUFFIX))
        self.time_index.renamed(self.path(TIME_INDEX_SUFFIX))
        self.transaction_index.renamed(self.path(TRANSACTION_INDEX_SUFFIX))

    def check_indexes(self) -> None:
        """Raises ``CorruptLogFileError`` where an index cannot be right, without scanning."""
        self.offset_index.check(self.size)
        self.time_index.check()
        self.transaction_index.entries()

    def close_indexes(self) -> None:
        """Closes the index files; the log file closes when its last reader is done (``SharedFile``)."""
        self.offset_index.close()
        self.time_index.close()
        self.transaction_index.close()

    def close(self) -> None:
        """Closes all files at once: nobody reads any more."""
        self.close_indexes()
        self.file.close()
