"""Delayed operations: a produce waits for its high watermark, a fetch for its bytes, each with a deadline.

An operation watches keys (partitions). When a key changes, the shell gets the operations that watch it, checks the
condition of each, and calls ``complete``. When time passes, ``expire`` returns the operations whose deadline came
first. An operation leaves the purgatory exactly once, and only the caller that removed it may answer it: ``complete``
returns False to the second caller.

The number of operations is bounded: ``watch`` raises ``PurgatoryFullError`` at the bound, and the caller answers with
an error or at once. The broker's own waits, which are few and have no client to refuse, may exceed the bound. Timers
are O(1) (``timer_wheel``). Watchers of a key keep their order of arrival, so a caller whose conditions are ordered
(most acks=all offsets of one partition) can stop at the first one that does not hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from moldau_broker.replication.timer_wheel import Timer, TimerWheel

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class PurgatoryFullError(Exception):
    """The bound on waiting operations is reached."""


class Delayed(Generic[K, T]):
    """One waiting operation, created by ``Purgatory.watch``."""

    __slots__ = ("_timer", "keys", "operation")

    def __init__(self, operation: T, keys: tuple[K, ...]) -> None:
        self.operation = operation
        self.keys = keys
        self._timer: Timer[Delayed[K, T]] | None = None


class Purgatory(Generic[K, T]):
    """Waiting operations, by key and by deadline.

    Invariant: an operation is in the timer wheel exactly as long as it is in the watcher list of each of its keys, less
    those it was released from by ``unwatch``.
    """

    __slots__ = ("_operations_max", "_watchers", "_wheel", "watched")

    def __init__(self, now_ms: float, operations_max: int) -> None:
        assert operations_max > 0
        self._wheel: TimerWheel[Delayed[K, T]] = TimerWheel(now_ms)
        self._watchers: dict[K, dict[Delayed[K, T], None]] = {}
        self.watched: Mapping[K, dict[Delayed[K, T], None]] = self._watchers
        """The keys on which operations wait, each with its operations, oldest first; callers only read it."""
        self._operations_max = operations_max

    def __len__(self) -> int:
        return len(self._wheel)

    def watches_total(self) -> int:
        """Returns how many pairs of an operation and a key there are; looks at each key."""
        return sum(map(len, self._watchers.values()))

    def watch(self, operation: T, keys: Iterable[K], deadline_ms: float, *, bounded: bool = True) -> Delayed[K, T]:
        """Adds an operation that waits on ``keys`` until ``deadline_ms``.

        Raises:
            PurgatoryFullError: ``bounded``, and the bound is reached; ``operation`` is unchanged.
        """
        if bounded and len(self._wheel) >= self._operations_max:
            raise PurgatoryFullError(f"{self._operations_max} operations are waiting already")
        delayed: Delayed[K, T] = Delayed(operation, tuple(dict.fromkeys(keys)))
        for key in delayed.keys:
            watchers = self._watchers.get(key)
            if watchers is None:
                watchers = self._watchers[key] = {}
            watchers[delayed] = None
        delayed._timer = self._wheel.insert(deadline_ms, delayed)
        return delayed

    def watchers(self, key: K) -> tuple[Delayed[K, T], ...]:
        """Returns the operations that wait on ``key``, oldest first.

        The tuple is a snapshot: the caller may complete operations while it iterates.
        """
        watchers = self._watchers.get(key)
        return tuple(watchers) if watchers else ()

    def watches(self, key: K) -> bool:
        """Returns whether any operation waits on ``key``."""
        return key in self._watchers

    def unwatch(self, delayed: Delayed[K, T], key: K) -> None:
        """Removes a waiting operation from the watchers of one of its keys."""
        watchers = self._watchers.get(key)
        if watchers is not None and watchers.pop(delayed, delayed) is None and not watchers:
            del self._watchers[key]

    def complete(self, delayed: Delayed[K, T]) -> bool:
        """Removes the operation; returns True to the first caller only, which must then answer it."""
        timer = delayed._timer
        if timer is None or not self._wheel.cancel(timer):
            return False
        self._forget(delayed)
        return True

    def expire(self, now_ms: float) -> list[T]:
        """Removes and returns all operations with deadlines up to ``now_ms``; the caller must answer each of them."""
        expired = self._wheel.advance(now_ms)
        for delayed in expired:
            self._forget(delayed)
        return [delayed.operation for delayed in expired]

    def next_deadline_ms(self) -> int | None:
        """Returns when to call ``expire`` next; None while no operation waits."""
        return self._wheel.next_deadline_ms()

    def _forget(self, delayed: Delayed[K, T]) -> None:
        delayed._timer = None  # it refers to ``delayed``: a cycle would keep both
        for key in delayed.keys:
            self.unwatch(delayed, key)
