"""The log of one partition as its leader or follower uses it.

A leader's append has two halves. ``stage_as_leader`` validates a batch, assigns its offset and leader epoch in the
caller's buffer and checks its producer, all in memory; ``flush_staged`` writes all staged batches with one gathered
write and moves the log end offset. So a drain of many pipelined requests costs one system call per log. If the write
fails, everything staged is forgotten.

A follower's append keeps the offsets and epochs that the leader assigned.

The high watermark belongs to replication, which tells the log its value: it bounds the last stable offset,
DeleteRecords and what retention may drop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.records import (
    CorruptRecordError,
    encode_end_txn_marker,
    iterate_batches,
)
from moldau_broker.log.batches import CONTROL_BIT, batch_problem
from moldau_broker.log.errors import LogError, OffsetOutOfRangeError
from moldau_broker.log.names import LOG_SUFFIX
from moldau_broker.log.segment import StagedBatch
from moldau_broker.log.segmented_log import SegmentedLog, decode_marker
from moldau_broker.log.validator import LOG_APPEND_TIME, assign, validate_batch
from moldau_broker.log.values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    AbortedTransaction,
    AppendInfo,
    AppendOrigin,
    EpochEndOffset,
    ProducerDescription,
    ReadResult,
    TimestampOffset,
    run_work,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.records import BatchHeader
    from moldau.runtime.environment import Buffer
    from moldau_broker.log.checkpoint import EpochEntry
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.producer_state import EndMarker

_OFFSET_RANGE_MAX = (1 << 31) - 1
_STAGED_BUFFERS_MAX = 1024
"""As many buffers as one writev takes; more are written in between."""


class PartitionLog(SegmentedLog):
    """One partition's log. Made by ``LogManager`` (or ``loader.load_log``), not by hand.

    Invariants: ``log_start_offset <= high_watermark <= log_end_offset <= staged_end_offset``;
    ``last_stable_offset <= high_watermark``.
    """

    _staged_buffers: list[Buffer]
    _staged_batches: list[StagedBatch]

    def initialise_watermark(self, high_watermark: int) -> None:
        """Sets up what is not loaded from segments; called once by the loader."""
        self._staged_buffers = []
        self._staged_batches = []
        self._staged_bytes = 0
        self.staged_end_offset = self.log_end_offset
        self._high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.producer_state.high_watermark_moved(self._high_watermark)

    # Watermarks ------------------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Offset (exclusive) up to which all in-sync replicas have the log, as replication told it."""
        return self._high_watermark

    def update_high_watermark(self, offset: int) -> int:
        """Takes over the high watermark, clamped to the log; returns it.

        That it rises within an epoch is the caller's duty.
        """
        self._high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.producer_state.high_watermark_moved(self._high_watermark)
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """First offset that a reader of committed data may not see yet.

        The oldest open transaction's, or the high watermark.
        """
        unstable = self.producer_state.first_unstable_offset()
        if unstable is None or unstable >= self._high_watermark:
            return self._high_watermark
        return max(unstable, self.log_start_offset)

    def increment_log_start_offset(self, offset: int) -> bool:
        """Moves the log start offset up; returns whether it moved. Segments below it go with the next retention.

        Raises ``OffsetOutOfRangeError`` above the high watermark. Durable with the next checkpoint of log start
        offsets.
        """
        if offset > self._high_watermark:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self._high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    def delete_records(self, offset: int) -> int:
        """DeleteRecords: everything below ``offset`` (-1: the high watermark) is gone for readers; returns the log
        start.

        Raises ``OffsetOutOfRangeError``, and ``LogError`` POLICY_VIOLATION on a topic that is only compacted.
        """
        if not self.config.delete:
            raise LogError(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic_partition} is only compacted: records cannot be deleted by offset",
            )
        if offset < -1:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self._high_watermark)
        self.increment_log_start_offset(self._high_watermark if offset == -1 else offset)
        return self.log_start_offset

    # Leader ----------------------------------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch of the log, -1 if there is none."""
        return self.epochs.latest_epoch

    def begin_leader_epoch(self, leader_epoch: int) -> int:
        """Records that this replica leads in ``leader_epoch`` from the log end offset on, durably.

        Returns that offset.
        """
        self.require_healthy()
        self._assign_epoch(leader_epoch, self.log_end_offset)
        return self.log_end_offset

    def _assign_epoch(self, leader_epoch: int, offset: int) -> None:
        try:
            self.epochs.assign(leader_epoch, offset)
        except OSError as error:
            raise self.storage_error("writing the leader epochs of", error) from error

    @property
    def has_staged(self) -> bool:
        """Whether ``flush_staged`` has something to write."""
        return bool(self._staged_batches)

    def stage_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Accepts one batch for the end of the log, assigning its offset and epoch in place (a read-only buffer is
        copied).

        ``records`` must stay as it is until ``flush_staged`` has returned; nothing is visible or counted before. A
        duplicate of one of the producer's last five batches is not staged: the answer holds the offsets of the
        original, which may itself still be staged. Raises ``LogError`` (see ``validator``,
        ``ProducerStateManager.check``); then nothing has changed.
        """
        if self.failed:
            self.require_healthy()
        buffer, header = validate_batch(records, self.config, origin, now_ms)
        control = header.attributes & CONTROL_BIT
        producers = self.producer_state
        marker = None
        if header.producer_id >= 0:
            if control:
                marker = decode_marker(header, buffer)
                if marker is not None:
                    producers.check_marker(header, marker)
            else:
                original = producers.check(header, origin)
                if original is not None:
                    return AppendInfo(
                        first_offset=original.first_offset,
                        last_offset=original.last_offset,
                        last_leader_epoch=leader_epoch,
                        log_append_time_ms=original.timestamp_ms
                        if self.config.message_timestamp_type == LOG_APPEND_TIME
                        else NO_TIMESTAMP,
                        log_start_offset=self.log_start_offset,
                        max_timestamp_ms=original.timestamp_ms,
                        duplicate=True,
                    )
        size = len(buffer)
        rolled = self._make_room(header, size, leader_epoch, now_ms)
        base_offset = self.staged_end_offset
        assign(buffer, base_offset, leader_epoch)
        header = header._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
        last_offset = base_offset + header.last_offset_delta
        self._staged_buffers.append(buffer)
        self._staged_batches.append(StagedBatch(base_offset, last_offset, size, header.max_timestamp))
        self._staged_bytes += size
        self.staged_end_offset = last_offset + 1
        if marker is not None:
            # A marker changes what readers may see: it is written alone, and only then ends the transaction.
            self.flush_staged()
            self._end_transaction(header, marker)
        elif header.producer_id >= 0:
            producers.stage(header)
        return AppendInfo(
            first_offset=base_offset,
            last_offset=last_offset,
            last_leader_epoch=leader_epoch,
            log_append_time_ms=header.max_timestamp
            if self.config.message_timestamp_type == LOG_APPEND_TIME and not control
            else NO_TIMESTAMP,
            log_start_offset=self.log_start_offset,
            max_timestamp_ms=header.max_timestamp,
            size_bytes=size,
            record_count=header.record_count,
            rolled=rolled,
        )

    def _make_room(self, header: BatchHeader, size: int, leader_epoch: int, now_ms: int) -> bool:
        """Rolls, writes what is staged, or records a new epoch where the next batch demands it.

        Returns whether it rolled.
        """
        if header.attributes & CONTROL_BIT or len(self._staged_batches) >= _STAGED_BUFFERS_MAX:
            self.flush_staged()
        rolled = False
        last_offset = self.staged_end_offset + header.last_offset_delta
        if self._active.should_roll(
            self.config, self.jitter_ms, self._staged_bytes + size, header.max_timestamp, last_offset, now_ms
        ):
            self.flush_staged()
            # What was staged may have been all that the segment lacked, or it filled its index.
            if self._active.should_roll(self.config, self.jitter_ms, size, header.max_timestamp, last_offset, now_ms):
                self.roll(self.log_end_offset, now_ms)
                rolled = True
        if leader_epoch != self.epochs.latest_epoch:
            self.flush_staged()
            self._assign_epoch(leader_epoch, self.log_end_offset)
        return rolled

    def flush_staged(self) -> None:
        """Writes what is staged with one gathered write; then it counts: log end offset, sequence numbers,
        transactions.

        Raises ``LogStorageError`` if the write fails: then nothing of it counts, all ``AppendInfo`` since the last
        flush are void (those of duplicates too), and the log takes no more.
        """
        batches = self._staged_batches
        if not batches:
            return
        buffers, self._staged_buffers, self._staged_batches, self._staged_bytes = self._staged_buffers, [], [], 0
        end_offset = self.staged_end_offset
        try:
            self._active.append(buffers, batches)
        except OSError as error:
            self.staged_end_offset = self.log_end_offset
            self.producer_state.discard_staged()
            raise self._failed_append(error) from error
        self.log_end_offset = end_offset
        self.producer_state.commit_staged(end_offset)
        if self.config.sync_before_acknowledge:
            self.flush()

    def _failed_append(self, error: OSError) -> LogError:
        failure = self.storage_error("appending to", error)
        try:
            self._active.abandon_write()
        except OSError as second:
            failure.add_note(f"the partial write could not be taken back either: {second}")
        return failure

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """``stage_as_leader`` and ``flush_staged``."""
        info = self.stage_as_leader(records, leader_epoch=leader_epoch, now_ms=now_ms, origin=origin)
        self.flush_staged()
        return info

    def append_end_transaction_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        commit: bool,
        leader_epoch: int,
        now_ms: int,
    ) -> AppendInfo:
        """Appends a commit or abort marker; the transaction is over in this log when it returns."""
        batch = encode_end_txn_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=now_ms,
        )
        return self.append_as_leader(
            memoryview(batch), leader_epoch=leader_epoch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )

    def _end_transaction(self, header: BatchHeader, marker: EndMarker) -> None:
        """Reflects a marker that is in the log."""
        completed = self.producer_state.apply_marker(header, marker)
        if completed is not None:
            aborted = self.producer_state.complete(completed)
            if aborted is not None:
                self._names_durable = False  # the index file may be new
                try:
                    self._active.transaction_index.append(aborted)
                except OSError as error:
                    raise self.storage_error("indexing an aborted transaction of", error) from error

    # Follower --------------------------------------------------------------------------------------------------------

    def append_as_follower(self, records: memoryview, *, now_ms: int, leader_log_start_offset: int = -1) -> AppendInfo:
        """Appends batches as a leader sent them, offsets and epochs kept; a partial batch at the end is left out.

        Batches below the log end offset are skipped (a fetch may begin inside a batch). All are checked before the
        first is written. Raises ``LogError`` CORRUPT_MESSAGE (then nothing was appended), ``LogStorageError``.
        """
        self.require_healthy()
        assert not self._staged_batches, "a log is a leader's or a follower's"
        batches = self._sound_batches(records)
        if not batches:
            return AppendInfo(
                first_offset=-1, last_offset=self.log_end_offset - 1, log_start_offset=self.log_start_offset
            )
        rolled = False
        for position, header in batches:
            size = header.size_bytes
            if self._active.should_roll(
                self.config, self.jitter_ms, self._staged_bytes + size, header.max_timestamp, header.last_offset, now_ms
            ):
                self._write_replicated()
                self._roll_for(header, now_ms)
                rolled = True
            if header.partition_leader_epoch > self.epochs.latest_epoch:
                self._write_replicated()
                self._assign_epoch(header.partition_leader_epoch, header.base_offset)
            data = records[position : position + size]
            self._staged_buffers.append(data)
            self._staged_batches.append(StagedBatch(header.base_offset, header.last_offset, size, header.max_timestamp))
            self._staged_bytes += size
            self.staged_end_offset = header.next_offset
            if header.producer_id >= 0:
                self._replicate_producer(header, data)
        self._write_replicated()
        if leader_log_start_offset > self.log_start_offset:
            self.increment_log_start_offset(min(leader_log_start_offset, self._high_watermark))
        first, last = batches[0][1], batches[-1][1]
        return AppendInfo(
            first_offset=first.base_offset,
            last_offset=last.last_offset,
            last_leader_epoch=last.partition_leader_epoch,
            log_start_offset=self.log_start_offset,
            max_timestamp_ms=max(header.max_timestamp for _, header in batches),
            size_bytes=sum(header.size_bytes for _, header in batches),
            record_count=sum(header.record_count for _, header in batches),
            rolled=rolled,
        )

    def _roll_for(self, header: BatchHeader, now_ms: int) -> None:
        """Rolls where the log ends, though the next batch may begin later: recovery takes a gap for a loss.

        Only where the batch is too far away for the index is there a gap; a crash soon after costs a follower a fetch.
        """
        near = header.last_offset - self.log_end_offset < _OFFSET_RANGE_MAX
        self.roll(self.log_end_offset if near else header.base_offset, now_ms)

    def _sound_batches(self, records: memoryview) -> list[tuple[int, BatchHeader]]:
        """The whole batches that are new here, each checked: CRC, rising offsets, epochs that do not fall."""
        found: list[tuple[int, BatchHeader]] = []
        next_offset, epoch = self.log_end_offset, self.epochs.latest_epoch
        try:
            for position, header in iterate_batches(records):
                problem = batch_problem(header, records[position : position + header.size_bytes])
                if problem is not None:
                    raise LogError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset}: {problem}")
                if header.last_offset < next_offset and not found:
                    continue
                if header.base_offset < next_offset:
                    raise LogError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"batch {header.base_offset}-{header.last_offset} overlaps the log, it ends at {next_offset}",
                    )
                if header.partition_leader_epoch < epoch:
                    raise LogError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"batch {header.base_offset}: epoch {header.partition_leader_epoch} after {epoch}",
                    )
                found.append((position, header))
                next_offset, epoch = header.next_offset, header.partition_leader_epoch
        except CorruptRecordError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        return found

    def _replicate_producer(self, header: BatchHeader, data: memoryview) -> None:
        if not header.attributes & CONTROL_BIT:
            self.producer_state.stage(header)
            return
        marker = decode_marker(header, data)
        self._write_replicated()
        if marker is not None:
            self._end_transaction(header, marker)

    def _write_replicated(self) -> None:
        """``flush_staged`` of a follower, which may write many buffers of one fetch answer.

        They are contiguous mostly.
        """
        self.flush_staged()

    # Truncation ------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Cuts everything at or above ``offset``; durable on return (it syncs: rare, and blocking). Returns whether
        it cut.

        A batch that holds ``offset`` in its middle goes as a whole. Raises ``LogStorageError``.
        """
        self.require_healthy()
        assert not self._staged_batches, "a log that has staged batches is a leader's and is not truncated"
        if offset >= self.log_end_offset:
            # An epoch that was begun here without a record is not part of the leader's history either.
            try:
                self.epochs.truncate_from_end(offset)
            except OSError as error:
                raise self.storage_error("writing the leader epochs of", error) from error
            return False
        if offset < self.log_start_offset:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self.log_end_offset)
        try:
            self._truncate(offset)
        except OSError as error:
            raise self.storage_error("truncating", error) from error
        self.staged_end_offset = self.log_end_offset
        self.update_high_watermark(self._high_watermark)
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drops everything and starts anew at ``offset``: the leader has nothing below it.

        Raises ``LogStorageError``.
        """
        self.require_healthy()
        assert not self._staged_batches, "a log that has staged batches is a leader's and is not truncated"
        try:
            self._restart_at(offset, now_ms)
        except OSError as error:
            raise self.storage_error("restarting", error) from error
        self.staged_end_offset = self.log_end_offset
        self._high_watermark = offset

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """OffsetForLeaderEpoch (KIP-101, KIP-279)."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Leader epoch in which ``offset`` was written, -1 if not known."""
        return self.epochs.epoch_for_offset(offset)

    def epoch_entries(self) -> Sequence[EpochEntry]:
        """All epochs of the log and their start offsets, oldest first."""
        return self.epochs.entries

    # Look-ups --------------------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """ListOffsets: first record at or after a time, or one of the special timestamps; None if there is no such
        record.

        The caller bounds the answer by what its client may see. Raises ``CorruptRecordError`` where the batch is
        damaged.
        """
        start = self.log_start_offset
        if timestamp_ms in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            return TimestampOffset(timestamp_ms=-1, offset=start, leader_epoch=self.epoch_for_offset(start))
        if timestamp_ms == LATEST_TIMESTAMP:
            return TimestampOffset(timestamp_ms=-1, offset=self.log_end_offset, leader_epoch=self.latest_epoch)
        if timestamp_ms == MAX_TIMESTAMP:
            timestamp_ms = self.max_timestamp_ms()
            if timestamp_ms < 0:
                return None
        for segment in list(self._segments):
            if segment.max_entry().timestamp_ms >= timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, start)
                if found is not None:
                    return found
        return None

    def max_timestamp_ms(self) -> int:
        """Largest timestamp in the log, -1 if there is none."""
        return max(segment.max_entry().timestamp_ms for segment in self._segments)

    def aborted_transactions(self, result: ReadResult, upper_bound_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that a reader of committed data must know to read ``result``.

        Ordered by their markers.
        """
        if not result.ranges:
            return []
        upper = min(upper_bound_offset, self._end_of(result))
        found: list[AbortedTransaction] = []
        for index in range(max(0, self.segment_index(result.fetch_offset)), len(self._segments)):
            for entry in self._segments[index].aborted_entries():
                if entry.last_offset >= result.fetch_offset and entry.first_offset < upper:
                    found.append(AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset))
                if entry.last_stable_offset >= upper:
                    return found
        return found

    def _end_of(self, result: ReadResult) -> int:
        """An offset at or above the end of what ``result`` holds, from the index."""
        index = self.segment_index(result.segment_base_offset)
        if index < 0 or self._segments[index].base_offset != result.segment_base_offset:
            return self.log_end_offset
        end = self._segments[index].offset_index.first_at_or_after_position(result.segment_position + result.size_bytes)
        return end.offset if end is not None else self.next_base_offset(index)

    # Producers -------------------------------------------------------------------------------------------------------

    def active_producers(self) -> list[ProducerDescription]:
        """DescribeProducers."""
        return self.producer_state.describe()

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer's transaction is open here: then a produce needs no verification (KIP-890)."""
        return self.producer_state.has_ongoing_transaction(producer_id, producer_epoch)

    # Maintenance -----------------------------------------------------------------------------------------------------

    def update_config(self, config: LogConfig) -> None:
        """Takes over changed topic settings; they concern what comes."""
        self.config = config

    def apply_retention(self, now_ms: int) -> int:
        """Drops the oldest segments that ``retention.ms``, ``retention.bytes`` or the log start offset let go;
        returns how many.

        Only what is below the high watermark goes. An active segment that is too old is closed first. Raises
        ``LogStorageError``.
        """
        if self.failed:
            return 0
        count = self._expired_count(now_ms)
        if count == 0:
            return 0
        try:
            if count == len(self._segments):
                self.flush_staged()
                self.roll(self.log_end_offset, now_ms)
            self.drop_oldest(count)
        except OSError as error:
            raise self.storage_error("deleting segments of", error) from error
        self.update_high_watermark(self._high_watermark)
        return count

    def _expired_count(self, now_ms: int) -> int:
        config = self.config
        surplus = self.size_bytes - config.retention_bytes if config.delete and config.retention_bytes >= 0 else -1
        count = 0
        for index, segment in enumerate(self._segments):
            end = self.next_base_offset(index)
            if segment.size == 0 or end > self._high_watermark or (segment is self._active and self._staged_batches):
                break
            largest = segment.max_entry().timestamp_ms
            written = largest if largest >= 0 else self.disk.modified_ms(segment.path(LOG_SUFFIX))
            too_old = config.delete and config.retention_ms >= 0 and now_ms - written > config.retention_ms
            too_much = surplus - segment.size >= 0
            if not (too_old or too_much or (end <= self.log_start_offset and segment is not self._active)):
                break
            surplus -= segment.size
            count += 1
        return count

    def flush_due(self, now_ms: int) -> bool:
        """Whether ``flush.messages`` or ``flush.ms`` asks for a sync now.

        Called after appends and from time to time.
        """
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed <= 0 or self.failed:
            return False
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms
        return unflushed >= self.config.flush_messages or now_ms - self.unflushed_since_ms >= self.config.flush_ms

    def flush(self) -> None:
        """Makes the whole log durable, blocking. Raises ``LogStorageError``."""
        work = self.flush_work()
        if work is not None:
            try:
                run_work(work)
            except OSError as error:
                raise self.storage_error("syncing", error) from error
