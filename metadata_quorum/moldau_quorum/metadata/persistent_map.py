"""A mapping that shares structure between versions, so that changing one key of a large map is cheap.

The map has two levels: a tuple of buckets, each a plain dictionary. A change copies the tuple and one bucket; with
about as many buckets as keys per bucket this costs O(sqrt(n)) at C speed (some microseconds at a million keys).
Versions share unchanged buckets, which also makes their comparison fast. One ``MapEditor`` makes many changes at once
and copies each bucket only once.

Bucket numbers come from the bytes of the key, never from ``hash``, so iteration order does not depend on
``PYTHONHASHSEED``. It does depend on history: code whose behaviour depends on order sorts first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import chain
from typing import Final, Generic, TypeVar
from uuid import UUID

import xxhash

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MISSING: Final = object()
_LOAD: Final = 8
"""A map grows when it holds more than ``_LOAD`` times the square of its number of buckets."""


def _spread(key: object) -> int:
    if type(key) is UUID:
        return key.int
    if type(key) is int:
        return key
    if type(key) is str:
        return xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))
    if type(key) is tuple:
        spread = 0
        for part in key:
            spread = (spread * 1_000_003) ^ (0 if part is None else _spread(part))
        return spread & 0xFFFF_FFFF_FFFF_FFFF
    raise TypeError(f"a persistent map cannot have the key {key!r}")


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """An immutable mapping; ``edit`` starts the next version.

    Keys are ``int``, ``str``, ``UUID`` or tuples of those and None.
    """

    __slots__ = ("_buckets", "_size")

    def __init__(self, _buckets: tuple[dict[K, V], ...] = ({},), _size: int = 0) -> None:
        self._buckets = _buckets
        self._size = _size

    def __getitem__(self, key: K) -> V:
        buckets = self._buckets
        if len(buckets) == 1:
            return buckets[0][key]
        return buckets[_spread(key) & (len(buckets) - 1)][key]

    def __contains__(self, key: object) -> bool:
        buckets = self._buckets
        if len(buckets) == 1:
            return key in buckets[0]
        return key in buckets[_spread(key) & (len(buckets) - 1)]

    def __iter__(self) -> Iterator[K]:
        for bucket in self._buckets:
            yield from bucket

    def __len__(self) -> int:
        return self._size

    def unordered_values(self) -> Iterator[V]:
        """Yields the values at C speed, in an order that depends on history."""
        return chain.from_iterable(bucket.values() for bucket in self._buckets)

    def __eq__(self, other: object) -> bool:
        """Compares with another map; of two versions only the buckets that they do not share."""
        if isinstance(other, PersistentMap):
            return self._size == other._size and not self.changed_keys(other)
        return super().__eq__(other)

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"

    def edit(self) -> MapEditor[K, V]:
        """Returns an editor that starts from this version."""
        return MapEditor(self._buckets, self._size)

    def changed_keys(self, newer: PersistentMap[K, V]) -> list[K]:
        """Returns the keys that were added, removed or changed between this version and ``newer``.

        Shared buckets are skipped, so that comparing close versions costs O(changes).
        """
        changed: dict[K, None] = {}
        if len(self._buckets) == len(newer._buckets):
            pairs = list(zip(self._buckets, newer._buckets, strict=True))
        else:
            pairs = [(dict(self), dict(newer))]
        for old, new in pairs:
            if old is new:
                continue
            for key, value in new.items():
                before = old.get(key, _MISSING)
                if before is not value and before != value:
                    changed[key] = None
            for key in old:
                if key not in new:
                    changed[key] = None
        return list(changed)


class MapEditor(Generic[K, V]):
    """Collects changes to a ``PersistentMap``; the original stays as it is."""

    __slots__ = ("_buckets", "_owned", "_size")

    def __init__(self, buckets: tuple[dict[K, V], ...], size: int) -> None:
        self._buckets = list(buckets)
        self._owned = bytearray(len(buckets))
        self._size = size

    def _bucket_number(self, key: K) -> int:
        count = len(self._buckets)
        return 0 if count == 1 else _spread(key) & (count - 1)

    def get(self, key: K) -> V | None:
        """Returns the value of ``key``, or None."""
        return self._buckets[self._bucket_number(key)].get(key)

    def __contains__(self, key: K) -> bool:
        return key in self._buckets[self._bucket_number(key)]

    def __len__(self) -> int:
        return self._size

    def _own(self, number: int) -> dict[K, V]:
        if not self._owned[number]:
            self._buckets[number] = dict(self._buckets[number])
            self._owned[number] = 1
        return self._buckets[number]

    def set(self, key: K, value: V) -> None:
        """Adds a key or replaces its value."""
        bucket = self._own(self._bucket_number(key))
        if key not in bucket:
            self._size += 1
        bucket[key] = value
        if self._size > _LOAD * len(self._buckets) ** 2:
            self._grow()

    def remove(self, key: K) -> None:
        """Removes a key.

        Raises:
            KeyError: the key is missing.
        """
        number = self._bucket_number(key)
        if key not in self._buckets[number]:
            raise KeyError(key)
        del self._own(number)[key]
        self._size -= 1

    def _grow(self) -> None:
        old = self._buckets
        count = len(old) * 2
        self._buckets = [{} for _ in range(count)]
        self._owned = bytearray(b"\x01" * count)
        for bucket in old:
            for key, value in bucket.items():
                self._buckets[_spread(key) & (count - 1)][key] = value

    def finish(self) -> PersistentMap[K, V]:
        """Returns the new version. The editor may be used further; it then copies the buckets again."""
        self._owned = bytearray(len(self._buckets))
        return PersistentMap(tuple(self._buckets), self._size)
