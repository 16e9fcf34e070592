"""Requests and coordinators that wait for the replicas of this broker.

They wait for the high watermark (produces with acks=all, coordinators), for a sync (produces with acks=1), for records
(fetches) or for the low watermark (DeleteRecords). ``ReplicaManager`` owns a ``ReplicaWaits`` and calls
``complete_produces``, ``moved`` and ``end`` when logs grow, are settled or committed, and when leadership
changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.tasks.sync import Signal
from moldau_broker.replication.fetch_session import SessionIndex
from moldau_broker.server.replicas.delayed import ProduceOperation, ProduceWait, ProduceWaiters, Waiters

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.ports.environment import Clock
    from moldau.values import LeaderEpoch, Offset
    from moldau_broker.replication.fetch_session import FetchSession
    from moldau_broker.server.replicas.delayed import Operation, WaitingFetch
    from moldau_broker.server.replicas.partition import Partition, WatchKey

SessionKey = tuple["FetchSession", bool]
"""A session whose fetch waits for all its partitions: for their log ends, or (True) for their high watermarks."""

_COMMIT_WAIT_MS = 600_000.0
"""How long one stay in the purgatory lasts; ``wait_committed`` goes through as many as it needs."""


class ReplicaWaits:
    """Operations that wait for partitions, one purgatory for each condition."""

    def __init__(self, clock: Clock, operations_max: int, low_watermark: Callable[[Partition], int]) -> None:
        """Starts with empty purgatories of ``operations_max`` each; ``low_watermark`` returns that of a partition."""
        self._clock = clock
        self._low_watermark = low_watermark
        self.produces = ProduceWaiters(clock, operations_max)
        """Produces with acks=all, which wait for the high watermark."""
        self.settles = ProduceWaiters(clock, operations_max)
        """Produces with acks=1 and a flush policy, which wait for the leader's sync."""
        self.fetches: Waiters[WatchKey | SessionKey, WaitingFetch] = Waiters(clock, operations_max)
        """Fetches of followers wait for the log end, fetches of consumers for the high watermark.

        A fetch in a session has one key, so that a wait costs as much for a thousand partitions as for one.
        """
        self.sessions = SessionIndex()
        """Which fetch sessions name a partition: it becomes due in them with each change."""
        self._low_watermark_waiters = 0
        self._low_watermark_changed = Signal()

    async def run(self) -> None:
        """Expires overdue operations until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.produces.run)
            nursery.start_soon(self.settles.run)
            nursery.start_soon(self.fetches.run)

    def abandon_produce(self, operation: Operation) -> None:
        """Drops a waiting produce whose connection has closed; its records stay in the log."""
        if isinstance(operation, ProduceOperation) and operation.delayed is not None and operation.waiters is not None:
            operation.waiters.abandon(operation.delayed)

    async def wait_low_watermark(self, partition: Partition, offset: Offset) -> None:
        """Waits until all live replicas start at ``offset`` or later, or until leadership here ends.

        The caller sets the deadline.
        """
        self._low_watermark_waiters += 1
        try:
            await self._low_watermark_changed.wait_until(
                lambda: not partition.is_leader or self._low_watermark(partition) >= offset
            )
        finally:
            self._low_watermark_waiters -= 1

    def follower_noted(self) -> None:
        """Wakes the waits for low watermarks: followers have reported their log start offsets, or are fenced."""
        if self._low_watermark_waiters:
            self._low_watermark_changed.notify()

    async def wait_committed(self, partition: Partition, leader_epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Waits until the high watermark is at least ``end_offset``.

        The caller sets the deadline, if any. ``operations_max`` does not bound these waits: coordinators and
        transaction markers wait here, and they have no client to answer with an error.

        Raises:
            KafkaError: leadership of that epoch ended first.
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

    def complete_produces(self, partition: Partition) -> None:
        """Completes the produces whose offsets the partition has committed, settled or refused."""
        if partition in self.produces.purgatory.watched:
            self.produces.complete_ready(partition, partition.acknowledgement)
        if partition in self.settles.purgatory.watched:
            self.settles.complete_ready(partition, partition.settlement)

    def note_change(self, partition: Partition) -> None:
        """Notes a change that wakes no fetch: of in-sync replicas, or of a log start offset."""
        self.sessions.changed(partition.wire_key, partition.name_key)

    def moved(self, partition: Partition, *, watermark: bool) -> None:
        """Completes the fetches for which the new log end, or the new high watermark, is enough."""
        key = partition.committed if watermark else partition.end
        index = self.sessions
        sessions = index.changed(partition.wire_key, partition.name_key) if index.by_partition else ()
        purgatory = self.fetches.purgatory
        watched = purgatory.watched
        if not watched:
            return
        if key in watched:
            self.wake_fetches(key)
        for session in sessions:
            if (session, watermark) in watched:
                for delayed in purgatory.watchers((session, watermark)):
                    if delayed.operation.ready(partition):
                        self.fetches.complete(delayed)

    def wake_fetches(self, key: WatchKey) -> None:
        """Completes the fetches for which what happened to ``key`` is enough."""
        purgatory = self.fetches.purgatory
        if purgatory.watches(key):
            for delayed in purgatory.watchers(key):
                if delayed.operation.ready(key.partition):
                    self.fetches.complete(delayed)

    def end(self, partition: Partition) -> None:
        """Ends all waits for a partition whose leadership changed or whose replica is gone."""
        sessions = self.sessions.changed(partition.wire_key, partition.name_key)
        self.complete_produces(partition)
        self.produces.forget(partition)
        self.settles.forget(partition)
        self.follower_noted()
        self._end_fetches(partition.end)
        self._end_fetches(partition.committed)
        for session in sessions:
            self.end_session(session)

    def end_session(self, session: FetchSession) -> None:
        """Completes the fetches that wait in a session."""
        self._end_fetches((session, False))
        self._end_fetches((session, True))

    def _end_fetches(self, key: WatchKey | SessionKey) -> None:
        for delayed in self.fetches.purgatory.watchers(key):
            self.fetches.complete(delayed)
