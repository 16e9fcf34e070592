"""Questions of ListOffsets, and of share groups that begin at a time, that only the object store can answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau_broker.log.values import (
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    MAX_TIMESTAMP,
    TimestampOffset,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.partition.timestamps import Step
    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.replicas.partition import Partition


class RemoteQuestion(NamedTuple):
    """A question about the remote records of a partition."""

    partition: Partition
    timestamp_ms: int
    """A time, or MAX_TIMESTAMP, LATEST_TIERED_TIMESTAMP or EARLIEST_PENDING_UPLOAD_TIMESTAMP."""
    local_max_ms: int = -1
    """For MAX_TIMESTAMP: the largest timestamp of the local log; later records with it do not count."""


def has_remote_records(log: PartitionLog) -> bool:
    """Returns whether readers may see records that this broker's disk does not have."""
    return log.local_log_start_offset > log.log_start_offset


def search(
    partition: Partition, timestamp_ms: int
) -> Generator[Step | RemoteQuestion, TimestampOffset | None, TimestampOffset | None]:
    """Finds the first record at or after a time, or that with the largest timestamp, wherever it is.

    The caller runs the steps, and sends the answers to the questions. Segments may leave this disk between the search
    in the remote ones and that in the local log, which then begin again: none is passed over.

    Raises:
        CorruptRecordError: a batch is damaged.
        LogError: CORRUPT_MESSAGE, the local log is too damaged to find the batch.
    """
    while True:
        local_start = partition.log.local_log_start_offset
        found, is_final = yield from _search(partition, timestamp_ms)
        # A move between directories may have replaced the log.
        if is_final or partition.log.local_log_start_offset <= local_start:
            return found


def _search(
    partition: Partition, timestamp_ms: int
) -> Generator[Step | RemoteQuestion, TimestampOffset | None, tuple[TimestampOffset | None, bool]]:
    """Searches remote segments, then the local log; for the largest timestamp first the local log, then the others.

    Returns also whether segments that have left the disk meanwhile change nothing: the last search was in the store,
    which had all of them.
    """
    if not has_remote_records(partition.log):
        return (yield from partition.search_timestamp(timestamp_ms)), False
    if timestamp_ms != MAX_TIMESTAMP:
        found = yield RemoteQuestion(partition, timestamp_ms)
        if found is not None:
            return found, True
        return (yield from partition.search_timestamp(timestamp_ms)), False
    local = yield from partition.search_timestamp(timestamp_ms)
    found = yield RemoteQuestion(partition, timestamp_ms, -1 if local is None else local.timestamp_ms)
    return local if found is None else found, True


async def answer(reader: RemoteReader, question: RemoteQuestion) -> TimestampOffset | None:
    """Returns the answer; None if no remote record is one.

    Raises:
        LogError: as ``RemoteReader.search_timestamp``.
    """
    partition, timestamp_ms = question.partition, question.timestamp_ms
    if timestamp_ms == MAX_TIMESTAMP:
        return await reader.largest_timestamp(partition, question.local_max_ms)
    if timestamp_ms not in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        return await reader.search_timestamp(partition, timestamp_ms)
    log = partition.log
    segments = (await reader.known_or_listed(partition)).segments
    if timestamp_ms == LATEST_TIERED_TIMESTAMP:
        if not segments:
            return None
        return TimestampOffset(timestamp_ms=-1, offset=segments[-1].last_offset, leader_epoch=segments[-1].last_epoch)
    if segments:
        pending = max(segments[-1].end_offset, log.log_start_offset)
    elif has_remote_records(log):
        return None  # the listing is behind, or the segments are lost
    else:
        pending = log.log_start_offset
    return TimestampOffset(timestamp_ms=-1, offset=pending, leader_epoch=log.epochs.epoch_for_offset(pending))
