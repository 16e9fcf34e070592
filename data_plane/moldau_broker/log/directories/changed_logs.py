"""Which logs have changed since the housekeeping looked at them, so that logs at rest cost it nothing.

A log enters itself into ``touched`` with each change of its end, its start, its high watermark, its recovery point, its
segments or its settings. The table counts the logs that enter and leave it; after such a change all logs count as
changed, because it is rare and may make any log another partition's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau_broker.log.directories.log_table import LogTable
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.values import TopicPartition


class ChangedLogs:
    """The changed logs of one table. Invariant: after ``refresh``, a log that is not among them is as it was then."""

    def __init__(self, table: LogTable) -> None:
        self.touched: dict[SegmentedLog, None] = {}
        """Changed logs that ``refresh`` has not taken; all logs of the table share this object."""
        self.version = 0
        """Grows when ``refresh`` finds a change."""
        self._table = table
        self._table_changes = -1
        self._changed: dict[PartitionLog, None] = {}
        self._compacted: dict[TopicPartition, PartitionLog] = {}

    @property
    def compacted(self) -> Mapping[TopicPartition, PartitionLog]:
        """The current logs of compacted topics, as of the last ``refresh``, without those that are being moved.

        As in Kafka, no cleaning begins during a move: the copy may hold records whose tombstone, or whose marker, the
        cleaner would remove before the copy comes to it. A cleaning that has begun goes on, because it takes a second
        one to remove a tombstone or marker after its records.
        """
        return self._compacted

    def follow(self, log: PartitionLog) -> None:
        """Lets a log that enters the table report its changes. It does not before, because threads load logs."""
        log.storage.touched = self.touched

    def refresh(self) -> None:
        """Takes over the changes since the last call; its work grows with their number."""
        table, touched = self._table, self.touched
        if table.changes != self._table_changes:
            self._table_changes = table.changes
            self._changed = dict.fromkeys(table.current_and_future())
            self._compacted = {key: log for key, log in table.current.items() if self._is_cleaned(key, log)}
        elif touched:
            for storage in touched:
                log = table.log_of(storage)
                if log is not None:
                    self._changed[log] = None
                    self._sort_in(log)
        else:
            return
        touched.clear()
        self.version += 1

    def _sort_in(self, log: PartitionLog) -> None:
        key = log.topic_partition
        if self._table.current.get(key) is not log:
            return
        if self._is_cleaned(key, log):
            self._compacted[key] = log
        else:
            self._compacted.pop(key, None)

    def _is_cleaned(self, key: TopicPartition, log: PartitionLog) -> bool:
        # A broker whose defaults compact a tiered topic must not change segments that are copied.
        return log.config.compact and not log.config.remote_storage_enable and key not in self._table.future

    def take(self) -> list[PartitionLog]:
        """Returns the current and future logs that ``refresh`` has found changed since the last call."""
        changed, self._changed = self._changed, {}
        return [log for log in changed if not log.storage.released]
