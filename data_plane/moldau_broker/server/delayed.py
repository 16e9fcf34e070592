"""Answers that wait: a produce with acks=all for the high watermark, one with acks=1 for the sync that
``flush.messages`` demands, and the clock that ends what waits too long.

Each operation is the ``Deferred`` of one request. It leaves its purgatory once, by its condition or by its deadline,
and only then is its event set; the connection's writer task finds the answer ready. A connection that dies takes its
operations along (``Operation.abandon``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.sync import Signal
from moldau_broker.replication.purgatory import Delayed, Purgatory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.answers import ResponsePart
    from moldau.runtime.environment import Clock
    from moldau_broker.server.partition import Partition

K = TypeVar("K")
T = TypeVar("T", bound="Operation")


class Operation:
    """Base of the waiting answers. ``done`` is set once, by the purgatory's rule."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def finish(self) -> None:
        """The operation has left its purgatory: its answer may be made."""
        assert not self._event.is_set(), "an operation completes once"
        self._event.set()

    @property
    def finished(self) -> bool:
        """Whether the operation has left its purgatory."""
        return self._event.is_set()

    def expired(self) -> None:
        """The deadline came first."""
        self.finish()

    async def wait_finished(self) -> None:
        """Returns when the operation has left its purgatory; its deadline bounds the wait."""
        await self._event.wait()


class ProduceWait:
    """One partition of a produce that waits:

    up to which offset (exclusive), in which leader epoch, and for which results.
    """

    __slots__ = ("indexes", "leader_epoch", "required_offset")

    def __init__(self, leader_epoch: int, required_offset: int, index: int) -> None:
        self.leader_epoch = leader_epoch
        self.required_offset = required_offset
        self.indexes = [index]


def _encode_nothing(_: dict[int, ErrorCode]) -> Sequence[ResponsePart]:
    return ()


class ProduceOperation(Operation):
    """A produce that waits.

    ``errors[i]`` belongs to partition ``i`` of the request and is final once the operation has finished.
    """

    __slots__ = ("_encode", "delayed", "errors", "held_bytes", "waiters", "waiting")

    def __init__(
        self,
        waiting: dict[Partition, ProduceWait],
        encode: Callable[[dict[int, ErrorCode]], Sequence[ResponsePart]],
        held_bytes: int = 0,
    ) -> None:
        """``held_bytes``: memory that the results take until they are answered."""
        super().__init__()
        self.waiting = waiting
        self.held_bytes = held_bytes
        self.errors: dict[int, ErrorCode] = {}
        self._encode = encode
        self.delayed: Delayed[Partition, ProduceOperation] | None = None
        self.waiters: Waiters[Partition, ProduceOperation] | None = None  # where ``delayed`` is

    def resolve(self, partition: Partition, error: ErrorCode) -> None:
        """One partition needs to wait no longer."""
        wait = self.waiting.pop(partition)
        if error is not ErrorCode.NONE:
            for index in wait.indexes:
                self.errors[index] = error

    def expired(self) -> None:
        """All that still waits has timed out; it may be committed yet (KIP: REQUEST_TIMED_OUT is not a refusal)."""
        for partition in list(self.waiting):
            self.resolve(partition, ErrorCode.REQUEST_TIMED_OUT)
        self.finish()

    async def wait(self) -> Sequence[ResponsePart]:
        """The answer, when every partition is committed, refused, or out of time."""
        await self.wait_finished()
        encode, self._encode = self._encode, _encode_nothing  # the connection may remember this for a while
        return encode(self.errors)


class Waiters(Generic[K, T]):
    """A purgatory with its clock: ``run`` expires what is overdue, sleeping as long as nothing can be."""

    __slots__ = ("_armed", "_clock", "_sleeping_until_ms", "purgatory")

    def __init__(self, clock: Clock, operations_max: int) -> None:
        self._clock = clock
        self.purgatory: Purgatory[K, T] = Purgatory(clock.monotonic_ms(), operations_max)
        self._armed = Signal()
        self._sleeping_until_ms = float("inf")

    def watch(self, operation: T, keys: Sequence[K], deadline_ms: float, *, bounded: bool = True) -> Delayed[K, T]:
        """See ``Purgatory.watch``; wakes the clock if this deadline is the next."""
        delayed = self.purgatory.watch(operation, keys, deadline_ms, bounded=bounded)
        if deadline_ms < self._sleeping_until_ms:
            self._sleeping_until_ms = deadline_ms
            self._armed.notify()
        return delayed

    def complete(self, delayed: Delayed[K, T]) -> None:
        """Takes the operation out and finishes it, if nobody did before."""
        if self.purgatory.complete(delayed):
            delayed.operation.finish()

    def abandon(self, delayed: Delayed[K, T]) -> None:
        """Nobody wants the answer any more."""
        self.purgatory.complete(delayed)

    async def run(self) -> None:
        """Expires overdue operations until cancelled."""
        while True:
            now_ms = self._clock.monotonic_ms()
            for operation in self.purgatory.expire(now_ms):
                operation.expired()
            deadline_ms = self.purgatory.next_deadline_ms()
            if deadline_ms is None:
                self._sleeping_until_ms = float("inf")
                await self._armed.wait()
            else:
                self._sleeping_until_ms = deadline_ms
                with trio.move_on_after(max(0.0, deadline_ms - now_ms) / 1000):
                    await self._armed.wait()
