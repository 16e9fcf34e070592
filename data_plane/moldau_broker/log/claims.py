"""Whose the logs are that a broker finds when it starts.

Directories are loaded before the metadata is known. When it is, each replica claims its log by the topic's id; what
nobody claims was deleted, or assigned to others, while this broker or one of its directories was away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.log import EventLogger
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.log_store import LogStore
from moldau_broker.log.names import STRAY_DIRECTORY_SUFFIX

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator

    from moldau_broker.log.partition_log import PartitionLog
    from moldau_broker.log.values import TopicPartition

_logger = EventLogger("moldau.log")


class ClaimedLogStore(LogStore):
    """The logs of one broker, told apart by the topics they belong to."""

    def claim(self, topic_partition: TopicPartition, topic_id: uuid.UUID, now_ms: int) -> PartitionLog | None:
        """Of the logs under a partition's name, keeps that of the topic with this id, or that of no known topic.

        Returns it, None if there is none. Those of former topics of that name are deleted, as in ``delete``. Only what
        is durable of it counts as settled until ``update_topic_config`` tells the topic's own ``flush.messages``.
        """
        former = [self._rival_logs.pop(key) for key in [key for key in self._rival_logs if key[0] == topic_partition]]
        log = self._logs.get(topic_partition)
        if log is not None and log.topic_id not in (None, topic_id):
            future = self._future_logs.pop(topic_partition, None)
            former += [log] if future is None else [log, future]
            self._drop(topic_partition)
        for other in former:
            if other.topic_id == topic_id and not other.is_future:
                self._logs[topic_partition] = other
                continue
            _logger.warning(
                "log-of-former-topic", partition=topic_partition, topic_id=other.topic_id, deleted=other.directory
            )
            self._try_to_discard(other, now_ms)
        claimed = self._logs.get(topic_partition)
        if claimed is not None:
            claimed.unsettle()
        return claimed

    def set_aside_unclaimed(self, is_claimed: Callable[[TopicPartition], bool]) -> Iterator[str]:
        """Sets aside the logs of all partitions that are not claimed, one at each step; yields their new directories.

        Nothing reads or deletes a directory that ends in ``-stray``, as in Kafka: should the metadata be what is
        wrong, the records are there. A directory that fails goes offline, the others go on.
        """
        for log in [*self._logs.values(), *self._future_logs.values(), *self._rival_logs.values()]:
            topic_partition = log.topic_partition
            if is_claimed(topic_partition) or not self._forget_stray(log):
                continue
            try:
                path = self._mark(log, STRAY_DIRECTORY_SUFFIX)
            except LogStorageError as error:
                _logger.error("log-not-set-aside", partition=topic_partition, reason=error)
                continue
            _logger.warning("log-stray", partition=topic_partition, topic_id=log.topic_id, directory=path)
            yield path

    def _forget_stray(self, log: PartitionLog) -> bool:
        """Takes a log out of whichever table holds it; returns whether one did."""
        topic_partition = log.topic_partition
        if self._logs.get(topic_partition) is log:
            self._drop(topic_partition)
        elif self._future_logs.get(topic_partition) is log:
            del self._future_logs[topic_partition]
        elif log.topic_id is not None and self._rival_logs.get((topic_partition, log.topic_id)) is log:
            del self._rival_logs[topic_partition, log.topic_id]
        else:
            return False  # its directory has failed meanwhile, or it was deleted
        return True
