"""Chooses which compacted log is cleaned next, paces the cleaning, and remembers how far each log is clean.

The dirtiest log goes first; logs whose ``max.compaction.lag.ms`` is over come before all others. One offset map of
``log.cleaner.dedupe.buffer.size`` is shared: one log is cleaned at a time. A cleaning advances in steps of at most
``STEP_BYTES``, so the thread that runs one never holds the interpreter for long, and a rate limit is kept by spacing
the steps.

Only what lies below the recovery point on disk may be cleaned. A segment is synced soon after it was closed, but
checkpoints of recovery points are a minute apart: where a log waits for nothing else, the log manager writes one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.runtime.ports.descriptors import is_shortage
from moldau.runtime.telemetry.log import EventLogger
from moldau_broker.log.cleaner.cleaner import CleaningPlan, LogCleaning, plan_cleaning
from moldau_broker.log.cleaner.offset_map import OffsetMap
from moldau_broker.log.errors import CorruptLogFileError, LogStorageError
from moldau_broker.log.values import TopicPartition, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.config import LogManagerSettings
    from moldau_broker.log.directories.directory import LogDirectory
    from moldau_broker.log.partition.partition_log import PartitionLog

_logger = EventLogger("moldau.log.cleaner")
STEP_BYTES = 256 * 1024
DAMAGE_ADVICE = (
    "look at the file with `moldau log dump`; if another replica is in sync, reassign the partition away from this "
    "broker and back, which copies it again; else delete the records up to there (DeleteRecords)"
)
_WINDOW_MS = 1000
_RATE_UNLIMITED = float(1 << 53)
"""Bytes a second from which on nothing is paced: Kafka's default is the largest double, which no sum survives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerStatistics:
    """Counters and the present state of the cleaner, for metrics."""

    cleanings: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    map_entries: int
    map_entries_max: int
    map_memory_bytes: int
    current: TopicPartition | None
    current_progress: float  # 0 to 1
    max_dirty_ratio: float
    uncleanable: int
    map_full_count: int


