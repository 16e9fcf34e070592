"""The table of the logs that a broker has loaded, and the queue of directories and files that are to be deleted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, overload

from moldau_broker.log.by_topic import ByTopic
from moldau_broker.log.values import TopicPartition

if TYPE_CHECKING:
    import uuid

    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.partition.segmented_log import SegmentedLog

_Key = TypeVar("_Key")


class LogMap(dict[_Key, "PartitionLog"]):
    """Logs by key, with a count of the changes of the map. Logs enter and leave it one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def __setitem__(self, key: _Key, log: PartitionLog) -> None:
        self.changes += 1
        super().__setitem__(key, log)

    def __delitem__(self, key: _Key) -> None:
        self.changes += 1
        super().__delitem__(key)

    @overload  # type: ignore[override]
    def pop(self, key: _Key, /) -> PartitionLog: ...

    @overload
    def pop(self, key: _Key, default: None, /) -> PartitionLog | None: ...

    def pop(self, key: _Key, /, *default: None) -> PartitionLog | None:
        """Removes a log and returns it, as ``dict.pop`` does."""
        self.changes += 1
        return super().pop(key, *default)


class TopicLogs(LogMap[TopicPartition]):
    """Logs by partition, which are also found by topic."""

    def __init__(self) -> None:
        super().__init__()
        self._by_topic: ByTopic[PartitionLog] = ByTopic()

    def __setitem__(self, key: TopicPartition, log: PartitionLog) -> None:
        super().__setitem__(key, log)
        self._by_topic.put(key, log)

    def __delitem__(self, key: TopicPartition) -> None:
        super().__delitem__(key)
        self._by_topic.remove(key)

    @overload  # type: ignore[override]
    def pop(self, key: TopicPartition, /) -> PartitionLog: ...

    @overload
    def pop(self, key: TopicPartition, default: None, /) -> PartitionLog | None: ...

    def pop(self, key: TopicPartition, /, *default: None) -> PartitionLog | None:
        """Removes a log and returns it, as ``dict.pop`` does."""
        found: PartitionLog | None = super().pop(key, *default)
        self._by_topic.remove(key)
        return found

    def of_topic(self, topic: str) -> list[PartitionLog]:
        """Returns the logs of a topic."""
        return self._by_topic.of(topic)


class LogTable:
    """The loaded logs of one broker.

    ``current`` holds the logs that serve requests. ``future`` holds copies that a move between directories is filling.
    ``rivals`` holds logs that share their partition's name with a current log but belong to another topic id; they wait
    for a claim.
    """

    def __init__(self) -> None:
        self.current = TopicLogs()
        self.future = TopicLogs()
        self.rivals: LogMap[tuple[TopicPartition, uuid.UUID]] = LogMap()

    @property
    def changes(self) -> int:
        """How often a log has entered or left the table."""
        return self.current.changes + self.future.changes + self.rivals.changes

    def log_of(self, storage: SegmentedLog) -> PartitionLog | None:
        """Returns the current or future log that has these files; None if it has left the table, or is a rival."""
        for logs in (self.current, self.future):
            log = logs.get(storage.topic_partition)
            if log is not None and log.storage is storage:
                return log
        return None

    def current_and_future(self) -> list[PartitionLog]:
        """Returns the current logs, then the future ones."""
        return [*self.current.values(), *self.future.values()]

    def all(self) -> list[PartitionLog]:
        """Returns the current logs, then the future ones, then the rivals."""
        return [*self.current.values(), *self.future.values(), *self.rivals.values()]

    def in_directory(self, path: str) -> list[PartitionLog]:
        """Returns the current logs and the rivals of a directory; checkpoints cover these."""
        logs = [*self.current.values(), *self.rivals.values()]
        return [log for log in logs if log.storage.segments.parent_directory == path]


@dataclass(slots=True)
class _Entry:
    """Paths that are removed together."""

    paths: tuple[str, ...]
    delay_ms: int
    due_ms: float | None = None
    """None until the first ``take_due`` after the entry was added."""


class DeletionQueue:
    """Directories of deleted partitions and files of deleted segments, with the times when they are removed.

    Delays count on the monotonic clock, from the first ``take_due`` on. A wall clock that jumps neither shortens them
    nor keeps deleted files for as long as it jumped.
    """

    def __init__(self) -> None:
        self._trees: list[_Entry] = []
        self._files: list[_Entry] = []

    def add_tree(self, delay_ms: int, path: str) -> None:
        """Queues the directory of a deleted partition."""
        self._trees.append(_Entry((path,), delay_ms))

    def add_files(self, delay_ms: int, paths: tuple[str, ...]) -> None:
        """Queues the files of a deleted segment."""
        self._files.append(_Entry(paths, delay_ms))

    def take_due(self, monotonic_ms: float) -> list[str]:
        """Removes from the queue the paths that are due, directories first, and returns them."""
        due: list[str] = []
        for entries in (self._trees, self._files):
            for entry in entries:
                if entry.due_ms is None:
                    entry.due_ms = monotonic_ms + entry.delay_ms
                if entry.due_ms <= monotonic_ms:
                    due += entry.paths
            entries[:] = [entry for entry in entries if entry.due_ms is None or entry.due_ms > monotonic_ms]
        return due

    def hasten(self, directory: str) -> None:
        """Makes all entries of a log directory due, because it is nearly full."""
        prefix = directory + "/"
        for entry in (*self._trees, *self._files):
            if entry.paths[0].startswith(prefix):
                entry.delay_ms, entry.due_ms = 0, None

    def forget_directory(self, directory: str) -> None:
        """Drops all entries of a log directory that went offline."""
        prefix = directory + "/"
        self._trees = [entry for entry in self._trees if not entry.paths[0].startswith(prefix)]
        self._files = [entry for entry in self._files if not entry.paths[0].startswith(prefix)]
