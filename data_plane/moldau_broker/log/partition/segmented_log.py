"""The segments of one log, in order: reading, rolling, truncating, dropping and syncing them.

The segments cover ``[first base offset, log end offset)``; the last one is appended to. The log start offset may lie
inside the first segment (DeleteRecords), and readers see no record below it. Leader epochs and producer state change
together with the segments.

Durability: bytes are durable below the recovery point, which only ``flush_work`` moves up, and so are the leader epochs
that begin there. Truncation is durable when it returns, and lowers the recovery point first: otherwise recovery after a
crash would skip the check of old bytes and old epochs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.records import ControlRecordType, control_record_type, decode_records
from moldau.records import parse_end_txn_marker as parse_marker
from moldau.runtime.ports.descriptors import is_shortage
from moldau_broker.log.errors import (
    CorruptLogFileError,
    DescriptorsShortError,
    LogError,
    LogStorageError,
    OffsetOutOfRangeError,
    storage_failure,
)
from moldau_broker.log.files.batches import CONTROL_BIT, scan_headers
from moldau_broker.log.files.checkpoint import parent_of, read_file, sync_file, write_atomically
from moldau_broker.log.files.names import (
    DELETED_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    parse_segment_file,
    segment_file,
)
from moldau_broker.log.files.open_files import FILES_PER_SEGMENT, OpenFiles
from moldau_broker.log.files.segment import LogSegment
from moldau_broker.log.partition.producer_state import EndMarker, ProducerStateManager, decode_snapshot
from moldau_broker.log.partition.reading import find_range, nothing_at
from moldau_broker.log.values import PendingDeletion, ReadResult, TopicPartition, Work

if TYPE_CHECKING:
    import uuid
    from collections.abc import Sequence

    from moldau.records import BatchHeader
    from moldau.runtime.ports.environment import Disk
    from moldau.values import Buffer
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.partition.epoch_cache import LeaderEpochCache

_MARKER_BYTES_MAX = 64 * 1024
"""Size limit of a decompressed control batch: a marker has about twenty bytes, and brokers do not compress it."""


class Checkpoints(Protocol):
    """The checkpoints of a log directory: recovery points, log start offsets, and the cleaner's offsets."""

    def lower_to(self, log: SegmentedLog, offset: int) -> None:
        """Lowers the log's checkpointed recovery point and clean offset to ``offset`` at most; durable on return.

        Raises:
            OSError: A checkpoint could not be written.
        """
        ...

    def restart_at(self, log: SegmentedLog, offset: int, log_start_offset: int) -> None:
        """Checkpoints recovery point and high watermark as ``offset``, and the log start offset; durable on return.

        The checkpointed clean offset becomes ``offset`` at most.

        Raises:
            OSError: A checkpoint could not be written.
        """
        ...


