"""The part of a partition's log that leaders and followers share: staged writes, watermarks, look-ups, retention.

Staged batches become part of the log with one gathered write (``flush_staged``), or are all dropped if that fails.

A topic's ``flush.messages`` bounds how many acknowledged records may be not durable. So a written record may have to
wait: ``settled_end_offset`` is the offset up to which the log may be acknowledged, or reported to a leader, now. With
the default it is always the log end. With ``flush.messages=M`` it stops once M records are not durable, and moves again
when a sync has ended (``flush_work``, outside the event loop). That sync covers all records written before it began, so
appends that arrive meanwhile share the next one.

Replication sets the high watermark; it bounds the last stable offset, DeleteRecords and retention.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import CorruptLogFileError, LogError, OffsetOutOfRangeError
from moldau_broker.log.files.names import LOG_SUFFIX
from moldau_broker.log.partition.segmented_log import SegmentedLog
from moldau_broker.log.partition.timestamps import find_in_batch
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
    from collections.abc import Generator, Sequence

    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.files.checkpoint import EpochEntry
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.producer_state import EndMarker
    from moldau_broker.log.partition.timestamps import Step
    from moldau_broker.log.values import StagedBatch


class WatermarkedLog(SegmentedLog):
    """A log with staged writes and a high watermark.

    Invariants: ``log_start_offset <= high_watermark <= log_end_offset <= staged_end_offset``;
    ``last_stable_offset <= high_watermark``; ``settled_end_offset <= log_end_offset``, both are ends of batches;
    ``settled_end_offset`` falls only by truncation.
    """

    _staged_buffers: list[Buffer]
    _staged_batches: list[StagedBatch]

    def initialise_watermark(self, high_watermark: int) -> None:
        """Sets up the state that segments do not hold; called once by the loader."""
        self._staged_buffers = []
        self._staged_batches = []
        self._staged_bytes = 0
        self.staged_end_offset = self.log_end_offset
        # Records of a former process may be in the page cache only.
        self.unsettle()
        self._settle()
        self._high_watermark = min(max(high_watermark, self.log_start_offset), self.log_end_offset)
        self.producer_state.high_watermark_moved(self._high_watermark)

    # Watermarks ------------------------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """Offset (exclusive) up to which all in-sync replicas have the log, as set by replication."""
        return self._high_watermark

    def update_high_watermark(self, offset: int) -> int:
        """Sets the high watermark, clamped to the log, and returns it.

        The caller ensures that it rises within a leader epoch.
        """
        self._high_watermark = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.producer_state.high_watermark_moved(self._high_watermark)
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """First offset that a ``read_committed`` consumer may not see yet.

        It is the start of the oldest open transaction, or the high watermark.
        """
        unstable = self.producer_state.first_unstable_offset()
        if unstable is None or unstable >= self._high_watermark:
            return self._high_watermark
        return max(unstable, self.log_start_offset)

    def increment_log_start_offset(self, offset: int) -> bool:
        """Moves the log start offset up; returns whether it moved.

        The next retention deletes the segments below it. The next checkpoint of log start offsets makes it durable.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.
        """
        if offset > self._high_watermark:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self._high_watermark)
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    def delete_records(self, offset: int) -> int:
        """Hides all records below ``offset`` (-1: the high watermark) from readers; returns the log start offset.

        Raises:
            OffsetOutOfRangeError: The offset is below -1 or above the high watermark.
            LogError: POLICY_VIOLATION, the topic is only compacted.
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
        """Whether there are staged batches for ``flush_staged`` to write."""
        return bool(self._staged_batches)

    def flush_staged(self) -> None:
        """Writes the staged batches with one gathered write.

        The write moves the log end offset, sequence numbers and transactions. Records below ``settled_end_offset`` may
        be acknowledged then.

        Raises:
            LogStorageError: The write failed. No staged batch counts, all ``AppendInfo`` since the last flush are void
                (also those of duplicates), and the log accepts no more batches.
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
            failure.add_note(f"the partial write could not be removed either: {second}")
        return failure

    def _end_transaction(self, header: BatchHeader, marker: EndMarker) -> None:
        """Applies a marker that is in the log to the producer state and the index of aborted transactions."""
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
        """Returns the end offset of an epoch, for OffsetForLeaderEpoch (KIP-101, KIP-279)."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Returns the leader epoch in which ``offset`` was written, -1 if not known."""
        return self.epochs.epoch_for_offset(offset)

    def epoch_entries(self) -> Sequence[EpochEntry]:
        """Returns all epochs of the log and their start offsets, oldest first."""
        return self.epochs.entries

    # Look-ups --------------------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """Runs all steps of ``search_timestamp`` at once."""
        search = self.search_timestamp(timestamp_ms)
        while True:
            try:
                step = next(search)
            except StopIteration as end:
                found: TimestampOffset | None = end.value
                return found
            if step is not None:
                step.run()

    def search_timestamp(self, timestamp_ms: int) -> Generator[Step, None, TimestampOffset | None]:
        """Finds the first record at or after a time, or for a special timestamp (ListOffsets); None if there is none.

        Yields None where other tasks may run, and long steps that the caller must run; the log may change meanwhile.
        The caller limits the answer to records that its client may see.

        Raises:
            CorruptRecordError: The batch is damaged.
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
        while True:
            batch = self._batch_with_timestamp(timestamp_ms, start)
            if batch is None:
                return None
            header, data = batch
            found = yield from find_in_batch(header, data, timestamp_ms, start, self.config)
            if found is not None:
                return found
            start = header.next_offset

    def _batch_with_timestamp(self, timestamp_ms: int, start_offset: int) -> tuple[BatchHeader, bytes] | None:
        for segment in list(self._segments):
            if segment.max_entry().timestamp_ms >= timestamp_ms:
                found = segment.find_timestamp(timestamp_ms, start_offset)
                if found is not None:
                    return found
        return None

    def max_timestamp_ms(self) -> int:
        """Returns the largest timestamp in the log, -1 if there is none."""
        return max(segment.max_entry().timestamp_ms for segment in self._segments)

    def aborted_transactions(self, result: ReadResult, upper_bound_offset: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions that a ``read_committed`` consumer needs for ``result``.

        They are ordered by their markers.
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
        """Returns an offset at or above the end of ``result``, from the index."""
        index = self.segment_index(result.segment_base_offset)
        if index < 0 or self._segments[index].base_offset != result.segment_base_offset:
            return self.log_end_offset
        end = self._segments[index].offset_index.first_at_or_after_position(result.segment_position + result.size_bytes)
        return end.offset if end is not None else self.next_base_offset(index)

    # Producers -------------------------------------------------------------------------------------------------------

    def active_producers(self) -> list[ProducerDescription]:
        """Returns the state of all producers (DescribeProducers)."""
        return self.producer_state.describe()

    def describe_producer(self, producer_id: int) -> ProducerDescription | None:
        """Returns the state of one producer; None if the log has none."""
        return self.producer_state.describe_producer(producer_id)

    def has_ongoing_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Returns whether the producer's transaction is open here, so that a produce needs no check (KIP-890)."""
        return self.producer_state.has_ongoing_transaction(producer_id, producer_epoch)

    # Maintenance -----------------------------------------------------------------------------------------------------

    def update_config(self, config: LogConfig) -> None:
        """Replaces the topic settings; they apply to later appends."""
        self.config = config
        self._settle()

    def apply_retention(self, now_ms: int) -> int:
        """Deletes the oldest segments by ``retention.ms``, ``retention.bytes`` or log start offset; returns how many.

        Only segments below the high watermark are deleted. An active segment that is too old is closed first.

        Raises:
            LogStorageError: The directory failed.
            CorruptLogFileError: The oldest segment is too damaged to determine its age.
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
        """Returns when the newest record of a segment was written, by its timestamp.

        If there is none, or part of the segment is unreadable, the last write to the file counts too: unreadable
        records may be newer than the others.
        """
        largest = NO_TIMESTAMP
        with suppress(CorruptLogFileError):  # ``unreadable_from`` is set
            largest = segment.max_entry().timestamp_ms
        if largest >= 0 and segment.unreadable_from is None:
            return largest
        return max(largest, self.disk.modified_ms(segment.path(LOG_SUFFIX)))

    @property
    def is_settled(self) -> bool:
        """Whether all of the log may be acknowledged now; if not, a sync must be requested."""
        return self.settled_end_offset == self.log_end_offset

    def unsettle(self) -> None:
        """Counts records that are not durable as not settled, until ``update_config`` sets the topic's settings."""
        self.settled_end_offset = self.recovery_point

    def _settle(self) -> None:
        """Recomputes ``settled_end_offset``."""
        if self.log_end_offset - self.recovery_point < self.config.flush_messages:
            self.settled_end_offset = self.log_end_offset
        else:
            self.settled_end_offset = max(self.settled_end_offset, self.recovery_point)

    def durable_end_moved(self) -> None:
        """See ``SegmentedLog``."""
        self._settle()

    def cut_settled(self) -> None:
        """Lowers ``settled_end_offset`` to the end of a truncated log."""
        self.settled_end_offset = min(self.settled_end_offset, self.log_end_offset)
        self._settle()

    def flush_due(self, now_ms: int) -> bool:
        """Returns whether ``flush.messages`` or ``flush.ms`` requires a sync now.

        Called after appends and from time to time.
        """
        unflushed = self.log_end_offset - self.recovery_point
        if unflushed <= 0 or self.failed:
            return False
        if self.unflushed_since_ms is None:
            self.unflushed_since_ms = now_ms
        return unflushed >= self.config.flush_messages or now_ms - self.unflushed_since_ms >= self.config.flush_ms

    def flush(self) -> None:
        """Makes the whole log durable; blocks.

        Raises:
            LogStorageError: The directory failed.
        """
        work = self.flush_work()
        if work is not None:
            try:
                run_work(work)
            except OSError as error:
                raise self.storage_error("syncing", error) from error
