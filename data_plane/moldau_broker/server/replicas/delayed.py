"""Delayed answers of produces and fetches, and the task that expires them.

A produce with acks=all waits for the high watermark, one with acks=1 for the sync that ``flush.messages`` demands. Each
operation is the ``Deferred`` of one request. It leaves its purgatory once, by its condition or by its deadline, and
only then it finishes, so that the connection's writer task sends the answer. A closed connection abandons its
operations (``Waiters.abandon``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from moldau.protocol.errors import ErrorCode
from moldau.runtime.net.serving.answers import WaitingAnswer
from moldau.runtime.tasks.sync import OneShot, Signal
from moldau_broker.replication.purgatory import Delayed, Purgatory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.net.serving.answers import ResponsePart
    from moldau.runtime.ports.environment import Clock
    from moldau.values import LeaderEpoch, Offset
    from moldau_broker.server.replicas.partition import Partition

K = TypeVar("K")
T = TypeVar("T", bound="Operation")


class Operation(OneShot):
    """Base of the delayed answers. It finishes when it leaves the purgatory."""

    __slots__ = ("delayed",)

    def __init__(self) -> None:
        super().__init__()
        self.delayed: Delayed[Any, Any] | None = None
        """Its place in the purgatory, while it waits there for a client.

        An operation that has left it forgets it. A cycle of the two would stay until a garbage collection, and a
        broker with thousands of requests in a second would stop for that collection every few seconds.
        """

    def expired(self) -> None:
        """Finishes an operation whose deadline has passed."""
        self.finish()

    def abandoned(self) -> None:
        """Takes note that no client waits for the answer any more."""
        return


class WaitingFetch(Operation, ABC):
    """A waiting fetch. The data path creates it; the replicas wake it when its partitions grow."""

    __slots__ = ()

    @abstractmethod
    def ready(self, partition: Partition) -> bool:
        """Returns whether the change of ``partition`` ends the wait."""


class ProduceWait:
    """One partition of a waiting produce.

    ``required_offset`` is exclusive; ``indexes`` are the numbers of its results in the request.
    """

    __slots__ = ("indexes", "leader_epoch", "required_offset")

    def __init__(self, leader_epoch: LeaderEpoch, required_offset: Offset, index: int) -> None:
        self.leader_epoch = leader_epoch
        self.required_offset = required_offset
        self.indexes = [index]


def _encode_nothing(_: dict[int, ErrorCode]) -> Sequence[ResponsePart]:
    return ()


class ProduceOperation(Operation, WaitingAnswer):
    """A waiting produce.

    ``errors[i]`` belongs to partition ``i`` of the request and is final once the operation has finished.
    """

    __slots__ = ("_encode", "errors", "held_bytes", "waiters", "waiting")

    def __init__(
        self,
        waiting: dict[Partition, ProduceWait],
        encode: Callable[[dict[int, ErrorCode]], Sequence[ResponsePart]],
        held_bytes: int = 0,
    ) -> None:
        """``held_bytes``: memory of the results until they are answered."""
        super().__init__()
        self.waiting = waiting
        self.held_bytes = held_bytes
        self.errors: dict[int, ErrorCode] = {}
        self._encode = encode
        self.waiters: Waiters[Partition, ProduceOperation] | None = None  # the purgatory of ``delayed``

    def resolve(self, partition: Partition, error: ErrorCode) -> None:
        """Ends the wait for one partition."""
        wait = self.waiting.pop(partition)
        if error is not ErrorCode.NONE:
            for index in wait.indexes:
                self.errors[index] = error

    def expired(self) -> None:
        """Times out the waiting partitions; their records may be committed later (a timeout is not a refusal)."""
        for partition in list(self.waiting):
            self.resolve(partition, ErrorCode.REQUEST_TIMED_OUT)
        self.finish()

    def answer_now(self) -> Sequence[ResponsePart]:
        """Returns the answer: each partition is committed, refused or timed out."""
        encode, self._encode = self._encode, _encode_nothing  # frees the results: the connection may keep the operation
        return encode(self.errors)


class Waiters(Generic[K, T]):
    """A purgatory with its clock: ``run`` expires overdue operations and sleeps until the next deadline."""

    __slots__ = ("_armed", "_clock", "_sleeping_until_ms", "purgatory")

    def __init__(self, clock: Clock, operations_max: int) -> None:
        self._clock = clock
        self.purgatory: Purgatory[K, T] = Purgatory(clock.monotonic_ms(), operations_max)
        self._armed = Signal()
        self._sleeping_until_ms = float("inf")

    def watch(self, operation: T, keys: Sequence[K], deadline_ms: float, *, bounded: bool = True) -> Delayed[K, T]:
        """Adds an operation (``Purgatory.watch``); wakes ``run`` if this deadline is the next."""
        delayed = self.purgatory.watch(operation, keys, deadline_ms, bounded=bounded)
        if deadline_ms < self._sleeping_until_ms:
            self._sleeping_until_ms = deadline_ms
            self._armed.notify()
        return delayed

    def complete(self, delayed: Delayed[K, T]) -> None:
        """Takes the operation out and finishes it, unless it has left before."""
        if self.purgatory.complete(delayed):
            operation = delayed.operation
            operation.delayed = None
            operation.finish()

    def abandon(self, delayed: Delayed[K, T]) -> None:
        """Takes an operation out whose answer is not needed any more."""
        self.purgatory.complete(delayed)
        delayed.operation.delayed = None
        delayed.operation.abandoned()

    async def run(self) -> None:
        """Expires overdue operations until cancelled."""
        while True:
            now_ms = self._clock.monotonic_ms()
            for operation in self.purgatory.expire(now_ms):
                operation.delayed = None
                operation.expired()
            deadline_ms = self.purgatory.next_deadline_ms()
            if deadline_ms is None:
                self._sleeping_until_ms = float("inf")
                await self._armed.wait()
            else:
                self._sleeping_until_ms = deadline_ms
                with trio.move_on_after(max(0.0, deadline_ms - now_ms) / 1000):
                    await self._armed.wait()


class ProduceWaiters(Waiters["Partition", ProduceOperation]):
    """Waiting produces. Those of a partition mostly wait for growing offsets, so the first that must go on ends a look.

    The answer to a repeated batch waits for an offset below those of newer batches, and must not wait for them.
    """

    __slots__ = ("_unordered",)

    def __init__(self, clock: Clock, operations_max: int) -> None:
        super().__init__(clock, operations_max)
        self._unordered: set[Partition] = set()
        """Partitions of which an operation waits for a lower offset than one before it."""

    def watch(
        self, operation: ProduceOperation, keys: Sequence[Partition], deadline_ms: float, *, bounded: bool = True
    ) -> Delayed[Partition, ProduceOperation]:
        """See ``Waiters.watch``."""
        watched = self.purgatory.watched
        for partition, wait in operation.waiting.items():
            if partition in watched:
                newest = next(reversed(watched[partition]))
                if newest.operation.waiting[partition].required_offset > wait.required_offset:
                    self._unordered.add(partition)
        return super().watch(operation, keys, deadline_ms, bounded=bounded)

    def complete_ready(self, partition: Partition, answer: Callable[[LeaderEpoch, Offset], ErrorCode | None]) -> None:
        """Resolves the waits for a watched partition to which ``answer`` gives a code; operations may finish."""
        purgatory = self.purgatory
        is_unordered = partition in self._unordered
        left: list[Offset] = []
        for delayed in purgatory.watchers(partition):
            operation = delayed.operation
            wait = operation.waiting[partition]
            error = answer(wait.leader_epoch, wait.required_offset)
            if error is None:
                if not is_unordered:
                    return  # those behind it wait for the same offset or higher ones
                left.append(wait.required_offset)
                continue
            operation.resolve(partition, error)
            if operation.waiting:
                purgatory.unwatch(delayed, partition)
            else:
                self.complete(delayed)
        if is_unordered and left == sorted(left):
            self._unordered.discard(partition)

    def forget(self, partition: Partition) -> None:
        """Frees what is kept for a partition of which nothing waits any more."""
        self._unordered.discard(partition)
