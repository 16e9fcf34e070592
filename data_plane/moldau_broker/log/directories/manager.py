"""All logs of a broker over its log directories.

The manager opens directories, loads logs, creates and deletes them, and looks after them. Its parts do the work:
``LogStore`` (directories and their logs), ``LogLoading`` (loading at start), ``LogClaims`` (the topics that logs belong
to), ``ReplicaMover`` (moves between directories) and ``Housekeeping`` (all that is done regularly).

A directory that fails goes offline alone: its logs leave ``logs``, all others go on (KIP-112). Callers and works decide
which errors mean that a directory failed; they call ``fail_directory``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.directories.claims import LogClaims
from moldau_broker.log.directories.housekeeping import Housekeeping
from moldau_broker.log.directories.loading import LogLoading
from moldau_broker.log.directories.log_store import LogStore
from moldau_broker.log.directories.moves import COPY_BYTES, ReplicaMover
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.values import LogDirectoryInfo, ReplicaDirectoryInfo, TopicPartition, Work, run_work

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from moldau.runtime.ports.descriptors import DescriptorBudget
    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.config import LogConfig, LogManagerSettings
    from moldau_broker.log.directories.directory import LogDirectory
    from moldau_broker.log.directories.loading import RecoveryProgress
    from moldau_broker.log.directories.room import DirectoryRoom
    from moldau_broker.log.partition.partition_log import PartitionLog

_logger = EventLogger("moldau.log")


class LogManager:
    """All logs of one broker. Not thread-safe: one event loop, which also completes the works.

    The class has many methods because it is the only entrance to its package: most of them pass a call on to the store,
    the housekeeping, the moves or the cleaner, which hold the state.
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
        self._store = store = LogStore(
            disk,
            directories,
            node_id=node_id,
            cluster_id=cluster_id,
            random=random,
            settings=settings,
            default_config=default_config,
            descriptors=descriptors,
        )
        self._table = store.table
        self._loading = LogLoading(store)
        self._claims = LogClaims(store)
        self._mover = ReplicaMover(store)
        self._housekeeping = Housekeeping(store)
        self.follow = store.follow
        self.topic_config_steps = store.configs.update_steps
        self.files = store.files
        self.cleaner = store.cleaner
        self.cordons = store.cordons
        self.reports = store.reports

    @property
    def settings(self) -> LogManagerSettings:
        """The settings in force; ``follow`` replaces them."""
        return self._store.settings

    # State -----------------------------------------------------------------------------------------------------------

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Logs that are loaded and online; treat as read-only."""
        return self._table.current

    @property
    def future_logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Logs that are being copied to another directory."""
        return self._table.future

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """Returns the log of a partition, None if there is none or its directory is offline."""
        return self._table.current.get(topic_partition)

    @property
    def directories(self) -> Sequence[LogDirectory]:
        """All directories in the order of ``log.dirs``."""
        return list(self._store.directories.values())

    @property
    def online_directories(self) -> list[str]:
        """Paths of the directories that work."""
        return self._store.online_directories

    @property
    def offline_directories(self) -> list[str]:
        """Paths of the directories that failed."""
        return [path for path, directory in self._store.directories.items() if not directory.online]

    @property
    def has_room(self) -> bool:
        """Whether there are file descriptors for one more log."""
        return self._store.has_room

    @property
    def room(self) -> DirectoryRoom:
        """The room on the disks of the directories."""
        return self._housekeeping.room

    @property
    def failure_listener(self) -> Callable[[str, BaseException], object]:
        """Called with each directory that goes offline, and the error that caused it."""
        return self._store.failure_listener

    @failure_listener.setter
    def failure_listener(self, listener: Callable[[str, BaseException], object]) -> None:
        self._store.failure_listener = listener

    @property
    def flush_listener(self) -> Callable[[TopicPartition], object]:
        """Called in the event loop after each flush of a partition's log that did not take the log offline."""
        return self._housekeeping.flush_listener

    @flush_listener.setter
    def flush_listener(self, listener: Callable[[TopicPartition], object]) -> None:
        self._housekeeping.flush_listener = listener

    @property
    def start_listener(self) -> Callable[[TopicPartition], object]:
        """Called in the event loop after retention has moved the log start offset of a partition."""
        return self._housekeeping.start_listener

    @start_listener.setter
    def start_listener(self, listener: Callable[[TopicPartition], object]) -> None:
        self._housekeeping.start_listener = listener

    def fail_directory(self, path: str, error: BaseException) -> list[TopicPartition]:
        """Takes a directory offline; see ``LogStore.fail_directory``."""
        return self._store.fail_directory(path, error)

    # Settings --------------------------------------------------------------------------------------------------------

    def topic_config(self, topic: str) -> LogConfig:
        """Returns the settings of a topic's logs."""
        return self._store.configs.of(topic)

    def update_topic_config(self, topic: str, config: LogConfig) -> None:
        """Changes the settings of a topic, also for its loaded logs."""
        self._store.configs.update(topic, config)

    def take_topic_config(self, topic_partition: TopicPartition, config: LogConfig) -> None:
        """Changes the settings of a topic for one log that was just claimed or created."""
        self._store.configs.update_for(topic_partition, config)

    def forget_topic_configs(self, topics: Iterable[str]) -> None:
        """Forgets the settings of deleted topics; logs that are still to be deleted keep theirs."""
        self._store.configs.forget(topics)

    # Start -----------------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Opens the directories; a failing one goes offline.

        Raises:
            LogStorageError: No directory works.
            ValueError: A directory belongs to another cluster or node.
        """
        self._store.open(now_ms)
        self._housekeeping.start(now_ms)

    def know_configs(self, default: LogConfig, configs: Mapping[str, LogConfig]) -> None:
        """Sets all settings before ``recovery_work``, so that each log is loaded with its topic's own settings."""
        self._store.configs.replace(default, configs)

    def recovery_work(self) -> list[Work]:
        """Returns one work for each log found; see ``LogLoading.works``."""
        return self._loading.works()

    def recover_all(self) -> None:
        """Runs all of ``recovery_work`` in this thread; a log that cannot be loaded takes its directory offline."""
        for work in self.recovery_work():
            try:
                run_work(work)
            except OSError:
                continue  # the work's ``failed`` has taken the directory offline

    @property
    def recovery_progress(self) -> RecoveryProgress:
        """How far ``recovery_work`` has come."""
        return self._loading.progress

    @property
    def start_shortage(self) -> BaseException | None:
        """The shortage of descriptors that kept a log from being loaded; the broker must not start without that log."""
        return self._loading.shortage

    def claim(self, topic_partition: TopicPartition, topic_id: uuid.UUID) -> PartitionLog | None:
        """Keeps the log of the topic with this id; see ``LogClaims.claim``."""
        return self._claims.claim(topic_partition, topic_id)

    def set_aside_unclaimed(self, is_claimed: Callable[[TopicPartition], bool]) -> Iterator[str]:
        """Renames the directories of logs that are not claimed; see ``LogClaims.set_aside_unclaimed``."""
        return self._claims.set_aside_unclaimed(is_claimed)

    def begin_discarding(self, now_ms: int) -> None:
        """Lets retention and the cleaner begin; see ``Housekeeping.begin_discarding``."""
        self._housekeeping.begin_discarding(now_ms)

    # Creating, deleting, moving --------------------------------------------------------------------------------------

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: uuid.UUID,
        now_ms: int,
        directory: str | None = None,
    ) -> PartitionLog:
        """Returns the log of a partition, or creates it; see ``LogStore.get_or_create``."""
        return self._store.get_or_create(topic_partition, topic_id=topic_id, now_ms=now_ms, directory=directory)

    def delete(self, topic_partition: TopicPartition) -> bool:
        """Deletes a partition's log and its future one; see ``LogStore.delete``."""
        return self._store.delete(topic_partition)

    def alter_replica_log_dir(self, topic_partition: TopicPartition, path: str, now_ms: int) -> PartitionLog | None:
        """Begins to move a replica to another directory; see ``ReplicaMover.alter_replica_log_dir``."""
        return self._mover.alter_replica_log_dir(topic_partition, path, now_ms)

    def copy_to_future(self, topic_partition: TopicPartition, now_ms: int, max_bytes: int = COPY_BYTES) -> bool:
        """Copies a piece to the future log; see ``ReplicaMover.copy_to_future``."""
        return self._mover.copy_to_future(topic_partition, now_ms, max_bytes)

    def replace_current_with_future(self, topic_partition: TopicPartition) -> PartitionLog:
        """Makes the future log the current one; see ``ReplicaMover.replace_current_with_future``."""
        return self._mover.replace_current_with_future(topic_partition)

    def promote_future(self, topic_partition: TopicPartition) -> PartitionLog:
        """Makes the future log of a lost current one the current one; see ``ReplicaMover.promote_future``."""
        return self._mover.promote_future(topic_partition)

    # Regular work ----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, monotonic_ms: float) -> list[Work]:
        """Does regular work that is due, or returns it; see ``Housekeeping.tick``."""
        return self._housekeeping.tick(now_ms, monotonic_ms)

    def next_tick_ms(self, now_ms: int) -> int:
        """Returns when to call ``tick`` again; see ``Housekeeping.next_tick_ms``."""
        return self._housekeeping.next_tick_ms(now_ms)

    def cleaner_works(self, now_ms: int) -> list[Work]:
        """Returns the cleaner's next step, if one is due; see ``Housekeeping.cleaner_works``."""
        return self._housekeeping.cleaner_works(now_ms)

    def flush_work(self, log: PartitionLog, *, up_to_closed_only: bool = False) -> Work | None:
        """Returns work that makes a log durable; see ``Housekeeping.flush_work``."""
        return self._housekeeping.flush_work(log, up_to_closed_only=up_to_closed_only)

    def is_flushing(self, log: PartitionLog) -> bool:
        """Returns whether a flush of a log is under way; see ``Housekeeping.is_flushing``."""
        return self._housekeeping.is_flushing(log)

    def at_flush_end(self, log: PartitionLog, call: Callable[[], object]) -> None:
        """Calls ``call`` when the flush of a log has ended; see ``Housekeeping.at_flush_end``."""
        self._housekeeping.at_flush_end(log, call)

    def log_start_work(self, log: PartitionLog) -> Work | None:
        """Returns work that makes log start offsets durable; see ``Housekeeping.log_start_work``."""
        return self._housekeeping.log_start_work(log)

    def is_start_durable(self, log: PartitionLog) -> bool:
        """Returns whether a log begins no lower after a power loss."""
        return self._housekeeping.is_start_durable(log)

    # Stop -------------------------------------------------------------------------------------------------------------

    def close_work(self) -> list[Work]:
        """Returns works that flush and seal each log; run them side by side, then call ``finish_close``.

        No records may be appended after this.
        """
        logs = self._table.all()
        return [self._seal_work(log) for log in logs if not log.failed]

    def _seal_work(self, log: PartitionLog) -> Work:
        return Work(
            name=f"close {log.topic_partition}",
            run=log.storage.seal,
            complete=log.storage.segments.close,
            failed=lambda error: self._seal_failed(log, error),
            directory=log.parent_directory,
        )

    def _seal_failed(self, log: PartitionLog, error: BaseException) -> None:
        log.storage.failed = True  # this stop is not a clean one
        self._store.work_failed(log.parent_directory, error)

    def finish_close(self, broker_epoch: int = -1) -> None:
        """Writes the checkpoints and clean-shutdown markers of all directories that work, and releases their locks."""
        for directory in self._store.directories.values():
            if not directory.online:
                continue
            failed = [log for log in self._table.all() if log.failed and log.parent_directory == directory.path]
            try:
                if not failed:
                    directory.write_checkpoints(self._table.in_directory(directory.path))
                    directory.mark_clean(broker_epoch)
            except OSError as error:
                _logger.error("clean-shutdown-failed", directory=directory.path, reason=error)
            directory.release()

    def give_back(self) -> None:
        """Restores the clean-shutdown markers of the directories, before any log was opened."""
        assert not self._table.current, "logs are closed instead"
        for directory in self._store.directories.values():
            if directory.online and directory.clean:
                try:
                    directory.give_back()
                except OSError as error:
                    _logger.error("clean-shutdown-failed", directory=directory.path, reason=error)

    def close(self, broker_epoch: int = -1) -> None:
        """Runs ``close_work`` and ``finish_close`` in this thread."""
        for work in self.close_work():
            try:
                run_work(work)
            except (OSError, LogStorageError):
                continue  # the work's ``failed`` has taken the directory offline
        self.finish_close(broker_epoch)

    # Description ------------------------------------------------------------------------------------------------------

    def describe_log_dirs(self, topics: Collection[TopicPartition] | None = None) -> list[LogDirectoryInfo]:
        """Describes all directories with all partitions, or only those in ``topics`` (DescribeLogDirs)."""
        return [self._describe(directory, topics) for directory in self._store.directories.values()]

    def _describe(self, directory: LogDirectory, topics: Collection[TopicPartition] | None) -> LogDirectoryInfo:
        replicas: list[ReplicaDirectoryInfo] = []
        for logs in (self._table.current, self._table.future):
            for key, log in sorted(logs.items()):
                if log.parent_directory != directory.path or (topics is not None and key not in topics):
                    continue
                current = self._table.current.get(key, log)
                behind = current.log_end_offset - log.log_end_offset if log.storage.is_future else 0
                replicas.append(
                    ReplicaDirectoryInfo(
                        topic=key.topic,
                        partition=key.partition,
                        size_bytes=log.size_bytes,
                        offset_lag=max(0, behind if log.storage.is_future else log.high_watermark - log.log_end_offset),
                        is_future=log.storage.is_future,
                    )
                )
        usable = total = -1
        if directory.online:
            try:
                space = self.room.measure(directory.path)
                usable, total = space.usable_bytes, space.total_bytes
            except OSError as error:
                self._store.fail_directory(directory.path, error)
                replicas = []
        return LogDirectoryInfo(
            path=directory.path,
            error=ErrorCode.NONE if directory.online else ErrorCode.KAFKA_STORAGE_ERROR,
            directory_id=directory.directory_id or uuid.UUID(int=0),
            total_bytes=total,
            usable_bytes=usable,
            replicas=replicas,
            is_cordoned=directory.path in self.cordons,
        )
