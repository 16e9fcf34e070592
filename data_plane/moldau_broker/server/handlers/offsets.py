"""ListOffsets and OffsetForLeaderEpoch: positions in logs that are led here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)

if TYPE_CHECKING:
    from moldau_broker.server.context import BrokerContext, Call
    from moldau_broker.server.partition import Partition

_LATEST_TIERED_TIMESTAMP = -5
_READ_COMMITTED = 1


def handle_list_offsets(context: BrokerContext, request: ListOffsetsRequest, call: Call) -> ListOffsetsResponse:
    """Offsets by time, or of start, end and largest timestamp."""
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[_offset(context, request, call, topic.name, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _offset(
    context: BrokerContext, request: ListOffsetsRequest, call: Call, topic: str, wanted: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    index = wanted.partition_index
    try:
        partition = context.leader(topic, index, wanted.current_leader_epoch)
        try:
            timestamp_ms, offset, leader_epoch = _look_up(partition, request, call, wanted.timestamp)
        except OSError as error:
            raise LogStorageError(partition.log.parent_directory, f"reading {partition.key} failed: {error}") from error
    except LogStorageError as error:
        context.replicas.directory_failed(error)
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error.code)
    except KafkaError as error:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error.code)
    return ListOffsetsPartitionResponse(
        partition_index=index, timestamp=timestamp_ms, offset=offset, leader_epoch=leader_epoch
    )


def _look_up(partition: Partition, request: ListOffsetsRequest, call: Call, timestamp: int) -> tuple[int, int, int]:
    """Timestamp, offset and leader epoch; -1 each where there is none."""
    log, replica = partition.log, partition.replica
    if request.replica_id >= 0:
        visible = log.log_end_offset
    elif request.isolation_level == _READ_COMMITTED:
        visible = log.last_stable_offset
    else:
        visible = replica.high_watermark
    if timestamp == LATEST_TIMESTAMP:
        _check_visible(partition, request, call)
        return -1, visible, replica.state.leader_epoch
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        return -1, log.log_start_offset, log.epoch_for_offset(log.log_start_offset)
    if timestamp == _LATEST_TIERED_TIMESTAMP:
        return -1, -1, -1
    if timestamp < 0 and timestamp != MAX_TIMESTAMP:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"timestamp {timestamp} has no meaning")
    found = log.offset_for_timestamp(timestamp)
    if found is None or found.offset < 0 or found.offset >= visible:
        _check_visible(partition, request, call)
        return -1, -1, -1
    return found.timestamp_ms, found.offset, found.leader_epoch


def _check_visible(partition: Partition, request: ListOffsetsRequest, call: Call) -> None:
    """Raises ``KafkaError`` while a new leader does not know yet what its predecessor had committed: to a consumer
    the end of what it knows would go backwards, and a record that has been visible would not exist (KIP-207)."""
    replica = partition.replica
    if request.replica_id < 0 and replica.high_watermark < replica.epoch_start_offset:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE if call.version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE)


def handle_offset_for_leader_epoch(
    context: BrokerContext, request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse:
    """End offsets of leader epochs (KIP-101, KIP-320)."""
    results: list[OffsetForLeaderTopicResult] = []
    for topic in request.topics:
        ends: list[EpochEndOffset] = []
        for wanted in topic.partitions:
            try:
                partition = context.leader(topic.topic, wanted.partition, wanted.current_leader_epoch)
            except KafkaError as error:
                ends.append(EpochEndOffset(error_code=error.code, partition=wanted.partition))
                continue
            end = partition.log.end_offset_for_epoch(wanted.leader_epoch)
            ends.append(
                EpochEndOffset(partition=wanted.partition, leader_epoch=end.leader_epoch, end_offset=end.end_offset)
            )
        results.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends))
    return OffsetForLeaderEpochResponse(topics=results)
