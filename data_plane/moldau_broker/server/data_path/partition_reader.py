"""Reads one partition for a Fetch: records, or why there are none.

Reading plans byte ranges of log segments; nothing is copied here, and the connection sends the ranges. Records below
the local log start offset are read from the object store, beside the plan (``RemoteReads``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.hot import FetchPartitionResult
from moldau.runtime.net.serving.answers import FileRange, ResponsePart
from moldau.runtime.telemetry.log import EventLogger
from moldau.values import Offset
from moldau_broker.log.errors import (
    LogError,
    LogStorageError,
    OffsetInRemoteStorageError,
    OffsetOutOfRangeError,
    storage_failure,
)
from moldau_broker.replication.replica import Role
from moldau_broker.server.data_path.fetch_query import READ_COMMITTED, TOPIC_IDS, local_replica
from moldau_broker.server.remote_reading.values import RemoteRange, first_batches
from moldau_broker.server.replicas.sent_ranges import reporter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.ports.environment import Clock
    from moldau.values import Buffer
    from moldau_broker.replication.fetch_session import FetchPartition
    from moldau_broker.server.data_path.fetch_query import FetchQuery
    from moldau_broker.server.data_path.follower_positions import FollowerPositions
    from moldau_broker.server.data_path.hints import Hints
    from moldau_broker.server.remote_reading.reads import RemoteRead, RemoteReads
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

_logger = EventLogger("moldau.broker.fetch")

_FOLLOWER_READS = 11
_LEADER_HINTS = 12

Result = FetchPartitionResult[ResponsePart]
_NO_ERROR, _LEADER = ErrorCode.NONE, Role.LEADER  # members of enumerations cost ten times a global name


class PartitionReader:
    """Plans what a Fetch gets from one partition of this broker."""

    __slots__ = ("_clock", "_followers", "_hints", "_on_unreadable", "_remote", "_replicas", "reads")

    def __init__(
        self,
        clock: Clock,
        replicas: ReplicaManager,
        hints: Hints,
        followers: FollowerPositions,
        remote: RemoteReads | None = None,
    ) -> None:
        """``remote`` reads from the object store; None without tiered storage."""
        self._clock = clock
        self._replicas = replicas
        self._on_unreadable = reporter(replicas)
        self._hints = hints
        self._followers = followers
        self._remote = remote
        self.reads: list[RemoteRead] = []
        """Reads of remote records that partitions have asked for; the caller takes them out."""

    def read(self, query: FetchQuery, wanted: FetchPartition, remaining: int, *, first: bool) -> Result:
        """Returns the records of a partition, at most ``remaining`` bytes, or the error.

        ``first``: no partition before it had records, so that one batch is answered even if it is larger (KIP-74).
        """
        partition = local_replica(self._replicas, query, wanted)
        if partition is None:
            return self._absent(query, wanted)
        from_follower = query.replica_id >= 0
        replica = partition.replica
        if (
            replica.role is not _LEADER
            or partition.error is not _NO_ERROR
            or wanted.current_leader_epoch not in (-1, replica.state.leader_epoch)
        ):
            leader_only = from_follower or query.version < _FOLLOWER_READS
            error = partition.check_access(wanted.current_leader_epoch, leader_only=leader_only)
            if error is not _NO_ERROR:
                return self._refused(query, wanted, error)
        diverging = None
        if wanted.last_fetched_epoch >= 0:
            try:
                diverging = self._followers.diverging(partition, wanted)
            except OffsetOutOfRangeError:
                return self._out_of_range(wanted, partition)
        log = partition.log
        high_watermark = replica.high_watermark
        stable = log.last_stable_offset
        if diverging is not None:
            return FetchPartitionResult(
                wanted.partition, 0, high_watermark, stable, log.log_start_offset, diverging_epoch=diverging
            )
        if query.rack_id and not from_follower and replica.role is _LEADER:
            preferred = self._hints.preferred_read_replica(partition, query.rack_id, wanted.fetch_offset)
            if preferred >= 0:
                return FetchPartitionResult(
                    wanted.partition,
                    0,
                    high_watermark,
                    stable,
                    log.log_start_offset,
                    preferred_read_replica=preferred,
                )
        if from_follower:
            upper = log.log_end_offset
            if self._replicas.holds_back(partition, query.replica_id, self._clock.monotonic_ms()):
                upper = min(upper, Offset(wanted.fetch_offset))
        elif query.isolation_level == READ_COMMITTED:
            upper = stable
        else:
            upper = high_watermark
        return self._read_log(query, wanted, partition, upper, stable, remaining, first=first)

    def _read_log(
        self,
        query: FetchQuery,
        wanted: FetchPartition,
        partition: Partition,
        upper: int,
        stable: int,
        remaining: int,
        *,
        first: bool,
    ) -> Result:
        log = partition.log
        high_watermark = partition.replica.high_watermark
        offset = wanted.fetch_offset
        if high_watermark < offset <= log.log_end_offset and query.replica_id < 0 and not partition.replica.is_leader:
            # Behind an open transaction, which may be below the high watermark, the leader would not read on either.
            return FetchPartitionResult(wanted.partition, ErrorCode.OFFSET_NOT_AVAILABLE)
        if offset == upper or (upper < offset <= log.log_end_offset) or (remaining <= 0 and not first):
            if offset < log.log_start_offset or upper < offset > log.log_end_offset:
                return self._out_of_range(wanted, partition)
            aborted: list[tuple[int, int]] | None = [] if query.isolation_level == READ_COMMITTED else None
            return FetchPartitionResult(
                wanted.partition,
                0,
                high_watermark,
                stable,
                log.storage.log_start_offset,
                aborted_transactions=aborted,
            )
        try:
            max_bytes = min(wanted.max_bytes, remaining)
            read = log.storage.read(offset, max_bytes=max_bytes, upper_bound_offset=upper, min_one_batch=first)
            aborted = None
            if query.isolation_level == READ_COMMITTED and query.replica_id < 0:
                aborted = [(entry.producer_id, entry.first_offset) for entry in log.aborted_transactions(read, upper)]
        except OffsetInRemoteStorageError:
            return self._read_remote(query, wanted, partition, upper, stable, remaining, first=first)
        except OffsetOutOfRangeError:
            return self._out_of_range(wanted, partition)
        except (LogStorageError, OSError) as error:
            if isinstance(error, OSError):
                error = storage_failure(log.parent_directory, f"reading {partition.key}", error)
            self._replicas.directory_failed(error)
            return FetchPartitionResult(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        except LogError as error:  # damaged records; other partitions of the request are unaffected
            _logger.warning("log-unreadable", partition=partition.key, offset=offset, error=error)
            return FetchPartitionResult(wanted.partition, error.code)
        return FetchPartitionResult(
            wanted.partition,
            0,
            high_watermark,
            stable,
            log.storage.log_start_offset,
            read.size_bytes,
            tuple([FileRange(part.file, part.position, part.count, self._on_unreadable) for part in read.ranges]),
            aborted,
        )

    def _read_remote(
        self,
        query: FetchQuery,
        wanted: FetchPartition,
        partition: Partition,
        upper: int,
        stable: int,
        remaining: int,
        *,
        first: bool,
    ) -> Result:
        """Returns remote records that have been read; begins the read and returns none if they have not.

        A follower builds its state from the object store itself (KIP-405).
        """
        index, high_watermark = wanted.partition, partition.replica.high_watermark
        start = partition.log.storage.log_start_offset
        if query.replica_id >= 0:
            return FetchPartitionResult(index, ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, high_watermark, stable, start)
        if self._remote is None:  # the topic was tiered before the system was disabled here
            return FetchPartitionResult(index, ErrorCode.KAFKA_STORAGE_ERROR)
        reads_committed = query.isolation_level == READ_COMMITTED
        max_bytes = min(wanted.max_bytes, remaining)
        read = self._remote.ask(partition, RemoteRange(wanted.fetch_offset, max_bytes, upper, reads_committed))
        aborted: Sequence[tuple[int, int]] | None = [] if reads_committed else None
        records: Buffer = b""
        if read is not None and read.records is not None:
            records = first_batches(read.records.records, max_bytes, min_one_batch=first)
            if records and reads_committed:
                aborted = read.records.aborted
            if records or not read.records.records:
                self.reads.append(read)  # else it does not fit now, and stays for the next request
            if read.records.gap_end is not None:  # which may be remote, too, by now
                behind = replace(wanted, fetch_offset=read.records.gap_end)
                return self._read_log(query, behind, partition, upper, stable, remaining, first=first)
        elif read is not None:
            self.reads.append(read)
            if read.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                return self._out_of_range(wanted, partition)
            if read.error is not None:
                return FetchPartitionResult(index, read.error)
        parts = (records,) if records else ()
        return FetchPartitionResult(index, 0, high_watermark, stable, start, len(records), parts, aborted)

    def _out_of_range(self, wanted: FetchPartition, partition: Partition) -> Result:
        return FetchPartitionResult(
            wanted.partition,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            partition.replica.high_watermark,
            partition.log.last_stable_offset,
            partition.log.storage.log_start_offset,
        )

    def _absent(self, query: FetchQuery, wanted: FetchPartition) -> Result:
        by_id = query.version >= TOPIC_IDS
        if self._replicas.is_offline(wanted.topic, wanted.partition, by_id=by_id):
            return FetchPartitionResult(wanted.partition, ErrorCode.KAFKA_STORAGE_ERROR)
        if self._hints.topic_exists(wanted.topic, by_id=by_id):
            if self._hints.leader_hint(wanted.topic, wanted.partition, by_id=by_id) is None:
                return FetchPartitionResult(wanted.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return self._refused(query, wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        error = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return FetchPartitionResult(wanted.partition, error)

    def _refused(self, query: FetchQuery, wanted: FetchPartition, error: ErrorCode) -> Result:
        hint = None
        if (
            error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
            and query.version >= _LEADER_HINTS
        ):
            by_id = query.version >= TOPIC_IDS
            hint = self._hints.leader_hint(wanted.topic, wanted.partition, by_id=by_id)
        return FetchPartitionResult(wanted.partition, error, current_leader=hint)
