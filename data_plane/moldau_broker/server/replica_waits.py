"""What waits for the replicas of this broker: produces, fetches, and those who delete records or append by themselves.

The base of ``ReplicaManager``, which calls ``_complete_produces``, ``_wake_fetches`` and ``_end_waits`` as logs grow,
are settled or committed, and as leadership changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.sync import Signal
from moldau_broker.server.delayed import ProduceOperation, ProduceWait, Waiters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.environment import Clock
    from moldau_broker.server.delayed import Operation
    from moldau_broker.server.fetch import FetchOperation
    from moldau_broker.server.partition import Partition, WatchKey

_COMMIT_WAIT_MS = 600_000.0
"""How long one stay in the purgatory lasts; ``wait_committed`` goes through as many as it needs."""


class ReplicaWaits:
    """Operations that wait for partitions, by what they wait for."""

    def __init__(self, clock: Clock, waiting_operations_max: int) -> None:
        """Nobody waits."""
        self._clock = clock
        self.eligible: Mapping[int, int] = {}  # broker epochs of the registered, unfenced, staying brokers
        self.produces: Waiters[Partition, ProduceOperation] = Waiters(clock, waiting_operations_max)
        """acks=all: for the high watermark."""
        self.settles: Waiters[Partition, ProduceOperation] = Waiters(clock, waiting_operations_max)
        """acks=1 with a flush policy: for the leader's sync."""
        self.fetches: Waiters[WatchKey, FetchOperation] = Waiters(clock, waiting_operations_max)
        self.settled = Signal()  # notified when a log is settled further, or gone
        self._low_watermark_waiters = 0
        self._low_watermark_changed = Signal()

    async def run_waits(self) -> None:
        """Ends what waits too long, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.produces.run)
            nursery.start_soon(self.settles.run)
            nursery.start_soon(self.fetches.run)

    def abandon_produce(self, operation: Operation) -> None:
        """Nobody waits for the answer of a produce any more; its records stay."""
        if isinstance(operation, ProduceOperation) and operation.delayed is not None and operation.waiters is not None:
            operation.waiters.abandon(operation.delayed)

    def low_watermark(self, partition: Partition) -> int:
        """The smallest log start offset over the leader and its live followers."""
        return partition.replica.low_watermark(partition.log.log_start_offset, self.eligible)

    async def wait_low_watermark(self, partition: Partition, offset: int) -> None:
        """Returns when all live replicas start at ``offset`` or later, or when the partition is not led here any more.

        The caller sets the deadline.
        """
        self._low_watermark_waiters += 1
        try:
            await self._low_watermark_changed.wait_until(
                lambda: not partition.is_leader or self.low_watermark(partition) >= offset
            )
        finally:
            self._low_watermark_waiters -= 1

    def follower_noted(self) -> None:
        """Followers have told their log start offsets."""
        if self._low_watermark_waiters:
            self._low_watermark_changed.notify()

    async def wait_committed(self, partition: Partition, leader_epoch: int, end_offset: int) -> None:
        """Returns when the high watermark is at least ``end_offset``; the caller sets the deadline, if any.

        Raises ``KafkaError`` when leadership of that epoch ends first. However many clients wait, there is room for
        this: the coordinators and the markers that they send, which nobody could answer with an error, wait here.
        """
        while True:
            error = partition.acknowledgement(leader_epoch, end_offset)
            if error is not None:
                if error not in (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
                    raise KafkaError(error)
                return
            operation = ProduceOperation({partition: ProduceWait(leader_epoch, end_offset, 0)}, lambda _: ())
            deadline_ms = self._clock.monotonic_ms() + _COMMIT_WAIT_MS
            delayed = self.produces.watch(operation, (partition,), deadline_ms, bounded=False)
            try:
                await operation.wait_finished()
            finally:
                self.produces.abandon(delayed)

    def _complete_produces(self, partition: Partition) -> None:
        self._complete_waits(self.produces, partition, partition.acknowledgement)
        if self.settles.purgatory.watches(partition):
            self._complete_waits(self.settles, partition, partition.settlement)

    def _complete_waits(
        self,
        waiters: Waiters[Partition, ProduceOperation],
        partition: Partition,
        answer: Callable[[int, int], ErrorCode | None],
    ) -> None:
        purgatory = waiters.purgatory
        for delayed in purgatory.watchers(partition):
            operation = delayed.operation
            wait = operation.waiting[partition]
            error = answer(wait.leader_epoch, wait.required_offset)
            if error is None:
                break  # those behind it wait for higher offsets
            operation.resolve(partition, error)
            if operation.waiting:
                purgatory.unwatch(delayed, partition)
            else:
                waiters.complete(delayed)

    def _wake_fetches(self, key: WatchKey) -> None:
        purgatory = self.fetches.purgatory
        if purgatory.watches(key):
            for delayed in purgatory.watchers(key):
                if delayed.operation.ready(key.partition):
                    self.fetches.complete(delayed)

    def _end_waits(self, partition: Partition) -> None:
        """Leadership changed or the replica is gone: nobody waits for it any longer."""
        self._complete_produces(partition)
        self.follower_noted()
        for key in (partition.end, partition.committed):
            for delayed in self.fetches.purgatory.watchers(key):
                self.fetches.complete(delayed)
