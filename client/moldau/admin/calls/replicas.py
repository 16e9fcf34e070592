"""Replicas of partitions: leaders, moves and log directories."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, cast

from moldau.admin.failures import AdminError, error_of, raise_failures
from moldau.admin.requester import Requester, by_partition, by_topic
from moldau.admin.values import (
    LogDirDescription,
    LogDirPartition,
    PartitionReassignment,
    ReplicaLogDir,
)
from moldau.cluster import arguments
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.answers import judge
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from moldau.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from moldau.runtime.net.served_versions import NeededVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_UNCLEAN = NeededVersion(1, "an unclean election on request (KIP-460, Kafka 2.4)")
_KEEPS_FACTOR = NeededVersion(1, "moves that must keep the replication factor (KIP-860, Kafka 4.1)")


class Replicas:
    """Sends the requests about leaders, replicas and log directories."""

    def __init__(self, requester: Requester) -> None:
        self._requester = requester

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> list[TopicPartition]:
        """Implements ``Admin.elect_leaders``."""
        wanted = None if partitions is None else arguments.partitions("elect_leaders", partitions)
        request = ElectLeadersRequest(
            election_type=1 if unclean else 0,
            topic_partitions=None
            if wanted is None
            else [TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in by_topic(wanted).items()],
            timeout_ms=self._requester.broker_timeout_ms,
        )
        response = await self._requester.ask(
            ElectLeadersResponse,
            request,
            code_of=lambda each: ErrorCode.of(each.error_code),
            needed=_UNCLEAN if unclean else None,
        )
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code))
        answers = [
            (
                TopicPartition(topic.topic, result.partition_id),
                None
                if result.error_code == ErrorCode.ELECTION_NOT_NEEDED
                else error_of(result.error_code, result.error_message),
                not result.error_code,
            )
            for topic in response.replica_election_results
            for result in topic.partition_result
        ]
        asked = (partition for partition, _, _ in answers) if wanted is None else sorted(wanted)
        judged = judge("partition", asked, answers)
        changed = [partition for partition, is_changed in judged.done.items() if is_changed]
        raise_failures(judged.failures, changed)
        return changed

    async def alter_partition_reassignments(
        self, targets: Mapping[tuple[str, int], Sequence[int] | None], *, allow_replication_factor_change: bool = True
    ) -> None:
        """Implements ``Admin.alter_partition_reassignments``."""
        call = "alter_partition_reassignments"
        moves = {
            partition: None if brokers is None else arguments.integers(call, f"the replicas of {partition}", brokers)
            for partition, brokers in arguments.by_partition(call, "targets", targets, "[1, 2, 3]")
        }
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=self._requester.broker_timeout_ms,
            allow_replication_factor_change=allow_replication_factor_change,
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(partition_index=number, replicas=moves[TopicPartition(topic, number)])
                        for number in numbers
                    ],
                )
                for topic, numbers in by_topic(moves).items()
            ],
        )
        response = await self._requester.ask(
            AlterPartitionReassignmentsResponse,
            request,
            code_of=lambda each: ErrorCode.of(each.error_code),
            needed=None if allow_replication_factor_change else _KEEPS_FACTOR,
        )
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code), response.error_message)
        answers = by_partition((topic.name, topic.partitions) for topic in response.responses)
        raise_failures(judge("partition", moves, answers).failures)

    async def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """Implements ``Admin.list_partition_reassignments``."""
        response = await self._requester.ask(
            ListPartitionReassignmentsResponse,
            ListPartitionReassignmentsRequest(timeout_ms=self._requester.broker_timeout_ms),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code), response.error_message)
        return {
            TopicPartition(topic.name, part.partition_index): PartitionReassignment(
                replicas=tuple(part.replicas),
                adding=tuple(part.adding_replicas),
                removing=tuple(part.removing_replicas),
            )
            for topic in response.topics
            for part in topic.partitions
        }

    async def describe_log_dirs(
        self, broker_ids: Iterable[int], *, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[int, list[LogDirDescription]]:
        """Implements ``Admin.describe_log_dirs``."""
        topics: list[DescribableLogDirTopic] | None = None
        if partitions is not None:
            named = by_topic(arguments.partitions("describe_log_dirs", partitions))
            topics = [DescribableLogDirTopic(topic=topic, partitions=numbers) for topic, numbers in named.items()]

        async def describe(node_id: int) -> DescribeLogDirsResponse:
            await self._requester.ensure_broker_known(node_id)
            response = await self._requester.ask(
                DescribeLogDirsResponse, DescribeLogDirsRequest(topics=topics), node_id=node_id
            )
            if response.error_code:
                raise KafkaError(ErrorCode.of(response.error_code))  # the caller has named the broker
            if not response.results:  # before Kafka 3.2 a refusal has no code; every broker has a directory
                raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            return response

        wanted = arguments.integers("describe_log_dirs", "broker_ids", broker_ids)
        responses, failures = await self._requester.at_once({each: partial(describe, each) for each in wanted})
        found = {
            node_id: [
                LogDirDescription(
                    path=each.log_dir,
                    error=ErrorCode.of(each.error_code),
                    total_bytes=each.total_bytes,
                    usable_bytes=each.usable_bytes,
                    partitions=tuple(
                        LogDirPartition(
                            topic_partition=TopicPartition(topic.name, part.partition_index),
                            size_bytes=part.partition_size,
                            offset_lag=part.offset_lag,
                            is_future=part.is_future_key,
                        )
                        for topic in each.topics
                        for part in topic.partitions
                    ),
                    is_cordoned=each.is_cordoned,
                )
                for each in response.results
            ]
            for node_id, response in responses.items()
        }
        raise_failures({self._requester.broker_name(each): error for each, error in failures.items()}, found)
        return found

    async def alter_replica_log_dirs(self, moves: Mapping[tuple[str, int, int], str]) -> None:
        """Implements ``Admin.alter_replica_log_dirs``."""
        by_broker: dict[int, dict[str, list[tuple[str, int]]]] = {}
        checked = arguments.replicas("alter_replica_log_dirs", "moves", moves)
        for (topic, partition, broker), path in checked.items():
            by_broker.setdefault(broker, {}).setdefault(path, []).append((topic, partition))

        async def alter(broker: int) -> AlterReplicaLogDirsResponse:
            await self._requester.ensure_broker_known(broker)
            request = AlterReplicaLogDirsRequest(
                dirs=[
                    AlterReplicaLogDir(
                        path=path,
                        topics=[
                            AlterReplicaLogDirTopic(name=topic, partitions=numbers)
                            for topic, numbers in by_topic(partitions).items()
                        ],
                    )
                    for path, partitions in by_broker[broker].items()
                ]
            )
            return await self._requester.ask(AlterReplicaLogDirsResponse, request, node_id=broker)

        responses, unanswered = await self._requester.at_once({each: partial(alter, each) for each in by_broker})
        failures = {
            f"{topic}-{partition} on broker {broker}": unanswered[broker]
            for topic, partition, broker in checked
            if broker in unanswered
        }
        for broker, response in responses.items():
            answers = by_partition((result.topic_name, result.partitions) for result in response.results)
            asked = (TopicPartition(topic, partition) for topic, partition, node_id in checked if node_id == broker)
            for replica, error in judge("partition", asked, answers).failures.items():
                failures[f"{replica} on broker {broker}"] = error
        raise_failures(failures)

    async def describe_replica_log_dirs(
        self, replicas: Iterable[tuple[str, int, int]]
    ) -> dict[tuple[str, int, int], ReplicaLogDir]:
        """Implements ``Admin.describe_replica_log_dirs``."""
        call = "describe_replica_log_dirs"
        wanted = list(arguments.replicas(call, "replicas", dict.fromkeys(replicas, "")))
        failures: dict[str, KafkaError] = {}
        try:
            described = await self.describe_log_dirs(sorted({broker for *_, broker in wanted}))
        except AdminError as error:
            described, failures = cast("dict[int, list[LogDirDescription]]", error.results), error.failures
        nowhere = ReplicaLogDir(path=None, offset_lag=-1, future_path=None, future_offset_lag=-1)
        found = {(topic, partition, broker): nowhere for topic, partition, broker in wanted if broker in described}
        for broker, directories in described.items():
            for directory in directories:
                for part in directory.partitions:
                    key = (*part.topic_partition, broker)
                    if key not in found:
                        continue
                    path, lag = directory.path, part.offset_lag
                    if part.is_future:
                        found[key] = dataclasses.replace(found[key], future_path=path, future_offset_lag=lag)
                    else:
                        found[key] = dataclasses.replace(found[key], path=path, offset_lag=lag)
        raise_failures(failures, found)
        return found
