"""Index of the aborted transactions whose abort marker lies in a segment.

A ``.txnindex`` file holds entries of 34 bytes, big-endian, in the order of their markers:

    version 2 (0) | producer id 8 | first offset 8 | last offset 8 (the marker's) | last stable offset 8

The file exists only where there is an entry. Entries are few; they are written at once and kept in memory once read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from moldau.runtime.environment import OpenMode
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files import SharedFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.environment import Disk, File

ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedEntry(NamedTuple):
    """One aborted transaction; ``last_offset`` is its marker's, ``last_stable_offset`` the one after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The entries of one segment. Invariant: ``last_offset`` rises from entry to entry."""

    __slots__ = ("_base", "_disk", "_entries", "_file", "_path")

    def __init__(self, disk: Disk, path: str, base_offset: int) -> None:
        self._disk = disk
        self._path = path
        self._base = base_offset
        self._file: File | None = None
        self._entries: list[AbortedEntry] | None = None if disk.exists(path) else []

    @property
    def path(self) -> str:
        """Path of the file, which may not exist."""
        return self._path

    def entries(self) -> Sequence[AbortedEntry]:
        """All entries; raises ``CorruptLogFileError``."""
        if self._entries is None:
            self._entries = self._load()
        return self._entries

    def _load(self) -> list[AbortedEntry]:
        file = self._open()
        data = file.read(0, file.size)
        if len(data) % ENTRY.size:
            raise CorruptLogFileError(self._path, len(data) - len(data) % ENTRY.size, "the last entry is cut")
        entries: list[AbortedEntry] = []
        for position in range(0, len(data), ENTRY.size):
            version, *fields = ENTRY.unpack_from(data, position)
            entry = AbortedEntry(*fields)
            if version != _VERSION:
                raise CorruptLogFileError(self._path, position, f"version {version}, expected {_VERSION}")
            if entry.last_offset < self._base or not 0 <= entry.first_offset <= entry.last_offset:
                raise CorruptLogFileError(self._path, position, f"{entry} is outside the segment")
            if entries and entry.last_offset <= entries[-1].last_offset:
                raise CorruptLogFileError(self._path, position, f"{entry} does not rise above {entries[-1]}")
            entries.append(entry)
        return entries

    def _open(self) -> File:
        if self._file is None:
            self._file = SharedFile(self._disk.open(self._path, OpenMode.WRITE))
        return self._file

    def append(self, entry: AbortedEntry) -> None:
        """Adds an entry and writes it. Raises ``OSError``."""
        entries = self.entries()
        assert not entries or entry.last_offset > entries[-1].last_offset, f"{entry} does not rise above {entries[-1]}"
        self._open().append([ENTRY.pack(_VERSION, *entry)])
        self._entries = [*entries, entry]

    def truncate_to_offset(self, offset: int) -> None:
        """Drops transactions whose marker is at or above ``offset``."""
        entries = self.entries()
        kept = [entry for entry in entries if entry.last_offset < offset]
        if len(kept) < len(entries):
            self._open().truncate(len(kept) * ENTRY.size)
            self._entries = kept

    def reset(self) -> None:
        """Drops all entries, readable or not: before they are rebuilt."""
        if self._disk.exists(self._path):
            self._open().truncate(0)
        self._entries = []

    def renamed(self, path: str) -> None:
        """Takes note of another name of the file."""
        self._path = path

    def sync(self) -> None:
        """Makes the entries durable. Blocks."""
        file = self._file  # held here: the index may be closed meanwhile by another thread
        if file is not None:
            file.sync()

    def close(self) -> None:
        """Closes the file."""
        self._file = None
