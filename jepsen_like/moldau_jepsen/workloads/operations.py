"""Performs administrative operations of a run: topics, queries for leaders, and the moves that count as faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from moldau.cluster.client import TRANSPORT_ERRORS, ClusterClient
from moldau.cluster.metadata import NO_LEADER, PartitionInfo, TopicPartition
from moldau.cluster.offsets import list_offsets
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from moldau.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from moldau.runtime.config import ADMIN_CONFIG

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from moldau.runtime.ports.environment import Environment

REQUEST_TIMEOUT_MS = 5_000
RETRY_S = 0.2
METADATA_TOPIC = "__cluster_metadata"
LATEST_TIMESTAMP = -1
NO_KEYS: Mapping[str, str] = {}


class OperationFailedError(Exception):
    """The cluster failed an operation that a run needs before it can begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsSample:
    """The state of a topic as the brokers reported it at one moment."""

    in_sync_min: int
    leaderless: int
    high_watermark_sum: int | None  # None where not every leader answered


class ClusterOperations:
    """Operations on one topic of a cluster. ``run`` must run in a nursery while it is used."""

    def __init__(
        self, environment: Environment, bootstrap: str, topic: str, connection: Mapping[str, object] = NO_KEYS
    ) -> None:
        """``connection`` has further keys of an admin client. Nothing is connected yet."""
        config = ADMIN_CONFIG.parse({**connection, "bootstrap.servers": bootstrap, "client.id": "run-operations"})
        self._client = ClusterClient(environment, config, "operations")
        self._topic = topic
        self._factors: dict[int, int] = {}  # replicas of each partition when it was first moved

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the connections until cancelled."""
        self._client.add_topic(self._topic)
        await self._client.run(task_status=task_status)

    async def create_topic(
        self, partitions: int, replication_factor: int, configs: Mapping[str, str], *, timeout_s: float
    ) -> None:
        """Creates the topic and waits until every partition has a leader.

        Raises:
            OperationFailedError: A topic could not be created.
        """
        request = CreateTopicsRequest(
            timeout_ms=REQUEST_TIMEOUT_MS,
            topics=[
                CreatableTopic(
                    name=self._topic,
                    num_partitions=partitions,
                    replication_factor=replication_factor,
                    configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
                )
            ],
        )
        last = "no broker answered"
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    response = await self._client.request_any(
                        CreateTopicsResponse, request, timeout_ms=REQUEST_TIMEOUT_MS
                    )
                except (*TRANSPORT_ERRORS, KafkaError) as error:
                    last = str(error)
                    await trio.sleep(RETRY_S)
                    continue
                answer = response.topics[0]
                code = ErrorCode.of(answer.error_code)
                if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    break
                last = f"{code.name}: {answer.error_message}"
                if not code.retriable:
                    raise OperationFailedError(f"topic {self._topic} cannot be created: {last}")
                await trio.sleep(RETRY_S)
            while len(self._led()) < partitions:
                self._client.request_update()
                await trio.sleep(RETRY_S)
            return
        raise OperationFailedError(f"topic {self._topic} was not created within {timeout_s:g} s: {last}")

    def _partitions(self) -> tuple[PartitionInfo, ...]:
        info = self._client.cluster_metadata.topics.get(self._topic)
        return () if info is None else info.partitions

    def _led(self) -> list[PartitionInfo]:
        return [partition for partition in self._partitions() if partition.leader != NO_LEADER]

    async def _refreshed(self) -> bool:
        """Updates the cluster metadata; returns whether a broker answered."""
        try:
            await self._client.wait_update(self._client.now_ms + REQUEST_TIMEOUT_MS)
        except trio.TooSlowError:
            return False
        return True

    # -- questions ---------------------------------------------------------------------------------------------------

    async def broker_leaders(self) -> list[int]:
        """Returns the ids of the brokers that lead a partition now; empty if no broker answers."""
        if not await self._refreshed():
            return []
        return sorted({partition.leader for partition in self._led()})

    async def active_controller(self) -> list[int]:
        """Returns the id of the active controller; empty if it is unknown."""
        request = DescribeQuorumRequest(
            topics=[
                DescribeQuorumRequestTopicData(
                    topic_name=METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
                )
            ]
        )
        try:
            response = await self._client.ask_any(DescribeQuorumResponse, request, timeout_ms=REQUEST_TIMEOUT_MS)
        except (*TRANSPORT_ERRORS, KafkaError):
            return []
        if response.error_code or not response.topics or not response.topics[0].partitions:
            return []
        leader = response.topics[0].partitions[0].leader_id
        return [leader] if leader >= 0 else []

    async def sample(self) -> PartitionsSample | None:
        """Returns the current in-sync replicas and high watermarks; None if no broker answers."""
        if not await self._refreshed():
            return None
        partitions = self._partitions()
        if not partitions:
            return None
        wanted = {TopicPartition(self._topic, partition.partition): LATEST_TIMESTAMP for partition in self._led()}
        total: int | None = None
        if len(wanted) == len(partitions):
            try:
                ends = await list_offsets(self._client, wanted, 500)
                total = sum(offset for offset, _ in ends.values())
            except (trio.TooSlowError, KafkaError):
                total = None  # A leader does not answer, and a partial sum would be wrong.
        return PartitionsSample(
            in_sync_min=min(len(partition.isr) for partition in partitions),
            leaderless=sum(partition.leader == NO_LEADER for partition in partitions),
            high_watermark_sum=total,
        )

    # -- moves -------------------------------------------------------------------------------------------------------

    async def reassign(self, draw: random.Random) -> str:
        """Moves a drawn partition to as many drawn brokers; returns request and response as text.

        It sends no request with fewer brokers in service than replicas, because the move would drop replicas for good.
        """
        await self._refreshed()
        partitions, brokers = self._partitions(), sorted(self._client.cluster_metadata.brokers)
        if not partitions or not brokers:
            return "not asked: no broker answered"
        partition = draw.choice(partitions)
        # A partition that moves has more for a while.
        factor = self._factors.setdefault(partition.partition, len(partition.replicas))
        if len(brokers) < factor:
            return f"not asked: {len(brokers)} brokers for {factor} replicas"
        replicas = draw.sample(brokers, factor)
        if replicas == list(partition.replicas):
            return f"not asked: partition {partition.partition} is on {replicas} already"
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=REQUEST_TIMEOUT_MS,
            topics=[
                ReassignableTopic(
                    name=self._topic,
                    partitions=[ReassignablePartition(partition_index=partition.partition, replicas=replicas)],
                )
            ],
        )
        asked = f"partition {partition.partition} to {replicas}"
        try:
            response = await self._client.request_any(
                AlterPartitionReassignmentsResponse, request, timeout_ms=REQUEST_TIMEOUT_MS
            )
        except (*TRANSPORT_ERRORS, KafkaError) as error:
            return f"{asked}: {error}"
        codes = [response.error_code, *(p.error_code for topic in response.responses for p in topic.partitions)]
        code = ErrorCode.of(max(codes, key=abs))
        is_refused = code not in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT)
        return f"{'no effect: ' if is_refused else ''}{asked}: {code.name}"

    async def elect_preferred(self) -> str:
        """Elects the preferred leader of every partition; returns the response as text.

        There is nothing to elect where all partitions have their preferred leaders.
        """
        await self._refreshed()
        numbers = [partition.partition for partition in self._partitions()]
        request = ElectLeadersRequest(
            election_type=0,
            timeout_ms=REQUEST_TIMEOUT_MS,
            topic_partitions=[TopicPartitions(topic=self._topic, partitions=numbers)],
        )
        try:
            response = await self._client.request_any(ElectLeadersResponse, request, timeout_ms=REQUEST_TIMEOUT_MS)
        except (*TRANSPORT_ERRORS, KafkaError) as error:
            return str(error)
        results = [result for topic in response.replica_election_results for result in topic.partition_result]
        moved = sum(result.error_code == 0 for result in results)
        code = ErrorCode.of(response.error_code)
        is_without = not moved and code is not ErrorCode.REQUEST_TIMED_OUT
        return f"{'no effect: ' if is_without else ''}{moved} of {len(numbers)} moved, {code.name}"