class SegmentedLog:
    """The segments of one log.

    Invariants: at least one segment, base offsets rise, ``log_start_offset <= log_end_offset``,
    ``recovery_point <= log_end_offset``.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        segments: Sequence[LogSegment],
        log_start_offset: int,
        log_end_offset: int,
        recovery_point: int,
        epochs: LeaderEpochCache,
        producer_state: ProducerStateManager,
        checkpoints: Checkpoints,
        topic_id: uuid.UUID | None = None,
        is_future: bool = False,
        jitter_ms: int = 0,
        names_durable: bool = True,
        is_new: bool = False,
        files: OpenFiles | None = None,
    ) -> None:
        self.disk = disk
        self.files = files if files is not None else OpenFiles(disk)
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.is_future = is_future
        self.config = config
        self.jitter_ms = jitter_ms
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.recovery_point = recovery_point
        self.epochs = epochs
        self.producer_state = producer_state
        self.failed = False
        self.unflushed_since_ms: int | None = None  # when the oldest unflushed append was noticed
        self.deletions: list[PendingDeletion] = []
        self.truncated_to: int | None = None  # lowest offset truncated to since the last cleaning; dirty from there on
        self._checkpoints = checkpoints
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in segments]
        self._active = self._segments[-1]
        self.released = False  # the log was deleted, or its directory failed
        self._generation = 0  # counts truncations and replacements, which invalidate work in progress
        self._names_durable = names_durable
        self._parent_durable = not is_new  # whether a power loss leaves the directory itself
        self._unsynced_snapshots: list[str] = []

    # Queries ---------------------------------------------------------------------------------------------------------

    @property
    def parent_directory(self) -> str:
        """The log directory (one of ``log.dirs``) that holds the partition."""
        return self.directory.rpartition("/")[0]

    @property
    def segments(self) -> Sequence[LogSegment]:
        """All segments, oldest first; treat as read-only and do not hold across changes."""
        return self._segments

    @property
    def active_segment(self) -> LogSegment:
        """The segment that is appended to."""
        return self._active

    @property
    def segment_count(self) -> int:
        """Number of segments."""
        return len(self._segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(segment.size for segment in self._segments)

    @property
    def generation(self) -> int:
        """Changes with each truncation or replacement of segments."""
        return self._generation

    def segment_index(self, offset: int) -> int:
        """Returns the index of the last segment whose base offset is not above ``offset``, -1 if there is none."""
        return bisect_right(self._bases, offset) - 1

    def next_base_offset(self, index: int) -> int:
        """Returns the highest offset (exclusive) that segment ``index`` may contain."""
        return self._bases[index + 1] if index + 1 < len(self._bases) else self.log_end_offset

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
        most a header and a piece of an index are read.

        Raises:
            OffsetOutOfRangeError: The offset is outside the log.
            LogError: CORRUPT_MESSAGE, the log is too damaged to find the batch.
            OSError: A file could not be read.
        """
        end_offset = self.log_end_offset
        if not self.log_start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, end_offset)
        if offset >= upper_bound_offset or offset == end_offset:
            return nothing_at(offset)
        try:
            return find_range(
                self._segments, self._bases, end_offset, offset, max_bytes, upper_bound_offset, min_one_batch
            )
        except CorruptLogFileError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error

    # Rolling ---------------------------------------------------------------------------------------------------------

    def must_roll(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Returns whether a batch requires a new segment; see ``LogSegment.should_roll``.

        Raises:
            LogStorageError: After a start, the segment's first batch is read for its age, and that failed.
        """
        try:
            return self._active.should_roll(self.config, self.jitter_ms, size, max_timestamp, last_offset, now_ms)
        except OSError as error:
            raise self.storage_error("reading", error) from error

    def roll(self, base_offset: int, now_ms: int) -> None:
        """Begins a new segment at ``base_offset`` (at least the log end offset).

        The closed segment is not synced: the recovery point does not move, and the next ``flush_work`` covers it.

        Raises:
            LogStorageError: The directory failed, or descriptors are short.
        """
        assert base_offset >= self.log_end_offset, f"roll at {base_offset}, the log ends at {self.log_end_offset}"
        old = self._active
        if old.size == 0 and old.base_offset == base_offset:
            old.created_ms = now_ms
            return
        if not self.files.has_room(FILES_PER_SEGMENT):
            # The files of closed segments can be closed as soon as they are synced.
            raise DescriptorsShortError(self.parent_directory, f"{self.topic_partition} needs a new segment")
        try:
            if old.size > 0:
                old.seal()
            segment = self._new_segment(base_offset, now_ms)
            if old.size == 0:
                # An empty segment is replaced, because it would stay empty for ever.
                self._remove_segments([old])
        except OSError as error:
            raise self.storage_error("rolling", error) from error
        self._add_segment(segment)

    def _new_segment(self, base_offset: int, now_ms: int) -> LogSegment:
        """Creates an empty segment and its producer snapshot; neither of them if descriptors are short."""
        segment = LogSegment(self.disk, self.directory, base_offset, self.config, now_ms, files=self.files)
        try:
            self._take_snapshot(base_offset)
        except OSError as error:
            if is_shortage(error):  # the log goes on without the segment, so a start must not find it
                segment.files.close()
                self.disk.remove(segment.path(LOG_SUFFIX))
            raise
        return segment

    def _add_segment(self, segment: LogSegment) -> None:
        assert not self._bases or segment.base_offset > self._bases[-1]
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self._active = segment
        self._names_durable = False

    def maybe_roll(self, now_ms: int) -> bool:
        """Rolls a segment that is older than ``segment.ms``, even if no records are appended."""
        segment = self._active
        if segment.size == 0 or now_ms - segment.created_ms <= self.config.roll_ms - self.jitter_ms:
            return False
        self.roll(self.log_end_offset, now_ms)
        return True

    # Producer state --------------------------------------------------------------------------------------------------

    def snapshot_offsets(self) -> list[int]:
        """Returns the offsets of the producer snapshots in the directory, rising."""
        names = (parse_segment_file(name) for name in self.disk.list_directory(self.directory))
        return [
            name.base_offset for name in names if name is not None and name.kind == SNAPSHOT_SUFFIX and not name.state
        ]

    def snapshot_path(self, offset: int) -> str:
        """Returns the path of the snapshot at ``offset``."""
        return f"{self.directory}/{segment_file(offset, SNAPSHOT_SUFFIX)}"

    def _take_snapshot(self, offset: int) -> None:
        # The next flush syncs it. A snapshot torn by a crash has a bad checksum and is rebuilt from the log.
        self._unsynced_snapshots.append(self.snapshot_path(offset))
        write_atomically(self.disk, self.snapshot_path(offset), self.producer_state.encode_snapshot(), durable=False)

    def take_producer_snapshot(self) -> None:
        """Writes the producer state as of the log end offset at a clean stop."""
        if self.log_end_offset > 0:  # an empty log has no producers
            self._take_snapshot(self.log_end_offset)

    def reload_producer_state(self, end_offset: int) -> None:
        """Rebuilds the producer state as of ``end_offset`` from the newest good snapshot and the batches after it.

        Snapshots above ``end_offset`` or below the first segment describe removed batches. They are removed durably,
        or they would come back after the log has grown past them with other batches.

        Raises:
            OSError: A file could not be read or removed.
        """
        state = self.producer_state
        removed = False
        knows_all = state.knows_all and self._bases[0] == 0
        state.reset(self._bases[0])
        state.knows_all = knows_all
        for offset in reversed(self.snapshot_offsets()):
            path = self.snapshot_path(offset)
            if offset > end_offset or offset < self._bases[0]:
                # Batches after a snapshot below the first segment are gone, maybe the end of a transaction open in it.
                self.disk.remove(path)
                removed = True
                continue
            try:
                state.load_snapshot(decode_snapshot(path, read_file(self.disk, path)), offset)
                break
            except CorruptLogFileError:
                self.disk.remove(path)
                removed = True
            except OSError as error:
                if not is_shortage(error):
                    raise
                # An older snapshot and more batches give the same state.
        if removed:
            self.disk.sync_directory(self.directory)
        self._replay_producers(state, end_offset)
        state.map_end_offset = end_offset

    def _replay_producers(self, state: ProducerStateManager, end_offset: int) -> None:
        start_offset = state.map_end_offset
        for index in range(max(0, self.segment_index(start_offset)), len(self._segments)):
            segment = self._segments[index]
            if segment.base_offset >= end_offset:
                return
            try:
                start = segment.position_of(start_offset) if segment.base_offset < start_offset else 0
            except CorruptLogFileError:
                continue  # damaged, as where the walk below ends early: the producers there are unknown
            for position, header in scan_headers(segment.file, start, segment.size):
                if header.base_offset >= end_offset:
                    return
                if header.producer_id >= 0:
                    state.replay(header, marker_of(header, segment, position))

    # Truncating ------------------------------------------------------------------------------------------------------

    def _truncate(self, offset: int) -> None:
        """Removes all batches at or above ``offset``, which lies in the log; durable on return.

        Raises:
            OSError: A file could not be written.
        """
        offset = self._cut(offset)
        try:
            self._active.resume()
        except CorruptLogFileError:
            # The index had bridged damage that it no longer bridges: the second cut is made there.
            offset = self._cut(offset)
            self._active.resume()
        self.log_end_offset = offset
        # The batch that held the log start offset may have been removed as a whole.
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self._dirty_again_from(offset)
        self.epochs.truncate_from_end(offset)
        if self.producer_state.map_end_offset != offset:
            self.reload_producer_state(offset)

    def _dirty_again_from(self, offset: int) -> None:
        """Marks offsets from ``offset`` on as not cleaned."""
        self.truncated_to = offset if self.truncated_to is None else min(self.truncated_to, offset)

    def _cut(self, offset: int) -> int:
        """Removes batches at or above ``offset`` from the files; returns the new end offset."""
        first = max(0, self.segment_index(offset))
        self._segments[first].files.hold()
        offset, position = self._segments[first].place_of_cut(offset)
        if self.recovery_point > offset:  # the checkpoint must not stay above the log's end
            self._checkpoints.lower_to(self, offset)
            self.recovery_point = offset
        self._generation += 1
        doomed = self._segments[first + 1 :]
        # From the end, so that a crash in between leaves a prefix of the log.
        self._remove_segments(list(reversed(doomed)))
        if doomed:
            self.disk.sync_directory(self.directory)
        self._active = self._segments[-1]
        self._active.cut(offset, position)
        return offset

    def _restart_at(self, offset: int, now_ms: int, log_start_offset: int) -> None:
        """Removes all batches and starts over, empty, at ``offset``.

        ``log_start_offset`` is checkpointed for a start after a crash. It is above ``offset`` if the next batch holds
        it. If a crash precedes that batch, the log ends below its log start offset, and starts over there, empty.

        Raises:
            OSError: A file could not be written.
        """
        # First: after a crash half-way, no log start offset may be above the rest, and the rest must be checked.
        self._checkpoints.restart_at(self, 0, 0)
        self._generation += 1
        self._remove_segments(list(reversed(self._segments)))
        for snapshot in self.snapshot_offsets():
            self.disk.remove(self.snapshot_path(snapshot))
        self.disk.sync_directory(self.directory)
        self._add_segment(LogSegment(self.disk, self.directory, offset, self.config, now_ms, files=self.files))
        self.disk.sync_directory(self.directory)
        self.epochs.clear()
        self.epochs.write()  # while the recovery point is below all epochs
        self.log_start_offset = self.log_end_offset = self.recovery_point = offset
        self._dirty_again_from(offset)
        self._checkpoints.restart_at(self, offset, log_start_offset)
        self.producer_state.reset(offset)

    def _remove_segments(self, segments: Sequence[LogSegment]) -> None:
        """Removes segments from the log and renames their files; the files are deleted later (``deletions``)."""
        for segment in segments:
            index = self._segments.index(segment)
            del self._segments[index]
            del self._bases[index]
            self._delete_files(segment)

    def _delete_files(self, segment: LogSegment) -> None:
        segment.files.change_suffix(DELETED_SUFFIX)
        segment.files.close_indexes()
        self.deletions.append(PendingDeletion(tuple(segment.files.paths())))

    def drop_oldest(self, count: int) -> None:
        """Deletes the ``count`` oldest segments, never the last one; readers that hold slices of them go on."""
        assert 0 < count < len(self._segments)
        doomed = self._segments[:count]
        self._remove_segments(doomed)
        kept_from = self._bases[0]
        self.log_start_offset = max(self.log_start_offset, kept_from)
        self.epochs.truncate_from_start(self.log_start_offset)
        for offset in self.snapshot_offsets():
            if offset < kept_from:
                self.disk.remove(self.snapshot_path(offset))
        self.disk.sync_directory(self.directory)

    def replace_segments(self, old: Sequence[LogSegment], new: LogSegment) -> None:
        """Replaces ``old`` with a cleaned segment (its files end in ``.swap``); each step is crash-safe.

        The content of ``.swap`` is durable and its name marks it as complete, so a restart finishes the replacement.
        """
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old), "the replaced segments stand side by side"
        assert old[-1] is not self._active, "the active segment is never replaced"
        self._generation += 1
        self._segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]
        for segment in reversed(old):
            self._delete_files(segment)
        self.disk.sync_directory(self.directory)
        new.files.change_suffix("")
        self.disk.sync_directory(self.directory)
        new.files.settle()
        gone = [segment.base_offset for segment in old if segment.base_offset != new.base_offset]
        for offset in self.snapshot_offsets():
            if offset in gone:
                self.disk.remove(self.snapshot_path(offset))

    # Syncing ---------------------------------------------------------------------------------------------------------

    def _first_to_sync(self) -> int:
        """Returns the index of the first segment that may be not durable; it includes one below the recovery point.

        That segment may have been closed after all its batches were synced, but before its indexes were.
        """
        return max(0, bisect_left(self._bases, self.recovery_point) - 1)

    def flush_work(self, up_to_closed_only: bool = False) -> Work | None:
        """Returns work that makes the log durable up to its present end, or up to the active segment.

        Its completion moves the recovery point. None if there is nothing to do. Appends may go on meanwhile; a
        truncation makes the result of the work void.
        """
        if self.failed:
            return None
        offset = self._active.base_offset if up_to_closed_only else self.log_end_offset
        if offset <= self.recovery_point:
            return None
        # The active segment's indexes are not synced, because a crash makes recovery rebuild them.
        first = self._first_to_sync()
        closed = [segment for segment in self._segments[first:] if segment is not self._active]
        active = None if up_to_closed_only else self._active.file
        sync_names, self._names_durable = not self._names_durable, True
        sync_parent = not self._parent_durable
        snapshots, self._unsynced_snapshots = self._unsynced_snapshots, []
        generation, directory, disk = self._generation, self.directory, self.disk
        write_epochs = self.epochs.prepare_write()
        epochs_gone = False  # the log was moved or deleted before its epochs were written
        self.unflushed_since_ms = None

        def run() -> None:
            nonlocal epochs_gone
            try:
                # First, so that the directory is synced with all its names.
                epochs_gone = write_epochs is not None and not write_epochs()
                for segment in closed:
                    segment.files.sync()
                if active is not None:
                    active.sync()
                for path in snapshots:
                    sync_file(disk, path)
                if sync_names:
                    self._sync_names(directory)
                if sync_parent:
                    disk.sync_directory(parent_of(directory))
            except OSError as error:
                # Here and not only in ``failed``, which is not called when the caller is cancelled. A failed sync must
                # never be retried: the next one would succeed though the pages are lost (fsyncgate).
                self.failed = self.failed or not is_shortage(error)
                raise

        def complete() -> None:
            if directory != self.directory:
                self._names_durable = False  # the names of another directory were synced
            elif generation == self._generation and not self.failed and not epochs_gone:
                self._parent_durable = True
                self.recovery_point = max(self.recovery_point, offset)
                for segment in closed:
                    segment.files.settle()
                self.durable_end_moved()

        def failed(error: BaseException) -> None:
            if not is_shortage(error):
                self.failed = True
                return
            # A file or directory could not be opened: nothing has changed, and the next flush tries again.
            self._names_durable = self._names_durable and not sync_names
            self._unsynced_snapshots = snapshots + self._unsynced_snapshots

        return Work(
            name=f"flush {self.topic_partition}",
            run=run,
            complete=complete,
            failed=failed,
            directory=self.parent_directory,
        )

    def _sync_names(self, directory: str) -> None:
        """Makes the names in the log's directory durable in a thread, while the log may be deleted or moved."""
        try:
            self.disk.sync_directory(directory)
        except FileNotFoundError:
            if not self.released and self.directory == directory:
                raise

    def durable_end_moved(self) -> None:
        """Called when the recovery point has moved up; subclasses override it."""

    # Life cycle ------------------------------------------------------------------------------------------------------

    def moved(self, directory: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self._unsynced_snapshots = [f"{directory}/{path.rpartition('/')[2]}" for path in self._unsynced_snapshots]
        self.epochs.moved(f"{directory}/{LEADER_EPOCH_CHECKPOINT}")
        self.directory = directory
        for segment in self._segments:
            segment.files.moved(directory)

    def seal(self) -> None:
        """Prepares for a clean stop: makes the log durable, completes its indexes and saves the producer state.

        Raises:
            OSError: A file could not be written.
            LogStorageError: An earlier write or sync failed.
        """
        self.require_healthy()
        self.take_producer_snapshot()
        for path in self._unsynced_snapshots:
            sync_file(self.disk, path)
        self._unsynced_snapshots = []
        self._active.seal()
        first = self._first_to_sync()
        for segment in self._segments[first:]:
            segment.files.sync()
        self.epochs.write()
        self.disk.sync_directory(self.directory)
        if not self._parent_durable:
            self.disk.sync_directory(self.parent_directory)
        self.recovery_point = self.log_end_offset

    def close(self) -> None:
        """Closes all files without syncing; they must have no readers left."""
        for segment in self._segments:
            segment.files.close()

    def release(self) -> None:
        """Releases all files; each closes when its last reader is done."""
        self.failed = self.released = True
        self.epochs.release()
        for segment in self._segments:
            segment.files.release()
        self._segments = []
        self._bases = []


def marker_of(header: BatchHeader, segment: LogSegment, position: int) -> EndMarker | None:
    """Returns the end-transaction marker of a control batch in a segment; None for other batches."""
    if not header.attributes & CONTROL_BIT:
        return None
    return decode_marker(header, segment.file.read(position, header.size_bytes))


def decode_marker(header: BatchHeader, data: Buffer) -> EndMarker | None:
    """Returns the end-transaction marker in the control batch ``data``; None for other control records."""
    for record in decode_records(data, 0, header, max_decompressed_bytes=_MARKER_BYTES_MAX):
        if control_record_type(record) in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
            marker = parse_marker(record)
            return EndMarker(marker.is_commit, marker.coordinator_epoch)
    return None
