"""Moves of logs between the directories of one broker (AlterReplicaLogDirs, KIP-113).

A move makes a future log in the other directory, fills it from the current one piece by piece, and in the end lets it
take the current one's place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.runtime.log import EventLogger
from moldau_broker.log.claims import ClaimedLogStore
from moldau_broker.log.errors import LogError, LogStorageError
from moldau_broker.log.names import partition_directory

if TYPE_CHECKING:
    from moldau_broker.log.partition_log import PartitionLog
    from moldau_broker.log.values import TopicPartition

_logger = EventLogger("moldau.log")
_COPY_BYTES = 1024 * 1024


class MovingLogStore(ClaimedLogStore):
    """The logs of one broker, movable between its directories."""

    def alter_replica_log_dir(self, topic_partition: TopicPartition, path: str, now_ms: int) -> PartitionLog | None:
        """AlterReplicaLogDirs: begins to move a replica to another directory; None if it is there already.

        The future log is filled by ``copy_to_future`` and takes over by ``replace_current_with_future``. Raises
        ``LogError`` LOG_DIR_NOT_FOUND or UNKNOWN_TOPIC_OR_PARTITION, ``LogStorageError``.
        """
        self._online(path)
        log = self._logs.get(topic_partition)
        if log is None:
            raise LogError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic_partition} has no online log here")
        future = self._future_logs.get(topic_partition)
        if future is not None:
            if future.parent_directory == path:
                return future
            del self._future_logs[topic_partition]
            self._discard(future, now_ms)
        if log.parent_directory == path:
            return None
        topic_id = log.topic_id or self._new_id()
        future = self._create(topic_partition, topic_id, path, now_ms, is_future=True)
        self._future_logs[topic_partition] = future
        if log.log_start_offset > 0:
            future.truncate_fully_and_start_at(log.log_start_offset, now_ms)
        return future

    def copy_to_future(self, topic_partition: TopicPartition, now_ms: int, max_bytes: int = _COPY_BYTES) -> bool:
        """Copies at most ``max_bytes`` (or one batch) to the future log; returns whether it has caught up.

        What the current log has lost since, because a new leader had other records there, the future log loses first.

        Raises ``LogError`` if a batch of the current log is damaged, ``LogStorageError``.
        """
        current, future = self._logs[topic_partition], self._future_logs[topic_partition]
        agreed = _agreed_end(future, current)
        if future.log_end_offset > agreed:
            future.truncate_to(agreed)
        if future.log_end_offset < current.log_start_offset:
            future.truncate_fully_and_start_at(current.log_start_offset, now_ms)
        try:
            result = current.read(
                future.log_end_offset,
                max_bytes=max_bytes,
                upper_bound_offset=current.log_end_offset,
                min_one_batch=True,
            )
            pieces = [piece.file.read(piece.position, piece.count) for piece in result.ranges]
        except OSError as error:
            raise LogStorageError(current.parent_directory, f"copying {topic_partition} failed: {error}") from error
        for piece in pieces:
            future.append_as_follower(memoryview(piece), now_ms=now_ms)
        return future.log_end_offset >= current.log_end_offset

    def replace_current_with_future(self, topic_partition: TopicPartition, now_ms: int) -> PartitionLog:
        """Makes the future log, which has caught up, the current one; the old one is deleted.

        Raises ``LogStorageError``.
        """
        current, future = self._logs[topic_partition], self._future_logs[topic_partition]
        assert future.log_end_offset == current.log_end_offset, f"{topic_partition}: the future log has not caught up"
        self._rename_future(future)
        for entry in current.epoch_entries():
            if entry.leader_epoch > future.latest_epoch:  # begun without a record yet: no batch brought it along
                future.epochs.assign(entry.leader_epoch, entry.start_offset)
        future.update_high_watermark(current.high_watermark)
        if current.log_start_offset > future.log_start_offset:
            future.increment_log_start_offset(current.log_start_offset)
        del self._future_logs[topic_partition]
        self._logs[topic_partition] = future
        self.cleaner.forget(topic_partition)
        self._discard(current, now_ms)
        return future

    def promote_future(self, topic_partition: TopicPartition) -> PartitionLog:
        """Makes a future log the current one of a partition that has no other: its directory was taken away.

        Raises ``LogStorageError``.
        """
        assert topic_partition not in self._logs, f"{topic_partition} has a current log"
        future = self._future_logs[topic_partition]
        self._rename_future(future)
        del self._future_logs[topic_partition]
        self._logs[topic_partition] = future
        _logger.warning("log-copy-promoted", partition=topic_partition, directory=future.directory)
        return future

    def _rename_future(self, future: PartitionLog) -> None:
        topic_partition, parent = future.topic_partition, future.parent_directory
        target = f"{parent}/{partition_directory(topic_partition)}"
        try:
            future.flush()
            self._directories[parent].forget(topic_partition)
            source = future.directory
            future.moved(target)  # first: a flush in a thread must not take the old path for lost
            self._disk.rename(source, target)
            self._disk.sync_directory(parent)
        except OSError as error:
            self.fail_directory(parent, error)
            raise LogStorageError(parent, f"moving {topic_partition} failed: {error}") from error
        future.is_future = False


def _agreed_end(future: PartitionLog, current: PartitionLog) -> int:
    """Returns the offset up to which the future log can be the current one's beginning, by their leader epochs.

    Lengths tell too little: a follower's log may be cut and grow past its old end between two looks. Records of one
    leader epoch at one offset are the same record, so the newest epoch that both have decides (as in KIP-101).
    """
    end = future.log_end_offset
    for entry in reversed(future.epoch_entries()):
        found = current.end_offset_for_epoch(entry.leader_epoch)
        if found.leader_epoch == entry.leader_epoch:
            return min(end, found.end_offset)
        end = min(end, entry.start_offset)
    return min(end, current.log_end_offset)
