"""The log of one partition as its leader or follower uses it.

``PartitionLog`` is made of parts, each of which knows only those named before it: ``SegmentedLog`` (the files),
``Watermarks`` (what may be read and acknowledged), ``StagedWrites`` (batches that are not written yet),
``LeaderAppends`` and ``FollowerAppends``. Replication sets the high watermark; it bounds the last stable offset,
DeleteRecords and retention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.records import encode_end_txn_marker
from moldau.values import Offset
from moldau_broker.log.errors import LogError, OffsetOutOfRangeError
from moldau_broker.log.partition import lookups, retention
from moldau_broker.log.partition.follower_appends import FollowerAppends
from moldau_broker.log.partition.leader_appends import LeaderAppends
from moldau_broker.log.partition.staged_writes import StagedWrites
from moldau_broker.log.partition.watermarks import Watermarks
from moldau_broker.log.remote.segments_to_copy import segments_to_copy
from moldau_broker.log.values import AppendInfo, AppendOrigin, TimestampOffset, Work, run_work

if TYPE_CHECKING:
    import uuid
    from collections.abc import Generator, Sequence

    from moldau.values import LeaderEpoch
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.partition.timestamps import Step
    from moldau_broker.log.remote.segments_to_copy import SegmentToCopy
    from moldau_broker.log.values import AbortedTransaction, EpochEndOffset, ReadResult


class PartitionLog:
    """The log of one partition, created by ``LogManager`` or ``loader.load_log``."""

    def __init__(self, storage: SegmentedLog, *, high_watermark: int, topic_id: uuid.UUID | None = None) -> None:
        self.storage = storage
        self.topic_partition = storage.topic_partition
        self.topic_id = topic_id
        self.epochs = storage.epochs
        self.producer_state = storage.producer_state
        self.watermarks = Watermarks(storage, high_watermark)
        self._staged = StagedWrites(storage, self.watermarks)
        self.leader_appends = LeaderAppends(storage, self._staged)
        self._follower_appends = FollowerAppends(storage, self._staged, self.watermarks)

    # Queries ---------------------------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return self.storage.directory

    @property
    def parent_directory(self) -> str:
        """The log directory (one of ``log.dirs``) that holds the partition."""
        return self.storage.parent_directory

    @property
    def failed(self) -> bool:
        """Whether a write failed, after which the log is offline."""
        return self.storage.failed

    @property
    def config(self) -> LogConfig:
        """The topic's settings."""
        return self.storage.config

    @property
    def segments(self) -> Sequence[LogSegment]:
        """All segments, oldest first; treat as read-only and do not hold across changes."""
        return self.storage.segments.all

    @property
    def size_bytes(self) -> int:
        """Bytes of all ``.log`` files."""
        return self.storage.segments.size_bytes

    @property
    def log_start_offset(self) -> Offset:
        """First offset that readers may see."""
        return Offset(self.storage.log_start_offset)

    @property
    def is_remote(self) -> bool:
        """Whether the topic is tiered (``remote.storage.enable``)."""
        return self.storage.config.remote_storage_enable

    @property
    def local_log_start_offset(self) -> Offset:
        """First offset that readers may see on this disk, at least the log start offset."""
        storage = self.storage
        return Offset(max(storage.log_start_offset, storage.segments.first_base_offset))

    @property
    def knows_remote_epochs(self) -> bool:
        """Whether the leader epochs from the log start offset on are known.

        They are, unless two files of the log were damaged. Without them it is unknown which remote segments are the
        log's own, so none may be deleted, and the log start offset must not move behind them.
        """
        start = self.storage.log_start_offset
        entries = self.epochs.entries
        return self.local_log_start_offset == start or bool(entries and entries[0].start_offset <= start)

    @property
    def copied_end_offset(self) -> Offset:
        """Offset (exclusive) up to which the object store holds all records of this log, as this broker knows."""
        return Offset(self.storage.copied_end_offset)

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record."""
        return Offset(self.storage.log_end_offset)

    @property
    def recovery_point(self) -> int:
        """Offset (exclusive) up to which the log is durable."""
        return self.storage.recovery_point

    @property
    def settled_end_offset(self) -> Offset:
        """Offset (exclusive) up to which the log may be acknowledged now, see ``watermarks``."""
        return Offset(self.watermarks.settled_end_offset)

    @property
    def is_settled(self) -> bool:
        """Whether all of the log may be acknowledged now; if not, a sync must be requested."""
        return self.watermarks.is_settled

    @property
    def high_watermark(self) -> Offset:
        """Offset (exclusive) up to which all in-sync replicas have the log, as set by replication."""
        return Offset(self.watermarks.high_watermark)

    @property
    def last_stable_offset(self) -> Offset:
        """First offset that a ``read_committed`` consumer may not see yet, at most the high watermark."""
        return Offset(self.watermarks.last_stable_offset)

    @property
    def latest_epoch(self) -> int:
        """Newest leader epoch of the log, -1 if there is none."""
        return self.epochs.latest_epoch

    @property
    def staged_end_offset(self) -> Offset:
        """Offset that the next staged batch gets."""
        return Offset(self._staged.end_offset)

    @property
    def has_staged(self) -> bool:
        """Whether there are staged batches for ``flush_staged`` to write."""
        return bool(self._staged)

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(self, offset: int, *, max_bytes: int, upper_bound_offset: int, min_one_batch: bool = False) -> ReadResult:
        """Finds the bytes of the batches from ``offset`` up to ``upper_bound_offset`` (exclusive).

        Only one segment is searched. ``min_one_batch`` returns the first batch whole however large it is (KIP-74). At
        most a header and a piece of an index are read.

        Raises:
            OffsetOutOfRangeError: The offset is outside the log.
            OffsetInRemoteStorageError: The offset is below the local log start offset.
            LogError: CORRUPT_MESSAGE, the log is too damaged to find the batch.
            OSError: A file could not be read.
        """
        return self.storage.read(
            offset, max_bytes=max_bytes, upper_bound_offset=upper_bound_offset, min_one_batch=min_one_batch
        )

    def aborted_transactions(self, result: ReadResult, upper_bound_offset: int) -> list[AbortedTransaction]:
        """Returns the aborted transactions that a ``read_committed`` consumer needs for ``result``.

        They are ordered by their markers.
        """
        return lookups.aborted_transactions(self.storage, result, upper_bound_offset)

    def search_timestamp(self, timestamp_ms: int) -> Generator[Step, None, TimestampOffset | None]:
        """Finds the first record at or after a time, or for a special timestamp (ListOffsets); None if there is none.

        Yields None where other tasks may run, and long steps that the caller must run; the log may change meanwhile.
        The caller limits the answer to records that its client may see.

        Raises:
            CorruptRecordError: The batch is damaged.
            LogError: CORRUPT_MESSAGE, the log is too damaged to find the batch.
        """
        return lookups.search_timestamp(self.storage, timestamp_ms)

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

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Returns the end offset of an epoch, for OffsetForLeaderEpoch (KIP-101, KIP-279)."""
        return self.epochs.end_offset_for(leader_epoch, self.log_end_offset)

    # Watermarks ------------------------------------------------------------------------------------------------------

    def update_high_watermark(self, offset: int) -> int:
        """Sets the high watermark, clamped to the log, and returns it.

        The caller ensures that it rises within a leader epoch.
        """
        return self.watermarks.update(offset)

    def increment_log_start_offset(self, offset: int) -> bool:
        """Moves the log start offset up; returns whether it moved.

        The next retention deletes the segments below it. The next checkpoint of log start offsets makes it durable.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.
        """
        return self.watermarks.increment_log_start_offset(offset)

    def delete_records(self, offset: int) -> int:
        """Hides all records below ``offset`` (-1: the high watermark) from readers; returns the log start offset.

        Raises:
            OffsetOutOfRangeError: The offset is below -1 or above the high watermark.
            LogError: POLICY_VIOLATION, the topic is only compacted.
        """
        if self.config.compact and not self.config.delete:
            raise LogError(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic_partition} is only compacted: records cannot be deleted by offset",
            )
        if offset < -1:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self.high_watermark)
        self.increment_log_start_offset(self.high_watermark if offset == -1 else offset)
        return self.log_start_offset

    # Leader ----------------------------------------------------------------------------------------------------------

    def begin_leader_epoch(self, leader_epoch: LeaderEpoch) -> int:
        """Records that this replica leads in ``leader_epoch`` from the log end offset on; returns that offset.

        In memory: see ``epoch_cache``.
        """
        self.storage.require_healthy()
        self.epochs.assign(leader_epoch, self.log_end_offset)
        return self.log_end_offset

    def stage_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Stages one batch for the end of the log, and assigns its offset and epoch in place.

        A read-only buffer is copied. ``records`` must not change until ``flush_staged`` has returned; before that,
        nothing is visible or counted. A duplicate of one of the producer's last five batches is not staged: the answer
        holds the offsets of the original, which may itself still be staged. The batch is checked here, however long
        that takes; a caller that has run the steps of its validation before calls ``leader_appends.stage``.

        Raises:
            LogError: The batch is refused (see ``validator``, ``ProducerStateManager.check``). Nothing has changed.
            LogStorageError: The directory failed.
        """
        return self.leader_appends.stage(records, leader_epoch, now_ms, origin, None)

    def flush_staged(self) -> None:
        """Writes the staged batches with one gathered write.

        The write moves the log end offset, sequence numbers and transactions. Records below ``settled_end_offset`` may
        be acknowledged then.

        Raises:
            LogStorageError: The write failed. No staged batch counts, all ``AppendInfo`` since the last flush are void
                (also those of duplicates), and the log accepts no more batches.
        """
        self._staged.flush()

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Stages a batch and writes it (``stage_as_leader``, ``flush_staged``)."""
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
        leader_epoch: LeaderEpoch,
        now_ms: int,
    ) -> AppendInfo:
        """Appends a commit or abort marker; on return the transaction has ended in this log."""
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

    # Follower ---------------------------------------------------------------------------------------------------------

    def append_as_follower(
        self,
        records: memoryview,
        *,
        now_ms: int,
        leader_epoch: LeaderEpoch | None = None,
        leader_log_start_offset: int = -1,
    ) -> AppendInfo:
        """Appends batches as a leader sent them, with their offsets and epochs, without a partial batch at the end.

        Batches below the log end offset are skipped (a fetch may begin inside a batch). An empty log whose end lies
        inside the first new batch (DeleteRecords moved the leader's log start there) starts over with that batch, and
        keeps its log start offset. ``leader_epoch`` is the epoch of the fetched leader, None for a log of this broker.
        From the first batch of a newer epoch on, batches do not come from that leader and are dropped (KAFKA-18723).
        All batches are checked before the first is written.

        Raises:
            LogError: CORRUPT_MESSAGE; or UNKNOWN_LEADER_EPOCH if the first new batch is of a newer epoch. Nothing was
                appended.
            LogStorageError: The directory failed.
        """
        return self._follower_appends.append(
            records, now_ms=now_ms, leader_epoch=leader_epoch, leader_log_start_offset=leader_log_start_offset
        )

    def truncate_to(self, offset: int) -> bool:
        """Removes all batches at or above ``offset``; returns whether there were any.

        Blocks on a sync, and is durable on return. A batch that holds ``offset`` in its middle is removed as a whole.
        If all records below ``offset`` are in the object store, the log starts over there, empty.

        Raises:
            OffsetOutOfRangeError: The offset is below the log start offset.
            LogStorageError: The directory failed.
        """
        return self._follower_appends.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Removes all batches and starts again at ``offset``, below which the leader has no records.

        Raises:
            LogStorageError: The directory failed.
        """
        self._follower_appends.truncate_fully_and_start_at(offset, now_ms)

    # Remote storage ---------------------------------------------------------------------------------------------------

    def note_copied(self, end_offset: int) -> None:
        """Sets ``copied_end_offset``, also to a lower value; retention looks at the log again."""
        if end_offset != self.storage.copied_end_offset:
            self.storage.copied_end_offset = end_offset
            self.storage.touched[self.storage] = None

    def closed_segments(self, from_offset: int) -> list[SegmentToCopy]:
        """Returns the closed, durable segments that end at most at the last stable offset, for the object store.

        The first one is that which holds ``from_offset``. A crash of this broker does not lose their records, so the
        store never has records that the log of its only replica lacks. At most a few pieces of an index are read for
        each segment.

        Raises:
            LogError: CORRUPT_MESSAGE, the first of them is damaged.
            OSError: A file could not be read.
        """
        end_offset = min(self.watermarks.last_stable_offset, self.storage.recovery.offset)
        return segments_to_copy(self.storage, from_offset, end_offset)

    def restart_behind(
        self, offset: int, *, log_start_offset: int, leader_epochs: bytes, producer_snapshot: bytes, now_ms: int
    ) -> None:
        """Removes all batches and starts over at ``offset``, below which the object store has the leader's records.

        ``leader_epochs`` and ``producer_snapshot`` are those of the remote segment that ends at ``offset``
        (``SegmentParts``). A ``log_start_offset`` above ``offset`` counts as ``offset``. Durable on return; after a
        crash the log is a prefix of the old one, or what it is on return.

        Raises:
            LogError: CORRUPT_MESSAGE, one of them is damaged. Nothing has changed.
            LogStorageError: The directory failed.
        """
        self._follower_appends.restart_behind(offset, log_start_offset, leader_epochs, producer_snapshot, now_ms)

    def restore_producers(self, snapshot: bytes) -> None:
        """Replaces the producers of a log without records on this disk by those of a snapshot at its end.

        Durable on return.

        Raises:
            LogStorageError: The directory failed.
        """
        storage = self.storage
        storage.require_healthy()
        assert storage.segments.first_base_offset == storage.log_end_offset, "batches here show their own producers"
        try:
            storage.snapshots.write(storage.log_end_offset, snapshot)
            storage.snapshots.restore(storage.segments, storage.log_end_offset)
        except OSError as error:
            raise storage.storage_error("restoring the producers of", error) from error

    def start_over_like(self, other: PartitionLog, now_ms: int) -> None:
        """Removes all batches and starts over where another log of the same partition begins on its disk.

        Raises:
            LogStorageError: This directory failed.
            OSError: A file of the other log could not be read.
        """
        self._follower_appends.start_over_like(other.storage, now_ms)

    def pass_gap(self, end_offset: int) -> None:
        """Moves the log end to ``end_offset``, behind offsets whose records compaction has removed.

        Nothing on the disk changes: after a start the log ends behind its last record again, as the log that was cut in
        such a gap does.

        Raises:
            LogStorageError: A write failed earlier.
        """
        self._follower_appends.pass_gap(end_offset)

    # Maintenance ------------------------------------------------------------------------------------------------------

    def update_config(self, config: LogConfig) -> None:
        """Replaces the topic settings; they apply to later appends.

        A topic that is no longer tiered, and whose remote segments are deleted with that
        (``remote.log.delete.on.disable``), begins at its local log start offset from now on (KIP-950).
        """
        self.storage.config = config
        self.storage.touched[self.storage] = None
        self.watermarks.settle()
        self._forget_remote_segments()

    def _forget_local_start(self) -> None:
        """Removes the file that says where the log begins on this disk, once its segments show that.

        Raises:
            LogStorageError: The directory failed.
        """
        storage = self.storage
        if self.is_remote or storage.local_start.content is None:
            return
        if storage.log_start_offset >= storage.segments.first_base_offset:
            try:
                storage.local_start.remove()
            except OSError as error:
                raise storage.storage_error("removing a checkpoint of", error) from error

    def _forget_remote_segments(self) -> None:
        config = self.config
        if not config.remote_storage_enable:
            # Copies that were noted may be deleted before the topic is tiered again.
            self.note_copied(self.storage.segments.first_base_offset)
            if config.remote_log_delete_on_disable:
                self.increment_log_start_offset(self.local_log_start_offset)

    def apply_retention(self, now_ms: int) -> int:
        """Deletes the oldest segments by ``retention.ms``, ``retention.bytes`` or log start offset; returns how many.

        Only segments below the high watermark are deleted. An active segment that is too old is closed first. Of a
        tiered topic, segments that are in the object store go by ``local.retention.*``, and the log start offset stays.

        Raises:
            LogStorageError: The directory failed.
            CorruptLogFileError: The oldest segment is too damaged to determine its age.
        """
        if self.failed:
            return 0
        storage = self.storage
        copies_segments = self.config.copies_segments
        self._forget_local_start()
        high_watermark, has_staged = self.high_watermark, self.has_staged
        count = retention.expired_count(storage, high_watermark, now_ms, has_staged=has_staged)
        if retention.closes_active(storage, high_watermark, now_ms, expired=count, has_staged=has_staged):
            storage.roll(self.log_end_offset, now_ms)
        if count == 0:
            return 0
        try:
            if count == len(self.segments):
                self.flush_staged()
                storage.roll(self.log_end_offset, now_ms)
            storage.drop_oldest(count, keeps_start=copies_segments)
        except OSError as error:
            raise storage.storage_error("deleting segments of", error) from error
        self.update_high_watermark(self.high_watermark)
        return count

    def next_retention_ms(self) -> int | None:
        """Returns from when on retention or a roll by time may find work while the log does not change; None: never.

        Raises:
            OSError: A file could not be read.
        """
        return retention.next_look_ms(self.storage, self.high_watermark)

    def flush_work(self, *, up_to_closed_only: bool = False) -> Work | None:
        """Returns work that makes the log durable up to its present end, or up to the active segment.

        Its completion moves the recovery point. None if there is nothing to do. Appends may go on meanwhile; a
        truncation makes the result of the work void.
        """
        flush = self.storage.begin_flush(up_to_closed_only=up_to_closed_only)
        if flush is None:
            return None

        def complete() -> None:
            if flush.complete():
                self.watermarks.settle()

        return Work(
            name=f"flush {self.topic_partition}",
            run=flush.run,
            complete=complete,
            failed=flush.failed,
            directory=self.parent_directory,
            is_flush=True,
        )

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
                raise self.storage.storage_error("syncing", error) from error
