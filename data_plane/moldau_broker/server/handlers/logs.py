"""DeleteRecords, DescribeLogDirs and AlterReplicaLogDirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from moldau.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from moldau.values import Offset
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.values import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.ports.environment import Environment
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.values import ReplicaDirectoryInfo
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.handlers.context import Call
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_directories import ReplicaDirectories
    from moldau_broker.server.replicas.replica_manager import ReplicaManager

_TIMEOUT_MS_MAX = 300_000
_HIGH_WATERMARK = -1


class LogsContext(Protocol):
    """The parts of a broker needed for the requests about logs and their directories."""

    @property
    def directories(self) -> ReplicaDirectories: ...
    @property
    def environment(self) -> Environment: ...
    def leader(self, topic: str, partition: int, current_leader_epoch: int = -1) -> Partition: ...
    @property
    def logs(self) -> LogManager: ...
    @property
    def metadata(self) -> MetadataCache: ...
    @property
    def replicas(self) -> ReplicaManager: ...


async def handle_delete_records(
    context: LogsContext, request: DeleteRecordsRequest, call: Call
) -> DeleteRecordsResponse:
    """Moves log start offsets up, and waits until the live replicas have followed (KIP-107)."""
    results: list[DeleteRecordsTopicResult] = []
    waiting: list[tuple[Partition, int, DeleteRecordsPartitionResult]] = []
    for topic in request.topics:
        partitions: list[DeleteRecordsPartitionResult] = []
        for wanted in topic.partitions:
            result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=-1)
            partitions.append(result)
            try:
                partition = context.leader(topic.name, wanted.partition_index)
                start = _delete(partition, wanted.offset)
                context.replicas.waits.note_change(partition)  # the followers must hear of the new log start
            except LogStorageError as error:
                context.replicas.directory_failed(error)
                result.error_code = error.code
            except KafkaError as error:
                result.error_code = error.code
            else:
                waiting.append((partition, start, result))
        results.append(DeleteRecordsTopicResult(name=topic.name, partitions=partitions))
    with trio.move_on_after(min(max(0, request.timeout_ms), _TIMEOUT_MS_MAX) / 1000):
        for partition, start, _ in waiting:
            await context.replicas.waits.wait_low_watermark(partition, Offset(start))
    for partition, start, result in waiting:
        low_watermark = context.replicas.low_watermark(partition)
        if not partition.is_leader:
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif low_watermark < start:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        else:
            result.low_watermark = low_watermark
    return DeleteRecordsResponse(topics=results)


def _delete(partition: Partition, offset: int) -> int:
    if partition.is_internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "only coordinators delete records of internal topics")
    if partition.log.config.compact and not partition.log.config.delete:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "records of a compacted topic cannot be deleted by offset")
    high_watermark = partition.replica.high_watermark
    target = high_watermark if offset == _HIGH_WATERMARK else offset
    if not 0 <= target <= high_watermark:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not between 0 and the high watermark {high_watermark}"
        )
    return partition.log.delete_records(target)


def handle_describe_log_dirs(
    context: LogsContext, request: DescribeLogDirsRequest, call: Call
) -> DescribeLogDirsResponse:
    """Returns the log directories and the partitions in them."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                error_code=info.error,
                log_dir=info.path,
                topics=_by_topic(
                    [
                        replica
                        for replica in info.replicas
                        if wanted is None or (replica.topic, replica.partition) in wanted
                    ]
                ),
                total_bytes=info.total_bytes,
                usable_bytes=info.usable_bytes,
                is_cordoned=info.is_cordoned,
            )
            for info in context.logs.describe_log_dirs(None)
        ]
    )


def _by_topic(replicas: Sequence[ReplicaDirectoryInfo]) -> list[DescribeLogDirsTopic]:
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for replica in replicas:
        topics.setdefault(replica.topic, []).append(
            DescribeLogDirsPartition(
                partition_index=replica.partition,
                partition_size=replica.size_bytes,
                offset_lag=replica.offset_lag,
                is_future_key=replica.is_future,
            )
        )
    return [DescribeLogDirsTopic(name=name, partitions=partitions) for name, partitions in topics.items()]


def handle_alter_replica_log_dirs(
    context: LogsContext, request: AlterReplicaLogDirsRequest, call: Call
) -> AlterReplicaLogDirsResponse:
    """Starts to move replicas between the log directories of this broker (KIP-113), and answers at once.

    DescribeLogDirs shows the progress of a move: a future replica and its lag.
    """
    now_ms = context.environment.clock.wall_ms()
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                result = AlterReplicaLogDirPartitionResult(partition_index=index)
                results.setdefault(topic.name, []).append(result)
                if directory.path in context.logs.offline_directories:
                    result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                    continue
                if context.directories.is_offline(topic.name, index):
                    result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                    continue
                try:
                    _begin_move(context, TopicPartition(topic.name, index), directory.path, now_ms)
                except LogStorageError as error:
                    context.replicas.directory_failed(error)
                    result.error_code = error.code
                except KafkaError as error:
                    result.error_code = error.code
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
            for name, partitions in results.items()
        ]
    )


def _begin_move(context: LogsContext, key: TopicPartition, path: str, now_ms: int) -> None:
    """Begins a move.

    A replica that this broker does not have yet will begin in that directory: kafka-reassign-partitions asks for it at
    once, and again and again until the replica is there, where a plan names directories.

    Raises:
        KafkaError: the move was refused; REPLICA_NOT_AVAILABLE if the replica is not here yet.
    """
    if context.metadata.partition(key.topic, key.partition) is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {key}")
    if key in context.logs.logs and key not in context.replicas.partitions:
        raise KafkaError(
            ErrorCode.REPLICA_NOT_AVAILABLE, f"the replica of {key} has ended, and its log will be deleted"
        )
    context.logs.alter_replica_log_dir(key, path, now_ms)
    context.directories.move_changed(key)
