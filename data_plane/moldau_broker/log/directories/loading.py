"""Loading of the logs that a broker finds in its directories when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.runtime.ports.descriptors import is_shortage
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import (
    decode_partition_metadata,
    read_file,
)
from moldau_broker.log.files.names import (
    PARTITION_METADATA,
    parse_directory,
)
from moldau_broker.log.partition.loader import LoadReport, LoadRequest, load_log
from moldau_broker.log.values import TopicPartition, Work

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection

    from moldau_broker.log.directories.directory import LogDirectory
    from moldau_broker.log.directories.log_store import LogStore
    from moldau_broker.log.partition.partition_log import PartitionLog

_logger = EventLogger("moldau.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryProgress:
    """How far loading at start has come."""

    logs_done: int
    logs_total: int
    recovered_bytes: int
    truncated_logs: int


class LogLoading:
    """Loads the logs of all directories into the table, as works that run side by side."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._table = store.table
        self.shortage: BaseException | None = None
        """The shortage of descriptors that kept a log from being loaded, if there was one. Its directory works."""
        self._total = self._done = self._recovered_bytes = self._truncated = 0

    @property
    def progress(self) -> RecoveryProgress:
        """How many logs are loaded."""
        return RecoveryProgress(
            logs_done=self._done,
            logs_total=self._total,
            recovered_bytes=self._recovered_bytes,
            truncated_logs=self._truncated,
        )

    def works(self) -> list[Work]:
        """Returns one work for each log found.

        Callers run at most ``num.recovery.threads.per.data.dir`` works of a directory side by side. A log enters the
        table when its work is complete. A log that cannot be loaded takes its directory offline.
        """
        works: list[Work] = []
        now_ms = self._store.now_ms
        for directory in self._store.directories.values():
            if directory.online:
                try:
                    works += self._directory_work(directory, now_ms)
                except OSError as error:
                    self._store.fail_directory(directory.path, error)
        self._total = len(works)
        _logger.info("log-recovery-begins", logs=self._total, directories=len(self._store.online_directories))
        return works

    def _directory_work(self, directory: LogDirectory, now_ms: int) -> list[Work]:
        works: list[Work] = []
        for name in self._store.disk.list_directory(directory.path):
            path = f"{directory.path}/{name}"
            parsed = parse_directory(name) if self._store.disk.is_directory(path) else None
            if parsed is None:
                continue
            if parsed.kind == "stray":
                _logger.warning("log-stray", directory=path, advice="it is not used; delete it if it is not needed")
                continue
            if parsed.kind == "delete":
                self._store.deletions.add_tree(0, path)
                continue
            works.append(self._load_work(directory, path, parsed.topic_partition, parsed.kind == "future", now_ms))
        return works

    def _load_work(
        self, directory: LogDirectory, path: str, topic_partition: TopicPartition, is_future: bool, now_ms: int
    ) -> Work:
        config = self._store.configs.of(topic_partition.topic)
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
            jitter_share=self._store.jitter_share,
            producer_id_expiration_ms=self._store.settings.producer_id_expiration_ms,
            damaged=directory.damaged,
            files=self._store.files,
        )
        loaded: list[tuple[PartitionLog, LoadReport]] = []

        def run() -> None:
            loaded.append(load_log(self._store.disk, request))

        def complete() -> None:
            log, report = loaded[0]
            self._done += 1
            self._recovered_bytes += report.recovered_bytes
            self._truncated += report.truncated_at is not None
            if not directory.online:
                log.storage.release()
                return
            self._store.changed.follow(log)
            self._register(log, report)
            try:
                # The log may have lost its end: new appends and their epochs are neither clean nor durable.
                directory.lower_to(log.storage, log.recovery_point)
            except OSError as error:
                note(error)

        def failed(error: BaseException) -> None:
            self._done += 1
            note(error)

        def note(error: BaseException) -> None:
            if is_shortage(error):
                self.shortage = self.shortage or error
            self._store.fail_directory(directory.path, error)

        return Work(name=f"load {path}", run=run, complete=complete, failed=failed, directory=directory.path)

    def _register(self, log: PartitionLog, report: LoadReport) -> None:
        topic_partition = log.topic_partition
        logs = self._table.future if log.storage.is_future else self._table.current
        other = logs.get(topic_partition)
        rival = None  # the log's topic id, if it differs from that of the log in ``logs``
        if other is not None and not log.storage.is_future and log.topic_id is not None and _of_two_topics(log, other):
            # The topic was deleted and created again while a directory was offline. Only the metadata says which log
            # belongs to the present topic, so both wait for ``claim``.
            rival, other = log.topic_id, self._table.rivals.get((topic_partition, log.topic_id))
        if other is not None:
            # The broker crashed between the two renames of a move, or a failed directory is back. The log with the
            # later epoch stays, or the longer one of the same epoch: it holds all committed records of both.
            log, other = (log, other) if _progress(log) > _progress(other) else (other, log)
            _logger.error(
                "log-in-two-directories", partition=topic_partition, kept=log.directory, deleted=other.directory
            )
        if rival is not None:
            self._table.rivals[topic_partition, rival] = log
        else:
            logs[topic_partition] = log
            self._store.reports[topic_partition] = report
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
            self._store.try_to_discard(other)
        current, future = self._table.current.get(topic_partition), self._table.future.get(topic_partition)
        if current is not None and future is not None and not _goes_on(future, current):
            del self._table.future[topic_partition]
            _logger.warning("log-move-ended", partition=topic_partition, deleted=future.directory)
            self._store.try_to_discard(future)

    def _read_topic_id(self, directory: str, damaged: Collection[str]) -> uuid.UUID | None:
        path = f"{directory}/{PARTITION_METADATA}"
        if path in damaged or not self._store.disk.exists(path):
            return None
        try:
            return decode_partition_metadata(path, read_file(self._store.disk, path))
        except CorruptLogFileError as error:
            _logger.error("partition-metadata-damaged", path=path, reason=error.reason)
            return None


def _progress(log: PartitionLog) -> tuple[int, int]:
    """Returns the progress of a log: of two logs, the one with more holds all committed records (Raft §5.4.1)."""
    return log.latest_epoch, log.log_end_offset


def _of_two_topics(log: PartitionLog, other: PartitionLog) -> bool:
    """Returns whether two logs of the same partition name belong to different topic ids, as far as both are known."""
    return None not in (log.topic_id, other.topic_id) and log.topic_id != other.topic_id


def _goes_on(future: PartitionLog, current: PartitionLog) -> bool:
    """Returns whether a move found at start continues: to another directory, and within one topic id."""
    return not _of_two_topics(future, current) and future.parent_directory != current.parent_directory
