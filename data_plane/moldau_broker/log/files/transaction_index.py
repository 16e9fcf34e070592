"""Index of the aborted transactions whose abort marker lies in a segment.

A ``.txnindex`` file holds entries of 34 bytes, big-endian, in the order of their markers:

    version 2 (0) | producer id 8 | first offset 8 | last offset 8 (the marker's) | last stable offset 8

The file exists only if there is an entry. Entries are few; they are written at once and kept in memory once read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from moldau.runtime.ports.descriptors import is_shortage
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.reopened_file import ReopenedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.runtime.ports.environment import Disk
    from moldau.values import Buffer
    from moldau_broker.log.files.open_files import OpenFiles

ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedEntry(NamedTuple):
    """One aborted transaction; ``last_offset`` is its marker's, ``last_stable_offset`` the one after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode_entries(path: str, data: Buffer, base_offset: int) -> list[AbortedEntry]:
    """Parses the content of the index of a segment that begins at ``base_offset``.

    Raises:
        CorruptLogFileError: The content is damaged.
    """
    if len(data) % ENTRY.size:
        raise CorruptLogFileError(path, len(data) - len(data) % ENTRY.size, "the last entry is cut")
    entries: list[AbortedEntry] = []
    for position in range(0, len(data), ENTRY.size):
        version, *fields = ENTRY.unpack_from(data, position)
        entry = AbortedEntry(*fields)
        if version != _VERSION:
            raise CorruptLogFileError(path, position, f"version {version}, expected {_VERSION}")
        if entry.last_offset < base_offset or not 0 <= entry.first_offset <= entry.last_offset:
            raise CorruptLogFileError(path, position, f"{entry} is outside the segment")
        if entries and entry.last_offset <= entries[-1].last_offset:
            raise CorruptLogFileError(path, position, f"{entry} does not rise above {entries[-1]}")
        entries.append(entry)
    return entries


def select_aborted(
    entries: Iterable[AbortedEntry], markers_from: int, upper_bound_offset: int, selected: list[AbortedEntry]
) -> bool:
    """Appends the transactions with a record below ``upper_bound_offset`` and the marker at or above ``markers_from``.

    Returns whether no later entry, of this or of a later segment, can be one of them.
    """
    for entry in entries:
        if entry.last_offset >= markers_from and entry.first_offset < upper_bound_offset:
            selected.append(entry)
        if entry.last_stable_offset >= upper_bound_offset:
            return True
    return False


def encode_aborted(entry: AbortedEntry) -> bytes:
    """Returns an entry as the file holds it."""
    return ENTRY.pack(_VERSION, *entry)


class TransactionIndex(ReopenedFile):
    """The entries of one segment. Invariant: ``last_offset`` rises from entry to entry."""

    __slots__ = ("_base", "_disk", "_entries", "_unwritten")

    def __init__(self, disk: Disk, path: str, base_offset: int, files: OpenFiles) -> None:
        super().__init__(path, files)
        self._disk = disk
        self._base = base_offset
        self._unwritten: list[AbortedEntry] = []
        self._entries: list[AbortedEntry] | None = None if disk.exists(path) else []

    def entries(self) -> Sequence[AbortedEntry]:
        """Returns all entries.

        Raises:
            CorruptLogFileError: The file is damaged.
        """
        if self._entries is None:
            self._entries = self._load()
        return self._entries

    def _load(self) -> list[AbortedEntry]:
        file = self._open()
        data = file.read(0, file.size)
        return decode_entries(self._path, data, self._base)

    def hold(self) -> None:
        """Opens the file, if it exists.

        Raises:
            OSError: The file could not be opened.
        """
        if self._disk.exists(self._path):
            self._open()

    def append(self, entry: AbortedEntry) -> None:
        """Adds an entry and writes it; if descriptors are short, the next sync writes it.

        Raises:
            OSError: The write failed.
        """
        entries = self.entries()
        assert not entries or entry.last_offset > entries[-1].last_offset, f"{entry} does not rise above {entries[-1]}"
        self._entries = [*entries, entry]
        self._unwritten.append(entry)
        try:
            self._write()
        except OSError as error:
            if not is_shortage(error):
                raise

    def _write(self) -> None:
        if self._unwritten:
            self._changed = True
            self._open().append([encode_aborted(entry) for entry in self._unwritten])
            self._unwritten = []

    def truncate_to_offset(self, offset: int) -> None:
        """Drops transactions whose marker is at or above ``offset``."""
        entries = self.entries()
        kept = [entry for entry in entries if entry.last_offset < offset]
        self._write()
        if len(kept) < len(entries):
            self._changed = True
            self._open().truncate(len(kept) * ENTRY.size)
            self._entries = kept

    def reset(self) -> None:
        """Drops all entries, readable or not, before they are rebuilt."""
        if self._disk.exists(self._path):
            self._changed = True
            self._open().truncate(0)
        self._entries = []
        self._unwritten = []

    def rest(self) -> None:
        """Closes the file until the next write, and syncs it before if it was written; blocks.

        Raises:
            OSError: The write or the sync failed.
        """
        if self._changed:
            self.sync()
        self.close()

    def sync(self) -> None:
        """Writes and syncs the entries; blocks.

        Raises:
            OSError: The write or the sync failed.
        """
        self._write()
        super().sync()
