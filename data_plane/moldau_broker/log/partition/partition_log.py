"""The log of one partition as its leader or follower uses it.

A leader's append has two halves. ``stage_as_leader`` validates a batch, assigns its offset and leader epoch in the
caller's buffer and checks its producer, all in memory; ``flush_staged`` writes all staged batches with one gathered
write and moves the log end offset. So many pipelined requests cost one system call per log. If the write fails, all
staged batches are dropped.

A follower's append keeps the offsets and epochs that the leader assigned.

Replication sets the high watermark; it bounds the last stable offset, DeleteRecords and retention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.records import (
    CorruptRecordError,
    encode_end_txn_marker,
    iterate_batches,
)
from moldau_broker.log.errors import LogError, OffsetOutOfRangeError
from moldau_broker.log.files.batches import CONTROL_BIT, batch_problem
from moldau_broker.log.partition.segmented_log import decode_marker
from moldau_broker.log.partition.validator import LOG_APPEND_TIME, assign, validate_batch
from moldau_broker.log.partition.watermarked_log import WatermarkedLog
from moldau_broker.log.values import (
    NO_TIMESTAMP,
    AppendInfo,
    AppendOrigin,
    StagedBatch,
)

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau_broker.log.partition.validator import BatchValidation

_OFFSET_RANGE_MAX = (1 << 31) - 1
_STAGED_BUFFERS_MAX = 1024
"""The number of buffers that one writev takes; batches beyond it are written first."""


class PartitionLog(WatermarkedLog):
    """The log of one partition, created by ``LogManager`` or ``loader.load_log``."""

    # Leader ----------------------------------------------------------------------------------------------------------

    def begin_leader_epoch(self, leader_epoch: int) -> int:
        """Records that this replica leads in ``leader_epoch`` from the log end offset on; returns that offset.

        In memory: see ``epoch_cache``.
        """
        self.require_healthy()
        self.epochs.assign(leader_epoch, self.log_end_offset)
        return self.log_end_offset

    def stage_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        validation: BatchValidation | None = None,
    ) -> AppendInfo:
        """Stages one batch for the end of the log, and assigns its offset and epoch in place.

        A read-only buffer is copied. ``records`` must not change until ``flush_staged`` has returned; before that,
        nothing is visible or counted. A duplicate of one of the producer's last five batches is not staged: the answer
        holds the offsets of the original, which may itself still be staged. ``validation`` is the validation of
        ``records`` if its steps were run before; else the batch is checked here, however long that takes.

        Raises:
            LogError: The batch is refused (see ``validator``, ``ProducerStateManager.check``). Nothing has changed.
            LogStorageError: The directory failed.
        """
        if self.failed:
            self.require_healthy()
        if validation is not None:
            buffer, header = validation.result(now_ms)
        else:
            buffer, header = validate_batch(records, self.config, origin, now_ms)
        control = header.attributes & CONTROL_BIT
        producers = self.producer_state
        marker = None
        if header.producer_id >= 0:
            producers.now_ms = now_ms
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
            # A marker changes the last stable offset: it is written alone, and only then ends the transaction.
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
        """Rolls, flushes or records a new epoch before the next batch as needed; returns whether it rolled."""
        if header.attributes & CONTROL_BIT or len(self._staged_batches) >= _STAGED_BUFFERS_MAX:
            self.flush_staged()
        rolled = False
        last_offset = self.staged_end_offset + header.last_offset_delta
        if self.must_roll(self._staged_bytes + size, header.max_timestamp, last_offset, now_ms):
            self.flush_staged()
            # The flush may change the answer: the segment is not empty now, and its index may be full.
            if self.must_roll(size, header.max_timestamp, last_offset, now_ms):
                self.roll(self.log_end_offset, now_ms)
                rolled = True
        if leader_epoch != self.epochs.latest_epoch:
            self.flush_staged()
            self.epochs.assign(leader_epoch, self.log_end_offset)
        return rolled

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
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
        leader_epoch: int,
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

    # Follower --------------------------------------------------------------------------------------------------------

    def append_as_follower(
        self, records: memoryview, *, now_ms: int, leader_epoch: int | None = None, leader_log_start_offset: int = -1
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
        self.require_healthy()
        assert not self._staged_batches, "a leader staged batches in the log of a follower"
        self.producer_state.now_ms = now_ms
        batches = self._sound_batches(records, leader_epoch)
        if not batches:
            return AppendInfo(
                first_offset=-1, last_offset=self.log_end_offset - 1, log_start_offset=self.log_start_offset
            )
        log_start_offset = self.log_start_offset
        if batches[0][1].base_offset < self.log_end_offset:  # Kafka's UnexpectedAppendOffsetException
            self._restart(batches[0][1].base_offset, now_ms, log_start_offset)
        rolled = False
        for position, header in batches:
            size = header.size_bytes
            if self.must_roll(self._staged_bytes + size, header.max_timestamp, header.last_offset, now_ms):
                self._write_replicated()
                self._roll_for(header, now_ms)
                rolled = True
            if header.partition_leader_epoch > self.epochs.latest_epoch:
                self._write_replicated()
                self.epochs.assign(header.partition_leader_epoch, header.base_offset)
            data = records[position : position + size]
            self._staged_buffers.append(data)
            self._staged_batches.append(StagedBatch(header.base_offset, header.last_offset, size, header.max_timestamp))
            self._staged_bytes += size
            self.staged_end_offset = header.next_offset
            if header.producer_id >= 0:
                self._replicate_producer(header, data)
        self._write_replicated()
        if log_start_offset > self.log_start_offset:
            self.update_high_watermark(max(self._high_watermark, log_start_offset))
            self.increment_log_start_offset(log_start_offset)
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
        """Rolls at the log end, even if the next batch begins later, because recovery treats a gap as a loss.

        A gap is left only if the batch is too far away for the index; a crash soon after costs a follower a fetch.
        """
        near = header.last_offset - self.log_end_offset < _OFFSET_RANGE_MAX
        self.roll(self.log_end_offset if near else header.base_offset, now_ms)

    def _sound_batches(self, records: memoryview, leader_epoch: int | None) -> list[tuple[int, BatchHeader]]:
        """Returns the new whole batches, each checked: CRC, rising offsets, epochs that do not fall.

        The first one may begin below the log end offset of an empty log, which then must begin with it.

        The batches end before the first one of an epoch above ``leader_epoch``. A leader sends bytes of its files when
        the socket accepts them. If it became a follower meanwhile, its files may hold other bytes by then, written by
        the next leader. Appending these behind the former leader's batches would hide that the logs differ before.
        """
        found: list[tuple[int, BatchHeader]] = []
        next_offset, epoch = self.log_end_offset, self.epochs.latest_epoch
        try:
            for position, header in iterate_batches(records):
                if leader_epoch is not None and header.partition_leader_epoch > leader_epoch:
                    if not found:
                        raise LogError(
                            ErrorCode.UNKNOWN_LEADER_EPOCH,
                            f"batch {header.base_offset}: epoch {header.partition_leader_epoch} from the leader of "
                            f"{leader_epoch}",
                        )
                    break
                problem = batch_problem(header, records[position : position + header.size_bytes])
                if problem is not None:
                    raise LogError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset}: {problem}")
                if header.last_offset < next_offset and not found:
                    continue
                if header.base_offset < next_offset and (found or self.log_start_offset < next_offset):
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
        """Writes the staged batches of a follower: many buffers of one fetch answer, mostly contiguous."""
        self.flush_staged()

    # Truncation ------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Removes all batches at or above ``offset``; returns whether there were any.

        Blocks on a sync, and is durable on return. A batch that holds ``offset`` in its middle is removed as a whole.

        Raises:
            OffsetOutOfRangeError: The offset is below the log start offset.
            LogStorageError: The directory failed.
        """
        self.require_healthy()
        assert not self._staged_batches, "a log that has staged batches is a leader's and is not truncated"
        if offset >= self.log_end_offset:
            # An epoch that began here without a record is not in the leader's log either.
            self.epochs.truncate_from_end(offset)
            return False
        if offset < self.log_start_offset:
            raise OffsetOutOfRangeError(offset, self.log_start_offset, self.log_end_offset)
        try:
            self._truncate(offset)
        except OSError as error:
            raise self.storage_error("truncating", error) from error
        self.staged_end_offset = self.log_end_offset
        self.cut_settled()
        self.update_high_watermark(self._high_watermark)
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Removes all batches and starts again at ``offset``, below which the leader has no records.

        Raises:
            LogStorageError: The directory failed.
        """
        self.require_healthy()
        assert not self._staged_batches, "a log that has staged batches is a leader's and is not truncated"
        self._restart(offset, now_ms, offset)

    def _restart(self, offset: int, now_ms: int, log_start_offset: int) -> None:
        try:
            self._restart_at(offset, now_ms, log_start_offset)
        except OSError as error:
            raise self.storage_error("restarting", error) from error
        self.staged_end_offset = self.log_end_offset
        self.settled_end_offset = offset
        self._high_watermark = offset
