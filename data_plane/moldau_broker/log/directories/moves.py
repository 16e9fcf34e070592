"""Moves of logs between the directories of one broker (AlterReplicaLogDirs, KIP-113).

A move creates a future log in the other directory, copies the current log into it piece by piece, and then replaces
the current log with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.errors import LogError, storage_failure
from moldau_broker.log.files.names import FUTURE_DIRECTORY_SUFFIX, is_cut, partition_directory

if TYPE_CHECKING:
    from moldau_broker.log.directories.log_store import LogStore
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import TopicPartition

_logger = EventLogger("moldau.log")
COPY_BYTES = 1024 * 1024


class ReplicaMover:
    """Moves replicas between the directories of one broker."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._table = store.table

    def alter_replica_log_dir(self, topic_partition: TopicPartition, path: str, now_ms: int) -> PartitionLog | None:
        """Begins to move a replica to another directory (AlterReplicaLogDirs); None if it is there already.

        ``copy_to_future`` fills the future log, and ``replace_current_with_future`` ends the move.

        If the partition has no log here, its next one begins in that directory, if that works then.

        Of a cordoned directory, only a replica that is there, or on its way there, may be the subject: the request then
        ends another move of it, or changes nothing.

        Raises:
            LogError: LOG_DIR_NOT_FOUND, REPLICA_NOT_AVAILABLE, INVALID_REPLICA_ASSIGNMENT if the directory is cordoned,
                or INVALID_TOPIC_EXCEPTION if the name of the topic is too long for the name of a future log.
            LogStorageError: The directory is offline or failed.
        """
        self._store.require_online(path)
        log, future = self._table.current.get(topic_partition), self._table.future.get(topic_partition)
        if not any(known is not None and known.parent_directory == path for known in (log, future)):
            self._check_target(topic_partition, path)
        if log is None:
            self._store.preferred[topic_partition] = path
            raise LogError(ErrorCode.REPLICA_NOT_AVAILABLE, f"{topic_partition} has no online log here")
        if future is not None:
            if future.parent_directory == path:
                return future
            del self._table.future[topic_partition]
            self._store.discard(future)
        if log.parent_directory == path:
            return None
        topic_id = log.topic_id or self._store.new_id()
        future = self._store.create(topic_partition, topic_id, path, now_ms, is_future=True)
        self._table.future[topic_partition] = future
        if log.local_log_start_offset > 0:
            _start_over(future, log, now_ms)
        return future

    def _check_target(self, topic_partition: TopicPartition, path: str) -> None:
        """Checks that a replica may be moved to a directory.

        Raises:
            LogError: INVALID_REPLICA_ASSIGNMENT or INVALID_TOPIC_EXCEPTION, see ``alter_replica_log_dir``.
        """
        if path in self._store.cordons:
            raise LogError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"log directory {path} is cordoned")
        if is_cut(topic_partition, FUTURE_DIRECTORY_SUFFIX):  # the next start could not read the topic from it
            raise LogError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic_partition} has too long a name to be moved")

    def copy_to_future(self, topic_partition: TopicPartition, now_ms: int, max_bytes: int = COPY_BYTES) -> bool:
        """Copies at most ``max_bytes`` (or one batch) to the future log; returns whether it has caught up.

        Where the current log was truncated for a new leader, the future log is truncated first. It starts over if the
        current log has: at a later offset than it holds, or at an earlier one than it starts at. Records that only the
        object store has are not copied. A current log that was cut in a gap of compaction ends above its last record;
        the future log then ends there, too.

        Raises:
            LogError: A batch of the current log is damaged.
            LogStorageError: One of the directories failed.
        """
        current, future = self._table.current[topic_partition], self._table.future[topic_partition]
        agreed = _agreed_end(future, current)
        start, future_start = current.local_log_start_offset, future.local_log_start_offset
        if future_start <= agreed < future.log_end_offset:
            future.truncate_to(agreed)
        begins_above = future_start > min(agreed, start) or future.log_start_offset > current.log_start_offset
        if begins_above or future.log_end_offset < start:
            _start_over(future, current, now_ms)
        try:
            result = current.read(
                future.log_end_offset,
                max_bytes=max_bytes,
                upper_bound_offset=current.log_end_offset,
                min_one_batch=True,
            )
            pieces = [piece.file.read(piece.position, piece.count) for piece in result.ranges]
        except OSError as error:
            raise storage_failure(current.parent_directory, f"copying {topic_partition}", error) from error
        for piece in pieces:
            future.append_as_follower(memoryview(piece), now_ms=now_ms)
        if not pieces and future.log_end_offset < current.log_end_offset:
            future.pass_gap(current.log_end_offset)
        return future.log_end_offset >= current.log_end_offset

    def replace_current_with_future(self, topic_partition: TopicPartition) -> PartitionLog:
        """Makes the future log, which has caught up, the current one; deletes the old one.

        Raises:
            LogStorageError: One of the directories failed.
        """
        current, future = self._table.current[topic_partition], self._table.future[topic_partition]
        assert future.log_end_offset == current.log_end_offset, f"{topic_partition}: the future log has not caught up"
        # The copied batches show neither epochs without records, nor where an epoch began that has lost its first ones,
        # nor producers whose batches were deleted.
        future.epochs.replace(current.epochs.entries)
        future.producer_state.take_over(current.producer_state)
        self._rename_future(future)
        future.update_high_watermark(current.high_watermark)
        if current.log_start_offset > future.log_start_offset:
            future.increment_log_start_offset(current.log_start_offset)
        future.note_copied(current.copied_end_offset)
        del self._table.future[topic_partition]
        self._table.current[topic_partition] = future
        self._store.cleaner.forget(topic_partition)
        self._store.discard(current)
        return future

    def promote_future(self, topic_partition: TopicPartition) -> PartitionLog:
        """Makes a future log the current one of a partition whose current log was lost with its directory.

        Raises:
            LogStorageError: The directory failed.
        """
        assert topic_partition not in self._table.current, f"{topic_partition} has a current log"
        future = self._table.future[topic_partition]
        self._rename_future(future)
        del self._table.future[topic_partition]
        self._table.current[topic_partition] = future
        _logger.warning("log-copy-promoted", partition=topic_partition, directory=future.directory)
        return future

    def _rename_future(self, future: PartitionLog) -> None:
        topic_partition, parent = future.topic_partition, future.parent_directory
        target = f"{parent}/{partition_directory(topic_partition)}"
        try:
            future.flush()
            future.epochs.write()
            if future.log_end_offset > 0:
                future.storage.snapshots.take(future.log_end_offset)
                # Nothing else holds the producers whose batches were deleted, and the old log is about to go.
                future.storage.snapshots.sync()
                self._store.disk.sync_directory(future.directory)
            self._store.directories[parent].forget(topic_partition)
            source = future.directory
            future.storage.moved(target)  # first: a flush in a thread must not fail on the old path
            self._store.disk.rename(source, target)
            self._store.disk.sync_directory(parent)
        except OSError as error:
            self._store.fail_directory(parent, error)
            raise storage_failure(parent, f"moving {topic_partition}", error) from error
        future.storage.is_future = False


def _start_over(future: PartitionLog, current: PartitionLog, now_ms: int) -> None:
    try:
        future.start_over_like(current, now_ms)
    except OSError as error:
        raise storage_failure(current.parent_directory, f"copying {current.topic_partition}", error) from error


def _agreed_end(future: PartitionLog, current: PartitionLog) -> int:
    """Returns the offset up to which the future log can equal the current one, by their leader epochs.

    Comparing lengths is not enough: a follower's log may be truncated and grow past its old end between two calls.
    Records of one leader epoch at one offset are identical, so the newest common epoch decides (as in KIP-101).
    """
    end: int = future.log_end_offset
    for entry in reversed(future.epochs.entries):
        found = current.end_offset_for_epoch(entry.leader_epoch)
        if found.leader_epoch == entry.leader_epoch:
            return min(end, found.end_offset)
        end = min(end, entry.start_offset)
    return min(end, current.log_end_offset)