class CleanerManager:
    """Chooses logs and paces their cleaning; the returned works do the cleaning."""

    def __init__(self, disk: Disk, settings: LogManagerSettings) -> None:
        self._disk = disk
        self.settings = settings
        """Those of the broker; they may change at any time."""
        self._map: OffsetMap | None = None  # allocated with the first cleaning
        self._map_size = (0, 0.0)
        self._current: LogCleaning | None = None
        self._stepping = False
        self._next_check_ms: int | None = None
        self._window_start_ms = 0
        self._window_bytes = 0
        self._max_dirty_ratio = 0.0
        self._cleanings = self._map_full = 0
        self._bytes_read = self._bytes_written = self._records_read = self._records_kept = 0
        self._map_entries = 0
        self._held_up: dict[str, None] = {}
        self.uncleanable: dict[TopicPartition, str] = {}
        self.clean_offsets: dict[TopicPartition, int] = {}  # first dirty offsets that are newer than the checkpoint

    def statistics(self) -> CleanerStatistics:
        """Returns the counters since the start and the state of the present cleaning."""
        current = self._current
        progress = 0.0
        if current is not None:
            total = max(1, 2 * current.plan.dirty_bytes + current.plan.clean_bytes)
            progress = min(1.0, (current.statistics.map_bytes_read + current.statistics.bytes_read) / total)
        return CleanerStatistics(
            cleanings=self._cleanings,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            records_read=self._records_read,
            records_kept=self._records_kept,
            map_entries=self._map.size if self._map is not None and current is not None else self._map_entries,
            map_entries_max=self._map.entries_max if self._map is not None else 0,
            map_memory_bytes=self._map.memory_bytes if self._map is not None else 0,
            current=current.log.topic_partition if current is not None else None,
            current_progress=progress,
            max_dirty_ratio=self._max_dirty_ratio,
            uncleanable=len(self.uncleanable),
            map_full_count=self._map_full,
        )

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forgets a log that was deleted or replaced; its cleaning ends at its next step."""
        self.uncleanable.pop(topic_partition, None)
        self.clean_offsets.pop(topic_partition, None)
        current = self._current
        if current is not None and current.log.topic_partition == topic_partition and not self._stepping:
            self._current = None

    def choose(
        self,
        directories: Mapping[str, LogDirectory],
        logs: Mapping[TopicPartition, PartitionLog],
        now_ms: int,
        on_error: Callable[[str, BaseException], None],
    ) -> tuple[PartitionLog, CleaningPlan] | None:
        """Returns the log to clean next: one that must be, else the dirtiest above ``min.cleanable.dirty.ratio``.

        ``on_error`` is called for each unreadable directory, and may take it offline; damaged logs are left out.
        """
        best: tuple[PartitionLog, CleaningPlan] | None = None
        self._max_dirty_ratio = 0.0
        self._held_up.clear()
        for topic_partition, log in list(logs.items()):  # ``on_error`` may take some away
            if not log.config.compact or log.failed or topic_partition in self.uncleanable:
                continue
            directory = directories[log.parent_directory]
            clean_end = self.clean_offsets.get(topic_partition, directory.cleaner_offsets.offsets.get(topic_partition))
            durable_end = directory.recovery_points.offsets.get(topic_partition, 0)
            try:
                plan = plan_cleaning(log, clean_end, durable_end, now_ms)
                worthwhile = _is_worthwhile(log, plan)
                if not worthwhile and log.recovery_point > durable_end:
                    synced = plan_cleaning(log, clean_end, log.recovery_point, now_ms)
                    if _is_worthwhile(log, synced):
                        self._held_up[log.parent_directory] = None
            except (CorruptLogFileError, OSError) as error:
                self._judge(log, error, on_error)
                continue
            self._max_dirty_ratio = max(self._max_dirty_ratio, plan.dirty_ratio)
            if not worthwhile:
                continue
            rank = (plan.must_clean, plan.dirty_ratio)
            if best is None or rank > (best[1].must_clean, best[1].dirty_ratio):
                best = (log, plan)
        return None if best is None or best[0].failed else best

    def take_held_up(self) -> list[str]:
        """Returns directories with a log that ``choose`` found to wait only for a checkpoint of its recovery point.

        Each is returned once; call ``look_again`` after the checkpoint is written.
        """
        found = list(self._held_up)
        self._held_up.clear()
        return found

    def look_again(self) -> None:
        """Makes the next call of ``works`` choose a log again."""
        self._next_check_ms = None

    def _judge(self, log: PartitionLog, error: BaseException, on_error: Callable[[str, BaseException], None]) -> None:
        """Leaves a damaged log out from now on; passes all other errors to ``on_error``."""
        if isinstance(error, CorruptLogFileError):
            self.uncleanable[log.topic_partition] = str(error)
            _logger.error("log-uncleanable", partition=log.topic_partition, reason=error, advice=DAMAGE_ADVICE)
            return
        log.storage.failed = log.failed or (isinstance(error, OSError | LogStorageError) and not is_shortage(error))
        on_error(log.parent_directory, error)

    def next_due_ms(self, now_ms: int) -> int | None:
        """Returns when ``works`` has work: now while a cleaning may advance, None while a step runs."""
        if self._stepping:
            return None
        if self._current is None:
            return self._next_check_ms
        return now_ms if self._budget(now_ms) > 0 else self._window_start_ms + _WINDOW_MS

    def _budget(self, now_ms: int) -> int:
        """Returns the bytes that may be moved now within ``log.cleaner.io.max.bytes.per.second``."""
        rate = self.settings.cleaner_io_max_bytes_per_second
        if rate >= _RATE_UNLIMITED:
            return STEP_BYTES
        if not 0 <= now_ms - self._window_start_ms < _WINDOW_MS:
            # Bytes that a step moved beyond its budget are subtracted from later windows.
            windows = max(1, (now_ms - self._window_start_ms) // _WINDOW_MS) if self._window_start_ms else 1
            self._window_bytes = max(0, self._window_bytes - int(rate * windows))
            self._window_start_ms = now_ms
        return min(STEP_BYTES, int(rate) - self._window_bytes)

    def works(
        self,
        directories: Mapping[str, LogDirectory],
        logs: Mapping[TopicPartition, PartitionLog],
        now_ms: int,
        on_error: Callable[[str, BaseException], None],
    ) -> list[Work]:
        """Returns the next step of the cleaner, if one is due."""
        if self._stepping:
            return []
        if self._current is None:
            if (
                self._next_check_ms is not None
                and now_ms < self._next_check_ms <= now_ms + self.settings.cleaner_backoff_ms
            ):
                return []
            self._next_check_ms = now_ms + self.settings.cleaner_backoff_ms
            chosen = self.choose(directories, logs, now_ms, on_error)
            if chosen is None:
                return []
            try:
                self._current = self._begin(*chosen, now_ms)
            except (CorruptLogFileError, OSError) as error:
                self._judge(chosen[0], error, on_error)
                self._next_check_ms = now_ms  # another log may be dirty
                return []
        budget = self._budget(now_ms)
        if budget <= 0:
            return []
        return [self._step_work(self._current, budget, on_error)]

    def _begin(self, log: PartitionLog, plan: CleaningPlan, now_ms: int) -> LogCleaning:
        size = self.settings.cleaner_dedupe_buffer_size, self.settings.cleaner_io_buffer_load_factor
        if self._map is None or self._map_size != size:
            self._map = None  # its memory is free before that of the next one is taken
            self._map, self._map_size = OffsetMap(*size), size
        _logger.info(
            "cleaning-begins", partition=log.topic_partition, dirty_ratio=plan.dirty_ratio, **plan_fields(plan)
        )
        if log.storage.truncated_to is not None:
            # LogCleaning resets ``truncated_to``. If this cleaning is abandoned, the next one begins here too.
            self.clean_offsets[log.topic_partition] = plan.first_dirty_offset
        return LogCleaning(self._disk, log, plan, self._map, now_ms)

    def _step_work(
        self,
        cleaning: LogCleaning,
        budget: int,
        on_error: Callable[[str, BaseException], None],
    ) -> Work:
        log = cleaning.log
        parent = log.parent_directory
        self._stepping = True

        def run() -> None:
            if not log.storage.released:
                self._window_bytes += cleaning.step(budget)

        def complete() -> None:
            self._stepping = False
            try:
                if log.failed:
                    cleaning.abandon()
                changed = cleaning.ready is not None and not cleaning.swap()
            except OSError as error:
                failed(error)
                return
            if cleaning.done:
                self._current = None
                if not changed and not log.failed:
                    self._finish(cleaning)

        def failed(error: BaseException) -> None:
            self._stepping = False
            self._current = None
            changed = isinstance(error, CorruptLogFileError | FileNotFoundError) and cleaning.has_changed
            if log.storage.released or changed or is_shortage(error):
                # It was deleted, moved or truncated while the step ran; if its disk is bad, other logs on it fail.
                cleaning.abandon()
                return
            self._judge(log, error, on_error)

        return Work(name=f"clean {log.topic_partition}", run=run, complete=complete, failed=failed, directory=parent)

    def _finish(self, cleaning: LogCleaning) -> None:
        """Records how far the log is clean.

        The next checkpoint makes it durable; a crash before that costs a cleaning, no data.
        """
        statistics = cleaning.statistics
        if statistics.map_full and cleaning.end_offset <= cleaning.plan.first_dirty_offset:
            reason = (
                f"the batch at offset {cleaning.end_offset} has more keys than the offset map holds "
                f"({statistics.map_entries}): raise log.cleaner.dedupe.buffer.size"
            )
            self.uncleanable[cleaning.log.topic_partition] = reason
            _logger.error("log-uncleanable", partition=cleaning.log.topic_partition, reason=reason)
        self.clean_offsets[cleaning.log.topic_partition] = cleaning.end_offset
        self._cleanings += 1
        self._map_full += statistics.map_full
        self._bytes_read += statistics.bytes_read + statistics.map_bytes_read
        self._bytes_written += statistics.bytes_written
        self._records_read += statistics.records_read
        self._records_kept += statistics.records_kept
        self._map_entries = statistics.map_entries
        self._next_check_ms = None  # there may be more: the map was full, or another log waits
        _logger.info(
            "cleaning-ends",
            partition=cleaning.log.topic_partition,
            end_offset=statistics.end_offset,
            records_read=statistics.records_read,
            records_kept=statistics.records_kept,
            bytes_written=statistics.bytes_written,
            map_entries=statistics.map_entries,
            map_full=statistics.map_full,
        )


def _is_worthwhile(log: PartitionLog, plan: CleaningPlan) -> bool:
    """Returns whether a log is dirty enough to be cleaned, or must be cleaned."""
    return plan.must_clean or plan.dirty_ratio > log.config.min_cleanable_dirty_ratio


def plan_fields(plan: CleaningPlan) -> dict[str, object]:
    """Returns the fields of a plan for the log output."""
    return {
        "first_dirty_offset": plan.first_dirty_offset,
        "first_uncleanable_offset": plan.first_uncleanable_offset,
        "clean_bytes": plan.clean_bytes,
        "dirty_bytes": plan.dirty_bytes,
        "must_clean": plan.must_clean,
    }
