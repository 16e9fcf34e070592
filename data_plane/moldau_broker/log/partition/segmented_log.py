"""The files of one log together: segments, leader epochs, producer state and recovery point change in step here.

The segments cover ``[first base offset, log end offset)``; the last one is appended to. The log start offset may lie
inside the first segment (DeleteRecords), and readers see no record below it.

Durability: bytes are durable below the recovery point, which only a flush moves up (``recovery_point``). Truncation is
durable when it returns, and lowers the recovery point first: otherwise recovery after a crash would skip the check of
old bytes and old epochs.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.runtime.ports.descriptors import is_shortage
from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.errors import (
    CorruptLogFileError,
    DescriptorsShortError,
    LogError,
    LogStorageError,
    OffsetOutOfRangeError,
    storage_failure,
)
from moldau_broker.log.files.names import LEADER_EPOCH_CHECKPOINT, LOG_SUFFIX, TEMPORARY_SUFFIX
from moldau_broker.log.partition.reading import nothing_at
from moldau_broker.log.partition.recovery_point import Flush
from moldau_broker.log.remote.local_start import LocalStartFile, local_start

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.records import BatchHeader
    from moldau.runtime.ports.environment import Disk
    from moldau.values import Buffer
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.files.checkpoint import EpochEntry
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.epoch_cache import LeaderEpochCache
    from moldau_broker.log.partition.recovery_point import RecoveryPoint
    from moldau_broker.log.partition.segment_list import SegmentList
    from moldau_broker.log.producers.producer_snapshots import ProducerSnapshots
    from moldau_broker.log.producers.producer_state import EndMarker, ProducerStateManager
    from moldau_broker.log.values import ReadResult, StagedBatch, TopicPartition


class RemotePast(NamedTuple):
    """Facts about the records below the offset where a log starts over, which only the object store has."""

    leader_epochs: tuple[EpochEntry, ...]
    """All begin below the offset where the log starts over."""
    producer_snapshot: bytes | None
    """The producers at that offset; None if they are not known."""


class Checkpoints(Protocol):
    """The checkpoints of a log directory: recovery points, log start offsets, high watermarks, and clean offsets."""

    def lower_to(self, log: SegmentedLog, offset: int) -> None:
        """Lowers the log's checkpointed recovery point and clean offset to ``offset`` at most; durable on return.

        Raises:
            OSError: A checkpoint could not be written.
        """
        ...

    def lower_watermark(self, log: SegmentedLog, offset: int) -> None:
        """Lowers the log's checkpointed high watermark to ``offset`` at most; durable on return.

        Raises:
            OSError: The checkpoint could not be written.
        """
        ...

    def restart_at(self, log: SegmentedLog, offset: int, log_start_offset: int) -> None:
        """Checkpoints recovery point and high watermark as ``offset``, and the log start offset; durable on return.

        The checkpointed clean offset becomes ``offset`` at most.

        Raises:
            OSError: A checkpoint could not be written.
        """
        ...


class Jitter:
    """The share of ``segment.jitter.ms`` by which a log closes its segments early, drawn once it is needed."""

    __slots__ = ("_draw", "_share")

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._share: float | None = None

    def of(self, config: LogConfig) -> int:
        """Returns how much earlier a segment is closed for its age, in milliseconds, by the present settings."""
        most = config.jitter_ms_max
        if most <= 0:
            return 0
        if self._share is None:
            self._share = self._draw()
        return int(self._share * most)


class SegmentedLog:
    """The files of one log.

    Invariants: ``log_start_offset <= log_end_offset``; the recovery point is not above the log end offset.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        segments: SegmentList,
        log_start_offset: int,
        log_end_offset: int,
        recovery: RecoveryPoint,
        epochs: LeaderEpochCache,
        snapshots: ProducerSnapshots,
        checkpoints: Checkpoints,
        jitter_share: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.topic_partition = topic_partition
        self.config = config
        self.segments = segments
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery = recovery
        self.epochs = epochs
        self.snapshots = snapshots
        self.producer_state: ProducerStateManager = snapshots.state
        self.failed = False  # a write failed, after which memory and disk may differ
        self.released = False  # the log was deleted, or its directory failed
        self.is_future = False  # a copy in another log directory, which has no checkpoints yet
        self.copied_end_offset = segments.first_base_offset
        """Offset (exclusive) up to which the object store holds the log, as this broker knows; see ``retention``."""
        self.truncated_to: int | None = None  # lowest offset truncated to since the last cleaning; dirty from there on
        self.touched: dict[SegmentedLog, None] = {}
        """The changed logs of the broker; this one enters itself with each change, see ``ChangedLogs.follow``."""
        self.local_start = LocalStartFile(segments.disk, segments.directory)
        self._checkpoints = checkpoints
        self._jitter = Jitter(jitter_share)

    # Queries ---------------------------------------------------------------------------------------------------------

    @property
    def disk(self) -> Disk:
        """The disk that holds the files."""
        return self.segments.disk

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return self.segments.directory

    @property
    def parent_directory(self) -> str:
        """The log directory (one of ``log.dirs``) that holds the partition."""
        return self.segments.parent_directory

    @property
    def recovery_point(self) -> int:
        """Offset (exclusive) up to which the log is durable."""
        return self.recovery.offset

    def next_base_offset(self, index: int) -> int:
        """Returns the highest offset (exclusive) that segment ``index`` may contain."""
        return self.segments.end_of(index, self.log_end_offset)

    def require_healthy(self) -> None:
        """Checks that no write has failed, after which memory and disk may differ.

        Raises:
            LogStorageError: A write failed earlier.
        """
        if self.failed:
            raise LogStorageError(self.parent_directory, f"{self.topic_partition} had a failed write and is offline")

    def storage_error(self, action: str, error: OSError) -> LogStorageError:
        """Marks the log as failed, unless only descriptors are short, and returns the error to raise."""
        self.failed = self.failed or not is_shortage(error)
        return storage_failure(self.parent_directory, f"{action} {self.topic_partition}", error)

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, upper_bound_offset: int, min_one_batch: bool = False) -> ReadResult:
        """Finds the bytes of the batches from ``offset`` up to ``upper_bound_offset`` (exclusive).

        Only one segment is searched. ``min_one_batch`` returns the first batch whole however large it is (KIP-74). At
        most a header and a piece of an index are read, and once the headers of batches that were found on the disk.

        Raises:
            OffsetOutOfRangeError: The offset is outside the log.
            OffsetInRemoteStorageError: The offset is below the local log start offset.
            LogError: CORRUPT_MESSAGE, the log is too damaged to find the batch, or its offsets are out of order.
            OSError: A file could not be read.
        """
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, end_offset)
        if offset >= upper_bound_offset or offset == end_offset:
            return nothing_at(offset)
        try:
            return self.segments.find_range(offset, end_offset, max_bytes, upper_bound_offset, min_one_batch)
        except CorruptLogFileError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    # Appending -------------------------------------------------------------------------------------------------------

    def append(self, buffers: Sequence[Buffer], batches: Sequence[StagedBatch], end_offset: int) -> None:
        """Writes batches with one gathered write, and moves the log end offset to ``end_offset``.

        Raises:
            LogStorageError: The write failed; the log accepts no more batches.
        """
        try:
            self.segments.active.append(buffers, batches)
        except OSError as error:
            raise self._failed_append(error) from error
        self.log_end_offset = end_offset
        self.touched[self] = None

    def _failed_append(self, error: OSError) -> LogError:
        failure = self.storage_error("appending to", error)
        try:
            self.segments.active.abandon_write()
        except OSError as second:
            failure.add_note(f"the partial write could not be removed either: {second}")
        return failure

    def end_transaction(self, header: BatchHeader, marker: EndMarker) -> None:
        """Applies a marker that is in the log to the producer state and the index of aborted transactions.

        Raises:
            LogStorageError: The index could not be written.
        """
        completed = self.producer_state.apply_marker(header, marker)
        if completed is not None:
            aborted = self.producer_state.complete(completed)
            if aborted is not None:
                self.recovery.names_changed()  # the index file may be new
                try:
                    self.segments.active.transaction_index.append(aborted)
                except OSError as error:
                    raise self.storage_error("indexing an aborted transaction of", error) from error

    # Rolling ---------------------------------------------------------------------------------------------------------

    def must_roll(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Returns whether a batch requires a new segment; see ``LogSegment.should_roll``.

        Raises:
            LogStorageError: After a start, the segment's first batch is read for its age, and that failed.
        """
        config = self.config
        jitter_ms = self._jitter.of(config) if config.jitter_ms_max else 0  # runs once for each batch
        try:
            return self.segments.active.should_roll(config, jitter_ms, size, max_timestamp, last_offset, now_ms)
        except OSError as error:
            raise self.storage_error("reading", error) from error

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Begins a new segment at ``base_offset`` (at least the log end offset).

        The closed segment is not synced: the recovery point does not move, and the next flush covers it.

        Raises:
            LogStorageError: The directory failed, or descriptors are short.
        """
        assert base_offset >= self.log_end_offset, f"roll at {base_offset}, the log ends at {self.log_end_offset}"
        old = self.segments.active
        if old.size == 0 and old.base_offset == base_offset:
            old.created_ms = now_ms
            return
        if not self.segments.may_create:
            # The files of closed segments can be closed as soon as they are synced.
            raise DescriptorsShortError(self.parent_directory, f"{self.topic_partition} needs a new segment")
        try:
            if old.size > 0:
                old.seal()
            segment = self._new_segment(base_offset, now_ms)
            if old.size == 0:
                # An empty segment is replaced, because it would stay empty for ever.
                self.segments.remove([old])
        except OSError as error:
            raise self.storage_error("rolling", error) from error
        self._add_segment(segment)

    def _new_segment(self, base_offset: int, now_ms: int) -> LogSegment:
        """Creates an empty segment and its producer snapshot; neither of them if descriptors are short."""
        segment = self.segments.create(base_offset, self.config, now_ms)
        try:
            self.snapshots.take(base_offset)
        except OSError as error:
            self.segments.undo_create(segment, error)
            raise
        return segment

    def _add_segment(self, segment: LogSegment) -> None:
        self.segments.add(segment)
        self.touched[self] = None
        self.recovery.names_changed()

    def maybe_roll(self, now_ms: int) -> bool:
        """Rolls a segment that is older than ``segment.ms``, even if no records are appended."""
        due_ms = self.next_roll_ms()
        if due_ms is None or now_ms < due_ms:
            return False
        self.roll(self.log_end_offset, now_ms)
        return True

    def next_roll_ms(self) -> int | None:
        """Returns from when on ``maybe_roll`` rolls; None while the active segment is empty."""
        segment, config = self.segments.active, self.config
        return None if segment.size == 0 else segment.created_ms + config.roll_ms - self._jitter.of(config) + 1

    # Truncating ------------------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Removes all batches at or above ``offset``, which lies in the log; durable on return.

        Raises:
            OSError: A file could not be written. If no descriptor was free, the log is unchanged.
        """
        with ExitStack() as held:
            offset = self._cut(offset, held)
            try:
                self.segments.active.resume(offset)
            except CorruptLogFileError:
                # The index had bridged damage that it no longer bridges: the second cut is made there.
                offset = self._cut(offset, held)
                self.segments.active.resume(offset)
        self.log_end_offset = offset
        # The batch that held the log start offset may have been removed as a whole.
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery.offset = min(self.recovery.offset, offset)
        self.copied_end_offset = min(self.copied_end_offset, offset)
        self._mark_dirty_from(offset)
        self.epochs.truncate_from_end(offset)
        if self.producer_state.map_end_offset != offset:
            self.snapshots.restore(self.segments, offset)

    def _mark_dirty_from(self, offset: int) -> None:
        """Marks offsets from ``offset`` on as not cleaned, and the log as changed."""
        self.touched[self] = None
        self.truncated_to = offset if self.truncated_to is None else min(self.truncated_to, offset)

    def _cut(self, offset: int, held: ExitStack) -> int:
        """Removes batches at or above ``offset`` from the files; returns the new end offset.

        The files of the segment stay open until ``held`` ends.
        """
        segments = self.segments
        # The directory is synced and listed from here on, and each takes a descriptor. A half cut log would go on
        # without its producers, so one is held until the first file changes.
        spare = self.disk.open(segments.active.path(LOG_SUFFIX), OpenMode.READ)
        held.callback(spare.close)
        first = max(0, segments.index_of(offset))
        files = segments.all[first].files
        held.callback(files.let_go)
        files.hold()
        offset, position = segments.all[first].place_of_cut(offset)
        if self.recovery.offset > offset:  # the checkpoint must not stay above the log's end
            self._checkpoints.lower_to(self, offset)
            self.recovery.offset = offset
        # Other records may follow here, which a start must not take for committed.
        self._checkpoints.lower_watermark(self, offset)
        spare.close()
        segments.cut_behind(first)
        segments.active.cut(offset, position)
        return offset

    def restart(self, offset: int, now_ms: int, log_start_offset: int, behind: RemotePast | None = None) -> None:
        """Removes all batches and starts over, empty, at ``offset``.

        ``log_start_offset`` is checkpointed for a start after a crash. It is above ``offset`` if the next batch holds
        it. If a crash precedes that batch, the log ends below its log start offset, and starts over there, empty.

        ``behind`` is given if the object store may have the records from ``log_start_offset``, which is not above
        ``offset``, to ``offset``. After a crash half-way the log is a prefix of the old one, or what it is on return.

        Raises:
            OSError: A file could not be written. If no descriptor was free, the log is unchanged, or it failed.
        """
        # The new segment's file is open, under a name that a start removes, before anything of the log is removed. One
        # more descriptor is held until then, for the files that are opened one after the other below.
        fresh = self.segments.create(offset, self.config, now_ms, TEMPORARY_SUFFIX)
        try:
            spare = self.disk.open(fresh.path(LOG_SUFFIX), OpenMode.READ)
            try:
                # After a crash half-way, no log start offset may be above the rest, and the rest must be checked.
                self._checkpoints.restart_at(self, 0, 0)
            finally:
                spare.close()
        except OSError:
            path = fresh.path(LOG_SUFFIX)
            fresh.files.close()
            self.disk.remove(path)
            raise
        try:
            self._replace_all(fresh, offset, log_start_offset, behind)
        except OSError:
            self.failed = True
            raise

    def _replace_all(self, fresh: LogSegment, offset: int, log_start_offset: int, behind: RemotePast | None) -> None:
        self.segments.generation += 1
        self.segments.remove(list(reversed(self.segments.all)))
        self.snapshots.remove_if(lambda _: True)
        self.disk.sync_directory(self.directory)
        past = behind or RemotePast((), None)
        start_offset = offset if behind is None else log_start_offset
        if past.producer_snapshot is not None:
            self.snapshots.write(offset, past.producer_snapshot)
        if behind is not None or self.local_start.content is not None:
            # No segment is left: from here on a start after a crash begins the log at ``offset``.
            self.local_start.write(local_start(start_offset, offset, past.leader_epochs))
        fresh.files.change_suffix("")
        self._add_segment(fresh)
        self.disk.sync_directory(self.directory)
        self.epochs.replace(past.leader_epochs)
        self.epochs.write()  # while the recovery point is below all epochs
        self.log_start_offset = start_offset
        self.log_end_offset = self.recovery.offset = self.copied_end_offset = offset
        self._mark_dirty_from(offset)
        self._checkpoints.restart_at(self, offset, log_start_offset)
        self.producer_state.reset(offset)
        if past.producer_snapshot is not None:
            self.snapshots.restore(self.segments, offset)

    def drop_oldest(self, count: int, *, keeps_start: bool = False) -> None:
        """Deletes the ``count`` oldest segments, never the last one; readers that hold slices of them go on.

        ``keeps_start`` leaves the log start offset where it is, because the object store has the segments. They must be
        durable. The log start offset is durable before the first of them goes.

        Raises:
            OSError: A file could not be renamed or removed.
        """
        assert 0 < count < len(self.segments.all)
        self.touched[self] = None
        kept_from = self.segments.all[count].base_offset
        start = self.log_start_offset if keeps_start else max(self.log_start_offset, kept_from)
        if start < kept_from or self.local_start.content is not None:
            assert start >= kept_from or self.recovery.offset >= kept_from, f"{kept_from} is not durable"
            if start < kept_from:
                # A batch or a marker behind it may belong to a producer whose batches on this disk all go.
                self.snapshots.settle(self.segments.all, count - 1, kept_from)
            self.local_start.write(local_start(min(start, kept_from), kept_from, self.epochs.entries))
        self.segments.remove(self.segments.all[:count])
        self.log_start_offset = start
        self.epochs.truncate_from_start(self.log_start_offset)
        self.snapshots.remove_if(lambda offset: offset < kept_from)
        self.disk.sync_directory(self.directory)

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Replaces ``old`` with a cleaned segment, see ``SegmentList.replace``.

        Raises:
            OSError: A file could not be renamed or removed.
        """
        self.touched[self] = None
        if not self.segments.replace(old, new):
            self.recovery.names_changed()
        gone = [segment.base_offset for segment in old if segment.base_offset != new.base_offset]
        self.snapshots.remove_if(lambda offset: offset in gone)

    # Syncing ---------------------------------------------------------------------------------------------------------

    def begin_flush(self, *, up_to_closed_only: bool = False) -> Flush | None:
        """Returns a sync of the log up to its present end, or up to the active segment; None if there is no need."""
        if self.failed:
            return None
        offset = self.segments.active.base_offset if up_to_closed_only else self.log_end_offset
        if offset <= self.recovery.offset:
            return None
        return Flush(self, offset, up_to_closed_only=up_to_closed_only)

    def flush_due(self, now_ms: int) -> bool:
        """Returns whether ``flush.messages`` or ``flush.ms`` requires a sync now.

        Called after appends and from time to time.
        """
        unflushed = self.log_end_offset - self.recovery.offset
        if unflushed <= 0 or self.failed:
            return False
        since_ms = self.recovery.unflushed_since_ms
        # A wall clock that jumped back must not put the sync off for as long as it jumped.
        if since_ms is None or now_ms < since_ms:
            since_ms = self.recovery.unflushed_since_ms = now_ms
        return unflushed >= self.config.flush_messages or now_ms - since_ms >= self.config.flush_ms

    # Life cycle ------------------------------------------------------------------------------------------------------

    def moved(self, directory: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self.snapshots.moved(directory)
        self.local_start.moved(directory)
        self.epochs.moved(f"{directory}/{LEADER_EPOCH_CHECKPOINT}")
        self.segments.moved(directory)

    def seal(self) -> None:
        """Prepares for a clean stop: makes the log durable, completes its indexes and saves the producer state.

        Raises:
            OSError: A file could not be written.
            LogStorageError: An earlier write or sync failed.
        """
        self.require_healthy()
        if self.log_end_offset > 0:  # an empty log has no producers
            self.snapshots.take(self.log_end_offset)
        self.snapshots.sync()
        self.segments.active.seal()
        for segment in self.segments.all[self.segments.first_to_sync(self.recovery.offset) :]:
            segment.files.sync()
        self.epochs.write()
        self.disk.sync_directory(self.directory)
        if not self.recovery.parent_durable:
            self.disk.sync_directory(self.parent_directory)
        self.recovery.offset = self.log_end_offset

    def release(self) -> None:
        """Releases all files; each closes when its last reader is done."""
        self.failed = self.released = True
        self.epochs.release()
        self.segments.release()
