"""Regular work on the logs of a broker: retention, rolls by time, flushes, checkpoints, deletions and cleaning.

``tick`` does quick work at once, and returns the rest as ``Work``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.runtime.config.declaration import LONG_MAX
from moldau.runtime.ports.descriptors import is_shortage
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.cleaner.manager import DAMAGE_ADVICE
from moldau_broker.log.directories.directory import LogDirectory, log_starts_of
from moldau_broker.log.directories.retention_times import RetentionTimes
from moldau_broker.log.directories.room import DirectoryRoom
from moldau_broker.log.errors import CorruptLogFileError, LogStorageError
from moldau_broker.log.values import TopicPartition, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from moldau_broker.log.directories.log_store import LogStore
    from moldau_broker.log.partition.partition_log import PartitionLog

_logger = EventLogger("moldau.log")
_TICK_MS = 1000
_LOW_RETENTION_MS = 5000
"""How often retention looks at the logs of a directory that is nearly full."""


class Housekeeping:
    """Decides which regular work is due, and does it or returns it."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._table = store.table
        self._due: dict[str, int] = {}
        self._may_discard = False
        self.room = DirectoryRoom(store)
        self._changed = store.changed
        self._retention_times = RetentionTimes()
        self._unsynced: dict[PartitionLog, None] = {}
        """Logs for which a sync was due at the last tick, or may become due without a further change."""
        self._flushing: dict[PartitionLog, list[Callable[[], object]]] = {}
        """Logs whose flush is under way or queued, with what to call at its end."""
        self.flush_listener: Callable[[TopicPartition], object] = lambda key: None
        """Called in the event loop after each flush of a partition's log that did not take the log offline."""
        self.start_listener: Callable[[TopicPartition], object] = lambda key: None
        """Called in the event loop after retention has moved the log start offset of a partition."""

    def start(self, now_ms: int) -> None:
        """Makes all regular work due."""
        self.room.look()
        for interval in ("retention", "low", "flush", "recovery-points", "log-starts", "high-watermarks", "producers"):
            self._due[interval] = now_ms

    def begin_discarding(self, now_ms: int) -> None:
        """Lets retention and the cleaner begin, after each log was claimed or set aside and has its own settings.

        Before that, it is unknown which topic a log found at start belongs to, and whether that topic is compacted or
        keeps its records for ever. So no record may be dropped by the broker's defaults.
        """
        self._may_discard = True
        self._due["retention"] = (
            now_ms + self._store.settings.initial_task_delay_ms
        )  # no deletion right after the start
        self._due["low"] = now_ms

    # Ticks ------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, monotonic_ms: float) -> list[Work]:
        """Does regular work that is due, or returns it; call it about once a second.

        ``now_ms`` is wall-clock time. Only the delay of deletions counts on the monotonic clock.

        A failure takes its directory offline, here or when a work fails. Before ``begin_discarding``, only work that
        loses no record is done: syncs, checkpoints, and deletions that were queued before.
        """
        self._store.now_ms = now_ms
        changed = self._take_changed()
        if self._may_discard and self._is_due("retention", now_ms, self._store.settings.retention_check_interval_ms):
            self._each_log(lambda log: self._retain(log, now_ms), self._retention_times.take_due(now_ms))
        self.room.look()
        if self.room.low and self._may_discard and self._is_due("low", now_ms, _LOW_RETENTION_MS):
            logs = self._table.current_and_future()
            self._each_log(
                lambda log: self._retain(log, now_ms), [log for log in logs if log.parent_directory in self.room.low]
            )
        if self._is_due("producers", now_ms, self._store.settings.producer_id_expiration_check_interval_ms):
            self._each_log(lambda log: log.producer_state.remove_expired(now_ms), self._table.current_and_future())
        changed += self._take_changed()  # what retention has deleted
        works = self._deletion_work(changed, monotonic_ms)
        works += self._flush_works(changed, now_ms)
        works += self._checkpoint_works(now_ms)
        for directory in self._store.directories.values():
            work = self._cleaner_checkpoint(directory)
            if work is not None:
                works.append(work)
        return works + self.cleaner_works(now_ms)

    def next_tick_ms(self, now_ms: int) -> int:
        """Returns when to call ``tick`` again: now while the cleaner can go on, else in a second.

        A cleaning advances only if ``tick`` is called at this time after each of its steps.
        """
        latest = now_ms + _TICK_MS
        due = self._store.cleaner.next_due_ms(now_ms) if self._store.settings.cleaner_enable else None
        return latest if due is None else min(latest, max(now_ms, due))

    def _is_due(self, name: str, now_ms: int, interval_ms: int) -> bool:
        # A wall clock that jumped back must not stop the work for as long as it jumped.
        first_ms = self._store.settings.initial_task_delay_ms if name == "retention" else 0
        if now_ms < self._due[name] <= now_ms + max(interval_ms, first_ms):
            return False
        self._due[name] = now_ms + interval_ms
        return True

    def _take_changed(self) -> list[PartitionLog]:
        """Returns the logs that have changed since the last call."""
        self._changed.refresh()
        changed = self._changed.take()
        self._retention_times.changed(changed)
        return changed

    def _retain(self, log: PartitionLog, now_ms: int) -> None:
        self._retention_times.looked(log, now_ms)  # the next run looks at it again if this one fails
        start = log.log_start_offset
        log.storage.maybe_roll(now_ms)
        log.apply_retention(now_ms)
        if log.log_start_offset != start:
            self.start_listener(log.topic_partition)
        self._retention_times.looked(log, log.next_retention_ms())

    def _each_log(self, action: Callable[[PartitionLog], object], logs: Iterable[PartitionLog]) -> None:
        """Performs an action on each of some logs that works."""
        for log in logs:
            if log.failed:
                continue
            try:
                action(log)
            except (OSError, LogStorageError) as error:
                self._store.fail_directory(log.parent_directory, error)
            except CorruptLogFileError as error:
                # The file is damaged but its disk works: all other logs go on.
                _logger.error("log-damaged", partition=log.topic_partition, reason=error, advice=DAMAGE_ADVICE)

    # Cleaning ---------------------------------------------------------------------------------------------------------

    def cleaner_works(self, now_ms: int) -> list[Work]:
        """Returns the cleaner's next step, if one is due; ``next_tick_ms`` gives the time of the next one.

        ``tick`` includes it. Steps are short, so a cleaning advances only if this is called again after each step.
        """
        if not (self._store.settings.cleaner_enable and self._may_discard):
            return []
        self._changed.refresh()
        works = self._store.cleaner.works(
            self._store.directories, self._changed.compacted, now_ms, self._store.work_failed
        )
        for path in self._store.cleaner.take_held_up():
            works += self._checkpoint_for_cleaner(self._store.directories[path])
        return works

    def _checkpoint_for_cleaner(self, directory: LogDirectory) -> list[Work]:
        work = self._recovery_checkpoint(directory) if directory.online else None
        if work is None:
            return []

        def complete() -> None:
            work.complete()
            self._store.cleaner.look_again()

        return [replace(work, complete=complete)]

    def _cleaner_checkpoint(self, directory: LogDirectory) -> Work | None:
        known = self._store.cleaner.clean_offsets
        fresh: dict[TopicPartition, int] = {}
        for key, offset in known.items():
            log = self._table.current.get(key)
            if log is not None and log.parent_directory == directory.path:
                fresh[key] = offset if log.storage.truncated_to is None else min(offset, log.storage.truncated_to)
        if not directory.online or not fresh or self.room.is_full(directory.path):
            return None
        path = directory.path
        rivals = {key for key, _ in self._table.rivals}
        kept = {
            key: offset
            for key, offset in directory.cleaner_offsets.offsets.items()
            if key in rivals or ((log := self._table.current.get(key)) is not None and log.parent_directory == path)
        }
        offsets = {**kept, **fresh}
        return directory.cleaner_offsets.work(
            offsets,
            path,
            lambda error: self._store.work_failed(path, error),
            version=self._changed.version,
            durable=True,
        )

    # Deletions --------------------------------------------------------------------------------------------------------

    def _deletion_work(self, changed: Iterable[PartitionLog], monotonic_ms: float) -> list[Work]:
        for log in changed:
            for deletion in log.storage.segments.deletions:
                self._store.deletions.add_files(log.config.file_delete_delay_ms, deletion.paths)
            log.storage.segments.deletions.clear()
        for path in self.room.low:
            self._store.deletions.hasten(path)
        by_directory: dict[str, list[str]] = {}
        for path in self._store.deletions.take_due(monotonic_ms):
            owner = next((name for name in self._store.directories if path.startswith(name + "/")), None)
            if owner is not None:
                by_directory.setdefault(owner, []).append(path)
        return [self._remove_work(owner, paths) for owner, paths in by_directory.items()]

    def _remove_work(self, owner: str, paths: list[str]) -> Work:
        disk = self._store.disk

        def run() -> None:
            for path in paths:
                if disk.is_directory(path):
                    disk.remove_tree(path)
                elif disk.exists(path):
                    disk.remove(path)

        def failed(error: BaseException) -> None:
            if is_shortage(error):  # removing a directory opens it; the next tick tries again
                self._store.deletions.add_files(0, tuple(paths))
            self._store.work_failed(owner, error)

        return Work(
            name=f"delete files in {owner}",
            run=run,
            complete=lambda: None,
            failed=failed,
            directory=owner,
        )

    # Flushes ----------------------------------------------------------------------------------------------------------

    def _flush_works(self, changed: Iterable[PartitionLog], now_ms: int) -> list[Work]:
        works: list[Work] = []
        self._unsynced = dict.fromkeys(_perhaps_unsynced({**self._unsynced, **dict.fromkeys(changed)}))
        for log in self._unsynced:
            # A closed segment is synced soon after its roll, so that recovery must read one segment at most.
            work = self.flush_work(log, up_to_closed_only=not log.storage.flush_due(now_ms))
            if work is not None:
                works.append(work)
        return works

    def flush_work(self, log: PartitionLog, *, up_to_closed_only: bool = False) -> Work | None:
        """Returns ``log.flush_work``, at most one at a time for each log; its end is passed to ``flush_listener``.

        None if there is nothing to do, or while another flush is under way: two concurrent syncs of a file would share
        one error, and the sync that does not get it would report lost bytes as durable.
        """
        if log in self._flushing or log.failed:
            return None
        work = log.flush_work(up_to_closed_only=up_to_closed_only)
        return None if work is None else self._tracked(work, log)

    def is_flushing(self, log: PartitionLog) -> bool:
        """Returns whether a flush of a log is under way."""
        return log in self._flushing

    def at_flush_end(self, log: PartitionLog, call: Callable[[], object]) -> None:
        """Calls ``call`` in the event loop when the flush of a log that is under way has ended or failed."""
        self._flushing[log].append(call)

    def _tracked(self, work: Work, log: PartitionLog) -> Work:
        self._flushing[log] = []

        def ended() -> None:
            for call in self._flushing.pop(log, ()):
                call()

        def complete() -> None:
            ended()
            work.complete()
            self.flush_listener(log.topic_partition)

        def failed(error: BaseException) -> None:
            ended()
            if log.storage.released:  # deleted or replaced meanwhile; if its disk is bad, other logs on it fail
                self.flush_listener(log.topic_partition)
                return
            work.failed(error)
            self._store.work_failed(work.directory, error)

        return replace(work, complete=complete, failed=failed)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def _checkpoint_works(self, now_ms: int) -> list[Work]:
        settings = self._store.settings
        recovery = self._is_due("recovery-points", now_ms, settings.flush_offset_checkpoint_interval_ms)
        starts = self._is_due("log-starts", now_ms, settings.flush_start_offset_checkpoint_interval_ms)
        watermarks = self._is_due("high-watermarks", now_ms, settings.high_watermark_checkpoint_interval_ms)
        works: list[Work | None] = []
        if not (recovery or starts or watermarks):
            return []
        for directory in self._store.directories.values():
            if not directory.online or self.room.is_full(directory.path):
                continue
            path, version = directory.path, self._changed.version

            def on_error(error: BaseException, path: str = path) -> None:
                self._store.work_failed(path, error)

            if recovery and directory.recovery_points.may_differ(version):
                works.append(self._recovery_checkpoint(directory))
            if starts and directory.log_starts.may_differ(version):
                offsets = log_starts_of(self._table.in_directory(path))
                works.append(directory.log_starts.work(offsets, path, on_error, version=version))
            if watermarks and directory.high_watermarks.may_differ(version):
                marks = {log.topic_partition: log.watermarks.high_watermark for log in self._table.in_directory(path)}
                works.append(directory.high_watermarks.work(marks, path, on_error, version=version))
        return [work for work in works if work is not None]

    def log_start_work(self, log: PartitionLog) -> Work | None:
        """Returns work that makes the log start offsets in the directory of a log durable.

        None if that of the log is durable, or while another checkpoint of them is written; see ``is_start_durable``.
        """
        directory = self._store.directories[log.parent_directory]
        if not directory.online or self.is_start_durable(log):
            return None
        return directory.log_starts.work(
            log_starts_of(self._table.in_directory(directory.path)),
            directory.path,
            lambda error: self._store.work_failed(directory.path, error),
            version=self._changed.version,
            durable=True,
        )

    def is_start_durable(self, log: PartitionLog) -> bool:
        """Returns whether a log begins no lower after a power loss."""
        checkpoint = self._store.directories[log.parent_directory].log_starts
        return checkpoint.is_durable and log_starts_of([log]).items() <= checkpoint.offsets.items()

    def _recovery_checkpoint(self, directory: LogDirectory) -> Work | None:
        points = {log.topic_partition: log.recovery_point for log in self._table.in_directory(directory.path)}
        return directory.recovery_points.work(
            points,
            directory.path,
            lambda error: self._store.work_failed(directory.path, error),
            version=self._changed.version,
            durable=True,
        )


def _perhaps_unsynced(logs: Iterable[PartitionLog]) -> list[PartitionLog]:
    """Returns the logs for which a sync may be due: those with records after the recovery point and a reason to sync.

    The reasons are a flush policy, and a closed segment. It makes no calls, because it looks once a second at each log
    that was written to.
    """
    return [
        log
        for log in logs
        if not (storage := log.storage).released
        and storage.log_end_offset > storage.recovery.offset
        and (
            storage.config.bounds_unsynced
            or storage.config.flush_ms < LONG_MAX
            or storage.segments.all[-1].base_offset > storage.recovery.offset
        )
    ]
