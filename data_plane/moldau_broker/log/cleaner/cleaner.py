"""Cleaning of one compacted log (Kafka's Cleaner; KIP-534 for the horizons of tombstones and markers).

A cleaning has two parts. First it reads the dirty segments and puts the last offset of each key into the offset map,
until the map is full or the end is reached; this end is the new first dirty offset. Then it copies all segments below
that end in groups (as many neighbours as fit one segment), without

- records whose key has a later offset in the map,
- tombstones and transaction markers whose delete horizon is over,
- data of aborted transactions.

Kept records keep their offsets, and unchanged batches keep their bytes. A batch that holds a tombstone, or
the marker of a transaction without any data left, gets a delete horizon the first time it is cleaned: now plus
``delete.retention.ms``. The last batch of a producer or a group is kept as an empty header, so that sequence numbers
and the log end survive.

The cleaning is a generator of small steps over immutable closed segments, so it can run outside the event loop in
slices and be paced; only ``swap``, in the loop, touches the log.

Crash safety: a group is written to ``.cleaned`` files and synced; renamed to ``.swap``, the log file last; then the
old segments are renamed to ``.deleted`` and the new one gets its final name (``SegmentedLog.replace_segments``). A
restart finishes a group that has a ``.log.swap`` file, and undoes any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moldau.records import BatchBuilder, BatchHeader, Compression, CorruptRecordError, uncompressed_records
from moldau_broker.log.cleaner.cleaned_transactions import CleanedTransactions
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import (
    COMPRESSION_MASK,
    CONTROL_BIT,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    Batch,
    BatchReader,
    batch_problem,
    parse,
)
from moldau_broker.log.files.names import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX
from moldau_broker.log.files.segment import LogSegment
from moldau_broker.log.files.segment_files import SegmentFiles
from moldau_broker.log.partition.timestamps import unpacked_bytes_max
from moldau_broker.log.producers.end_markers import decode_marker
from moldau_broker.log.values import StagedBatch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

    from moldau.runtime.ports.environment import Disk
    from moldau.values import Buffer
    from moldau_broker.log.cleaner.offset_map import OffsetMap
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.partition.partition_log import PartitionLog

_GROUP_BYTES_MAX = 1 << 30
_OFFSET_RANGE_MAX = (1 << 31) - 1
_WRITE_BYTES = 1024 * 1024


class CleaningPlan(NamedTuple):
    """The part of a log that can be cleaned now.

    ``first_dirty_offset <= first_uncleanable_offset``; both are segment starts or inside.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int
    must_clean: bool  # max.compaction.lag.ms is over for some record

    @property
    def dirty_ratio(self) -> float:
        """Dirty bytes as a share of all bytes that can be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


@dataclass(slots=True, kw_only=True)
class CleaningStatistics:
    """Counts of one cleaning; ``bytes_read`` grows with each step."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    map_bytes_read: int = 0
    map_entries: int = 0
    end_offset: int = -1
    map_full: bool = False
    groups: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup:
    """A durable cleaned segment in ``.cleaned`` files, and the segments that it replaces."""

    old: tuple[LogSegment, ...]
    new: LogSegment


def plan_cleaning(log: PartitionLog, checkpoint: int | None, durable_end: int, now_ms: int) -> CleaningPlan:
    """Plans a cleaning below the active segment, the last stable offset and ``min.compaction.lag.ms``.

    ``checkpoint`` is the checkpointed first dirty offset. ``durable_end`` is the recovery point on disk: no cleaned
    segment may lie above it after a crash, because recovery takes gaps between segments there for lost segments.
    """
    config = log.config
    start = log.segments[0].base_offset
    dirty = start if checkpoint is None else checkpoint
    if log.storage.truncated_to is not None:
        dirty = min(dirty, log.storage.truncated_to)
    if not start <= dirty <= log.log_end_offset:
        dirty = start
    end = min(log.storage.segments.active.base_offset, log.last_stable_offset, durable_end)
    lag = config.min_compaction_lag_ms
    if lag > 0:
        for index, segment in enumerate(log.segments):
            # A log that was cut within a segment has young records in the segment that contains ``dirty``.
            if log.storage.next_base_offset(index) > dirty and _written_ms(log, segment) > now_ms - lag:
                end = min(end, segment.base_offset)
                break
    # Whole segments only, so that no segment is both cleanable and uncleanable.
    end = log.segments[max(0, log.storage.segments.index_of(end))].base_offset
    clean_bytes = dirty_bytes = 0
    must_clean = False
    for index, segment in enumerate(log.segments):
        if segment.base_offset >= end:
            break
        if log.storage.next_base_offset(index) <= dirty:
            clean_bytes += segment.size
        else:
            dirty_bytes += segment.size
            first = segment.first_timestamp()
            must_clean = must_clean or (0 <= first < now_ms - config.max_compaction_lag_ms)
    return CleaningPlan(dirty, max(dirty, end), clean_bytes, dirty_bytes, must_clean)


