"""Starts a follower's log behind the remote segments that the local log of its leader follows (KIP-405).

The leader answered OFFSET_MOVED_TO_TIERED_STORAGE. The follower asks it where its local log begins, finds the remote
segment that holds the offset before, restores the leader epochs and the producers from the segment's ``.aux``, and
starts its log at the segment's end. It copies no records that are remote already, unless the leader has them too.

A log that an unclean election cut below its records on this disk has lost its producers with them. It starts over at
the end of the last of its own remote segments, from which it takes them. Otherwise it would accept a batch for a second
time when it leads, and would not know the transactions that are open. The rest is fetched again.

The segment must hold the leader's records. It does if the leader epoch of the leader's log at the segment's last offset
is the segment's (Raft's log matching). The follower's own epochs do not show that, so it asks the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from moldau.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import Offset
from moldau_broker.log.values import EARLIEST_LOCAL_TIMESTAMP, LATEST_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.runtime.net.rpc import RpcConnection
    from moldau.runtime.ports.environment import Clock
    from moldau.values import BrokerId
    from moldau_broker.log.values import SegmentParts
    from moldau_broker.remote_log.core.names import RemoteSegment
    from moldau_broker.replication.follower import Followed, Step
    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

STARTS_MAX: Final = 8
"""Logs that are restored at the same time: each lists a folder and reads one ``.aux``."""
_LIST_OFFSETS_VERSION: Final = 8
_EPOCHS_VERSION: Final = 4


class _EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


def lacks_producers(partition: Partition) -> bool:
    """Returns whether a log has only remote records, and does not know their producers.

    So it is after a truncation below its local log start offset, also after a restart. A snapshot that cannot be read
    counts as lost: a disk that fails fails when the log starts over.
    """
    storage = partition.log.storage
    first = storage.segments.first_base_offset
    if not storage.log_start_offset < first == storage.log_end_offset:
        return False
    try:
        return storage.snapshots.read(first) is None
    except OSError:
        return True


class RemoteStarts:
    """Starts logs of followers behind remote segments."""

    def __init__(
        self, clock: Clock, broker_id: BrokerId, replicas: ReplicaManager, reader: RemoteReader, *, timeout_ms: float
    ) -> None:
        """``timeout_ms`` is how long a request to the leader may take."""
        self._clock = clock
        self._broker_id = broker_id
        self._replicas = replicas
        self._reader = reader
        self._timeout_ms = timeout_ms
        self._limit = trio.CapacityLimiter(STARTS_MAX)
        self._logger = EventLogger("moldau.broker.remote-start", node=broker_id)

    async def start(
        self, connection: RpcConnection, partition: Partition, step: Step, is_wanted: Callable[[], bool]
    ) -> bool:
        """Restores one log; returns whether it has moved, and False if the leader must be asked again.

        The log is durable at its new start on return. ``is_wanted`` returns whether it still follows the leader.

        Raises:
            OSError, EOFError, trio.TooSlowError: the leader did not answer.
            KafkaError: the leader, the store or this disk refused; ``LogError`` if the store lacks the segment.
        """
        async with self._limit:
            if not is_wanted():
                return False
            followed = step.followed
            end = await self._list_offset(connection, followed, LATEST_TIMESTAMP)
            if not is_wanted():
                return False
            if end < partition.log.log_end_offset:  # an unclean election: the leader has lost records
                self._replicas.follower_truncated(partition, end)
                return True
            local_start = await self._list_offset(connection, followed, EARLIEST_LOCAL_TIMESTAMP)
            log_start = step.answer.log_start_offset
            if local_start <= partition.log.log_end_offset or not 0 <= log_start < local_start:
                return False  # the leader's log has changed meanwhile
            segment = await self._segment(connection, partition, followed, local_start - 1)
            parts = await self._reader.parts(partition, segment)
            if not is_wanted() or partition.error is not ErrorCode.NONE:
                return False
            self._restart_behind(partition, segment, parts, log_start)
            self._logger.info(
                "restored-behind", partition=partition.key, segment=segment.name, log_start=log_start, leader_end=end
            )
            return True

    async def restore_producers(self, partition: Partition, is_wanted: Callable[[], bool]) -> None:
        """Starts the log over, at most at its present end, where its producers are known; durable on return.

        Without a segment that ends in the log it starts over, empty, at its log start offset, as a new replica does.

        Raises:
            KafkaError: the store or this disk refused; ``LogError`` if the segment is gone or damaged.
        """
        async with self._limit:
            if not is_wanted() or not lacks_producers(partition):
                return
            log = partition.log
            remote = await self._reader.listed(partition)
            start, end = log.log_start_offset, log.log_end_offset
            segment = max(
                (each for each in remote.segments if start < each.end_offset <= end),
                key=lambda each: each.end_offset,
                default=None,
            )
            parts = None if segment is None else await self._reader.parts(partition, segment)
            if not is_wanted() or partition.error is not ErrorCode.NONE or partition.log is not log:
                return
            if segment is None or parts is None:
                self._replicas.follower_restarted(partition, Offset(start))
            else:
                self._restart_behind(partition, segment, parts, log.log_start_offset)
            self._logger.info("restored-producers", partition=partition.key, log_end=log.log_end_offset, was=end)

    def _restart_behind(
        self, partition: Partition, segment: RemoteSegment, parts: SegmentParts, log_start_offset: int
    ) -> None:
        partition.log.restart_behind(
            segment.end_offset,
            log_start_offset=log_start_offset,
            leader_epochs=parts.leader_epochs,
            producer_snapshot=parts.producer_snapshot,
            now_ms=self._clock.wall_ms(),
        )
        partition.replica.restarted(Offset(segment.end_offset))
        partition.log.update_high_watermark(partition.replica.high_watermark)

    async def _segment(
        self, connection: RpcConnection, partition: Partition, followed: Followed, offset: int
    ) -> RemoteSegment:
        """Returns the segment that holds ``offset`` and the leader's records, the one that reaches furthest.

        Raises:
            RemoteSegmentMissingError: the store does not hold it.
            Exception: as ``start``.
        """
        for segment in await self._reader.segments_holding(partition, offset):
            at = await self._epoch_end(connection, followed, segment.last_epoch)
            if at.epoch != segment.last_epoch or at.end_offset <= segment.last_offset:
                continue
            before = _EpochEnd(-1, -1)
            if segment.last_epoch > 0:
                before = await self._epoch_end(connection, followed, segment.last_epoch - 1)
            if before.end_offset <= segment.last_offset:
                return segment
        raise self._reader.missing(partition, offset)

    async def _list_offset(self, connection: RpcConnection, followed: Followed, timestamp: int) -> Offset:
        request = ListOffsetsRequest(
            replica_id=self._broker_id,
            topics=[
                ListOffsetsTopic(
                    name=followed.key.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=followed.key.partition,
                            current_leader_epoch=followed.leader_epoch,
                            timestamp=timestamp,
                        )
                    ],
                )
            ],
        )
        response = await connection.request_as(
            ListOffsetsResponse, request, _LIST_OFFSETS_VERSION, timeout_ms=self._timeout_ms
        )
        found = [each for topic in response.topics for each in topic.partitions]
        if len(found) != 1 or found[0].error_code != ErrorCode.NONE or found[0].offset < 0:
            code = ErrorCode.of(found[0].error_code) if found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"the leader has no offset of {timestamp} for {followed.key}")
        return Offset(found[0].offset)

    async def _epoch_end(self, connection: RpcConnection, followed: Followed, leader_epoch: int) -> _EpochEnd:
        """Returns the leader's largest epoch not above one, and where it ends."""
        wanted = OffsetForLeaderPartition(
            partition=followed.key.partition,
            current_leader_epoch=followed.leader_epoch,
            leader_epoch=leader_epoch,
        )
        request = OffsetForLeaderEpochRequest(
            replica_id=self._broker_id, topics=[OffsetForLeaderTopic(topic=followed.key.topic, partitions=[wanted])]
        )
        response = await connection.request_as(
            OffsetForLeaderEpochResponse, request, _EPOCHS_VERSION, timeout_ms=self._timeout_ms
        )
        found = [each for topic in response.topics for each in topic.partitions]
        if len(found) != 1 or found[0].error_code != ErrorCode.NONE:
            code = ErrorCode.of(found[0].error_code) if found else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise KafkaError(code, f"the leader does not tell the end of epoch {leader_epoch} of {followed.key}")
        return _EpochEnd(found[0].leader_epoch, found[0].end_offset)
