"""Deadlines of a core: a heap of keys with lazy updates. Pure.

Moving a deadline later, as every heartbeat does, costs one dictionary write. The heap entry is corrected when it
reaches the top.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

K = TypeVar("K", bound=tuple[str, ...])


class Deadlines(Generic[K]):
    """At most one deadline per key.

    Invariant: for every key with a deadline the heap holds an entry at or before it.
    """

    __slots__ = ("_due", "_entries", "_heap")

    def __init__(self) -> None:
        """Starts without deadlines."""
        self._due: dict[K, int] = {}
        self._entries: dict[K, int] = {}
        self._heap: list[tuple[int, K]] = []

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, deadline_ms: int) -> None:
        """Sets or moves a deadline."""
        self._due[key] = deadline_ms
        entry = self._entries.get(key)
        if entry is None or deadline_ms < entry:
            self._entries[key] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, key))

    def renew(self, key: K, deadline_ms: int, now_ms: int) -> int:
        """Moves a deadline, and returns the former one for `put_back`; the present if there was none."""
        former = self._due.get(key, now_ms)
        self.set(key, deadline_ms)
        return former

    def put_back(self, key: K, former_ms: int) -> None:
        """Takes back a renewal; does nothing if the deadline is gone, or is earlier already."""
        present = self._due.get(key)
        if present is not None and former_ms < present:
            self.set(key, former_ms)

    def cancel(self, key: K) -> None:
        """Removes a deadline; does nothing if there is none."""
        self._due.pop(key, None)

    def get(self, key: K) -> int | None:
        """Returns the deadline of a key, or None."""
        return self._due.get(key)

    def next_ms(self) -> int | None:
        """Returns the earliest deadline, or None."""
        self._correct_top()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> K | None:
        """Removes and returns the key with the earliest deadline, if that is not after ``now_ms``."""
        self._correct_top()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, key = heapq.heappop(self._heap)
        del self._entries[key]
        del self._due[key]
        return key

    def _correct_top(self) -> None:
        """Drops or corrects stale entries until the top of the heap is a current deadline."""
        while self._heap:
            entry, key = self._heap[0]
            if self._entries.get(key) != entry:
                heapq.heappop(self._heap)
                continue
            due = self._due.get(key)
            if due == entry:
                return
            heapq.heappop(self._heap)
            del self._entries[key]
            if due is not None:
                self._entries[key] = due
                heapq.heappush(self._heap, (due, key))