def _written_ms(log: PartitionLog, segment: LogSegment) -> int:
    """Returns when the newest record of a segment was written: its timestamp, or if none has one, that of the file."""
    largest = segment.max_entry().timestamp_ms
    return largest if largest >= 0 else log.storage.disk.modified_ms(segment.path(LOG_SUFFIX))


class LogCleaning:
    """One cleaning of one log.

    Create it in the event loop, ``step`` it anywhere (one step at a time), ``swap`` in the loop.
    """

    def __init__(self, disk: Disk, log: PartitionLog, plan: CleaningPlan, offset_map: OffsetMap, now_ms: int) -> None:
        self.log = log
        self.plan = plan
        self.statistics = CleaningStatistics()
        self.ready: CleanedGroup | None = None
        self.done = False
        self._disk = disk
        self._config: LogConfig = log.config
        self._map = offset_map
        self._now_ms = now_ms
        self._directory = log.directory
        self._segments = [
            (segment, log.storage.next_base_offset(index))
            for index, segment in enumerate(log.segments)
            if log.storage.next_base_offset(index) <= plan.first_uncleanable_offset
        ]
        self._aborted = {segment.base_offset: list(segment.aborted_entries()) for segment in log.segments}
        self._last_of_producer: Mapping[int, tuple[int, int, int]] = log.producer_state.last_entries()
        self._generation = log.storage.segments.generation
        self._reading = ("", 0)  # path and position of the current batch
        self._steps = self._run()
        offset_map.clear()
        log.storage.truncated_to = None

    @property
    def end_offset(self) -> int:
        """The first dirty offset of the next cleaning, known once the map is built."""
        return self.statistics.end_offset

    @property
    def is_void(self) -> bool:
        """Whether the log has changed since the last swap, other than by appends; this ends the cleaning."""
        log = self.log
        return log.failed or log.storage.segments.generation != self._generation or log.directory != self._directory

    @property
    def has_changed(self) -> bool:
        """Whether this cleaning is void, or retention has deleted a segment that it needs."""
        return self.is_void or self._segments[0][0].base_offset < self.log.segments[0].base_offset

    def step(self, bytes_max: int) -> int:
        """Cleans until about ``bytes_max`` were moved, a group is ready, or all is done.

        Returns the bytes read and written.

        Raises:
            OSError: A file could not be read or written.
            CorruptLogFileError: A batch is damaged. The log is not cleaned.
        """
        assert self.ready is None, "the group that is ready must be swapped first"
        before = self.statistics.bytes_read + self.statistics.map_bytes_read + self.statistics.bytes_written
        moved = 0
        while moved < bytes_max and not self.done:
            try:
                self.ready = next(self._steps)
            except StopIteration:
                self.done = True
            except CorruptRecordError as error:
                # Today's leaders check the records that they store, but older versions did not, or had a larger limit.
                raise CorruptLogFileError(*self._reading, str(error)) from error
            statistics = self.statistics
            moved = statistics.bytes_read + statistics.map_bytes_read + statistics.bytes_written - before
            if self.ready is not None:
                break
        return moved

    def swap(self) -> bool:
        """Swaps the ready group into the log; if the log has changed, ends the cleaning and returns False.

        Raises:
            OSError: A file could not be renamed.
        """
        group, self.ready = self.ready, None
        assert group is not None
        if not self._still_there(group):
            self.abandon(group)
            return False
        try:
            group.new.files.change_suffix(SWAP_SUFFIX)
            self._disk.sync_directory(self._directory)
        except OSError:
            # The log may go on, and a start would swap in files of that name.
            self.abandon(group)
            raise
        self.log.storage.replace_segments(group.old, group.new)
        self._generation = self.log.storage.segments.generation
        return True

    def _still_there(self, group: CleanedGroup) -> bool:
        if self.is_void:
            return False
        bases = [segment for segment in self.log.segments if segment.base_offset >= group.old[0].base_offset]
        return bases[: len(group.old)] == list(group.old)

    def abandon(self, group: CleanedGroup | None = None) -> None:
        """Ends the cleaning and leaves the log unchanged.

        The ``.cleaned`` files are removed now or by the next start.
        """
        self.done = True
        self._steps.close()
        group = group or self.ready
        self.ready = None
        if group is not None:
            group.new.files.close_indexes()
            for path in group.new.files.paths():
                if self._disk.exists(path):
                    self._disk.remove(path)

    # Steps -----------------------------------------------------------------------------------------------------------

    def _run(self) -> Generator[CleanedGroup | None, None, None]:
        yield from self._build_map()
        self.statistics.map_entries = self._map.size
        end = self.statistics.end_offset
        covered = [(segment, segment_end) for segment, segment_end in self._segments if segment.base_offset < end]
        transactions = CleanedTransactions(entry for entries in self._aborted.values() for entry in entries)
        for group in self._groups(covered):
            yield from self._clean_group(group, transactions)

    def _batches(self, segment: LogSegment, segment_end: int, counter: str) -> Iterator[Batch]:
        reader = BatchReader(segment.file, 0, segment.size)
        next_offset = segment.base_offset
        for batch in reader:
            header = batch.header
            problem = batch_problem(header, batch.data)
            if problem is None and not next_offset <= header.base_offset <= header.last_offset < segment_end:
                problem = (
                    f"offsets {header.base_offset} to {header.last_offset} between {next_offset} and {segment_end}"
                )
            next_offset = header.next_offset
            if problem is not None:
                raise CorruptLogFileError(segment.file.path, batch.position, problem)
            self._reading = (segment.file.path, batch.position)
            setattr(self.statistics, counter, getattr(self.statistics, counter) + batch.header.size_bytes)
            yield batch
        if reader.problem is not None:
            raise CorruptLogFileError(segment.file.path, reader.position, reader.problem)
        if segment.has_lost_its_end:
            raise CorruptLogFileError(segment.file.path, segment.size, "the file was longer once")

    def _build_map(self) -> Iterator[None]:
        """Reads the dirty segments into the map; sets ``end_offset``."""
        plan, offset_map = self.plan, self._map
        transactions = CleanedTransactions(entry for entries in self._aborted.values() for entry in entries)
        statistics = self.statistics
        statistics.end_offset = plan.first_dirty_offset
        for segment, segment_end in self._segments:
            if segment_end <= plan.first_dirty_offset:
                continue
            for batch in self._batches(segment, segment_end, "map_bytes_read"):
                header = batch.header
                if not self._map_batch(batch, transactions):
                    # Keys of this batch that were added do no harm: records newer than the map are kept.
                    statistics.map_full = True
                    return
                offset_map.latest_offset = header.last_offset
                statistics.end_offset = max(statistics.end_offset, header.next_offset)
                yield None
            statistics.end_offset = max(statistics.end_offset, segment_end)
            offset_map.latest_offset = statistics.end_offset - 1

    def _map_batch(self, batch: Batch, transactions: CleanedTransactions) -> bool:
        header = batch.header
        if header.attributes & CONTROL_BIT:
            marker = decode_marker(header, batch.data)
            if marker is not None:
                transactions.is_marker_of_nothing(header, commit=marker.commit)
            return True
        if transactions.is_aborted_data(header) or header.record_count == 0:
            return True
        return self._map.add(*self._unpacked(batch), header, self.plan.first_dirty_offset)

    def _unpacked(self, batch: Batch) -> tuple[Buffer, int, int]:
        """Decompresses a batch within the topic's limit or the default, whichever is larger."""
        return uncompressed_records(batch.data, 0, batch.header, unpacked_bytes_max(self._config))

    def _groups(self, segments: Sequence[tuple[LogSegment, int]]) -> Iterator[list[tuple[LogSegment, int]]]:
        """Yields groups of neighbours that fit one segment in bytes, index and offset range."""
        bytes_max = min(self._config.segment_bytes, _GROUP_BYTES_MAX)
        group: list[tuple[LogSegment, int]] = []
        size = entries = 0
        for segment, end in segments:
            count = segment.offset_index.count
            if group and (
                size + segment.size > bytes_max
                or (entries + count) * 12 > self._config.segment_index_bytes
                or end - group[0][0].base_offset > _OFFSET_RANGE_MAX
            ):
                yield group
                group, size, entries = [], 0, 0
            group.append((segment, end))
            size += segment.size
            entries += count
        if group:
            yield group

    def _clean_group(
        self, group: Sequence[tuple[LogSegment, int]], transactions: CleanedTransactions
    ) -> Iterator[CleanedGroup | None]:
        base = group[0][0].base_offset
        for path in SegmentFiles.paths_of(self._directory, base, CLEANED_SUFFIX):
            if self._disk.exists(path):
                self._disk.remove(path)
        cleaned = LogSegment(
            self._disk,
            self._directory,
            base,
            self._config,
            self._now_ms,
            CLEANED_SUFFIX,
            self.log.storage.segments.files,
        )
        writer = _Writer(cleaned)
        group_end = group[-1][1]
        for segment, segment_end in group:
            for batch in self._batches(segment, segment_end, "bytes_read"):
                kept = self._filter(batch, transactions, last_of_group=batch.header.next_offset == group_end)
                if kept is not None:
                    self.statistics.bytes_written += writer.add(kept)
                yield None
        writer.flush()
        for entry in transactions.kept:
            cleaned.transaction_index.append(entry)
        transactions.kept.clear()
        cleaned.seal()
        # Records without timestamps expire by the time of their file, which a cleaning must not renew.
        modified_ms = max(self._disk.modified_ms(segment.path(LOG_SUFFIX)) for segment, _ in group)
        self._disk.set_modified_ms(cleaned.path(LOG_SUFFIX), modified_ms)
        cleaned.files.sync()
        self.statistics.groups += 1
        yield CleanedGroup(old=tuple(segment for segment, _ in group), new=cleaned)

    # What stays ------------------------------------------------------------------------------------------------------

    def _filter(
        self, batch: Batch, transactions: CleanedTransactions, *, last_of_group: bool
    ) -> bytes | bytearray | None:
        """Returns the batch for the cleaned segment, None if it is dropped."""
        header = batch.header
        horizon = header.delete_horizon_ms
        control = bool(header.attributes & CONTROL_BIT)
        marker_of_nothing = False
        if control:
            marker = decode_marker(header, batch.data)
            marker_of_nothing = marker is not None and transactions.is_marker_of_nothing(header, commit=marker.commit)
            discard = marker_of_nothing and horizon is not None and horizon <= self._now_ms
        else:
            discard = transactions.is_aborted_data(header)
        data, start, end = self._unpacked(batch)
        count = header.record_count
        keep, kept, has_tombstone = b"\1" * count, count, False
        if discard:
            kept = 0
        elif not control:
            keeps_tombstones = horizon is None or horizon > self._now_ms
            keep, kept, has_tombstone = self._map.select(data, start, end, header, keeps_tombstones=keeps_tombstones)
        self.statistics.records_read += count
        self.statistics.records_kept += kept
        if not kept:
            stays = last_of_group or (header.producer_id >= 0 and self._is_last_of_producer(header))
            return _emptied(header) if stays else None
        # A tombstone above the map has not removed older values of its key yet; its retention begins later.
        masks = has_tombstone and header.last_offset <= self._map.latest_offset
        needs_horizon = horizon is None and (marker_of_nothing or masks)
        if needs_horizon:
            horizon = self._now_ms + self._config.delete_retention_ms
        if kept == count and not needs_horizon:
            return bytes(batch.data)
        builder = _builder(header, horizon, codec=header.attributes & COMPRESSION_MASK, config=self._config)
        builder.copy(data, start, end, header, keep)
        return _rebuilt(header, builder)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_of_producer.get(header.producer_id)
        if last is None:
            return False
        last_offset, epoch, _ = last
        if last_offset >= 0:
            return header.last_offset == last_offset
        return bool(header.attributes & CONTROL_BIT) and header.producer_epoch == epoch


