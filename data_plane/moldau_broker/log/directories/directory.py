"""One log directory: its lock, identity, clean-shutdown marker and checkpoints.

A checkpoint is written in two ways. The periodic write (every minute or so) takes its content in the event loop, writes
and syncs a temporary file in a thread, and renames it in the loop (``CheckpointFile.work``). The immediate write
(``write_now``) is used when the file on disk has become wrong, for example if a truncation goes below the recovery
point. It makes a periodic write in progress void, so that an old high value never overwrites the new low one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.errors import CorruptLogFileError, LogStorageError
from moldau_broker.log.files.checkpoint import (
    MetaProperties,
    decode_clean_shutdown,
    decode_meta_properties,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_offsets,
    read_file,
    read_offsets,
    write_atomically,
    write_temporary,
)
from moldau_broker.log.files.checksums import damaged_files, write_checksums
from moldau_broker.log.files.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    TEMPORARY_SUFFIX,
    parse_directory,
)
from moldau_broker.log.values import TopicPartition, Work

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Iterable

    from moldau.runtime.ports.environment import Disk, Lock
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.partition.segmented_log import SegmentedLog

_logger = EventLogger("moldau.log")

CHANGED_IDENTITY: Final = (
    f"{META_PROPERTIES} is not as it was at the clean stop: bring its content back, or, if it is right, remove "
    f"{CLEAN_SHUTDOWN}; the logs are then checked as after a crash"
)


class CheckpointFile:
    """One offset checkpoint of a directory, with its content on disk."""

    __slots__ = ("_current_at", "_disk", "_version", "_writing", "is_durable", "known", "offsets", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.offsets: dict[TopicPartition, int] = {}
        self.is_durable = True
        """Whether ``offsets`` survive a power loss."""
        self.known = False  # whether the file existed and was sound; else missing entries mean nothing
        self._version = 0
        self._writing = False
        self._current_at = -1

    def may_differ(self, version: int) -> bool:
        """Returns whether ``work`` may have something to write for the logs of that ``ChangedLogs.version``."""
        return self._current_at != version

    def load(self, damaged: Collection[str]) -> None:
        """Reads the file; a damaged one counts as empty, which costs recovery work but no data.

        Raises:
            OSError: The file could not be read.
        """
        try:
            if self.path in damaged:
                raise CorruptLogFileError(self.path, 0, "not as it was at the clean stop")
            self.offsets = read_offsets(self._disk, self.path)
            self.known = self._disk.exists(self.path)
        except CorruptLogFileError as error:
            _logger.error("checkpoint-damaged", path=self.path, position=error.position, reason=error.reason)
            self.offsets = {}

    def void(self) -> None:
        """Makes a write in progress void, because its content is outdated."""
        self._version += 1
        self._current_at = -1

    def lower(self, topic_partition: TopicPartition, offset: int) -> None:
        """Lowers the offset of a partition to ``offset`` at most; durable on return. A write in progress is void.

        Raises:
            OSError: The file could not be written.
        """
        self.void()
        if self.offsets.get(topic_partition, 0) > offset:
            self.write_now({**self.offsets, topic_partition: offset})

    def write_now(self, offsets: dict[TopicPartition, int]) -> None:
        """Replaces the content; durable on return.

        Raises:
            OSError: The file could not be written.
        """
        self.void()
        write_atomically(self._disk, self.path, encode_offsets(offsets))
        self.offsets = offsets
        self.is_durable = True

    def work(
        self,
        offsets: dict[TopicPartition, int],
        directory: str,
        on_error: Callable[[BaseException], None],
        *,
        version: int,
        durable: bool = False,
    ) -> Work | None:
        """Returns work that replaces the content; None if nothing changed or a write is under way.

        ``offsets`` are those of the logs at ``version``, see ``may_differ``. Without ``durable`` a power loss may bring
        the old content back.
        """
        if self._writing:
            return None
        if offsets == self.offsets and (self.is_durable or not durable):
            self._current_at = version
            return None
        self._writing = True
        version, disk, path = self._version, self._disk, self.path
        prepared = f"{path}.next{TEMPORARY_SUFFIX}"
        content = encode_offsets(offsets)

        def run() -> None:
            write_temporary(disk, prepared, content)

        def complete() -> None:
            self._writing = False
            if version == self._version:
                try:
                    disk.rename(prepared, path)
                    if durable:
                        disk.sync_directory(directory)
                except OSError as error:
                    on_error(error)
                    return
                self.offsets = offsets
                self.is_durable = durable

        def failed(error: BaseException) -> None:
            self._writing = False
            on_error(error)

        return Work(name=f"checkpoint {path}", run=run, complete=complete, failed=failed, directory=directory)


def take_identity(
    disk: Disk, directory: str, *, node_id: int, cluster_id: str, new_id: Callable[[], uuid.UUID]
) -> MetaProperties:
    """Reads ``meta.properties`` of a directory, or writes it, durably, where it is missing.

    Raises:
        OSError: The file could not be read or written.
        LogStorageError: The file is damaged.
        ValueError: The directory belongs to another cluster or node.
    """
    path = f"{directory}/{META_PROPERTIES}"
    if not disk.exists(path):
        properties = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=new_id())
        write_atomically(disk, path, encode_meta_properties(properties))
    try:
        properties = decode_meta_properties(path, read_file(disk, path))
    except CorruptLogFileError as error:
        raise LogStorageError(directory, str(error)) from error
    if properties.cluster_id != cluster_id or properties.node_id != node_id:
        raise ValueError(
            f"{path} says cluster {properties.cluster_id!r}, node {properties.node_id}; "
            f"this is cluster {cluster_id!r}, node {node_id}: give the node its own log directory"
        )
    return properties


def lock_directory(disk: Disk, directory: str) -> Lock:
    """Creates the directory where it is missing, and takes its lock.

    Raises:
        OSError: The directory could not be made.
        LogStorageError: Another process holds the lock.
    """
    if not disk.exists(directory):
        disk.make_directories(directory)
        disk.sync_directory(directory.rpartition("/")[0] or "/")
    try:
        return disk.lock(f"{directory}/{LOCK}")
    except BlockingIOError as error:
        raise LogStorageError(directory, "in use: another process holds its lock") from error


class LogDirectory:
    """One of ``log.dirs``. Invariant: while ``online``, this process holds its lock and identity."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.online = False
        self.error: BaseException | None = None
        self.directory_id: uuid.UUID | None = None
        self.clean = False
        self.damaged: tuple[str, ...] = ()  # files that changed since the clean stop
        self.broker_epoch = -1  # of the run that stopped cleanly
        self._lock: Lock | None = None
        self.recovery_points = CheckpointFile(disk, f"{path}/{RECOVERY_POINT_CHECKPOINT}")
        self.log_starts = CheckpointFile(disk, f"{path}/{LOG_START_OFFSET_CHECKPOINT}")
        self.high_watermarks = CheckpointFile(disk, f"{path}/{HIGH_WATERMARK_CHECKPOINT}")
        self.cleaner_offsets = CheckpointFile(disk, f"{path}/{CLEANER_CHECKPOINT}")

    def open(self, node_id: int, cluster_id: str, new_id: Callable[[], uuid.UUID]) -> None:
        """Locks and reads the directory, and creates missing files.

        Raises:
            OSError: A file could not be read or written. The directory stays offline.
            LogStorageError: Another process holds the lock, or the identity is damaged.
            ValueError: The directory belongs to another cluster or node.
        """
        disk = self._disk
        self._lock = lock_directory(disk, self.path)
        self._find_damage()
        self._take_identity(node_id, cluster_id, new_id)
        for name in disk.list_directory(self.path):
            if name.endswith(TEMPORARY_SUFFIX):
                disk.remove(f"{self.path}/{name}")
        self._take_clean_shutdown()
        for checkpoint in (self.recovery_points, self.log_starts, self.high_watermarks, self.cleaner_offsets):
            checkpoint.load(self.damaged)
        if not self.recovery_points.known and not any(parse_directory(name) for name in disk.list_directory(self.path)):
            self.recovery_points.write_now({})
            self.recovery_points.known = True
        self.online = True

    def _find_damage(self) -> None:
        if not self._disk.exists(f"{self.path}/{CLEAN_SHUTDOWN}"):
            return
        try:
            self.damaged = damaged_files(self._disk, self.path)
        except CorruptLogFileError as error:
            _logger.error("checksums-damaged", path=error.path, reason=error.reason)
        for path in self.damaged:
            _logger.error("file-damaged", path=path, reason="not as it was at the clean stop")

    def _take_identity(self, node_id: int, cluster_id: str, new_id: Callable[[], uuid.UUID]) -> None:
        path = f"{self.path}/{META_PROPERTIES}"
        if path in self.damaged:
            raise LogStorageError(self.path, CHANGED_IDENTITY)
        properties = take_identity(self._disk, self.path, node_id=node_id, cluster_id=cluster_id, new_id=new_id)
        self.directory_id = properties.directory_id

    def _take_clean_shutdown(self) -> None:
        """Reads the marker and removes it, because the directory is in use from here on."""
        path = f"{self.path}/{CLEAN_SHUTDOWN}"
        self.clean = self._disk.exists(path)
        if self.clean:
            try:
                self.broker_epoch = decode_clean_shutdown(path, read_file(self._disk, path))
            except CorruptLogFileError as error:
                _logger.error("clean-shutdown-marker-damaged", path=path, reason=error.reason)
                self.clean = False
            self._disk.remove(path)
            self._disk.sync_directory(self.path)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Removes a partition from the checkpoints, durably, before a new log of that name begins.

        Raises:
            OSError: A checkpoint could not be written.
        """
        for checkpoint in (self.recovery_points, self.log_starts, self.cleaner_offsets, self.high_watermarks):
            checkpoint.void()
            if topic_partition in checkpoint.offsets:
                checkpoint.write_now(
                    {key: value for key, value in checkpoint.offsets.items() if key != topic_partition}
                )

    def lower_to(self, log: SegmentedLog, offset: int) -> None:
        """See ``Checkpoints``."""
        if not log.is_future:
            self.recovery_points.lower(log.topic_partition, offset)
            self.cleaner_offsets.lower(log.topic_partition, offset)

    def lower_watermark(self, log: SegmentedLog, offset: int) -> None:
        """See ``Checkpoints``."""
        if not log.is_future:
            self.high_watermarks.lower(log.topic_partition, offset)

    def restart_at(self, log: SegmentedLog, offset: int, log_start_offset: int) -> None:
        """See ``Checkpoints``."""
        self.lower_to(log, offset)
        if not log.is_future:
            for checkpoint, value in (
                (self.recovery_points, offset),
                (self.log_starts, log_start_offset),
                (self.high_watermarks, offset),
            ):
                checkpoint.void()
                if checkpoint.offsets.get(log.topic_partition, 0) != value:
                    checkpoint.write_now({**checkpoint.offsets, log.topic_partition: value})

    def write_checkpoints(self, logs: Iterable[PartitionLog]) -> None:
        """Writes recovery points, log start offsets and high watermarks of all logs.

        Raises:
            OSError: A checkpoint could not be written.
        """
        current = list(logs)
        self.recovery_points.write_now({log.topic_partition: log.recovery_point for log in current})
        self.log_starts.write_now(log_starts_of(current))
        self.high_watermarks.write_now({log.topic_partition: log.high_watermark for log in current})

    def mark_clean(self, broker_epoch: int) -> None:
        """Writes the marker that all logs are flushed and closed, as the last write of a run.

        Raises:
            OSError: The marker could not be written.
        """
        write_checksums(self._disk, self.path)
        self._write_marker(broker_epoch)

    def give_back(self) -> None:
        """Restores the marker that ``open`` has taken, of a directory whose logs were not opened.

        The checksums stay those of the clean stop: new ones would take a file that is damaged since then for sound.

        Raises:
            OSError: The marker could not be written.
        """
        self._write_marker(self.broker_epoch)

    def _write_marker(self, broker_epoch: int) -> None:
        write_atomically(self._disk, f"{self.path}/{CLEAN_SHUTDOWN}", encode_clean_shutdown(broker_epoch))

    def release(self) -> None:
        """Releases the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def log_starts_of(logs: Iterable[PartitionLog]) -> dict[TopicPartition, int]:
    """Returns the log start offsets that segments do not show; Kafka writes only these.

    They are above the first segment's base offset, or below it if the object store has older records.
    """
    return {
        log.topic_partition: log.log_start_offset
        for log in logs
        if log.log_start_offset > log.segments[0].base_offset or log.storage.local_start.content is not None
    }
