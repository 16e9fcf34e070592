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
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from moldau_broker.server.handlers.context import LongAnswer
from moldau_broker.server.remote_reading.offsets import RemoteQuestion, answer, search

if TYPE_CHECKING:
    from collections.abc import Generator

    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau_broker.log.partition.timestamps import Step
    from moldau_broker.log.values import TimestampOffset
    from moldau_broker.server.data_path.record_checks import CheckLanes
    from moldau_broker.server.handlers.context import Call
    from moldau_broker.server.remote_reading.reader import RemoteReader
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

    _Step = Step | RemoteQuestion
    _Answer = TimestampOffset | None
    _Search = Generator[_Step, _Answer, ListOffsetsPartitionResponse]
    _Later = tuple[list[ListOffsetsPartitionResponse], int, _Search, _Step]

_KNOWN_FROM: Final = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
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
    def config(self) -> Config: ...
    @property
    def environment(self) -> Environment: ...
    def leader(self, topic: str, partition: int, current_leader_epoch: int = -1) -> Partition: ...
    @property
    def remote_reader(self) -> RemoteReader | None: ...
    @property
    def replicas(self) -> ReplicaManager: ...


def handle_list_offsets(
    context: OffsetsContext, request: ListOffsetsRequest, call: Call
) -> ListOffsetsResponse | LongAnswer:
    """Returns offsets by time, or of the log start, the log end and the largest timestamp.

    A search through compressed batches runs later, in short steps, when the answers before have left. So do searches
    beyond ``SEARCHES_PER_TURN``, and those in remote segments. A partition that is named more than once is refused
    once, as in Kafka.
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
            asked = _offset(context, request, call, topic.name, wanted)
            if wanted.timestamp >= 0 or wanted.timestamp == MAX_TIMESTAMP:
                searches += 1
                if searches > SEARCHES_PER_TURN:
                    later.append((partitions, len(partitions), asked, None))
                    partitions.append(ListOffsetsPartitionResponse())  # ``finish`` replaces it
                    continue
            try:
                step = next(asked)
            except StopIteration as end:
                partitions.append(end.value)
            else:
                later.append((partitions, len(partitions), asked, step))
                partitions.append(ListOffsetsPartitionResponse())  # ``finish`` replaces it
    response = ListOffsetsResponse(topics=topics)
    if not later:
        return response

    async def finish() -> ListOffsetsResponse:
        begin = trio.current_time()
        for partitions, number, asked, step in later:
            partitions[number] = await _finish(context, request, asked, step, begin)
        return response

    return LongAnswer(finish)


async def _finish(
    context: OffsetsContext, request: ListOffsetsRequest, search: _Search, step: _Step, begin: float
) -> ListOffsetsPartitionResponse:
    """Runs a search from ``step`` to its end; batches that need whole decompression take turns.

    ``begin`` is when the searches of the request began, on trio's clock.
    """
    while True:
        found: _Answer = None
        failure: KafkaError | None = None
        if step is None:
            await trio.lowlevel.checkpoint()
        elif isinstance(step, RemoteQuestion):
            try:
                found = await _ask(context, request, step, begin)
            except KafkaError as error:
                failure = error
        else:
            async with context.checks.whole:
                await context.environment.disk.offload(step.run)
        try:
            step = search.send(found) if failure is None else search.throw(failure)
        except StopIteration as end:
            response: ListOffsetsPartitionResponse = end.value
            return response


async def _ask(context: OffsetsContext, request: ListOffsetsRequest, question: RemoteQuestion, begin: float) -> _Answer:
    """Answers a question from the object store, within the time that all questions of the request have (KIP-1075).

    Raises:
        KafkaError: the store did not answer, or not in time, or tiered storage is disabled here.
    """
    if context.remote_reader is None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "tiered storage is disabled on this broker")
    timeout_ms = context.config.get_int("remote.list.offsets.request.timeout.ms")
    if request.timeout_ms > 0:
        timeout_ms = min(timeout_ms, request.timeout_ms)
    with trio.move_on_at(begin + timeout_ms / 1000):
        return await answer(context.remote_reader, question)
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the object store did not answer in time")


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
) -> Generator[_Step, _Answer, tuple[int, int, int]]:
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
        start = log.log_start_offset if timestamp == EARLIEST_TIMESTAMP else log.local_log_start_offset
        return -1, start, log.epochs.epoch_for_offset(start)
    if timestamp in (LATEST_TIERED_TIMESTAMP, EARLIEST_PENDING_UPLOAD_TIMESTAMP):
        tiered = (yield RemoteQuestion(partition, timestamp)) if log.is_remote else None
        # Without tiered storage as Kafka answers then.
        return (-1, -1, -1) if tiered is None else (-1, tiered.offset, tiered.leader_epoch)
    found = yield from search(partition, timestamp)
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
