"""The sparse indexes of a segment: offset to position, and timestamp to offset.

Both are files of fixed-size big-endian entries, strictly rising, in Kafka's layout:

    .index      relative offset 4 | position 4              one entry each index.interval.bytes
    .timeindex  timestamp 8       | relative offset 4       largest timestamp so far, and the batch that has it

The offset of an entry is the last offset of a batch, relative to the segment's base offset.

New entries stay in memory until they reach ``SPILL_BYTES`` or the index is flushed, so an append costs no system call
here. A crash loses them together with the tail of the log, and recovery rebuilds the index of every segment at or above
the recovery point. A lookup is a binary search: its upper levels use keys in memory (the first key of each 4 KiB page
that was touched), its last level reads one page. A closed index keeps only these keys in memory.

An index is a hint that may be damaged: callers compare an entry with the batch at its position (``segment``).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, TypeVar

from moldau.runtime.ports.descriptors import is_shortage
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.reopened_file import ReopenedFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Disk
    from moldau.values import Buffer
    from moldau_broker.log.files.handle import SharedFile
    from moldau_broker.log.files.open_files import OpenFiles

SPILL_BYTES = 4096
_PAGE_ENTRIES = 512
RELATIVE_MAX = (1 << 31) - 1


class OffsetPosition(NamedTuple):
    """An offset (absolute) and the byte position of the batch that ends with it."""

    offset: int
    position: int


class TimestampEntry(NamedTuple):
    """A timestamp and the last offset (absolute) of the batch that raised the largest timestamp to it."""

    timestamp_ms: int
    offset: int


def floor_in(layout: struct.Struct, data: Buffer, count: int, key: int) -> int:
    """Returns the index of the last of ``count`` sorted entries whose first field is not above ``key``.

    0 if there is none: the caller knows whether the first entry is above the key.
    """
    unpack, size = layout.unpack_from, layout.size
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if unpack(data, middle * size)[0] <= key:
            low = middle
        else:
            high = middle
    return low


_Entry = TypeVar("_Entry", OffsetPosition, TimestampEntry)


class _SortedFile(ReopenedFile):
    """A file of fixed-size entries sorted by their first field, with the newest ones in memory.

    Invariant: ``count * size == file size + len(pending)``; the file holds the older entries.

    ``OpenFiles`` may close the file at any time, except between ``hold`` and ``let_go``.
    """

    __slots__ = ("_cut_bytes", "_disk", "_held", "_layout", "_page_keys", "_pending", "_size", "_spilled")

    def __init__(self, disk: Disk, path: str, layout: struct.Struct, files: OpenFiles) -> None:
        super().__init__(path, files)
        self._disk = disk
        self._held = False
        self._layout = layout
        self._size = layout.size
        self._pending = bytearray()
        self._page_keys: dict[int, int] = {}
        file_bytes = disk.file_size(path) if disk.exists(path) else 0
        self._cut_bytes = file_bytes % self._size
        self._spilled = file_bytes // self._size

    @property
    def count(self) -> int:
        return self._spilled + len(self._pending) // self._size

    def _open(self) -> SharedFile:
        file = self._file  # held here: another thread may close it meanwhile
        if file is None:
            file = super()._open()
            if not self._held:
                self._files.used(self)
        return file

    def ensure_file(self) -> None:
        """Creates the file, empty, if it is missing."""
        if self._file is None and not self._disk.exists(self._path):
            self._open()
            self._changed = True

    def hold(self) -> None:
        """Opens the file, and keeps it open until ``let_go``."""
        self._held = True
        self._files.forget(self)
        self._open()

    def let_go(self) -> None:
        """Allows the file to be closed at any time again."""
        self._held = False
        if self._file is not None:
            self._files.used(self)

    @property
    def open_count(self) -> int:
        """See ``Closable``."""
        return int(self._file is not None)

    def close_files(self) -> None:
        """See ``Closable``."""
        if not self._held:
            super().close()

    def close(self) -> None:
        self._files.forget(self)
        super().close()

    def append(self, *fields: int) -> None:
        self._pending += self._layout.pack(*fields)
        if len(self._pending) >= SPILL_BYTES:
            try:
                self.spill()
            except OSError as error:
                if not is_shortage(error):
                    raise
                # The entries stay in memory and the next append tries again; their batches are written already.

    def spill(self) -> None:
        """Writes the entries in memory to the file.

        Raises:
            OSError: The write failed. The entries stay in memory.
        """
        if self._pending:
            file = self._open()
            expected = self._spilled * self._size
            if file.size != expected:
                file.truncate(expected)  # leftovers of a write that failed
            try:
                file.append([bytes(self._pending)])
            finally:
                self._changed = True
            self._spilled += len(self._pending) // self._size
            self._pending.clear()

    def entry(self, index: int) -> tuple[int, ...]:
        if index >= self._spilled:
            return self._layout.unpack_from(self._pending, (index - self._spilled) * self._size)
        data = self._open().read(index * self._size, self._size)
        if len(data) < self._size:
            raise CorruptLogFileError(self._path, index * self._size, "the file is shorter than it was")
        return self._layout.unpack(data)

    def floor(self, key: int) -> int:
        """Returns the index of the last entry whose key is not above ``key``, -1 if there is none."""
        return self.floor_entry(key)[0]

    def floor_entry(self, key: int) -> tuple[int, tuple[int, ...]]:
        """Returns as ``floor``, with the entry's fields (empty if there is none); reads one page at most."""
        if self._pending and self._layout.unpack_from(self._pending)[0] <= key:
            found = floor_in(self._layout, self._pending, len(self._pending) // self._size, key)
            return self._spilled + found, self._layout.unpack_from(self._pending, found * self._size)
        if not self._spilled:
            return -1, ()
        low, high = -1, (self._spilled - 1) // _PAGE_ENTRIES + 1  # page keys: low is at or below, high above
        while high - low > 1:
            middle = (low + high) // 2
            if self._page_key(middle) <= key:
                low = middle
            else:
                high = middle
        if low < 0:
            return -1, ()
        first = low * _PAGE_ENTRIES
        entries = min(_PAGE_ENTRIES, self._spilled - first)
        page = self._open().read(first * self._size, entries * self._size)
        if len(page) < self._size:
            raise CorruptLogFileError(self._path, first * self._size, "the file is shorter than it was")
        found = floor_in(self._layout, page, len(page) // self._size, key)
        return first + found, self._layout.unpack_from(page, found * self._size)

    def _page_key(self, page: int) -> int:
        key = self._page_keys.get(page)
        if key is None:
            key = self._page_keys[page] = self.entry(page * _PAGE_ENTRIES)[0]
        return key

    def check(self) -> None:
        """Checks that the file is a whole number of entries.

        Raises:
            CorruptLogFileError: The last entry is cut.
        """
        if self._cut_bytes:
            raise CorruptLogFileError(self._path, self._spilled * self._size, "the last entry is cut")

    def reset(self) -> None:
        """Drops all entries, good or damaged."""
        self._pending.clear()
        self._page_keys.clear()
        self._spilled = self._cut_bytes = 0
        if self._disk.exists(self._path):
            self._changed = True  # what a former process wrote may be not durable either
            if self._file is not None or self._disk.file_size(self._path):
                self._open().truncate(0)

    def truncate(self, count: int) -> None:
        """Keeps the first ``count`` entries."""
        if count >= self._spilled:
            del self._pending[(count - self._spilled) * self._size :]
            return
        self._pending.clear()
        self._open().truncate(count * self._size)
        self._changed = True
        self._spilled = count
        self._page_keys.clear()


class _SparseIndex(ABC, Generic[_Entry]):
    """Common part of a segment's indexes: entries relative to its base offset, in a file in their own layout."""

    LAYOUT: ClassVar[struct.Struct]

    FREE_ENTRIES: ClassVar[int] = 0
    """Entries that are kept free when the index counts as full."""

    __slots__ = ("_base", "_entries", "_last", "_usable", "is_full")

    def __init__(self, disk: Disk, path: str, base_offset: int, bytes_max: int, files: OpenFiles) -> None:
        self._base = base_offset
        self._usable = bytes_max // self.LAYOUT.size - self.FREE_ENTRIES
        self._entries = _SortedFile(disk, path, self.LAYOUT, files)
        self._last: _Entry | None = None
        self.is_full = False
        """Whether the segment must roll because ``segment.index.bytes`` is used up."""
        self._counted()

    @property
    def count(self) -> int:
        """Number of entries."""
        return self._entries.count

    def _counted(self) -> None:
        """Compares the changed number of entries with the limit; each append to the log reads ``is_full``."""
        self.is_full = self._entries.count >= self._usable

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._entries.path

    @abstractmethod
    def entry(self, index: int) -> _Entry:
        """Returns entry ``index``; 0 is the oldest."""

    def last(self) -> _Entry | None:
        """Returns the newest entry; that of a closed segment's time index holds its largest timestamp."""
        if self._last is None and self._entries.count:
            self._last = self.entry(self._entries.count - 1)
        return self._last

    def _first_with(self, condition: Callable[[_Entry], bool]) -> int:
        """Returns the index of the first entry that meets ``condition``, as all after it do; ``count`` if none does."""
        low, high = -1, self._entries.count
        while high - low > 1:
            middle = (low + high) // 2
            if condition(self.entry(middle)):
                high = middle
            else:
                low = middle
        return high

    def _keep_first(self, count: int) -> None:
        self._entries.truncate(count)
        self._last = None
        self._counted()

    def reset(self) -> None:
        """Drops all entries, good or damaged, before they are rebuilt."""
        self._entries.reset()
        self._last = None
        self._counted()

    def renamed(self, path: str) -> None:
        """Takes note of the file's new name."""
        self._entries.renamed(path)

    def spill(self) -> None:
        """Writes the entries in memory to the file, and creates the file even if there are none."""
        self._entries.ensure_file()
        self._entries.spill()

    def hold(self) -> None:
        """Opens the file, creates it if it is missing, and keeps it open until ``let_go``.

        Raises:
            OSError: The file could not be opened.
        """
        self._entries.hold()

    def let_go(self) -> None:
        """Allows the file to be closed at any time again."""
        self._entries.let_go()

    def sync(self) -> None:
        """Makes the spilled entries durable; blocks."""
        self._entries.sync()

    def close(self) -> None:
        """Closes the file; entries that were not spilled are lost, and rebuilt after a crash."""
        self._entries.close()


class OffsetIndex(_SparseIndex[OffsetPosition]):
    """Offset to position of one segment. Positions fit 31 bits, so a segment ends before 2 GiB."""

    LAYOUT = struct.Struct(">ii")

    __slots__ = ()

    def fits(self, offset: int) -> bool:
        """Returns whether ``offset`` can be stored relative to the base offset."""
        return 0 <= offset - self._base <= RELATIVE_MAX

    def entry(self, index: int) -> OffsetPosition:
        """Returns entry ``index``; 0 is the oldest."""
        relative, position = self._entries.entry(index)
        return OffsetPosition(self._base + relative, position)

    def append(self, offset: int, position: int) -> None:
        """Adds an entry; both columns must rise."""
        last = self._last or self.last()
        assert last is None or (offset > last.offset and position > last.position), (
            f"{self.path}: entry {offset}, {position} does not rise above {last}"
        )
        relative = offset - self._base
        assert 0 <= relative <= RELATIVE_MAX, f"{self.path}: offset {offset} is too far from {self._base}"
        self._entries.append(relative, position)
        self._last = OffsetPosition(offset, position)
        self._counted()

    def lookup(self, offset: int) -> OffsetPosition:
        """Returns the last entry at or below ``offset``; the segment's start if there is none."""
        if offset > self._base:
            index, fields = self._entries.floor_entry(offset - self._base)
            if index >= 0:
                return OffsetPosition(self._base + fields[0], fields[1])
        return OffsetPosition(self._base, 0)

    def first_at_or_after_position(self, position: int) -> OffsetPosition | None:
        """Returns the first entry whose batch begins at or after ``position``; None if there is none."""
        index = self._first_with(lambda entry: entry.position >= position)
        return self.entry(index) if index < self._entries.count else None

    def check(self, segment_bytes: int) -> None:
        """Checks the last entry; older ones are not scanned after a clean stop.

        Raises:
            CorruptLogFileError: The last entry is damaged.
        """
        self._entries.check()
        last = self.last()
        if last is not None and (last.offset < self._base or not 0 <= last.position < max(1, segment_bytes)):
            position = (self._entries.count - 1) * self.LAYOUT.size
            raise CorruptLogFileError(self.path, position, f"last entry {last} is outside the segment")
        if last is not None and last.offset == self._base and last.position > 0:
            raise CorruptLogFileError(self.path, 0, f"last entry {last} does not rise above the base offset")

    def truncate_to_offset(self, offset: int) -> None:
        """Drops entries at or above ``offset``."""
        floor = self._entries.floor(offset - 1 - self._base) if offset > self._base else -1
        self._keep_first(floor + 1)


class TimeIndex(_SparseIndex[TimestampEntry]):
    """Largest timestamps of one segment; one entry is kept free for the last one at the roll."""

    LAYOUT = struct.Struct(">qi")
    FREE_ENTRIES = 1

    __slots__ = ()

    def entry(self, index: int) -> TimestampEntry:
        """Returns entry ``index``; 0 is the oldest."""
        timestamp, relative = self._entries.entry(index)
        return TimestampEntry(timestamp, self._base + relative)

    def maybe_append(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry if the timestamp rises above the last one, else does nothing."""
        last = self._last or self.last()
        if timestamp_ms < 0 or (last is not None and timestamp_ms <= last.timestamp_ms):
            return
        assert last is None or offset > last.offset, f"{self.path}: offset {offset} does not rise above {last}"
        self._entries.append(timestamp_ms, offset - self._base)
        self._last = TimestampEntry(timestamp_ms, offset)
        self._counted()

    def lookup(self, timestamp_ms: int) -> TimestampEntry:
        """Returns the last entry not above a timestamp; the segment's start with timestamp -1 if there is none."""
        index, fields = self._entries.floor_entry(timestamp_ms)
        return TimestampEntry(fields[0], self._base + fields[1]) if index >= 0 else TimestampEntry(-1, self._base)

    def check(self) -> None:
        """Checks the last entry.

        Raises:
            CorruptLogFileError: The last entry is damaged.
        """
        self._entries.check()
        last = self.last()
        if last is None:
            return
        position = (self._entries.count - 1) * self.LAYOUT.size
        if last.offset < self._base or last.timestamp_ms < 0:
            raise CorruptLogFileError(self.path, position, f"last entry {last} is outside the segment")
        if self._entries.count > 1 and last.timestamp_ms <= self.entry(0).timestamp_ms:
            raise CorruptLogFileError(self.path, position, f"last entry {last} does not rise above the first")

    def truncate_to_offset(self, offset: int) -> None:
        """Drops entries whose offset is at or above ``offset``."""
        self._keep_first(self._first_with(lambda entry: entry.offset >= offset))
