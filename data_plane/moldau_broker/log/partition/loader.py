"""Opening of a log: finishes interrupted steps, recovers segments that may be damaged, and loads small files.

After a clean stop nothing is scanned: segments are opened, the last entries of their indexes are checked, and the
producer snapshot at the log's end is read. After an unclean one, every segment at or above the recovery point is read
as a whole: each batch must be sound (length, CRC), follow the one before in offset and not fall in leader epoch. The
log is cut before the first batch that fails this. Indexes, aborted transactions, producer state and epochs are rebuilt
from the batches. After a failed sync, the page cache may hold pages that no later sync writes, so all batches above the
recovery point are written again.

A swap of cleaned segments is finished if ``<base>.log.swap`` exists (its content was durable before it got that name),
else undone.

A tiered log may begin above its log start offset (``remote.local_start``). Segments whose deletion was interrupted are
removed, so that the log has no hole, and the epochs of the records that are not on this disk come from that file.

The loader touches nothing but the partition's directory, so logs are loaded side by side
(``LogManager.recovery_work``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from moldau.records import CorruptRecordError
from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import CONTROL_BIT, scan_headers
from moldau_broker.log.files.checkpoint import read_file
from moldau_broker.log.files.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_segment_file,
    segment_file,
)
from moldau_broker.log.files.open_files import FILES_PER_SEGMENT, OpenFiles
from moldau_broker.log.files.segment import LogSegment
from moldau_broker.log.partition.epoch_cache import LeaderEpochCache
from moldau_broker.log.partition.partition_log import PartitionLog
from moldau_broker.log.partition.recovery_point import RecoveryPoint
from moldau_broker.log.partition.segment_list import SegmentList
from moldau_broker.log.partition.segmented_log import SegmentedLog
from moldau_broker.log.producers.end_markers import decode_marker, marker_of
from moldau_broker.log.producers.producer_snapshots import ProducerSnapshots
from moldau_broker.log.producers.producer_state import ProducerStateManager, decode_snapshot
from moldau_broker.log.remote.local_start import LocalStartFile

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.files.batches import Batch
    from moldau_broker.log.files.checkpoint import EpochEntry
    from moldau_broker.log.partition.segmented_log import Checkpoints
    from moldau_broker.log.values import TopicPartition

WRITE_AGAIN_BYTES = 1 << 20


@dataclass(slots=True, kw_only=True)
class LoadReport:
    """The findings and actions of loading one log, for the log output and for tests."""

    clean: bool
    segments: int = 0
    recovered_segments: int = 0
    recovered_bytes: int = 0
    truncated_at: int | None = None  # log end offset after bad bytes were cut
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """The parameters of opening one log."""

    directory: str
    topic_partition: TopicPartition
    config: LogConfig
    checkpoints: Checkpoints
    now_ms: int
    clean: bool = False
    recovery_point: int = 0
    recovery_point_known: bool = True  # False: its checkpoint is lost, so gaps between segments may be legitimate
    log_start_offset: int = 0
    high_watermark: int = 0
    topic_id: uuid.UUID | None = None
    is_future: bool = False
    jitter_share: Callable[[], float] = lambda: 0.0
    producer_id_expiration_ms: int = 86_400_000
    damaged: tuple[str, ...] = ()  # paths of files that are known to be damaged
    files: OpenFiles | None = None


def load_log(disk: Disk, request: LoadRequest) -> tuple[PartitionLog, LoadReport]:
    """Opens the log in ``request.directory``; blocks.

    A missing directory is created; it is durable with the log's first flush.

    Raises:
        OSError: A file could not be read or written.
    """
    return _Loader(disk, request).load()


class _Loader:
    def __init__(self, disk: Disk, request: LoadRequest) -> None:
        self._disk = disk
        self._request = request
        self._files = request.files if request.files is not None else OpenFiles(disk)
        self._directory = request.directory
        self._report = LoadReport(clean=request.clean)
        self._segments: list[LogSegment] = []
        self._local_start = LocalStartFile(disk, self._directory)
        self._epochs = LeaderEpochCache(disk, f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}")
        self._producers = ProducerStateManager(request.producer_id_expiration_ms, request.now_ms)
        self._is_new = False  # whether the directory was created: the first flush syncs its name and those in it
        self._read_to = 0  # end offset of the batches that were read again
        self._changed = False  # whether files were removed, renamed or cut, and a sync is needed

    def load(self) -> tuple[PartitionLog, LoadReport]:
        disk = self._disk
        if not disk.exists(self._directory):
            disk.make_directories(self._directory)
            self._is_new = True
        self._finish_interrupted()
        self._load_local_start()
        names = [parse_segment_file(name) for name in disk.list_directory(self._directory)]
        bases = [name.base_offset for name in names if name and name.kind == LOG_SUFFIX and not name.state]
        self._segments = [
            LogSegment(disk, self._directory, base, self._request.config, self._request.now_ms, files=self._files)
            for base in sorted(bases)
        ]
        self._report.segments = len(bases)
        self._remove_orphans(bases)
        self._finish_deletion()
        request = self._request
        epochs_known = self._load_epochs()
        end_offset = self._check_or_recover(epochs_known)
        begin = max(request.log_start_offset, self._local_start.offset)
        if not self._segments or end_offset < begin:
            end_offset = self._begin_empty(begin)
        self._segments[-1].files.unsettle()
        first_on_disk = self._segments[0].base_offset
        log_start = self._local_start.log_start(request.log_start_offset, first_on_disk, self._epochs.entries)
        log_start = min(log_start, end_offset)
        self._epochs.truncate_from_end(end_offset)
        self._epochs.truncate_from_start(log_start)
        if request.clean or self._report.truncated_at is not None:
            self._epochs.write()  # else all epochs that the file lacks are above the recovery point
        self._producers.knows_all = end_offset == 0
        segments = SegmentList(disk, self._directory, self._files, self._segments)
        snapshots = ProducerSnapshots(disk, self._directory, self._producers)
        storage = SegmentedLog(
            request.topic_partition,
            request.config,
            segments=segments,
            log_start_offset=log_start,
            log_end_offset=end_offset,
            recovery=RecoveryPoint(
                end_offset if request.clean else min(end_offset, request.recovery_point),
                names_durable=not (self._report.recovered_segments or self._is_new),
                # A process that died before its first flush has not synced the directory's name either.
                parent_durable=request.clean and not self._is_new,
            ),
            epochs=self._epochs,
            snapshots=snapshots,
            checkpoints=request.checkpoints,
            jitter_share=request.jitter_share,
        )
        storage.is_future = request.is_future
        storage.local_start = self._local_start
        snapshots.restore(segments, end_offset)
        self._resume(storage)
        segments.active.files.rest()  # a loaded log needs no more descriptors than a new one
        if self._changed and not self._is_new:
            disk.sync_directory(self._directory)
        log = PartitionLog(storage, high_watermark=request.high_watermark, topic_id=request.topic_id)
        return log, self._report

    def _resume(self, log: SegmentedLog) -> None:
        """Prepares the active segment for appends, or begins another one behind it if it is damaged.

        A clean start has not read the segment. Reads of its damaged part are refused, and nothing else is lost.
        """
        try:
            log.segments.active.resume(log.log_end_offset)
        except CorruptLogFileError as error:
            self._report.problems.append(str(error))
            if log.segments.may_create:  # else later records of the segment are refused, too, until it is closed
                log.roll(log.log_end_offset, self._request.now_ms)

    # Interrupted steps -----------------------------------------------------------------------------------------------

    def _finish_interrupted(self) -> None:
        """Removes temporary and deleted files; finishes swaps."""
        swapped: list[int] = []
        for name in self._disk.list_directory(self._directory):
            parsed = parse_segment_file(name)
            if name.endswith(TEMPORARY_SUFFIX) or (parsed and parsed.state in (DELETED_SUFFIX, CLEANED_SUFFIX)):
                self._disk.remove(f"{self._directory}/{name}")
                self._changed = True
            elif parsed and parsed.kind == LOG_SUFFIX and parsed.state == SWAP_SUFFIX:
                swapped.append(parsed.base_offset)
        for base in swapped:
            self._finish_swap(base)
        for name in self._disk.list_directory(self._directory):
            # Indexes of a swap whose log file was not renamed.
            if name.endswith(SWAP_SUFFIX):
                self._disk.remove(f"{self._directory}/{name}")
                self._changed = True

    def _finish_swap(self, base: int) -> None:
        swap = f"{self._directory}/{segment_file(base, LOG_SUFFIX)}{SWAP_SUFFIX}"
        end = self._end_of_file(swap, base)
        for name in self._disk.list_directory(self._directory):
            parsed = parse_segment_file(name)
            if parsed is None or parsed.state or parsed.kind not in SEGMENT_SUFFIXES:
                continue
            if parsed.base_offset == base or base < parsed.base_offset < end:
                self._disk.remove(f"{self._directory}/{name}")
        self._disk.sync_directory(self._directory)
        for kind in reversed(SEGMENT_SUFFIXES):
            target = f"{self._directory}/{segment_file(base, kind)}"
            if self._disk.exists(target + SWAP_SUFFIX):
                self._disk.rename(target + SWAP_SUFFIX, target)
        self._disk.sync_directory(self._directory)
        self._report.problems.append(f"finished the swap of segment {base}")

    def _end_of_file(self, path: str, base: int) -> int:
        # The file ends in .swap, so it is not opened as a segment; a walk over its headers gives the end.
        file = self._disk.open(path, OpenMode.READ)
        try:
            end = base
            for _, header in scan_headers(file, 0, file.size):
                end = header.next_offset
            return end
        finally:
            file.close()

    def _remove_orphans(self, bases: list[int]) -> None:
        """Removes index files without a log file."""
        known = dict.fromkeys(bases)
        for name in self._disk.list_directory(self._directory):
            parsed = parse_segment_file(name)
            if parsed and parsed.kind in SEGMENT_SUFFIXES and not parsed.state and parsed.base_offset not in known:
                self._disk.remove(f"{self._directory}/{name}")
                self._report.problems.append(f"removed {name}, its log file is missing")
                self._changed = True

    # The start on this disk ------------------------------------------------------------------------------------------

    def _load_local_start(self) -> None:
        """Reads where the log begins on this disk, and applies it to the request.

        All that was copied was durable, so no recovery is needed below. Without its checkpoint, the log start offset
        falls back to one that the log had before: the leader moves it behind remote segments that are gone.
        """
        try:
            self._local_start.load()
        except CorruptLogFileError as error:
            self._report.problems.append(str(error))
        start, request = self._local_start.content, self._request
        if start is not None:
            self._request = replace(
                request,
                recovery_point=max(request.recovery_point, start.local_log_start_offset),
                log_start_offset=max(request.log_start_offset, start.log_start_offset),
            )

    def _finish_deletion(self) -> None:
        """Removes segments below the local log start offset, whose deletion was interrupted."""
        count = 0
        local = self._local_start.offset
        while count + 1 < len(self._segments) and self._segments[count + 1].base_offset <= local:
            count += 1
        self._remove(self._segments[:count], f"the object store has the records below {local}")
        del self._segments[:count]
        if self._local_start.is_damaged and self._segments:
            # The file was written when all before the first segment was durable, the epochs too.
            durable = max(self._request.recovery_point, self._segments[0].base_offset)
            self._request = replace(self._request, recovery_point=durable)

    # Checking and recovering -----------------------------------------------------------------------------------------

    def _load_epochs(self) -> bool:
        """Reads the epochs; False if those of the batches on this disk must be read from them."""
        known = self._read_epochs()
        self._epochs.replace(self._local_start.with_past(self._epochs.entries))
        return known

    def _read_epochs(self) -> bool:
        """Reads the epoch checkpoint; False if it must be rebuilt from the log."""
        path = f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}"
        if path in self._request.damaged:
            self._report.problems.append(f"{path} is not as it was at the clean stop")
            self._epochs = LeaderEpochCache(self._disk, path, durable=None)
            return False
        try:
            self._epochs = LeaderEpochCache.load(self._disk, path)
        except CorruptLogFileError as error:
            self._report.problems.append(str(error))
            self._epochs = LeaderEpochCache(self._disk, path, durable=None)
            return False
        if not self._segments:
            return True
        if not self._request.clean:
            # Above the recovery point, the file may be outdated; the batches are right.
            self._epochs.truncate_from_end(self._request.recovery_point)
        # A log start offset not checkpointed before a crash falls back, while the epochs are already truncated.
        entries = self._epochs.entries
        start = max(self._request.log_start_offset, self._segments[0].base_offset)
        return bool(entries) and entries[0].start_offset <= start

    def _complete_epochs(self, before: Sequence[EpochEntry]) -> None:
        """Completes the epochs that were read from the batches with those that batches do not show."""
        cache = self._epochs
        entries = cache.entries
        if entries:
            # The first batches may have been compacted away; their epoch is taken to be that of the first one left.
            cache.extend_to(min(self._segments[0].base_offset, entries[0].start_offset))
        for entry in before:
            if entry.leader_epoch > cache.latest_epoch and entry.start_offset >= self._read_to:
                cache.assign(entry.leader_epoch, entry.start_offset)

    def _check_or_recover(self, epochs_known: bool) -> int:
        """Checks the segments and recovers those that may be damaged; returns the log end offset."""
        request = self._request
        next_offset, epoch = 0, -1
        epochs_before = self._epochs.entries
        if not epochs_known:
            self._epochs = LeaderEpochCache(
                self._disk,
                f"{self._directory}/{LEADER_EPOCH_CHECKPOINT}",
                self._local_start.with_past(()),
                durable=self._epochs.durable,
            )
        suspect_from = len(self._segments)
        if not request.clean:
            suspect_from = 0
            for index, segment in enumerate(self._segments):
                # A segment that ends at the recovery point is suspect too: its indexes may not have been synced.
                if segment.base_offset < request.recovery_point:
                    suspect_from = index
        position = 0
        while position < len(self._segments):
            segment = self._segments[position]
            if segment.base_offset < next_offset:
                # Two segments that overlap: a crash brought back a name whose removal was not durable.
                self._drop_from(
                    position, f"segment {segment.base_offset} begins below {next_offset}, where the one before ends"
                )
                break
            suspect = position >= suspect_from or not self._sound(segment, last=position == len(self._segments) - 1)
            if suspect:
                before = segment.file.size
                problem, next_offset, epoch = self._recover(segment, epoch)
                self._report.recovered_segments += 1
                self._report.recovered_bytes += before
                if problem is not None:
                    self._report.problems.append(problem)
                    self._report.truncated_at = next_offset
                    self._changed = True
                    self._drop_from(position + 1, "it follows bad bytes")
                    break
                if self._is_hole(position, next_offset):
                    self._report.truncated_at = next_offset
                    self._drop_from(position + 1, f"the segment before it ends at {next_offset}, its tail was lost")
                    break
            else:
                if not epochs_known:
                    for _, header in scan_headers(segment.file, 0, segment.size):
                        self._epochs.assign(header.partition_leader_epoch, header.base_offset)
                next_offset = self._end_of(segment) if position == len(self._segments) - 1 else segment.base_offset
            position += 1
            if position < len(self._segments):
                self._let_go(segment, is_durable=not suspect)
        if self._report.recovered_segments or not epochs_known:
            if self._changed:
                # Removed batches must not come back under new bytes. Otherwise nothing is synced here: the recovery
                # point stays, and the first flushes move it.
                for segment in self._segments[max(0, suspect_from) :]:
                    segment.files.sync()
            self._complete_epochs(epochs_before)
        return next_offset

    def _let_go(self, segment: LogSegment, *, is_durable: bool) -> None:
        """Lets the files of a closed segment be closed once it is durable; syncs it if descriptors are short."""
        if not is_durable and not self._files.has_room(FILES_PER_SEGMENT):
            segment.files.sync()
            is_durable = True
        if is_durable:
            segment.files.settle()

    def _is_hole(self, position: int, end_offset: int) -> bool:
        """Returns whether a segment lost its tail without leaving a damaged batch.

        A segment begins where the one before ends, and cleaning reaches only up to the recovery point. So a gap above
        the recovery point means that bytes, or a whole segment, were lost.
        """
        if position + 1 >= len(self._segments) or not self._request.recovery_point_known or self._request.clean:
            return False
        following = self._segments[position + 1].base_offset
        return end_offset < following and following > self._request.recovery_point

    def _sound(self, segment: LogSegment, *, last: bool) -> bool:
        """Returns whether a segment can be used without recovery; rebuilds its sparse indexes if needed."""
        problem = self._problem_of_transactions(segment)
        if problem is not None:
            self._report.problems.append(problem)
            if last:
                return False  # its entries are rebuilt from the producer state while the batches are read
            self._index_transactions(segment)
        mend = not all(self._disk.exists(segment.path(kind)) for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
        # An index rebuilt in memory by a reader was lost with the process: look-ups would be right but slow.
        mend = mend or (segment.offset_index.count == 0 and segment.size > self._request.config.index_interval_bytes)
        try:
            segment.offset_index.check(segment.size)
            segment.time_index.check()
        except CorruptLogFileError as error:
            self._report.problems.append(str(error))
            mend = True
        if mend and last:
            segment.rebuild_indexes()
        elif mend:
            segment.mend_indexes()
            segment.seal()
            if segment.has_lost_its_end:
                self._report.problems.append(f"{segment.file.path}: its end is missing, the file was longer once")
        return True

    def _problem_of_transactions(self, segment: LogSegment) -> str | None:
        """Returns why the index of aborted transactions cannot be used, None if it can."""
        if segment.transaction_index.path in self._request.damaged:
            return f"{segment.transaction_index.path} is not as it was at the clean stop"
        try:
            segment.transaction_index.entries()
        except CorruptLogFileError as error:
            return str(error)
        return None

    def _index_transactions(self, segment: LogSegment) -> None:
        """Rebuilds the index of aborted transactions of a closed segment; durable on return.

        The segment is not recovered: where one of its batches is damaged, too, all later segments would be dropped.
        """
        self._load_producers(segment.base_offset)
        segment.transaction_index.reset()
        for position, header in scan_headers(segment.file, 0, segment.size):
            if header.producer_id >= 0:
                aborted = self._producers.replay(header, marker_of(header, segment, position))
                if aborted is not None:
                    segment.transaction_index.append(aborted)
        segment.files.sync()
        self._changed = True

    def _end_of(self, segment: LogSegment) -> int:
        """Returns the offset after the last batch of a cleanly closed segment; cuts bytes that are no batch."""
        end, size = segment.base_offset, 0
        start = segment.last_indexed_position()
        for position, header in scan_headers(segment.file, start, segment.size):
            if header.base_offset < end or not segment.offset_index.fits(header.last_offset):
                break  # the checksum does not cover the base offset
            end, size = header.next_offset, position + header.size_bytes
        if size != segment.size:
            problem, end, _ = self._recover(segment, -1)
            self._report.problems.append(
                problem or f"{segment.file.path}: ends at byte {size}, its index said otherwise"
            )
            self._report.truncated_at = end
        return end

    def _recover(self, segment: LogSegment, epoch: int) -> tuple[str | None, int, int]:
        """Reads the whole segment; returns why it was cut (or None), the offset after it and its last epoch."""
        self._load_producers(segment.base_offset)
        next_offset = segment.base_offset

        later = (other.base_offset for other in self._segments if other.base_offset > segment.base_offset)
        limit = min(later, default=1 << 62)

        def accept(batch: Batch) -> str | None:
            nonlocal next_offset, epoch
            header = batch.header
            # The checksum does not cover the base offset: it may have jumped.
            if header.base_offset > next_offset and header.next_offset > limit:
                return f"offsets {header.base_offset} to {header.last_offset}, the next segment begins at {limit}"
            if not segment.offset_index.fits(header.last_offset):
                return f"offset {header.last_offset} is too far from {segment.base_offset}, where the segment begins"
            if header.base_offset < next_offset:
                return f"base offset {header.base_offset} after {next_offset - 1}"
            if header.partition_leader_epoch < epoch:
                return f"leader epoch {header.partition_leader_epoch} after {epoch}"
            if header.producer_id >= 0:
                try:
                    marker = decode_marker(header, batch.data) if header.attributes & CONTROL_BIT else None
                except CorruptRecordError as error:
                    return f"control batch: {error}"
                aborted = self._producers.replay(header, marker)
                if aborted is not None:
                    segment.transaction_index.append(aborted)
            if self._epochs.epoch_for_offset(header.base_offset) != header.partition_leader_epoch:
                # Else the checkpoint knows where the epoch begins, even if its first batches were compacted away.
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
            next_offset, epoch = header.next_offset, header.partition_leader_epoch
            self._read_to = next_offset
            return None

        problem = segment.recover(accept)
        if segment is not self._segments[-1]:
            segment.seal()
        if not self._request.clean:
            self._write_again(segment)
        return problem, next_offset, epoch

    def _write_again(self, segment: LogSegment) -> None:
        """Rewrites the unchanged bytes above the recovery point, so that the next sync makes them durable.

        The previous process may have ended because a sync failed. The kernel marks the pages of a failed sync as
        written: they can be read, but no later sync writes them (fsyncgate) unless they become dirty again.
        """
        start = segment.position_of(max(segment.base_offset, self._request.recovery_point))
        for position in range(start, segment.size, WRITE_AGAIN_BYTES):
            count = min(WRITE_AGAIN_BYTES, segment.size - position)
            segment.file.write_at(position, segment.file.read(position, count))

    def _load_producers(self, offset: int) -> None:
        """Loads the producer state as of the start of a segment that is recovered."""
        if self._producers.map_end_offset == offset and offset > 0:
            return
        state = self._producers
        state.reset(0)
        for name in reversed(self._disk.list_directory(self._directory)):
            parsed = parse_segment_file(name)
            if parsed is None or parsed.kind != SNAPSHOT_SUFFIX or parsed.state:
                continue
            if not self._segments[0].base_offset <= parsed.base_offset <= offset:
                continue
            path = f"{self._directory}/{name}"
            try:
                state.load_snapshot(decode_snapshot(path, read_file(self._disk, path)), parsed.base_offset)
                break
            except CorruptLogFileError as error:
                self._report.problems.append(str(error))
                self._disk.remove(path)
                self._changed = True
        start = state.map_end_offset
        bases = [segment.base_offset for segment in self._segments]
        first = max(0, bisect_right(bases, start) - 1)  # all batches before it are in the snapshot
        for segment in self._segments[first : bisect_left(bases, offset)]:
            for position, header in scan_headers(segment.file, 0, segment.size):
                if header.base_offset >= start and header.producer_id >= 0:
                    state.replay(header, marker_of(header, segment, position))
        state.map_end_offset = offset

    def _drop_from(self, index: int, why: str) -> None:
        self._remove(list(reversed(self._segments[index:])), why)
        del self._segments[index:]

    def _remove(self, segments: Sequence[LogSegment], why: str) -> None:
        for segment in segments:
            self._report.problems.append(f"dropped segment {segment.base_offset}: {why}")
            for path in segment.files.paths():
                if self._disk.exists(path):
                    self._disk.remove(path)
            segment.files.close()
            self._changed = True

    def _begin_empty(self, offset: int) -> int:
        """Starts a log over at its (local) log start offset if it has no segments or ends below it."""
        if self._segments:
            self._drop_from(0, f"the log ends below its log start offset {offset}")
        segment = LogSegment(
            self._disk, self._directory, offset, self._request.config, self._request.now_ms, files=self._files
        )
        self._segments = [segment]
        self._changed = True
        return offset
