"""The log directories of a broker: opening and failing them, and creating and deleting logs in them.

A directory that fails goes offline alone: its logs leave the table, all others go on (KIP-112). Callers and works
decide which errors mean that a directory failed; they call ``fail_directory``.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.runtime.ports.descriptors import is_shortage
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.cleaner.manager import CleanerManager
from moldau_broker.log.config import LogConfig, LogManagerSettings
from moldau_broker.log.directories.changed_logs import ChangedLogs
from moldau_broker.log.directories.cordons import Cordons
from moldau_broker.log.directories.directory import LogDirectory
from moldau_broker.log.directories.log_table import DeletionQueue, LogTable
from moldau_broker.log.directories.topic_configs import TopicConfigs
from moldau_broker.log.errors import DescriptorsShortError, LogError, LogStorageError
from moldau_broker.log.files.checkpoint import (
    encode_partition_metadata,
    write_atomically,
)
from moldau_broker.log.files.names import (
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    marked_directory,
    partition_directory,
)
from moldau_broker.log.files.open_files import FILES_PER_SEGMENT, OpenFiles
from moldau_broker.log.partition.loader import LoadReport, LoadRequest, load_log

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.descriptors import DescriptorBudget
    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import TopicPartition

_logger = EventLogger("moldau.log")


class LogStore:
    """The directories of one broker and the logs in them.

    Not thread-safe: it belongs to one event loop, which also completes the works.
    """

    def __init__(
        self,
        disk: Disk,
        directories: Sequence[str],
        *,
        node_id: int,
        cluster_id: str,
        random: random.Random,
        settings: LogManagerSettings | None = None,
        default_config: LogConfig | None = None,
        descriptors: DescriptorBudget | None = None,
    ) -> None:
        """``directories`` are absolute paths (``log.dirs``); ``random`` draws directory ids, names and jitter."""
        if not directories:
            raise ValueError("log.dirs is empty, a broker needs at least one directory")
        if len(dict.fromkeys(directories)) != len(directories):
            raise ValueError(f"log.dirs names a directory twice: {', '.join(directories)}")
        self.disk = disk
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._random = random
        self.settings = settings or LogManagerSettings()
        self.directories = {path: LogDirectory(disk, path) for path in directories}
        self.cordons = Cordons()
        self.files = OpenFiles(disk, descriptors)
        self.table = LogTable()
        self.changed = ChangedLogs(self.table)
        self.configs = TopicConfigs(self.table, default_config or LogConfig())
        self.deletions = DeletionQueue()
        self.reports: dict[TopicPartition, LoadReport] = {}
        self.preferred: dict[TopicPartition, str] = {}
        """Directories for partitions that have no log here yet; callers enter only partitions that exist."""
        self.cleaner = CleanerManager(disk, self.settings)
        self.now_ms = 0
        """Wall-clock time of the start or of the last tick."""
        self.failure_listener: Callable[[str, BaseException], object] = lambda path, error: None
        """Called with each directory that goes offline, and the error that caused it."""
        self._shortages = 0

    def follow(self, settings: LogManagerSettings) -> None:
        """Takes other settings, which hold from the next regular work on."""
        if settings.producer_id_expiration_ms != self.settings.producer_id_expiration_ms:
            for log in (*self.table.current.values(), *self.table.future.values()):
                log.producer_state.expiration_ms = settings.producer_id_expiration_ms
        self.settings = self.cleaner.settings = settings

    # Directories ------------------------------------------------------------------------------------------------------

    @property
    def online_directories(self) -> list[str]:
        """Paths of the directories that work."""
        return [path for path, directory in self.directories.items() if directory.online]

    def open(self, now_ms: int) -> None:
        """Opens the directories; a failing one goes offline.

        Raises:
            LogStorageError: No directory works.
            ValueError: A directory belongs to another cluster or node, or is a copy of another one.
        """
        for directory in self.directories.values():
            try:
                directory.open(self._node_id, self._cluster_id, self.new_id)
            except (OSError, LogStorageError) as error:
                directory.error = error
                directory.release()
                _logger.error("log-directory-offline", directory=directory.path, reason=error)
        if not self.online_directories:
            causes = "; ".join(f"{path}: {directory.error}" for path, directory in self.directories.items())
            first = next(iter(self.directories.values())).error
            raise LogStorageError(", ".join(self.directories), f"no log directory works: {causes}") from first
        originals: dict[uuid.UUID | None, str] = {}
        for directory in (each for each in self.directories.values() if each.online):
            if (original := originals.setdefault(directory.directory_id, directory.path)) != directory.path:
                raise ValueError(
                    f"log.dirs: {original} and {directory.path} have the same directory.id in {META_PROPERTIES}, so "
                    "one is a copy of the other: name only one of them"
                )
        self.now_ms = now_ms

    def require_online(self, path: str) -> LogDirectory:
        """Returns a directory that works.

        Raises:
            LogError: LOG_DIR_NOT_FOUND, the path is not one of ``log.dirs``.
            LogStorageError: The directory is offline.
        """
        directory = self.directories.get(path)
        if directory is None:
            raise LogError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of log.dirs: {', '.join(self.directories)}")
        if not directory.online:
            raise LogStorageError(path, f"offline: {directory.error}")
        return directory

    def fail_directory(self, path: str, error: BaseException) -> list[TopicPartition]:
        """Takes a directory offline and returns the partitions whose logs it held; idempotent.

        A shortage of descriptors is no failure of the directory: it is only logged.
        """
        if isinstance(error, DescriptorsShortError) or is_shortage(error):
            self._warn_of_shortage(error)
            return []
        directory = self.directories.get(path)
        if directory is None:
            return []  # the error concerns all directories, and each was failed on its own
        was_online = directory.online
        if was_online:
            directory.online = False
            directory.error = error
            _logger.error("log-directory-offline", directory=path, reason=error)
        lost: dict[TopicPartition, None] = {}
        for logs in (self.table.current, self.table.future):
            for topic_partition in [key for key, log in logs.items() if log.parent_directory == path]:
                logs.pop(topic_partition).storage.release()
                self.cleaner.forget(topic_partition)
                lost[topic_partition] = None
        for key in [key for key, log in self.table.rivals.items() if log.parent_directory == path]:
            self.table.rivals.pop(key).storage.release()
        self.deletions.forget_directory(path)
        directory.release()
        if was_online:
            self.failure_listener(path, error)
        return list(lost)

    def work_failed(self, directory: str, error: BaseException) -> None:
        """Takes the directory offline if the disk caused the error; any other error is a bug that the shell shows."""
        if isinstance(error, OSError | LogStorageError):
            self.fail_directory(directory, error)

    def _warn_of_shortage(self, error: BaseException) -> None:
        self._shortages += 1
        if self._shortages & (self._shortages - 1) == 0:  # the 1st, 2nd, 4th, 8th ...: the log stays readable
            _logger.warning(
                "descriptors-short",
                open_files=self.files.descriptors.files,
                limit=self.files.descriptors.limit,
                times=self._shortages,
                reason=error,
                advice="raise the limit of open files (ulimit -n), or keep fewer partitions and connections",
            )

    # Creating ---------------------------------------------------------------------------------------------------------

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: uuid.UUID,
        now_ms: int,
        directory: str | None = None,
    ) -> PartitionLog:
        """Returns the log of a partition, or creates it.

        A new log begins in ``directory``, else in the preferred one, else in the online directory with fewest logs.
        Cordoned directories are chosen last.
        A log without a topic id takes this one. Creating a log ends a move of its lost predecessor.

        Raises:
            LogError: INCONSISTENT_TOPIC_ID, the log belongs to another topic id.
            LogStorageError: The directory is offline or failed.
        """
        log = self.table.current.get(topic_partition)
        if log is not None:
            if log.topic_id is None:
                try:
                    self._set_topic_id(log, topic_id)
                except OSError as error:
                    raise LogStorageError(log.parent_directory, f"{topic_partition}: {error}") from error
            elif log.topic_id != topic_id:
                raise LogError(
                    ErrorCode.INCONSISTENT_TOPIC_ID, f"{topic_partition} has topic id {log.topic_id}, not {topic_id}"
                )
            return log
        preferred = self.preferred.pop(topic_partition, None)
        if directory is None and preferred in self.online_directories and preferred not in self.cordons:
            directory = preferred
        log = self.create(topic_partition, topic_id, directory or self._emptiest(), now_ms, is_future=False)
        self.table.current[topic_partition] = log
        self._discard_future(topic_partition)
        return log

    def _emptiest(self) -> str:
        counts = dict.fromkeys(self.online_directories, 0)
        if not counts:
            raise LogStorageError(", ".join(self.directories), "all log directories are offline")
        if len(counts) == 1:
            return next(iter(counts))  # counting would make the creation of many logs quadratic
        for log in self.table.current_and_future():
            counts[log.parent_directory] += 1
        return self.cordons.choose(counts)

    def create(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, parent: str, now_ms: int, *, is_future: bool
    ) -> PartitionLog:
        """Creates an empty log in the directory ``parent``, without entering it into the table.

        Raises:
            LogError: LOG_DIR_NOT_FOUND, ``parent`` is not one of ``log.dirs``.
            LogStorageError: The directory is offline or failed, or descriptors are short.
        """
        directory = self.require_online(parent)
        name = (
            marked_directory(topic_partition, self.new_id().hex, FUTURE_DIRECTORY_SUFFIX)
            if is_future
            else partition_directory(topic_partition)
        )
        config = self.configs.of(topic_partition.topic)
        if not self.has_room:
            raise DescriptorsShortError(parent, f"{topic_partition} needs a segment")
        try:
            if not is_future:
                # Offsets of a deleted log of that name must not be taken for this one's.
                directory.forget(topic_partition)
            log, _ = load_log(
                self.disk,
                LoadRequest(
                    directory=f"{parent}/{name}",
                    topic_partition=topic_partition,
                    config=config,
                    checkpoints=directory,
                    now_ms=now_ms,
                    topic_id=topic_id,
                    is_future=is_future,
                    jitter_share=self.jitter_share,
                    producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
                    files=self.files,
                ),
            )
            self.changed.follow(log)
            self._set_topic_id(log, topic_id)
        except OSError as error:
            if is_shortage(error):  # the next attempt finds and uses the files that exist already
                raise DescriptorsShortError(parent, f"{topic_partition} cannot be created: {error}") from error
            self.fail_directory(parent, error)
            raise LogStorageError(parent, f"creating {topic_partition} failed: {error}") from error
        return log

    @property
    def has_room(self) -> bool:
        """Whether there are file descriptors for one more log."""
        return self.files.has_room(FILES_PER_SEGMENT)

    def _set_topic_id(self, log: PartitionLog, topic_id: uuid.UUID) -> None:
        write_atomically(self.disk, f"{log.directory}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
        log.topic_id = topic_id

    def new_id(self) -> uuid.UUID:
        """Draws a random id (UUID version 4)."""
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def jitter_share(self) -> float:
        """Draws the part of ``segment.jitter.ms`` by which a log rolls early."""
        return self._random.random()

    # Deleting ---------------------------------------------------------------------------------------------------------

    def delete(self, topic_partition: TopicPartition) -> bool:
        """Deletes a partition's log and its future one; returns whether there was one.

        The files are removed after ``file.delete.delay.ms``. Readers that hold slices go on.

        Raises:
            LogStorageError: The directory failed.
        """
        logs = [self.table.current.get(topic_partition), self.table.future.pop(topic_partition, None)]
        self.drop(topic_partition)
        found = [log for log in logs if log is not None]
        with ExitStack() as all_of_them:  # also the copy in another directory if that of the log fails
            for log in found:
                all_of_them.callback(self.discard, log)
        return bool(found)

    def drop(self, topic_partition: TopicPartition) -> None:
        """Removes a current log from the table; its files stay."""
        self.table.current.pop(topic_partition, None)
        self.cleaner.forget(topic_partition)
        self.reports.pop(topic_partition, None)

    def _discard_future(self, topic_partition: TopicPartition) -> None:
        future = self.table.future.pop(topic_partition, None)
        if future is not None:
            _logger.warning("log-move-ended", partition=topic_partition, deleted=future.directory)
            self.discard(future)

    def discard(self, log: PartitionLog) -> None:
        """Closes a log and deletes its directory after ``file.delete.delay.ms``.

        Raises:
            LogStorageError: The directory failed.
        """
        target = self.rename_away(log, DELETE_DIRECTORY_SUFFIX)
        self.deletions.add_tree(log.config.file_delete_delay_ms, target)

    def try_to_discard(self, log: PartitionLog) -> None:
        """Calls ``discard`` for a log that no caller waits for: a failure of its directory is only logged."""
        try:
            self.discard(log)
        except LogStorageError as error:
            _logger.error("log-not-deleted", partition=log.topic_partition, directory=error.directory)

    def rename_away(self, log: PartitionLog, suffix: str) -> str:
        """Closes a log and renames its directory; returns the new path. Durable unless descriptors are short.

        Raises:
            LogStorageError: The directory failed.
        """
        parent = log.parent_directory
        target = f"{parent}/{marked_directory(log.topic_partition, self.new_id().hex, suffix)}"
        log.storage.release()
        try:
            self.disk.rename(log.directory, target)
            self.disk.sync_directory(parent)
        except OSError as error:
            self.fail_directory(parent, error)
            if is_shortage(error):  # only the sync needs a descriptor: the log has its new name
                return target
            raise LogStorageError(parent, f"renaming {log.directory} failed: {error}") from error
        return target
