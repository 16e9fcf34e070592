"""The cleaner's map from keys to the last offset of each: 24 bytes an entry in one flat buffer.

An entry is the key's 16-byte xxh3 hash and 8 bytes of offset plus one (0 means empty), big-endian. Keys are not kept:
two keys of one hash would be taken for one, which at 128 bits does not happen. Collisions of slots are resolved by
double hashing, after some jumps by going on slot by slot, so that every slot can be used. The loops over records are
compiled (``moldau.records.cleaning``, which says where a key's entry lies).

The number of slots never changes. A buffer of B bytes has B // 24 slots and is used up to a load factor: what does
not fit stays dirty and is the next pass's work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.records.cleaning import map_keys, select_records

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau.runtime.environment import Buffer

ENTRY_BYTES = 24


class Selection(NamedTuple):
    """Which records of a batch stay."""

    keep: bytes  # a byte for each record, 1: it stays
    kept: int  # how many stay
    has_tombstone: bool  # whether a record without a value stays


class OffsetMap:
    """Key hash to offset. Invariant: ``len(buffer) == 24 * slots``, ``size`` entries are used."""

    __slots__ = ("_buffer", "_entries_max", "latest_offset", "probes", "size", "slots")

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        """Allocates at most ``memory_bytes``; ``load_factor`` (above 0, at most 1) of the slots are used."""
        self.slots = memory_bytes // ENTRY_BYTES
        if self.slots < 2 or not 0 < load_factor <= 1:
            raise ValueError(f"a map of {memory_bytes} bytes with load factor {load_factor} holds no keys")
        self._buffer = bytearray(self.slots * ENTRY_BYTES)
        # One slot stays empty, or looking for a key that is not there would not end.
        self._entries_max = max(1, min(int(self.slots * load_factor), self.slots - 1))
        self.size = 0
        self.probes = 0
        self.latest_offset = -1

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffer."""
        return len(self._buffer)

    @property
    def entries_max(self) -> int:
        """How many keys fit."""
        return self._entries_max

    @property
    def is_full(self) -> bool:
        """Whether no new key fits (known ones can be updated)."""
        return self.size >= self._entries_max

    def add(self, data: Buffer, start: int, end: int, header: BatchHeader, first_offset: int) -> bool:
        """Notes the offsets from ``first_offset`` on as the last of their keys, in the order of the batch.

        ``data[start:end]`` holds its records, uncompressed. Returns False where a new key found no room: the records
        before it have been noted. Batches are added in rising order. Raises ``CorruptRecordError``.
        """
        self.size, probes, complete = map_keys(
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
        self.probes += probes
        return complete

    def select(self, data: Buffer, start: int, end: int, header: BatchHeader, *, keeps_tombstones: bool) -> Selection:
        """Tells which records of a batch stay: above ``latest_offset`` all, below it the last of each key.

        Records without a key were written before the topic was compacted: no read by key can want them. Raises
        ``CorruptRecordError``.
        """
        keep, count, has_tombstone, probes = select_records(
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
        self.probes += probes
        return Selection(keep, count, has_tombstone)

    def clear(self) -> None:
        """Empties the map, keeping its memory."""
        self._buffer[:] = bytes(len(self._buffer))
        self.size = 0
        self.probes = 0
        self.latest_offset = -1
