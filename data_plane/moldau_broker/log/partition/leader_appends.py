"""Appends of a partition's leader.

An append has two halves. ``stage`` validates a batch, assigns its offset and leader epoch in the caller's buffer and
checks its producer, all in memory; ``StagedWrites.flush`` writes all staged batches with one gathered write.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from moldau.records import BatchHeader
from moldau_broker.log.files.batches import CONTROL_BIT
from moldau_broker.log.partition.validator import LEADER_EPOCH_AT, LOG_APPEND_TIME, validate_batch
from moldau_broker.log.producers.end_markers import decode_marker
from moldau_broker.log.values import NO_TIMESTAMP, AppendInfo, AppendOrigin, StagedBatch

if TYPE_CHECKING:
    from moldau.values import Buffer, LeaderEpoch
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.partition.staged_writes import StagedWrites
    from moldau_broker.log.partition.validator import BatchValidation
    from moldau_broker.log.producers.producer_state import EndMarker

_put_base_offset = struct.Struct(">q").pack_into
_put_leader_epoch = struct.Struct(">i").pack_into
_new = tuple.__new__  # a named tuple's own constructor is a function in Python


class LeaderAppends:
    """Stages batches with the offsets and the epoch of the leader."""

    def __init__(self, storage: SegmentedLog, staged: StagedWrites) -> None:
        self._storage = storage
        self._staged = staged

    def stage(
        self,
        records: memoryview,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        origin: AppendOrigin,
        validation: BatchValidation | None,
    ) -> AppendInfo:
        """Stages one batch, see ``PartitionLog.stage_as_leader``.

        Raises:
            LogError: The batch is refused. Nothing has changed.
            LogStorageError: The directory failed.
        """
        storage, staged = self._storage, self._staged
        if storage.failed:
            storage.require_healthy()
        if validation is not None:
            buffer, header = validation.result(now_ms)
        else:
            buffer, header = validate_batch(records, storage.config, origin, now_ms)
        _, _, _, _, _, attributes, last_offset_delta, _, max_timestamp, producer_id, _, _, record_count = header
        marker = None
        if producer_id >= 0:
            duplicate, marker = self._check_producer(header, buffer, leader_epoch, origin, now_ms)
            if duplicate is not None:
                return duplicate
        size = len(buffer)
        base_offset = staged.end_offset
        last_offset = base_offset + last_offset_delta
        rolled = False
        if (
            staged.is_full
            or storage.must_roll(staged.size_bytes + size, max_timestamp, last_offset, now_ms)
            or leader_epoch != storage.epochs.latest_epoch
        ):
            rolled = self._make_room(size, max_timestamp, last_offset, leader_epoch, now_ms)
        _put_base_offset(buffer, 0, base_offset)
        _put_leader_epoch(buffer, LEADER_EPOCH_AT, leader_epoch)
        staged.add(buffer, _new(StagedBatch, (base_offset, last_offset, size, max_timestamp)))
        if producer_id >= 0:
            header = _new(BatchHeader, (base_offset, header[1], leader_epoch, *header[3:]))
            if marker is not None:
                staged.end_transaction(header, marker)
            else:
                storage.producer_state.stage(header)
        has_append_time = storage.config.message_timestamp_type == LOG_APPEND_TIME and not attributes & CONTROL_BIT
        return _new(
            AppendInfo,
            (
                base_offset,
                last_offset,
                leader_epoch,
                max_timestamp if has_append_time else NO_TIMESTAMP,
                storage.log_start_offset,
                max_timestamp,
                size,
                record_count,
                False,
                rolled,
            ),
        )

    def _check_producer(
        self, header: BatchHeader, buffer: Buffer, leader_epoch: LeaderEpoch, origin: AppendOrigin, now_ms: int
    ) -> tuple[AppendInfo | None, EndMarker | None]:
        """Checks the producer of a batch; returns the answer if it is a duplicate, and the marker if it has one."""
        producers = self._storage.producer_state
        producers.now_ms = now_ms
        if header.attributes & CONTROL_BIT:
            marker = decode_marker(header, buffer)
            if marker is not None:
                producers.check_marker(header, marker)
            return None, marker
        original = producers.check(header, origin)
        if original is None:
            return None, None
        has_append_time = self._storage.config.message_timestamp_type == LOG_APPEND_TIME
        duplicate = AppendInfo(
            first_offset=original.first_offset,
            last_offset=original.last_offset,
            last_leader_epoch=leader_epoch,
            log_append_time_ms=original.timestamp_ms if has_append_time else NO_TIMESTAMP,
            log_start_offset=self._storage.log_start_offset,
            max_timestamp_ms=original.timestamp_ms,
            duplicate=True,
        )
        return duplicate, None

    def _make_room(
        self, size: int, max_timestamp: int, last_offset: int, leader_epoch: LeaderEpoch, now_ms: int
    ) -> bool:
        """Flushes, and rolls or records a new epoch before the next batch as needed; returns whether it rolled."""
        storage = self._storage
        self._staged.flush()  # it may change the answer: the segment is not empty now, and its index may be full
        rolled = storage.must_roll(size, max_timestamp, last_offset, now_ms)
        if rolled:
            storage.roll(storage.log_end_offset, now_ms)
        if leader_epoch != storage.epochs.latest_epoch:
            storage.epochs.assign(leader_epoch, storage.log_end_offset)
        return rolled
