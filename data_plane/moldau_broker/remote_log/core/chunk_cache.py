"""The parts of remote segments that a broker keeps in memory: chunks of ``.log`` objects and decoded ``.aux`` objects.

Two caches of one kind, each with a bound in bytes; the entry that was used longest ago leaves first. A chunk is
``chunk_bytes`` of a ``.log`` at a multiple of ``chunk_bytes``, the last one of a segment is shorter. Remote segments
never change, so an entry is never wrong; entries of deleted segments leave by ``discard`` or by age.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import uuid
    from collections.abc import Hashable, Sequence

    from moldau_broker.log.values import SegmentParts

CHUNK_BYTES = 1024 * 1024
"""Bytes that a reader gets with one request: a consumer asks for as much of a partition at a time."""


class ChunkKey(NamedTuple):
    """Name of a chunk."""

    segment_id: uuid.UUID
    number: int
    """Position of its first byte, divided by the size of a chunk."""


_Key = TypeVar("_Key", bound="Hashable")
_Value = TypeVar("_Value")


class CacheStatistics(NamedTuple):
    """Counts of one cache since it was made."""

    hits: int
    misses: int
    evictions: int
    """Entries that left because of the bound."""
    entries: int
    size_bytes: int


class ByteBoundedCache(Generic[_Key, _Value]):
    """Values by key. Invariant: the sizes of all entries together are ``size_bytes``, at most ``bytes_max``."""

    __slots__ = ("_bytes_max", "_entries", "_evictions", "_hits", "_misses", "_size_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()
        self._size_bytes = 0
        self._hits = self._misses = self._evictions = 0

    def get(self, key: _Key) -> _Value | None:
        """Returns a value and counts it as used now; None if it is not there."""
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
            return None
        self._hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: _Key, value: _Value, size_bytes: int) -> None:
        """Keeps a value, in place of one with the same key; one that is larger than the bound is not kept."""
        self.discard(key)
        if size_bytes > self._bytes_max:
            return
        self._entries[key] = (value, size_bytes)
        self._size_bytes += size_bytes
        self._make_room()

    def resize(self, bytes_max: int) -> None:
        """Sets the bound; values beyond it are forgotten, those that were used longest ago first."""
        self._bytes_max = bytes_max
        self._make_room()

    def _make_room(self) -> None:
        while self._size_bytes > self._bytes_max:
            self._size_bytes -= self._entries.popitem(last=False)[1][1]
            self._evictions += 1

    def discard(self, key: _Key) -> None:
        """Forgets a value, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size_bytes -= entry[1]

    def clear(self) -> None:
        """Forgets all values."""
        self._entries.clear()
        self._size_bytes = 0

    def statistics(self) -> CacheStatistics:
        """Returns the counts."""
        return CacheStatistics(self._hits, self._misses, self._evictions, len(self._entries), self._size_bytes)


def size_of(parts: SegmentParts) -> int:
    """Returns the bytes of all parts, for ``ByteBoundedCache.put``."""
    return sum(map(len, parts))


class Chunk(NamedTuple):
    """A chunk of a segment and where it lies in its ``.log``."""

    key: ChunkKey
    position: int
    size_bytes: int


def chunks_of(
    segment_id: uuid.UUID, size_bytes: int, position: int, count: int, chunk_bytes: int = CHUNK_BYTES
) -> list[Chunk]:
    """Returns the chunks that hold a range of a ``.log`` of ``size_bytes``, in order."""
    assert 0 <= position <= position + count <= size_bytes, f"{position} + {count} is outside of {size_bytes} bytes"
    if count == 0:
        return []
    first, last = position // chunk_bytes, (position + count - 1) // chunk_bytes
    return [
        Chunk(ChunkKey(segment_id, index), index * chunk_bytes, min(chunk_bytes, size_bytes - index * chunk_bytes))
        for index in range(first, last + 1)
    ]


def range_of(chunks: Sequence[bytes], position: int, count: int, chunk_bytes: int = CHUNK_BYTES) -> bytes | memoryview:
    """Returns a range out of the contents of ``chunks_of`` for it; not copied if it lies in one chunk."""
    start = position % chunk_bytes
    if len(chunks) == 1:
        return memoryview(chunks[0])[start : start + count]
    pieces = [memoryview(chunk) for chunk in chunks]
    if pieces:
        pieces[0] = pieces[0][start:]
        pieces[-1] = pieces[-1][: count - sum(map(len, pieces[:-1]))]
    return b"".join(pieces)
