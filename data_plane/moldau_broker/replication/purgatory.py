"""Operations that wait: a produce for its high watermark, a fetch for its bytes, each with a deadline.

An operation is watched under keys (partitions). When something happens to a key, the shell asks for the operations that
watch it, decides for each whether its condition holds now, and calls ``complete``; when time passes, ``expire`` hands
out those whose deadline came first. Both go through one door: an operation leaves the purgatory exactly once, and
whoever takes it out is the only one who may answer it. ``complete`` therefore returns False to the second caller.

The number of operations is bounded: ``watch`` raises ``PurgatoryFullError`` at the bound, and the caller answers with
an error or at once. Who has nobody to refuse (the broker's own waits, which are few) is let in beyond it. Timers are
O(1) (``timer_wheel``), watchers of a key keep the order in which they came, so that a caller whose conditions are
ordered (acks=all offsets of one partition) can stop at the first that does not hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from moldau_broker.replication.timer_wheel import Timer, TimerWheel

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class PurgatoryFullError(Exception):
    """The bound on waiting operations is reached."""


class Delayed(Generic[K, T]):
    """One waiting operation; made by ``Purgatory.watch``."""

    __slots__ = ("_timer", "keys", "operation")

    def __init__(self, operation: T, keys: tuple[K, ...]) -> None:
        self.operation = operation
        self.keys = keys
        self._timer: Timer[Delayed[K, T]] | None = None

    @property
    def waiting(self) -> bool:
        """Whether the operation is still in the purgatory."""
        return self._timer is not None and self._timer.pending


class Purgatory(Generic[K, T]):
    """Waiting operations, by key and by deadline.

    Invariant: an operation is in the timer wheel exactly as long as it is in the watcher list of each of its keys, less
    those it was released from by ``unwatch``.
    """

    __slots__ = ("_operations_max", "_watchers", "_wheel")

    def __init__(self, now_ms: float, operations_max: int) -> None:
        assert operations_max > 0
        self._wheel: TimerWheel[Delayed[K, T]] = TimerWheel(now_ms)
        self._watchers: dict[K, dict[Delayed[K, T], None]] = {}
        self._operations_max = operations_max

    def __len__(self) -> int:
        return len(self._wheel)

    def watch(self, operation: T, keys: Iterable[K], deadline_ms: float, *, bounded: bool = True) -> Delayed[K, T]:
        """Starts to wait. Raises ``PurgatoryFullError`` at the bound, if ``bounded``; ``operation`` is then
        untouched."""
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
        """The operations that wait on ``key``, oldest first, as of now (a snapshot:

        completing some of them is safe).
        """
        watchers = self._watchers.get(key)
        return tuple(watchers) if watchers else ()

    def watches(self, key: K) -> bool:
        """Whether anything waits on ``key``."""
        return key in self._watchers

    def unwatch(self, delayed: Delayed[K, T], key: K) -> None:
        """Ends the interest of a still waiting operation in one of its keys."""
        watchers = self._watchers.get(key)
        if watchers is not None and watchers.pop(delayed, delayed) is None and not watchers:
            del self._watchers[key]

    def complete(self, delayed: Delayed[K, T]) -> bool:
        """Takes the operation out; True for the first caller only, who then owes the answer."""
        timer = delayed._timer
        if timer is None or not self._wheel.cancel(timer):
            return False
        self._forget(delayed)
        return True

    def expire(self, now_ms: float) -> list[T]:
        """Takes out every operation whose deadline is not after ``now_ms``; the caller owes each of them its answer."""
        expired = self._wheel.advance(now_ms)
        for delayed in expired:
            self._forget(delayed)
        return [delayed.operation for delayed in expired]

    def next_deadline_ms(self) -> int | None:
        """When ``expire`` should next be called; None while nothing waits."""
        return self._wheel.next_deadline_ms()

    def _forget(self, delayed: Delayed[K, T]) -> None:
        for key in delayed.keys:
            self.unwatch(delayed, key)
