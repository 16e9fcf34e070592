"""The cleaner's map from keys to the last offset of each: 24 bytes an entry in one flat buffer.

An entry is the key's 16-byte xxh3 hash and 8 bytes of offset plus one (0 means empty), big-endian. Keys are not kept:
two keys of one hash would be taken for one, which at 128 bits does not happen. Collisions of slots are resolved by
double hashing, after ``_JUMPS`` jumps by going on slot by slot, so that every slot can be used.

The number of slots never changes. A buffer of B bytes has B // 24 slots and is used up to a load factor: what does
not fit stays dirty and is the next pass's work.
"""

from __future__ import annotations

import struct

from xxhash import xxh3_128_digest

ENTRY_BYTES = 24
_HASH_BYTES = 16
_JUMPS = 32
_halves = struct.Struct(">QQ").unpack
_get_offset = struct.Struct(">Q").unpack_from
_put_offset = struct.Struct(">Q").pack_into


class OffsetMap:
    """Key hash to offset. Invariant: ``len(buffer) == 24 * slots``, ``size`` entries are used."""

    __slots__ = ("_buffer", "_entries_max", "latest_offset", "probes", "size", "slots")

    def __init__(self, memory_bytes: int, load_factor: float = 0.9) -> None:
        """Allocates at most ``memory_bytes``; ``load_factor`` (above 0, at most 1) of the slots are used."""
        self.slots = memory_bytes // ENTRY_BYTES
        if self.slots < 2 or not 0 < load_factor <= 1:
            raise ValueError(f"a map of {memory_bytes} bytes with load factor {load_factor} holds no keys")
        self._buffer = bytearray(self.slots * ENTRY_BYTES)
        self._entries_max = max(1, int(self.slots * load_factor))
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

    def _find(self, digest: bytes) -> tuple[int, bool]:
        """Byte position of the key's slot, or of the empty one where it belongs, and whether the key is there."""
        buffer, slots = self._buffer, self.slots
        first, second = _halves(digest)
        slot = first % slots
        step = 1 + second % (slots - 1)
        jumps = 0
        while True:
            position = slot * ENTRY_BYTES
            if buffer[position : position + _HASH_BYTES] == digest:
                if _get_offset(buffer, position + _HASH_BYTES)[0]:
                    return position, True
                return position, False
            if not _get_offset(buffer, position + _HASH_BYTES)[0]:
                return position, False
            jumps += 1
            self.probes += 1
            slot = (slot + (step if jumps <= _JUMPS else 1)) % slots

    def put(self, key: bytes, offset: int) -> bool:
        """Notes ``offset`` as the key's last; returns False (and notes nothing) if the key is new and the map is full.

        Offsets are put in rising order.
        """
        digest = xxh3_128_digest(key)
        position, found = self._find(digest)
        if not found:
            if self.size >= self._entries_max:
                return False
            self._buffer[position : position + _HASH_BYTES] = digest
            self.size += 1
        _put_offset(self._buffer, position + _HASH_BYTES, offset + 1)
        return True

    def get(self, key: bytes) -> int:
        """The key's last offset, -1 if it is not in the map."""
        position, found = self._find(xxh3_128_digest(key))
        return int(_get_offset(self._buffer, position + _HASH_BYTES)[0]) - 1 if found else -1

    def clear(self) -> None:
        """Empties the map, keeping its memory."""
        self._buffer[:] = bytes(len(self._buffer))
        self.size = 0
        self.probes = 0
        self.latest_offset = -1
