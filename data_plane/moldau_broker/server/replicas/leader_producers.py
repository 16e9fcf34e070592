"""Restores the producers of a log that leads, and has only remote records (KIP-405).

A follower whose log an unclean election has cut below its records on this disk restores its producers before it fetches
(``remote_start``). A second unclean election may come before that. The new leader then has no producer state: it would
append a batch whose answer was lost for a second time, and would accept any sequence number of a producer that it had
known. So it takes no records until it has read the state from the object store: the snapshot of the last of its remote
segments, and the batches from there to the end of its log. Nothing of its log goes.

The store may be away for long, and an operator who allows unclean elections prefers a leader without all promises to
none. So after ``RESTORE_MS_MAX`` it takes records without the producers, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.errors import LogError, LogStorageError
from moldau_broker.remote_log.core.producers import ProducersAt
from moldau_broker.server.replicas.remote_start import lacks_producers

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.tasks.supervision import TaskHost
    from moldau.values import BrokerId
    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.replicas.partition import Partition

RESTORE_MS_MAX: Final = 30_000.0
"""Producers send a batch again for ``delivery.timeout.ms``, two minutes by default."""
PAUSE_MS: Final = 1_000.0
"""Between two attempts."""


class LeaderProducers:
    """The logs of leaders whose producers are restored. They take no records meanwhile."""

    def __init__(
        self, broker_id: BrokerId, reader: RemoteReader, tasks: TaskHost, failed: Callable[[LogStorageError], None]
    ) -> None:
        """``failed`` takes a log directory offline."""
        self._reader = reader
        self._tasks = tasks
        self._failed = failed
        self._held: dict[Partition, trio.CancelScope] = {}
        self._logger = EventLogger("moldau.broker.leader-producers", node=broker_id)

    def leadership_changed(self, partition: Partition, leads: bool) -> None:
        """Takes over the state of a replica; see ``LeadershipListener``."""
        if not leads or partition.error is not ErrorCode.NONE:
            scope = self._held.pop(partition, None)
            if scope is not None:
                scope.cancel()
            partition.replica.lacks_producers = False
        elif partition not in self._held and self._tasks.accepts and self._must_restore(partition):
            partition.replica.lacks_producers = True
            scope = self._held[partition] = trio.CancelScope()
            self._tasks.start(self._restore, partition, scope)

    def _must_restore(self, partition: Partition) -> bool:
        """Returns whether a leader lacks its producers. Its log has no records of its present epoch yet."""
        return partition.log.config.remote_storage_enable and lacks_producers(partition)

    async def _restore(self, partition: Partition, scope: trio.CancelScope) -> None:
        restored = False
        with scope, trio.move_on_after(RESTORE_MS_MAX / 1000):
            while not restored:
                try:
                    await self._attempt(partition)
                    restored = True
                except KafkaError as error:
                    self._logger.warning("restore-failed", partition=partition.key, error=error)
                    if isinstance(error, LogStorageError):
                        self._failed(error)
                    await trio.sleep(PAUSE_MS / 1000)
        if self._held.get(partition) is not scope:
            return
        del self._held[partition]
        partition.replica.lacks_producers = False
        if restored:
            self._logger.info("restored-producers", partition=partition.key, log_end=partition.log.log_end_offset)
        else:
            self._logger.error("producers-unknown", partition=partition.key, advice="batches may be appended twice")

    async def _attempt(self, partition: Partition) -> None:
        """Reads the producers at the end of a log, and gives them to it; durable on return.

        Raises:
            KafkaError: the store or this disk refused; ``LogError`` if a segment is gone or damaged.
        """
        log = partition.log
        start, end = log.log_start_offset, log.log_end_offset
        remote = await self._reader.listed(partition)
        own = [each for each in remote.segments if start < each.end_offset <= end]
        last = max(own, key=lambda each: each.end_offset, default=None)
        if last is None:
            producers = ProducersAt(start, None)
        else:
            parts = await self._reader.parts(partition, last)
            producers = ProducersAt(last.end_offset, parts.producer_snapshot)
        while producers.offset < end:
            await self._advance(partition, producers, end)
        if partition.log is not log:  # it has moved to another directory
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log.restore_producers(producers.snapshot())

    async def _advance(self, partition: Partition, producers: ProducersAt, end: int) -> None:
        """Applies batches of a segment that holds the next offset, also of one that goes on behind the log's end.

        Raises:
            KafkaError: as ``_attempt``.
        """
        offset = producers.offset
        error: LogError = self._reader.missing(partition, offset)
        for segment in await self._reader.segments_holding(partition, offset):
            try:
                while producers.offset < min(segment.end_offset, end):
                    found = await self._reader.read_segment(partition, segment, producers.offset, end)
                    producers.apply(found.data, partition.log.epochs.epoch_for_offset)
                    if found.end_offset <= producers.offset and not found.data:
                        break  # the next batch reaches beyond the end
                    producers.offset = min(found.end_offset, end)  # compaction may have left a hole
            except LogError as other:
                error = other
            if producers.offset > offset:
                return
        raise error
