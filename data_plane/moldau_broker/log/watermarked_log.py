"""The part of a partition's log that leaders and followers share: staged writes, watermarks, look-ups, retention.

What is staged becomes part of the log with one gathered write (``flush_staged``), or is forgotten as a whole if that
fails.

What is written is not settled yet where a topic's ``flush.messages`` bounds how many acknowledged records may not be
durable: ``settled_end_offset`` says up to where the log may be acknowledged, and be claimed to a leader, now. With the
default it is always the log end. With ``flush.messages=M`` it stands still from the moment when M records are not
durable until a sync has ended (``flush_work``, outside the event loop); that sync covers all that was written before it
began, so appends that arrive meanwhile share the next one.

The high watermark belongs to replication, which tells the log its value: it bounds the last stable offset,
DeleteRecords and what retention may drop.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import CorruptLogFileError, LogError, OffsetOutOfRangeError
from moldau_broker.log.names import LOG_SUFFIX
from moldau_broker.log.segmented_log import SegmentedLog
from moldau_broker.log.values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    AbortedTransaction,
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
    from moldau_broker.log.segment import LogSegment
    from moldau_broker.log.values import StagedBatch


class WatermarkedLog(SegmentedLog):
    """A log with staged writes and a high watermark.

    Invariants: ``log_start_offset <= high_watermark <= log_end_offset <= staged_end_offset``;
    ``last_stable_offset <= high_watermark``; ``settled_end_offset <= log_end_offset``, both are ends of batches, and
    what is settled stays so until it is truncated.
    """

    _staged_buffers: list[Buffer]
    _staged_batches: list[StagedBatch]

    def initialise_watermark(self, high_watermark: int) -> None:
        """Sets up what is not loaded from segments; called once by the loader."""
        self._staged_buffers = []
        self._staged_batches = []
        self._staged_bytes = 0
        self.staged_end_offset = self.log_end_offset
        # What a former process wrote may be in the page cache only.
        self.unsettle()
        self._settle()
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

    # Staged writes ---------------------------------------------------------------------------------------------------

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch of the log, -1 if there is none."""
        return self.epochs.latest_epoch

    @property
    def has_staged(self) -> bool:
        """Whether ``flush_staged`` has something to write."""
        return bool(self._staged_batches)

    def flush_staged(self) -> None:
        """Writes what is staged with one gathered write; then it counts: log end offset, sequence numbers,
        transactions. It may be acknowledged below ``settled_end_offset``.

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
        if end_offset - self.recovery_point < self.config.flush_messages:
            self.settled_end_offset = end_offset

    def _failed_append(self, error: OSError) -> LogError:
        failure = self.storage_error("appending to", error)
        try:
            self._active.abandon_write()
        except OSError as second:
            failure.add_note(f"the partial write could not be taken back either: {second}")
        return failure

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

    # Epochs ----------------------------------------------------------------------------------------------------------

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
        self._settle()

    def apply_retention(self, now_ms: int) -> int:
        """Drops the oldest segments that ``retention.ms``, ``retention.bytes`` or the log start offset let go;
        returns how many.

        Only what is below the high watermark goes. An active segment that is too old is closed first. Raises
        ``LogStorageError``, and ``CorruptLogFileError`` where the oldest segment is too damaged to tell how old it is.
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
            too_much = surplus - segment.size >= 0
            if not (too_much or (end <= self.log_start_offset and segment is not self._active)):
                if not (config.delete and config.retention_ms >= 0):
                    break
                if now_ms - self._written_ms(segment) <= config.retention_ms:
                    if segment.unreadable_from is not None and count == 0:
                        raise CorruptLogFileError(segment.file.path, segment.unreadable_from, "no batch header")
                    break
            surplus -= segment.size
            count += 1
        return count

    def _written_ms(self, segment: LogSegment) -> int:
        """When the newest record of a segment was written, by its timestamp.

        Where there is none, or part of the segment cannot be read, by the last write to the file: what is hidden may
        be newer than what is seen.
        """
        largest = NO_TIMESTAMP
        with suppress(CorruptLogFileError):  # ``unreadable_from`` is set
            largest = segment.max_entry().timestamp_ms
        if largest >= 0 and segment.unreadable_from is None:
            return largest
        return max(largest, self.disk.modified_ms(segment.path(LOG_SUFFIX)))

    @property
    def is_settled(self) -> bool:
        """Whether all of the log may be acknowledged now; if not, a sync must be asked for."""
        return self.settled_end_offset == self.log_end_offset

    def unsettle(self) -> None:
        """Counts what is not durable as not settled, until ``update_config`` tells the settings to judge it by."""
        self.settled_end_offset = self.recovery_point

    def _settle(self) -> None:
        """Looks again at what may be acknowledged."""
        if self.log_end_offset - self.recovery_point < self.config.flush_messages:
            self.settled_end_offset = self.log_end_offset
        else:
            self.settled_end_offset = max(self.settled_end_offset, self.recovery_point)

    def durable_end_moved(self) -> None:
        """See ``SegmentedLog``."""
        self._settle()

    def cut_settled(self) -> None:
        """The log was truncated: nothing above its end is settled any more."""
        self.settled_end_offset = min(self.settled_end_offset, self.log_end_offset)
        self._settle()

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