class _Writer:
    """Gathers batches and appends them to the cleaned segment in large writes."""

    def __init__(self, segment: LogSegment) -> None:
        self._segment = segment
        self._buffers: list[Buffer] = []
        self._batches: list[StagedBatch] = []
        self._bytes = 0

    def add(self, data: bytes | bytearray) -> int:
        header = parse(data)
        self._buffers.append(data)
        self._batches.append(StagedBatch(header.base_offset, header.last_offset, len(data), header.max_timestamp))
        self._bytes += len(data)
        if self._bytes >= _WRITE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._batches:
            self._segment.append(self._buffers, self._batches)
            self._buffers, self._batches, self._bytes = [], [], 0


def _emptied(header: BatchHeader) -> bytearray:
    """Returns the batch without records; its header keeps offsets, producer and epoch."""
    return _builder(header, None, codec=0).build(
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_offset_delta=header.last_offset_delta,
        append_timestamp=header.max_timestamp,
    )


def _rebuilt(header: BatchHeader, builder: BatchBuilder) -> bytearray:
    """Returns the batch with the copied records, in its own codec."""
    append_time = bool(header.attributes & TIMESTAMP_TYPE_BIT)
    return builder.build(
        base_offset=header.base_offset,
        partition_leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_offset_delta=header.last_offset_delta,
        append_timestamp=header.max_timestamp if append_time else None,
    )


def _builder(header: BatchHeader, horizon: int | None, *, codec: int, config: LogConfig | None = None) -> BatchBuilder:
    compression = Compression(codec)
    same = config is not None and compression.config_name == config.compression_type
    return BatchBuilder(
        (1 << 31) - 1,
        compression=compression,
        compression_level=config.compression_level if config is not None and same else None,
        is_transactional=bool(header.attributes & TRANSACTIONAL_BIT),
        is_control=bool(header.attributes & CONTROL_BIT),
        timestamp_type=header.timestamp_type,
        delete_horizon_ms=horizon,
        initial_capacity=max(128, header.size_bytes),
    )
