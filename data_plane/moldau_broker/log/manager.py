"""All logs of a broker over its log directories.

The manager opens directories, loads logs, creates and deletes them, and looks after them: retention, rolls by time,
syncs by policy, checkpoints, deferred deletion of files, cleaning. ``tick`` does what is quick and returns the rest
as ``Work``.

A directory that fails goes offline alone: its logs leave ``logs``, all others go on (KIP-112). Which error means that
is the callers' and the works' knowledge: they call ``fail_directory``.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.runtime.log import EventLogger
from moldau_broker.log.cleaner_manager import DAMAGE_ADVICE
from moldau_broker.log.directory import LogDirectory, log_starts_of
from moldau_broker.log.errors import CorruptLogFileError, LogStorageError
from moldau_broker.log.moves import MovingLogStore
from moldau_broker.log.values import LogDirectoryInfo, ReplicaDirectoryInfo, TopicPartition, Work, run_work

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from moldau_broker.log.partition_log import PartitionLog

_logger = EventLogger("moldau.log")
_COPY_BYTES = 1024 * 1024
_TICK_MS = 1000


class LogManager(MovingLogStore):
    """All logs of one broker, looked after: retention, rolls, syncs, checkpoints, deletions, cleaning, a clean stop."""

    # Housekeeping ----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[Work]:
        """What is due: call it about once a second. Failures take the directory offline, here or when a work fails.

        Before ``begin_discarding``, only what loses no record: syncs, checkpoints, files that were doomed before.
        """
        self._due["now"] = now_ms
        if self._may_discard and self._is_due("retention", now_ms, self.settings.retention_check_interval_ms):
            self._each_log(lambda log: (log.maybe_roll(now_ms), log.apply_retention(now_ms)))
        if self._is_due("producers", now_ms, self.settings.producer_id_expiration_check_interval_ms):
            self._each_log(lambda log: log.producer_state.remove_expired(now_ms))
        works = self._deletion_work(now_ms)
        works += self._flush_works(now_ms)
        works += self._checkpoint_works(now_ms)
        for directory in self._directories.values():
            work = self._cleaner_checkpoint(directory)
            if work is not None:
                works.append(work)
        return works + self.cleaner_works(now_ms)

    def cleaner_works(self, now_ms: int) -> list[Work]:
        """The cleaner's next step, if one is due; ``next_tick_ms`` says when the next one will be.

        Part of ``tick``. Steps are short, so whoever wants cleaning to advance calls this again after each.
        """
        if not (self.settings.cleaner_enable and self._may_discard):
            return []
        return self.cleaner.works(self._directories, self._logs, now_ms, self._work_failed)

    def next_tick_ms(self, now_ms: int) -> int:
        """When to call ``tick`` again: now while the cleaner can go on, else in a second.

        After a cleaner step is complete, call ``tick`` at this time: that is what makes a cleaning advance.
        """
        latest = now_ms + _TICK_MS
        due = self.cleaner.next_due_ms(now_ms) if self.settings.cleaner_enable else None
        return latest if due is None else min(latest, max(now_ms, due))

    def _cleaner_checkpoint(self, directory: LogDirectory) -> Work | None:
        known = self.cleaner.clean_offsets
        fresh: dict[TopicPartition, int] = {}
        for key, offset in known.items():
            log = self._logs.get(key)
            if log is not None and log.parent_directory == directory.path:
                fresh[key] = offset if log.truncated_to is None else min(offset, log.truncated_to)
        if not directory.online or not fresh:
            return None
        offsets = {**directory.cleaner_offsets.offsets, **fresh}
        path = directory.path
        return directory.cleaner_offsets.work(offsets, path, lambda error: self._work_failed(path, error), durable=True)

    def _is_due(self, name: str, now_ms: int, interval_ms: int) -> bool:
        # A wall clock that jumped back must not stop the work for as long as it jumped.
        if now_ms < self._due[name] <= now_ms + interval_ms:
            return False
        self._due[name] = now_ms + interval_ms
        return True

    def _each_log(self, action: Callable[[PartitionLog], object]) -> None:
        for log in [*self._logs.values(), *self._future_logs.values()]:
            if log.failed:
                continue
            try:
                action(log)
            except (OSError, LogStorageError) as error:
                self.fail_directory(log.parent_directory, error)
            except CorruptLogFileError as error:
                # The file's bytes are wrong, its disk works: all else goes on.
                _logger.error("log-damaged", partition=log.topic_partition, reason=error, advice=DAMAGE_ADVICE)

    def _work_failed(self, directory: str, error: BaseException) -> None:
        """A work's error: the disk's takes the directory offline, any other is a bug and stays visible in the shell."""
        if isinstance(error, OSError | LogStorageError):
            self.fail_directory(directory, error)

    def _deletion_work(self, now_ms: int) -> list[Work]:
        for log in [*self._logs.values(), *self._future_logs.values()]:
            for deletion in log.deletions:
                self._doomed_files.append((now_ms + log.config.file_delete_delay_ms, deletion.paths))
            log.deletions.clear()
        files = [paths for due, paths in self._doomed_files if due <= now_ms]
        trees = [path for due, path in self._doomed if due <= now_ms]
        self._doomed_files = [(due, paths) for due, paths in self._doomed_files if due > now_ms]
        self._doomed = [(due, path) for due, path in self._doomed if due > now_ms]
        by_directory: dict[str, list[str]] = {}
        for path in [*trees, *(path for paths in files for path in paths)]:
            owner = next((name for name in self._directories if path.startswith(name + "/")), None)
            if owner is not None:
                by_directory.setdefault(owner, []).append(path)
        return [self._remove_work(owner, paths) for owner, paths in by_directory.items()]

    def _remove_work(self, owner: str, paths: list[str]) -> Work:
        disk = self._disk

        def run() -> None:
            for path in paths:
                if disk.is_directory(path):
                    disk.remove_tree(path)
                elif disk.exists(path):
                    disk.remove(path)

        return Work(
            name=f"delete files in {owner}",
            run=run,
            complete=lambda: None,
            failed=lambda error: self._work_failed(owner, error),
            directory=owner,
        )

    def _flush_works(self, now_ms: int) -> list[Work]:
        works: list[Work] = []
        for log in [*self._logs.values(), *self._future_logs.values()]:
            # A closed segment is synced soon after its roll: that bounds what recovery must read to one segment.
            work = self.flush_work(log, up_to_closed_only=not log.flush_due(now_ms))
            if work is not None:
                works.append(work)
        return works

    def flush_work(self, log: PartitionLog, *, up_to_closed_only: bool = False) -> Work | None:
        """``log.flush_work``, at most one at a time for each log; ``flush_listener`` hears when it is complete.

        None if there is nothing to do, and while another is under way: two syncs of a file side by side would share
        one error, and the one that does not get it would pass lost bytes for durable ones.
        """
        if log in self._flushing or log.failed:
            return None
        work = log.flush_work(up_to_closed_only=up_to_closed_only)
        return None if work is None else self._tracked(work, log)

    def _tracked(self, work: Work, log: PartitionLog) -> Work:
        self._flushing[log] = None

        def complete() -> None:
            self._flushing.pop(log, None)
            work.complete()
            self.flush_listener(log.topic_partition)

        def failed(error: BaseException) -> None:
            self._flushing.pop(log, None)
            if log.released:  # deleted or replaced meanwhile; if its disk is bad, the others will tell
                self.flush_listener(log.topic_partition)
                return
            work.failed(error)
            self._work_failed(work.directory, error)

        return Work(name=work.name, run=work.run, complete=complete, failed=failed, directory=work.directory)

    def _checkpoint_works(self, now_ms: int) -> list[Work]:
        settings = self.settings
        recovery = self._is_due("recovery-points", now_ms, settings.flush_offset_checkpoint_interval_ms)
        starts = self._is_due("log-starts", now_ms, settings.flush_start_offset_checkpoint_interval_ms)
        watermarks = self._is_due("high-watermarks", now_ms, settings.high_watermark_checkpoint_interval_ms)
        works: list[Work | None] = []
        if not (recovery or starts or watermarks):
            return []
        for directory in self._directories.values():
            if not directory.online:
                continue
            path = directory.path
            logs = self._logs_in(path)

            def on_error(error: BaseException, path: str = path) -> None:
                self._work_failed(path, error)

            if recovery:
                points = {log.topic_partition: log.recovery_point for log in logs}
                works.append(directory.recovery_points.work(points, path, on_error, durable=True))
            if starts:
                works.append(directory.log_starts.work(log_starts_of(logs), path, on_error))
            if watermarks:
                marks = {log.topic_partition: log.high_watermark for log in logs}
                works.append(directory.high_watermarks.work(marks, path, on_error))
        return [work for work in works if work is not None]

    # Stop ------------------------------------------------------------------------------------------------------------

    def close_work(self) -> list[Work]:
        """Works that flush and seal each log; run them side by side, then ``finish_close``.

        Nothing may be appended any more.
        """
        logs = [*self._logs.values(), *self._future_logs.values(), *self._rival_logs.values()]
        return [self._seal_work(log) for log in logs if not log.failed]

    def _seal_work(self, log: PartitionLog) -> Work:
        return Work(
            name=f"close {log.topic_partition}",
            run=log.seal,
            complete=log.close,
            failed=lambda error: self._work_failed(log.parent_directory, error),
            directory=log.parent_directory,
        )

    def finish_close(self, broker_epoch: int = -1) -> None:
        """Writes checkpoints and the clean-shutdown marker of each directory that works, and gives the locks back."""
        for directory in self._directories.values():
            if not directory.online:
                continue
            logs = self._logs_in(directory.path)
            try:
                if not any(log.failed for log in logs):
                    directory.write_checkpoints(logs)
                    directory.mark_clean(broker_epoch)
            except OSError as error:
                _logger.error("clean-shutdown-failed", directory=directory.path, reason=error)
            directory.release()

    def give_back(self) -> None:
        """Leaves the directories as they were found, with the markers of their clean stops. No log was opened yet."""
        assert not self._logs, "logs are closed instead"
        for directory in self._directories.values():
            if directory.online and directory.clean:
                try:
                    directory.mark_clean(directory.broker_epoch)
                except OSError as error:
                    _logger.error("clean-shutdown-failed", directory=directory.path, reason=error)

    def close(self, broker_epoch: int = -1) -> None:
        """``close_work`` and ``finish_close`` in this thread."""
        for work in self.close_work():
            try:
                run_work(work)
            except (OSError, LogStorageError):
                continue  # the work's ``failed`` has taken the directory offline
        self.finish_close(broker_epoch)

    # Description -----------------------------------------------------------------------------------------------------

    def describe_log_dirs(self, topics: Collection[TopicPartition] | None = None) -> list[LogDirectoryInfo]:
        """DescribeLogDirs for all partitions, or those asked for."""
        return [self._describe(directory, topics) for directory in self._directories.values()]

    def _describe(self, directory: LogDirectory, topics: Collection[TopicPartition] | None) -> LogDirectoryInfo:
        replicas: list[ReplicaDirectoryInfo] = []
        for logs in (self._logs, self._future_logs):
            for key, log in sorted(logs.items()):
                if log.parent_directory != directory.path or (topics is not None and key not in topics):
                    continue
                current = self._logs.get(key, log)
                behind = current.log_end_offset - log.log_end_offset if log.is_future else 0
                replicas.append(
                    ReplicaDirectoryInfo(
                        topic=key.topic,
                        partition=key.partition,
                        size_bytes=log.size_bytes,
                        offset_lag=max(0, behind if log.is_future else log.log_end_offset - log.high_watermark),
                        is_future=log.is_future,
                    )
                )
        usable = total = -1
        if directory.online:
            try:
                usable = self._disk.free_bytes(directory.path)
                total = usable + sum(replica.size_bytes for replica in replicas)
            except OSError as error:
                self.fail_directory(directory.path, error)
                replicas = []
        return LogDirectoryInfo(
            path=directory.path,
            error=ErrorCode.NONE if directory.online else ErrorCode.KAFKA_STORAGE_ERROR,
            directory_id=directory.directory_id or uuid.UUID(int=0),
            total_bytes=total,
            usable_bytes=usable,
            replicas=replicas,
        )
