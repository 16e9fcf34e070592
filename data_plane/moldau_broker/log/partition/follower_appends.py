"""Appends and truncations of a partition's follower, which keeps the offsets and epochs that the leader assigned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.records import CorruptRecordError, iterate_batches
from moldau_broker.log.errors import CorruptLogFileError, LogError, OffsetOutOfRangeError
from moldau_broker.log.files.batches import CONTROL_BIT, batch_problem
from moldau_broker.log.files.checkpoint import decode_epochs
from moldau_broker.log.partition.segmented_log import RemotePast
from moldau_broker.log.producers.end_markers import decode_marker
from moldau_broker.log.producers.producer_state import decode_snapshot
from moldau_broker.log.values import NO_TIMESTAMP, AppendInfo, StagedBatch

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.partition.staged_writes import StagedWrites
    from moldau_broker.log.partition.watermarks import Watermarks
    from moldau_broker.log.producers.producer_state import EndMarker

_OFFSET_RANGE_MAX = (1 << 31) - 1


class FollowerAppends:
    """Makes a log the same as its leader's."""

    def __init__(self, storage: SegmentedLog, staged: StagedWrites, watermarks: Watermarks) -> None:
        self._storage = storage
        self._staged = staged
        self._watermarks = watermarks

    def append(
        self, records: memoryview, *, now_ms: int, leader_epoch: int | None, leader_log_start_offset: int
    ) -> AppendInfo:
        """Appends batches as a leader sent them, see ``PartitionLog.append_as_follower``.

        Raises:
            LogError: CORRUPT_MESSAGE; or UNKNOWN_LEADER_EPOCH if the first new batch is of a newer epoch. Nothing was
                appended.
            LogStorageError: The directory failed.
        """
        storage = self._storage
        storage.require_healthy()
        assert not self._staged, "a leader staged batches in the log of a follower"
        storage.producer_state.now_ms = now_ms
        batches = self._sound_batches(records, leader_epoch)
        if not batches:
            return AppendInfo(
                first_offset=-1, last_offset=storage.log_end_offset - 1, log_start_offset=storage.log_start_offset
            )
        log_start_offset = storage.log_start_offset
        if batches[0][1].base_offset < storage.log_end_offset:  # Kafka's UnexpectedAppendOffsetException
            self._restart(batches[0][1].base_offset, now_ms, log_start_offset)
        rolled = False
        max_timestamp_ms = NO_TIMESTAMP
        size_bytes = record_count = 0
        for position, header, marker in batches:
            size = header.size_bytes
            rolled |= self._append_batch(header, marker, records[position : position + size], now_ms)
            size_bytes += size
            record_count += header.record_count
            max_timestamp_ms = max(max_timestamp_ms, header.max_timestamp)
        self._staged.flush()
        if log_start_offset > storage.log_start_offset:
            self._watermarks.update(max(self._watermarks.high_watermark, log_start_offset))
            self._watermarks.increment_log_start_offset(log_start_offset)
        if leader_log_start_offset > storage.log_start_offset:
            leader_log_start_offset = min(leader_log_start_offset, self._watermarks.high_watermark)
            self._watermarks.increment_log_start_offset(leader_log_start_offset)
        first, last = batches[0][1], batches[-1][1]
        return AppendInfo(
            first_offset=first.base_offset,
            last_offset=last.last_offset,
            last_leader_epoch=last.partition_leader_epoch,
            log_start_offset=storage.log_start_offset,
            max_timestamp_ms=max_timestamp_ms,
            size_bytes=size_bytes,
            record_count=record_count,
            rolled=rolled,
        )

    def _append_batch(self, header: BatchHeader, marker: EndMarker | None, data: memoryview, now_ms: int) -> bool:
        """Stages a batch of the leader and applies its producer; returns whether it needed a new segment."""
        storage, staged = self._storage, self._staged
        rolled = staged.must_roll(header.size_bytes, header.max_timestamp, header.last_offset, now_ms)
        if rolled:
            staged.flush()
            self._roll_for(header, now_ms)
        if header.partition_leader_epoch > storage.epochs.latest_epoch:
            staged.flush()
            storage.epochs.assign(header.partition_leader_epoch, header.base_offset)
        staged.add(data, StagedBatch(header.base_offset, header.last_offset, header.size_bytes, header.max_timestamp))
        if header.producer_id >= 0:
            self._replicate_producer(header, marker)
        return rolled

    def _roll_for(self, header: BatchHeader, now_ms: int) -> None:
        """Rolls at the log end, even if the next batch begins later, because recovery treats a gap as a loss.

        A gap is left only if the batch is too far away for the index; a crash soon after costs a follower a fetch.
        """
        end_offset = self._storage.log_end_offset
        near = header.last_offset - end_offset < _OFFSET_RANGE_MAX
        self._storage.roll(end_offset if near else header.base_offset, now_ms)

    def _sound_batches(
        self, records: memoryview, leader_epoch: int | None
    ) -> list[tuple[int, BatchHeader, EndMarker | None]]:
        """Returns the new whole batches with their markers, each checked: CRC, rising offsets, epochs that do not fall.

        The first one may begin below the log end offset of an empty log, which then must begin with it.

        The batches end before the first one of an epoch above ``leader_epoch``. A leader sends bytes of its files when
        the socket accepts them. If it became a follower meanwhile, its files may hold other bytes by then, written by
        the next leader. Appending these behind the former leader's batches would hide that the logs differ before.
        """
        found: list[tuple[int, BatchHeader, EndMarker | None]] = []
        next_offset, epoch = self._storage.log_end_offset, self._storage.epochs.latest_epoch
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
                if header.base_offset < next_offset and (found or self._storage.log_start_offset < next_offset):
                    raise LogError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"batch {header.base_offset}-{header.last_offset} overlaps the log, it ends at {next_offset}",
                    )
                if header.partition_leader_epoch < epoch:
                    raise LogError(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"batch {header.base_offset}: epoch {header.partition_leader_epoch} after {epoch}",
                    )
                marker = None
                if header.producer_id >= 0 and header.attributes & CONTROL_BIT:
                    marker = decode_marker(header, records[position : position + header.size_bytes])
                found.append((position, header, marker))
                next_offset, epoch = header.next_offset, header.partition_leader_epoch
        except CorruptRecordError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        return found

    def _replicate_producer(self, header: BatchHeader, marker: EndMarker | None) -> None:
        if not header.attributes & CONTROL_BIT:
            self._storage.producer_state.stage(header)
            return
        self._staged.end_transaction(header, marker)

    # Truncation ------------------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> bool:
        """Removes all batches at or above ``offset``, see ``PartitionLog.truncate_to``.

        A log that has only remote records below ``offset`` starts over there, without its producers. They are restored
        from the object store before the log grows (``server.replicas.remote_start``).

        Raises:
            OffsetOutOfRangeError: The offset is below the log start offset.
            LogStorageError: The directory failed.
        """
        storage = self._storage
        storage.require_healthy()
        assert not self._staged, "a log that has staged batches is a leader's and is not truncated"
        if offset >= storage.log_end_offset:
            # An epoch that began here without a record is not in the leader's log either.
            storage.epochs.truncate_from_end(offset)
            return False
        if offset < storage.log_start_offset:
            raise OffsetOutOfRangeError(offset, storage.log_start_offset, storage.log_end_offset)
        if offset < storage.segments.first_base_offset:
            # The object store has this log's records below ``offset``, and the leader knows which of them are its own.
            past = tuple(entry for entry in storage.epochs.entries if entry.start_offset < offset)
            now_ms = storage.producer_state.now_ms
            self._restart(offset, now_ms, storage.log_start_offset, RemotePast(past, None))
            return True
        try:
            storage.truncate(offset)
        except OSError as error:
            raise storage.storage_error("truncating", error) from error
        self._staged.restart()
        self._watermarks.truncated()
        return True

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Removes all batches and starts again at ``offset``, below which the leader has no records.

        Raises:
            LogStorageError: The directory failed.
        """
        self._storage.require_healthy()
        assert not self._staged, "a log that has staged batches is a leader's and is not truncated"
        self._restart(offset, now_ms, offset)

    def restart_behind(
        self, offset: int, log_start_offset: int, leader_epochs: bytes, producer_snapshot: bytes, now_ms: int
    ) -> None:
        """Starts over at ``offset``, behind remote segments, see ``PartitionLog.restart_behind``.

        Raises:
            LogError: CORRUPT_MESSAGE, the epochs or the snapshot are damaged. Nothing has changed.
            LogStorageError: The directory failed.
        """
        storage = self._storage
        storage.require_healthy()
        assert not self._staged, "a log that has staged batches is a leader's and is not truncated"
        log_start_offset = max(0, min(log_start_offset, offset))  # the leader's may have moved on
        try:
            epochs = decode_epochs(f"leader epochs of {storage.topic_partition}", leader_epochs)
            decode_snapshot(f"producers of {storage.topic_partition}", producer_snapshot)
        except CorruptLogFileError as error:
            raise LogError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        past = tuple(entry for entry in epochs if entry.start_offset < offset)
        self._restart(offset, now_ms, log_start_offset, RemotePast(past, producer_snapshot))
        storage.epochs.truncate_from_start(log_start_offset)

    def start_over_like(self, other: SegmentedLog, now_ms: int) -> None:
        """Starts over where another log of the same partition begins on its disk, with its log start offset.

        Raises:
            LogStorageError: This directory failed.
            OSError: A file of the other log could not be read.
        """
        offset = max(other.log_start_offset, other.segments.first_base_offset)
        if other.log_start_offset == offset:
            self.truncate_fully_and_start_at(offset, now_ms)
            return
        past = tuple(entry for entry in other.epochs.entries if entry.start_offset < offset)
        producers = other.snapshots.read(offset)
        self._storage.require_healthy()
        self._restart(offset, now_ms, other.log_start_offset, RemotePast(past, producers))

    def pass_gap(self, end_offset: int) -> None:
        """Moves the log end to ``end_offset``, see ``PartitionLog.pass_gap``."""
        storage = self._storage
        storage.require_healthy()
        assert not self._staged, "a log that has staged batches is no copy"
        assert end_offset > storage.log_end_offset, f"{end_offset} is no later end than {storage.log_end_offset}"
        storage.log_end_offset = end_offset
        storage.touched[storage] = None
        storage.producer_state.map_end_offset = end_offset
        self._staged.restart()
        self._watermarks.settle()

    def _restart(self, offset: int, now_ms: int, log_start_offset: int, behind: RemotePast | None = None) -> None:
        try:
            self._storage.restart(offset, now_ms, log_start_offset, behind)
        except OSError as error:
            raise self._storage.storage_error("restarting", error) from error
        self._staged.restart()
        self._watermarks.restarted(offset)
