"""The table of the logs that a broker has loaded, and the queue of directories and files that are to be deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, overload

if TYPE_CHECKING:
    import uuid

    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.values import TopicPartition

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


class LogTable:
    """The loaded logs of one broker.

    ``current`` holds the logs that serve requests. ``future`` holds copies that a move between directories is filling.
    ``rivals`` holds logs that share their partition's name with a current log but belong to another topic id; they wait
    for a claim.
    """

    def __init__(self) -> None:
        self.current: LogMap[TopicPartition] = LogMap()
        self.future: LogMap[TopicPartition] = LogMap()
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


class DeletionQueue:
    """Directories of deleted partitions and files of deleted segments, with the times when they are removed."""

    def __init__(self) -> None:
        self._trees: list[tuple[int, str]] = []
        self._files: list[tuple[int, tuple[str, ...]]] = []

    def add_tree(self, due_ms: int, path: str) -> None:
        """Queues the directory of a deleted partition."""
        self._trees.append((due_ms, path))

    def add_files(self, due_ms: int, paths: tuple[str, ...]) -> None:
        """Queues the files of a deleted segment."""
        self._files.append((due_ms, paths))

    def take_due(self, now_ms: int) -> list[str]:
        """Removes from the queue the paths that are due, directories first, and returns them."""
        files = [paths for due, paths in self._files if due <= now_ms]
        trees = [path for due, path in self._trees if due <= now_ms]
        self._files = [(due, paths) for due, paths in self._files if due > now_ms]
        self._trees = [(due, path) for due, path in self._trees if due > now_ms]
        return [*trees, *(path for paths in files for path in paths)]

    def hasten(self, directory: str, now_ms: int) -> None:
        """Makes all entries of a log directory due, because it is nearly full."""
        prefix = directory + "/"
        self._trees = [(min(due, now_ms) if path.startswith(prefix) else due, path) for due, path in self._trees]
        self._files = [(min(due, now_ms) if paths[0].startswith(prefix) else due, paths) for due, paths in self._files]

    def forget_directory(self, directory: str) -> None:
        """Drops all entries of a log directory that went offline."""
        prefix = directory + "/"
        self._trees = [(due, path) for due, path in self._trees if not path.startswith(prefix)]
        self._files = [(due, paths) for due, paths in self._files if not paths[0].startswith(prefix)]
