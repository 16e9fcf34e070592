"""Assignment of the logs that a broker finds at start to the topics that own them.

Directories are loaded before the metadata is known. After that, each replica claims its log by the topic's id. A log
that is not claimed was deleted, or assigned to other brokers, while this broker or one of its directories was offline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.files.names import STRAY_DIRECTORY_SUFFIX

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterator

    from moldau_broker.log.directories.log_store import LogStore
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import TopicPartition

_logger = EventLogger("moldau.log")


class LogClaims:
    """Assigns the logs found at start to topics by topic id."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._table = store.table

    def claim(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> PartitionLog | None:
        """Returns the log of the topic with this id, or one without a topic id; None if there is neither.

        Logs of other topic ids are set aside, as in ``set_aside_unclaimed``: they are of former topics of this name,
        unless a byte of their ``partition.metadata`` changed. Only the durable part of the log counts as settled until
        ``update_topic_config`` sets the topic's own ``flush.messages``.
        """
        former = [
            self._table.rivals.pop(key) for key in [key for key in self._table.rivals if key[0] == topic_partition]
        ]
        log = self._table.current.get(topic_partition)
        if log is not None and log.topic_id not in (None, topic_id):
            future = self._table.future.pop(topic_partition, None)
            former += [log] if future is None else [log, future]
            self._store.drop(topic_partition)
        for other in former:
            if other.topic_id == topic_id and not other.storage.is_future:
                self._table.current[topic_partition] = other
                continue
            self._set_aside(other)
        claimed = self._table.current.get(topic_partition)
        if claimed is not None:
            claimed.watermarks.unsettle()
        return claimed

    def set_aside_unclaimed(self, is_claimed: Callable[[TopicPartition], bool]) -> Iterator[str]:
        """Renames the directories of logs that are not claimed, one at each step; yields the new paths.

        As in Kafka, no directory that ends in ``-stray`` is read or deleted: if the metadata is wrong, the records are
        still there. A log directory that fails goes offline, the others go on.
        """
        for log in self._table.all():
            topic_partition = log.topic_partition
            if is_claimed(topic_partition) or not self._forget_stray(log):
                continue
            path = self._set_aside(log)
            if path is not None:
                yield path

    def _set_aside(self, log: PartitionLog) -> str | None:
        """Renames the directory of a log that is in no table; returns its new path, None if its directory failed."""
        try:
            path = self._store.rename_away(log, STRAY_DIRECTORY_SUFFIX)
        except LogStorageError as error:
            _logger.error("log-not-set-aside", partition=log.topic_partition, reason=error)
            return None
        _logger.warning("log-stray", partition=log.topic_partition, topic_id=log.topic_id, directory=path)
        return path

    def _forget_stray(self, log: PartitionLog) -> bool:
        """Removes a log from the table; returns whether it was there."""
        topic_partition = log.topic_partition
        if self._table.current.get(topic_partition) is log:
            self._store.drop(topic_partition)
        elif self._table.future.get(topic_partition) is log:
            del self._table.future[topic_partition]
        elif log.topic_id is not None and self._table.rivals.get((topic_partition, log.topic_id)) is log:
            del self._table.rivals[topic_partition, log.topic_id]
        else:
            return False  # its directory failed meanwhile, or it was deleted
        return True
