"""The cleaner's map from keys to the last offset of each: 24 bytes an entry in one flat buffer.

An entry is the key's 16-byte xxh3 hash and 8 bytes of offset plus one (0 means empty), big-endian. Keys are not kept:
two keys of one hash would count as one, which at 128 bits does not happen. Collisions of slots are resolved by double
hashing, and after some jumps by trying slot after slot, so that every slot can be used. The loops over records are
compiled (``moldau.records.cleaning``, which describes the place of a key's entry).

The number of slots never changes. A buffer of B bytes has B // 24 slots and is used up to a load factor: keys that do
not fit stay dirty until the next cleaning.

The buffer is memory of the system's own that nothing has been written to: a map begins empty without a write to each
page, which takes tens of milliseconds of the event loop for the default of 128 MiB, and pages of unused slots take no
memory.
"""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, NamedTuple

from moldau.records.cleaning import map_keys, select_records

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau.values import Buffer

ENTRY_BYTES = 24


class Selection(NamedTuple):
    """The records of a batch that are kept."""

    keep: bytes  # a byte for each record; 1: it is kept
    kept: int  # number of kept records
    has_tombstone: bool  # whether a record without a value is kept


class OffsetMap:
    """Maps key hashes to offsets. Invariant: ``len(buffer) == 24 * slots``, ``size`` entries are used."""

    __slots__ = ("_buffer", "_entries_max", "latest_offset", "size", "slots")

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        """Allocates at most ``memory_bytes``; ``load_factor`` (above 0, at most 1) of the slots are used."""
        self.slots = memory_bytes // ENTRY_BYTES
        if self.slots < 2 or not 0 < load_factor <= 1:
            raise ValueError(f"a map of {memory_bytes} bytes with load factor {load_factor} holds no keys")
        self._buffer = _empty(self.slots * ENTRY_BYTES)
        # One slot stays empty, or the search for an absent key would not end.
        self._entries_max = max(1, min(int(self.slots * load_factor), self.slots - 1))
        self.size = 0
        self.latest_offset = -1

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffer."""
        return len(self._buffer)

    @property
    def entries_max(self) -> int:
        """Number of keys that fit."""
        return self._entries_max

    @property
    def is_full(self) -> bool:
        """Whether no new key fits (known ones can be updated)."""
        return self.size >= self._entries_max

    def add(self, data: Buffer, start: int, end: int, header: BatchHeader, first_offset: int) -> bool:
        """Records the offsets of a batch from ``first_offset`` on as the last of their keys.

        ``data[start:end]`` holds its uncompressed records. Returns False if a new key does not fit; the records before
        it are in the map. Batches are added in rising order.

        Raises:
            CorruptRecordError: A record is damaged.
        """
        self.size, _, complete = map_keys(
            data,
            start,
            end,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            first_offset,
            self._buffer,
            self.size,
            self._entries_max,
        )
        return complete

    def select(self, data: Buffer, start: int, end: int, header: BatchHeader, *, keeps_tombstones: bool) -> Selection:
        """Returns the records of a batch to keep: above ``latest_offset`` all, below it the last of each key.

        Records without a key are dropped: they were written before the topic was compacted.

        Raises:
            CorruptRecordError: A record is damaged.
        """
        keep, count, has_tombstone, _ = select_records(
            data,
            start,
            end,
            header.record_count,
            header.base_offset,
            header.last_offset_delta,
            self.latest_offset,
            keeps_tombstones,
            self._buffer,
        )
        return Selection(keep, count, has_tombstone)

    def clear(self) -> None:
        """Empties the map, and gives the pages that its entries were on back to the system."""
        self._buffer = _empty(len(self._buffer))
        self.size = 0
        self.latest_offset = -1


def _empty(size_bytes: int) -> mmap.mmap:
    """Returns zeros, each page of which takes memory from its first write on."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
