"""The logs of a broker: which there are, in which directories; starting, creating, deleting and moving them.

A directory that fails goes offline alone: its logs leave ``logs``, all others go on (KIP-112). Which error means that
is the callers' and the works' knowledge: they call ``fail_directory``.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.runtime.log import EventLogger
from moldau_broker.log.checkpoint import (
    decode_partition_metadata,
    encode_partition_metadata,
    read_file,
    write_atomically,
)
from moldau_broker.log.cleaner_manager import CleanerManager
from moldau_broker.log.config import LogConfig, LogManagerSettings
from moldau_broker.log.directory import LogDirectory
from moldau_broker.log.errors import CorruptLogFileError, LogError, LogStorageError
from moldau_broker.log.loader import LoadReport, LoadRequest, load_log
from moldau_broker.log.names import (
    DELETE_DIRECTORY_SUFFIX,
    FUTURE_DIRECTORY_SUFFIX,
    PARTITION_METADATA,
    marked_directory,
    parse_directory,
    partition_directory,
)
from moldau_broker.log.values import TopicPartition, Work, run_work

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Mapping, Sequence

    from moldau.runtime.environment import Disk
    from moldau_broker.log.partition_log import PartitionLog

_logger = EventLogger("moldau.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProgress:
    """How far loading at start has come."""

    logs_done: int
    logs_total: int
    recovered_bytes: int
    truncated_logs: int


class LogStore:
    """All logs of one broker. Not thread-safe: one event loop, which also completes the works."""

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
    ) -> None:
        """``directories`` are absolute paths (``log.dirs``); ``random`` draws directory ids, names and jitter."""
        if not directories:
            raise ValueError("log.dirs is empty, a broker needs at least one directory")
        if len(dict.fromkeys(directories)) != len(directories):
            raise ValueError(f"log.dirs names a directory twice: {', '.join(directories)}")
        self._disk = disk
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._random = random
        self.settings = settings or LogManagerSettings()
        self._default_config = default_config or LogConfig()
        self._topic_configs: dict[str, LogConfig] = {}
        self._directories = {path: LogDirectory(disk, path) for path in directories}
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._future_logs: dict[TopicPartition, PartitionLog] = {}
        self._rival_logs: dict[tuple[TopicPartition, uuid.UUID], PartitionLog] = {}  # of other topics of the same name
        self._doomed: list[tuple[int, str]] = []  # (due, directory) of deleted partitions
        self._doomed_files: list[tuple[int, tuple[str, ...]]] = []
        self._due: dict[str, int] = {}
        self._may_discard = False
        self._flushing: dict[PartitionLog, None] = {}
        self.flush_listener: Callable[[TopicPartition], object] = lambda key: None
        """Hears, in the event loop, of each flush of a partition's log that has ended without taking it offline."""
        self.failure_listener: Callable[[str, BaseException], object] = lambda path, error: None
        """Hears of each directory that has gone offline, with the error, whoever noticed it."""
        self._total = self._done = self._recovered_bytes = self._truncated = 0
        self.reports: dict[TopicPartition, LoadReport] = {}
        self.cleaner = CleanerManager(disk, self.settings)

    # State -----------------------------------------------------------------------------------------------------------

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Logs that are loaded and online; treat as read-only."""
        return self._logs

    @property
    def future_logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """Logs that are being copied to another directory."""
        return self._future_logs

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """The log of a partition, None if there is none or its directory is offline."""
        return self._logs.get(topic_partition)

    def _logs_in(self, path: str) -> list[PartitionLog]:
        """All logs in a directory that are no copies: also those that nobody has claimed yet, of whatever topic."""
        return [log for log in [*self._logs.values(), *self._rival_logs.values()] if log.parent_directory == path]

    @property
    def directories(self) -> Sequence[LogDirectory]:
        """All directories in the order of ``log.dirs``."""
        return list(self._directories.values())

    @property
    def online_directories(self) -> list[str]:
        """Paths of the directories that work."""
        return [path for path, directory in self._directories.items() if directory.online]

    @property
    def offline_directories(self) -> list[str]:
        """Paths of the directories that failed."""
        return [path for path, directory in self._directories.items() if not directory.online]

    @property
    def recovery_progress(self) -> RecoveryProgress:
        """How far ``recovery_work`` has come."""
        return RecoveryProgress(
            logs_done=self._done,
            logs_total=self._total,
            recovered_bytes=self._recovered_bytes,
            truncated_logs=self._truncated,
        )

    def _new_id(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def topic_config(self, topic: str) -> LogConfig:
        """Settings of a topic's logs."""
        return self._topic_configs.get(topic, self._default_config)

    def update_topic_config(self, topic: str, config: LogConfig) -> None:
        """Takes over changed settings of a topic, also for its logs that exist."""
        self._topic_configs[topic] = config
        for logs in (self._logs, self._future_logs):
            for topic_partition, log in logs.items():
                if topic_partition.topic == topic:
                    log.update_config(config)

    def update_default_config(self, config: LogConfig) -> None:
        """Takes over changed broker defaults for the topics that have no settings of their own."""
        self._default_config = config
        for logs in (self._logs, self._future_logs):
            for topic_partition, log in logs.items():
                if topic_partition.topic not in self._topic_configs:
                    log.update_config(config)

    def _jitter(self, config: LogConfig) -> int:
        most = min(config.segment_jitter_ms, config.segment_ms)
        return self._random.randrange(most) if most > 0 else 0

    # Start -----------------------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Opens the directories. A failing one is offline; with none left, or one of another node, it raises.

        Raises ``LogStorageError`` (no directory works), ``ValueError`` (a directory belongs to another cluster or
        node).
        """
        for directory in self._directories.values():
            try:
                directory.open(self._node_id, self._cluster_id, self._new_id)
            except (OSError, LogStorageError) as error:
                directory.error = error
                directory.release()
                _logger.error("log-directory-offline", directory=directory.path, reason=error)
        if not self.online_directories:
            causes = "; ".join(f"{path}: {directory.error}" for path, directory in self._directories.items())
            raise LogStorageError(", ".join(self._directories), f"no log directory works: {causes}")
        for interval in ("retention", "flush", "recovery-points", "log-starts", "high-watermarks", "producers"):
            self._due[interval] = now_ms
        self._due["now"] = now_ms

    def begin_discarding(self, now_ms: int) -> None:
        """Lets retention and the cleaner begin: each log has been claimed, or set aside, and has its own settings.

        Before that, nobody knows which topic a log found at start belongs to, nor whether that is compacted or keeps
        its records for ever: nothing of it may be dropped by the broker's defaults.
        """
        self._may_discard = True
        self._due["retention"] = now_ms + 30_000  # as Kafka: no deletion in the rush of a start

    def know_configs(self, default: LogConfig, configs: Mapping[str, LogConfig]) -> None:
        """Takes settings over before ``recovery_work``: what is loaded is judged by its topic's own from the first."""
        self._default_config = default
        self._topic_configs = dict(configs)

    def recovery_work(self) -> list[Work]:
        """One work per log found. Run at most ``num.recovery.threads.per.data.dir`` of a directory side by side.

        The logs are in ``logs`` when their works are complete. A log that cannot be loaded takes its directory offline.
        """
        works: list[Work] = []
        now_ms = self._due["now"]
        for directory in self._directories.values():
            if directory.online:
                try:
                    works += self._directory_work(directory, now_ms)
                except OSError as error:
                    self.fail_directory(directory.path, error)
        self._total = len(works)
        _logger.info("log-recovery-begins", logs=self._total, directories=len(self.online_directories))
        return works

    def recover_all(self) -> None:
        """Does all of ``recovery_work`` in this thread; a log that cannot be loaded takes its directory offline."""
        for work in self.recovery_work():
            try:
                run_work(work)
            except OSError:
                continue  # the work's ``failed`` has taken the directory offline

    def _directory_work(self, directory: LogDirectory, now_ms: int) -> list[Work]:
        works: list[Work] = []
        for name in self._disk.list_directory(directory.path):
            path = f"{directory.path}/{name}"
            parsed = parse_directory(name) if self._disk.is_directory(path) else None
            if parsed is None:
                continue
            if parsed.kind == "stray":
                _logger.warning("log-stray", directory=path, advice="it is not used; delete it when nobody misses it")
                continue
            if parsed.kind == "delete":
                self._doomed.append((now_ms, path))
                continue
            works.append(self._load_work(directory, path, parsed.topic_partition, parsed.kind == "future", now_ms))
        return works

    def _load_work(
        self, directory: LogDirectory, path: str, topic_partition: TopicPartition, is_future: bool, now_ms: int
    ) -> Work:
        config = self.topic_config(topic_partition.topic)
        known = not is_future
        request = LoadRequest(
            directory=path,
            topic_partition=topic_partition,
            config=config,
            checkpoints=directory,
            now_ms=now_ms,
            clean=directory.clean,
            recovery_point=directory.recovery_points.offsets.get(topic_partition, 0) if known else 0,
            recovery_point_known=known and directory.recovery_points.known,
            log_start_offset=directory.log_starts.offsets.get(topic_partition, 0) if known else 0,
            high_watermark=directory.high_watermarks.offsets.get(topic_partition, 0) if known else 0,
            topic_id=self._read_topic_id(path, directory.damaged),
            is_future=is_future,
            jitter_ms=self._jitter(config),
            producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
            damaged=directory.damaged,
        )
        loaded: list[tuple[PartitionLog, LoadReport]] = []

        def run() -> None:
            loaded.append(load_log(self._disk, request))

        def complete() -> None:
            log, report = loaded[0]
            self._done += 1
            self._recovered_bytes += report.recovered_bytes
            self._truncated += report.truncated_at is not None
            if not directory.online:
                log.release()
                return
            self._register(log, report)
            try:
                # The log may have lost its end: what is appended now is not clean, and not durable, nor are its epochs.
                directory.lower_to(log, log.recovery_point)
            except OSError as error:
                self.fail_directory(directory.path, error)

        def failed(error: BaseException) -> None:
            self._done += 1
            self.fail_directory(directory.path, error)

        return Work(name=f"load {path}", run=run, complete=complete, failed=failed, directory=directory.path)

    def _register(self, log: PartitionLog, report: LoadReport) -> None:
        topic_partition = log.topic_partition
        logs = self._future_logs if log.is_future else self._logs
        other = logs.get(topic_partition)
        rival = None  # the topic's id, if it is not that of the log that stands in ``logs``
        if other is not None and not log.is_future and log.topic_id is not None and _of_two_topics(log, other):
            # The topic was deleted and made again while a directory was away: only the metadata knows which log is
            # whose, so both wait for ``claim``.
            rival, other = log.topic_id, self._rival_logs.get((topic_partition, log.topic_id))
        if other is not None:
            # A crash between the two renames of a move, or a directory that failed is back: the log of the later epoch
            # stays, and the longer one of an epoch. It holds all that is committed of what either holds.
            log, other = (log, other) if _progress(log) > _progress(other) else (other, log)
            _logger.error(
                "log-in-two-directories", partition=topic_partition, kept=log.directory, deleted=other.directory
            )
        if rival is not None:
            self._rival_logs[topic_partition, rival] = log
        else:
            logs[topic_partition] = log
            self.reports[topic_partition] = report
        for problem in report.problems:
            _logger.warning("log-repaired", partition=topic_partition, directory=log.parent_directory, problem=problem)
        _logger.info(
            "log-loaded",
            partition=topic_partition,
            done=self._done,
            total=self._total,
            segments=report.segments,
            recovered_bytes=report.recovered_bytes,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
        )
        if other is not None:
            self._try_to_discard(other, self._due["now"])
        current, future = self._logs.get(topic_partition), self._future_logs.get(topic_partition)
        if current is not None and future is not None and not _goes_on(future, current):
            del self._future_logs[topic_partition]
            _logger.warning("log-move-ended", partition=topic_partition, deleted=future.directory)
            self._try_to_discard(future, self._due["now"])

    def _read_topic_id(self, directory: str, damaged: Collection[str]) -> uuid.UUID | None:
        path = f"{directory}/{PARTITION_METADATA}"
        if path in damaged or not self._disk.exists(path):
            return None
        try:
            return decode_partition_metadata(path, read_file(self._disk, path))
        except CorruptLogFileError as error:
            _logger.error("partition-metadata-damaged", path=path, reason=error.reason)
            return None

    # Creating, deleting, moving --------------------------------------------------------------------------------------

    def get_or_create(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: uuid.UUID,
        now_ms: int,
        directory: str | None = None,
    ) -> PartitionLog:
        """The log of a partition; a new one goes into ``directory``, or the online one with the fewest logs.

        A log that has no topic id yet takes this one. A move of a log that is lost ends where a new one begins. Raises
        ``LogError`` INCONSISTENT_TOPIC_ID, ``LogStorageError``.
        """
        log = self._logs.get(topic_partition)
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
        log = self._create(topic_partition, topic_id, directory or self._emptiest(), now_ms, is_future=False)
        self._logs[topic_partition] = log
        self._discard_future(topic_partition, now_ms)
        return log

    def _emptiest(self) -> str:
        counts = dict.fromkeys(self.online_directories, 0)
        if not counts:
            raise LogStorageError(", ".join(self._directories), "all log directories are offline")
        for log in [*self._logs.values(), *self._future_logs.values()]:
            counts[log.parent_directory] += 1
        return min(counts, key=lambda path: counts[path])

    def _create(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, parent: str, now_ms: int, *, is_future: bool
    ) -> PartitionLog:
        directory = self._online(parent)
        name = (
            marked_directory(topic_partition, self._new_id().hex, FUTURE_DIRECTORY_SUFFIX)
            if is_future
            else partition_directory(topic_partition)
        )
        config = self.topic_config(topic_partition.topic)
        try:
            if not is_future:
                # Offsets of a deleted log of that name must not be taken for this one's.
                directory.forget(topic_partition)
            log, _ = load_log(
                self._disk,
                LoadRequest(
                    directory=f"{parent}/{name}",
                    topic_partition=topic_partition,
                    config=config,
                    checkpoints=directory,
                    now_ms=now_ms,
                    topic_id=topic_id,
                    is_future=is_future,
                    jitter_ms=self._jitter(config),
                    producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
                ),
            )
            self._set_topic_id(log, topic_id)
        except OSError as error:
            self.fail_directory(parent, error)
            raise LogStorageError(parent, f"creating {topic_partition} failed: {error}") from error
        return log

    def _online(self, path: str) -> LogDirectory:
        directory = self._directories.get(path)
        if directory is None:
            raise LogError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of log.dirs: {', '.join(self._directories)}"
            )
        if not directory.online:
            raise LogStorageError(path, f"offline: {directory.error}")
        return directory

    def _set_topic_id(self, log: PartitionLog, topic_id: uuid.UUID) -> None:
        write_atomically(self._disk, f"{log.directory}/{PARTITION_METADATA}", encode_partition_metadata(topic_id))
        log.topic_id = topic_id

    def delete(self, topic_partition: TopicPartition, now_ms: int) -> bool:
        """Removes a partition's log, and its future one; files go after ``file.delete.delay.ms``. Returns whether it
        existed.

        Readers that hold slices go on. Raises ``LogStorageError``.
        """
        logs = [self._logs.get(topic_partition), self._future_logs.pop(topic_partition, None)]
        self._drop(topic_partition)
        found = [log for log in logs if log is not None]
        for log in found:
            self._discard(log, now_ms)
        return bool(found)

    def _drop(self, topic_partition: TopicPartition) -> None:
        self._logs.pop(topic_partition, None)
        self.cleaner.forget(topic_partition)
        self.reports.pop(topic_partition, None)

    def _discard_future(self, topic_partition: TopicPartition, now_ms: int) -> None:
        future = self._future_logs.pop(topic_partition, None)
        if future is not None:
            _logger.warning("log-move-ended", partition=topic_partition, deleted=future.directory)
            self._discard(future, now_ms)

    def _discard(self, log: PartitionLog, now_ms: int) -> None:
        target = self._mark(log, DELETE_DIRECTORY_SUFFIX)
        self._doomed.append((now_ms + log.config.file_delete_delay_ms, target))

    def _try_to_discard(self, log: PartitionLog, now_ms: int) -> None:
        """Deletes a log that nothing waits for: when its directory fails, that is told, and all else goes on."""
        try:
            self._discard(log, now_ms)
        except LogStorageError as error:
            _logger.error("log-not-deleted", partition=log.topic_partition, directory=error.directory)

    def _mark(self, log: PartitionLog, suffix: str) -> str:
        """Closes a log and renames its directory, durably; returns the new path."""
        parent = log.parent_directory
        target = f"{parent}/{marked_directory(log.topic_partition, self._new_id().hex, suffix)}"
        log.release()
        try:
            self._disk.rename(log.directory, target)
            self._disk.sync_directory(parent)
        except OSError as error:
            self.fail_directory(parent, error)
            raise LogStorageError(parent, f"deleting {log.topic_partition} failed: {error}") from error
        return target

    # Directories -----------------------------------------------------------------------------------------------------

    def fail_directory(self, path: str, error: BaseException) -> list[TopicPartition]:
        """Takes a directory offline; returns the partitions that went with it. Others are not touched. Idempotent."""
        lost: list[TopicPartition] = []
        directory = self._directories.get(path)
        if directory is None:
            return lost  # the error was about all directories: those have failed one by one
        was_online = directory.online
        if was_online:
            directory.online = False
            directory.error = error
            _logger.error("log-directory-offline", directory=path, reason=error)
        for logs in (self._logs, self._future_logs):
            for topic_partition in [key for key, log in logs.items() if log.parent_directory == path]:
                logs.pop(topic_partition).release()
                self.cleaner.forget(topic_partition)
                if topic_partition not in lost:
                    lost.append(topic_partition)
        for key in [key for key, log in self._rival_logs.items() if log.parent_directory == path]:
            self._rival_logs.pop(key).release()
        self._doomed = [(due, name) for due, name in self._doomed if not name.startswith(path + "/")]
        self._doomed_files = [(due, names) for due, names in self._doomed_files if not names[0].startswith(path + "/")]
        directory.release()
        if was_online:
            self.failure_listener(path, error)
        return lost


def _progress(log: PartitionLog) -> tuple[int, int]:
    """Of two logs of a partition, the one of larger progress holds all that is committed of the other (Raft §5.4.1)."""
    return log.latest_epoch, log.log_end_offset


def _of_two_topics(log: PartitionLog, other: PartitionLog) -> bool:
    """Whether two logs of a partition's name are of topics that are known to differ."""
    return None not in (log.topic_id, other.topic_id) and log.topic_id != other.topic_id


def _goes_on(future: PartitionLog, current: PartitionLog) -> bool:
    """Whether a move found at start goes on: to another directory, of the same topic's log as far as that is known."""
    return not _of_two_topics(future, current) and future.parent_directory != current.parent_directory
