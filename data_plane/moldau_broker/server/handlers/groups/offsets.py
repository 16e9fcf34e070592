"""ListOffsets and OffsetForLeaderEpoch: offsets in the logs of partitions that this broker leads."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import trio

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
from moldau.records import CorruptRecordError
from moldau_broker.log.errors import LogStorageError, storage_failure
from moldau_broker.log.values import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau_broker.server.handlers.context import LongAnswer

if TYPE_CHECKING:
    from collections.abc import Generator

    from moldau.runtime.ports.environment import Environment
    from moldau_broker.log.partition.timestamps import Step
    from moldau_broker.server.data_path.record_checks import CheckLanes
    from moldau_broker.server.handlers.context import Call
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

    _Search = Generator[Step, None, ListOffsetsPartitionResponse]
    _Later = tuple[list[ListOffsetsPartitionResponse], int, _Search, Step]

_LATEST_TIERED_TIMESTAMP, _EARLIEST_PENDING_UPLOAD_TIMESTAMP = -5, -6
_KNOWN_FROM: Final = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    _LATEST_TIERED_TIMESTAMP: 9,
    _EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""The timestamps with a meaning of their own, with the versions of ListOffsets that know them."""
_READ_COMMITTED = 1
SEARCHES_PER_TURN: Final = 4
"""Searches by time before other tasks may run. One reads a batch of up to a megabyte, which takes some milliseconds."""


class OffsetsContext(Protocol):
    """The parts of a broker needed for the requests about offsets."""

    @property
    def checks(self) -> CheckLanes: ...
    @property
    def environment(self) -> Environment: ...
    def leader(self, topic: str, partition: int, current_leader_epoch: int = -1) -> Partition: ...
    @property
    def replicas(self) -> ReplicaManager: ...


def handle_list_offsets(
    context: OffsetsContext, request: ListOffsetsRequest, call: Call
) -> ListOffsetsResponse | LongAnswer:
    """Returns offsets by time, or of the log start, the log end and the largest timestamp.

    A search through compressed batches runs later, in short steps, when the answers before have left. So do searches
    beyond ``SEARCHES_PER_TURN``. A partition that is named more than once is refused once, as in Kafka.
    """
    topics: list[ListOffsetsTopicResponse] = []
    later: list[_Later] = []
    named = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    searches = 0
    for topic in request.topics:
        partitions: list[ListOffsetsPartitionResponse] = []
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=partitions))
        for wanted in topic.partitions:
            index = wanted.partition_index
            times = named[topic.name, index]
            if times != 1:
                if times:
                    named[topic.name, index] = 0
                    partitions.append(
                        ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)
                    )
                continue
            search = _offset(context, request, call, topic.name, wanted)
            if wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP:
                searches += 1
                if searches > SEARCHES_PER_TURN:
                    later.append((partitions, len(partitions), search, None))
                    partitions.append(ListOffsetsPartitionResponse())  # ``finish`` replaces it
                    continue
            try:
                step = next(search)
            except StopIteration as end:
                partitions.append(end.value)
            else:
                later.append((partitions, len(partitions), search, step))
                partitions.append(ListOffsetsPartitionResponse())  # ``finish`` replaces it
    response = ListOffsetsResponse(topics=topics)
    if not later:
        return response

    async def finish() -> ListOffsetsResponse:
        for partitions, number, search, step in later:
            partitions[number] = await _finish(context, search, step)
        return response

    return LongAnswer(finish)


async def _finish(context: OffsetsContext, search: _Search, step: Step) -> ListOffsetsPartitionResponse:
    """Runs a search from ``step`` to its end; batches that need whole decompression take turns."""
    while True:
        if step is None:
            await trio.lowlevel.checkpoint()
        else:
            async with context.checks.whole:
                await context.environment.disk.offload(step.run)
        try:
            step = next(search)
        except StopIteration as end:
            answer: ListOffsetsPartitionResponse = end.value
            return answer


def _offset(
    context: OffsetsContext, request: ListOffsetsRequest, call: Call, topic: str, wanted: ListOffsetsPartition
) -> _Search:
    index = wanted.partition_index
    try:
        partition = context.leader(topic, index, wanted.current_leader_epoch)
        try:
            timestamp_ms, offset, leader_epoch = yield from _look_up(partition, request, call, wanted.timestamp)
        except OSError as error:
            raise storage_failure(partition.log.parent_directory, f"reading {partition.key}", error) from error
        except CorruptRecordError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{partition.key}: {error}") from error
        context.leader(topic, index, wanted.current_leader_epoch)  # leadership may have moved during a long search
    except LogStorageError as error:
        context.replicas.directory_failed(error)
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error.code)
    except KafkaError as error:
        return ListOffsetsPartitionResponse(partition_index=index, error_code=error.code)
    return ListOffsetsPartitionResponse(
        partition_index=index, timestamp=timestamp_ms, offset=offset, leader_epoch=leader_epoch
    )


def _look_up(
    partition: Partition, request: ListOffsetsRequest, call: Call, timestamp: int
) -> Generator[Step, None, tuple[int, int, int]]:
    """Returns timestamp, offset and leader epoch; each is -1 if there is none."""
    log, replica = partition.log, partition.replica
    if timestamp < 0 and call.version < _KNOWN_FROM.get(timestamp, math.inf):
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {call.version}"
        )
    if timestamp == LATEST_TIMESTAMP:
        _check_visible(partition, request, call)
        return -1, _visible(partition, request), replica.state.leader_epoch
    if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
        return -1, log.log_start_offset, log.epochs.epoch_for_offset(log.log_start_offset)
    if timestamp in (_LATEST_TIERED_TIMESTAMP, _EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        return -1, -1, -1  # as a Kafka without tiered storage answers
    found = yield from partition.search_timestamp(timestamp)
    if found is None or found.offset < 0 or found.offset >= _visible(partition, request):
        _check_visible(partition, request, call)
        return -1, -1, -1
    return found.timestamp_ms, found.offset, found.leader_epoch


def _visible(partition: Partition, request: ListOffsetsRequest) -> int:
    """Returns the end (exclusive) of the offsets that the client may see."""
    if request.replica_id >= 0:
        return partition.log.log_end_offset
    if request.isolation_level == _READ_COMMITTED:
        return partition.log.last_stable_offset
    return partition.replica.high_watermark


def _check_visible(partition: Partition, request: ListOffsetsRequest, call: Call) -> None:
    """Checks that a new leader knows all that its predecessor had committed (KIP-207).

    Until then a consumer could see the end offset move backwards, or miss a record that was visible before.

    Raises:
        KafkaError: the high watermark has not reached the start of the leader epoch.
    """
    replica = partition.replica
    if request.replica_id < 0 and replica.high_watermark < replica.epoch_start_offset:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE if call.version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE)


def handle_offset_for_leader_epoch(
    context: OffsetsContext, request: OffsetForLeaderEpochRequest, call: Call
) -> OffsetForLeaderEpochResponse:
    """Returns end offsets of leader epochs (KIP-101, KIP-320)."""
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
