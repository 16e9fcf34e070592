"""The admin client's calls about groups, replicas and log directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.admin.admin import AdminError, raise_failures
from moldau.admin.quorum import QuorumAdmin
from moldau.admin.values import (
    GroupDescription,
    GroupListing,
    GroupMember,
    LogDirDescription,
    LogDirPartition,
    PartitionReassignment,
)
from moldau.cluster.client import GROUP_COORDINATOR, TRANSPORT_ERRORS
from moldau.cluster.metadata import TopicPartition
from moldau.consumer.assignors import decode_assignment
from moldau.consumer.fetcher import CommittedOffset
from moldau.consumer.group import GroupClient
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from moldau.protocol.messages.describe_groups import DescribedGroupMember, DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from moldau.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from moldau.protocol.messages.metadata import MetadataRequest, MetadataResponse
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from moldau.runtime.config import CONSUMER_CONFIG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_OFFSET_FETCH_VERSION_MAX = 9


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


class Admin(QuorumAdmin):
    """The admin client. Use it as an async context manager; all methods belong to the trio thread that opened it."""

    # --- groups

    async def _brokers(self) -> list[int]:
        response = await self._ask(MetadataResponse, MetadataRequest(topics=[], allow_auto_topic_creation=False))
        client = self._opened()
        client.picture.update(response)
        return sorted(client.picture.brokers)

    async def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Returns the groups of all coordinators, by id."""
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        found: dict[str, GroupListing] = {}
        for node_id in await self._brokers():
            response = await self._ask(
                ListGroupsResponse, request, node_id=node_id, code_of=lambda each: ErrorCode.of(each.error_code)
            )
            code = ErrorCode.of(response.error_code)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, f"broker {node_id}: {code.message}")
            for group in response.groups:
                found[group.group_id] = GroupListing(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    state=group.group_state,
                    type=group.group_type or "classic",
                )
        return [found[group_id] for group_id in sorted(found)]

    async def _coordinator(self, group_id: str) -> int:
        client = self._opened()
        deadline_ms = client.now_ms + self._timeout_ms
        failures = 0
        while True:
            try:
                return await client.find_coordinator(group_id, GROUP_COORDINATOR)
            except TRANSPORT_ERRORS as error:
                last: Exception = error
            except KafkaError as error:
                if not error.retriable:
                    raise
                last = error
            failures += 1
            if client.now_ms >= deadline_ms:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group_id}: {last}") from last
            await client.backoff(failures)

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """Returns classic groups with their members. A group that does not exist is in state ``Dead``. Raises
        ``AdminError``.
        """
        found: dict[str, GroupDescription] = {}
        failures: dict[str, KafkaError] = {}
        for group_id in group_ids:
            node_id = await self._coordinator(group_id)
            response = await self._ask(
                DescribeGroupsResponse,
                DescribeGroupsRequest(groups=[group_id]),
                node_id=node_id,
                code_of=lambda each: next((ErrorCode.of(group.error_code) for group in each.groups), None),
            )
            for group in response.groups:
                code = ErrorCode.of(group.error_code)
                if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                    failures[group_id] = KafkaError(code, group.error_message)
                    continue
                found[group_id] = GroupDescription(
                    group_id=group.group_id,
                    state=group.group_state,
                    protocol_type=group.protocol_type,
                    protocol=group.protocol_data,
                    coordinator=node_id,
                    members=tuple(_member(member, group.protocol_type) for member in group.members),
                )
        raise_failures(failures)
        return found

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Deletes empty groups with their offsets. Raises ``AdminError``."""
        failures: dict[str, KafkaError] = {}
        for group_id in group_ids:
            response = await self._ask(
                DeleteGroupsResponse,
                DeleteGroupsRequest(groups_names=[group_id]),
                node_id=await self._coordinator(group_id),
            )
            for result in response.results:
                code = ErrorCode.of(result.error_code)
                if code is not ErrorCode.NONE:
                    failures[result.group_id] = KafkaError(code)
        raise_failures(failures)

    async def list_group_offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        """Returns every committed offset of a group."""
        client = self._opened()
        node_id = await self._coordinator(group_id)
        connection = await client.connection(node_id)
        request = OffsetFetchRequest(
            group_id=group_id, topics=None, groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)]
        )
        version = connection.version_for(request, _OFFSET_FETCH_VERSION_MAX)
        response = await connection.request_as(OffsetFetchResponse, request, version, client.request_timeout_ms)
        codes = [response.error_code, *(group.error_code for group in response.groups)]
        for code in codes:
            if code:
                raise KafkaError(ErrorCode.of(code), f"group {group_id}: {ErrorCode.of(code).message}")
        found: dict[TopicPartition, CommittedOffset] = {}
        for group in response.groups:
            for topic in group.topics:
                for part in topic.partitions:
                    if not part.error_code and part.committed_offset >= 0:
                        found[TopicPartition(topic.name, part.partition_index)] = CommittedOffset(
                            offset=part.committed_offset,
                            leader_epoch=part.committed_leader_epoch,
                            metadata=part.metadata or "",
                        )
        for flat in response.topics:
            for each in flat.partitions:
                if not each.error_code and each.committed_offset >= 0:
                    found[TopicPartition(flat.name, each.partition_index)] = CommittedOffset(
                        offset=each.committed_offset,
                        leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata or "",
                    )
        return found

    async def alter_group_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Sets committed offsets of a group without members. Raises ``CommitFailedError`` while it has some."""
        consumer = CONSUMER_CONFIG.parse(
            {"bootstrap.servers": ",".join(self._config.get_list("bootstrap.servers")), "group.id": group_id}
        )
        group = GroupClient(self._opened(), group_id, consumer, None)
        await group.commit({TopicPartition(*each): CommittedOffset(offset=offset) for each, offset in offsets.items()})

    # --- replicas

    async def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Deletes the records before the offsets (-1: all below the high watermark); returns log start offsets."""
        client = self._opened()
        topics = await self.describe_topics(_by_topic(before))
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in (TopicPartition(*each) for each in before):
            parts = topics[partition.topic].partitions
            if not 0 <= partition.partition < len(parts):
                raise AdminError({str(partition): KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)})
            by_leader.setdefault(parts[partition.partition].leader, []).append(partition)
        found: dict[TopicPartition, int] = {}
        failures: dict[str, KafkaError] = {}
        for leader, partitions in by_leader.items():
            await self._node_known(leader)
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=topic,
                        partitions=[
                            DeleteRecordsPartition(partition_index=number, offset=before[topic, number])
                            for number in numbers
                        ],
                    )
                    for topic, numbers in _by_topic(partitions).items()
                ],
                timeout_ms=client.request_timeout_ms,
            )
            response = await self._ask(DeleteRecordsResponse, request, node_id=leader)
            for topic in response.topics:
                for part in topic.partitions:
                    partition = TopicPartition(topic.name, part.partition_index)
                    code = ErrorCode.of(part.error_code)
                    if code is ErrorCode.NONE:
                        found[partition] = part.low_watermark
                    else:
                        failures[str(partition)] = KafkaError(code)
        raise_failures(failures)
        return found

    async def elect_leaders(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, unclean: bool = False
    ) -> list[TopicPartition]:
        """Elects preferred leaders (or any live replica) of partitions, by default of all; returns those that
        changed.
        """
        request = ElectLeadersRequest(
            election_type=1 if unclean else 0,
            topic_partitions=None
            if partitions is None
            else [TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in _by_topic(partitions).items()],
            timeout_ms=min(self._timeout_ms, self._opened().request_timeout_ms),
        )
        response = await self._ask(ElectLeadersResponse, request, code_of=lambda each: ErrorCode.of(each.error_code))
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code))
        changed: list[TopicPartition] = []
        failures: dict[str, KafkaError] = {}
        for topic in response.replica_election_results:
            for result in topic.partition_result:
                partition = TopicPartition(topic.topic, result.partition_id)
                code = ErrorCode.of(result.error_code)
                if code is ErrorCode.NONE:
                    changed.append(partition)
                elif code is not ErrorCode.ELECTION_NOT_NEEDED:
                    failures[str(partition)] = KafkaError(code, result.error_message)
        raise_failures(failures)
        return changed

    async def alter_partition_reassignments(self, targets: Mapping[tuple[str, int], Sequence[int] | None]) -> None:
        """Moves replicas of partitions to the brokers given; None cancels a move. Raises ``AdminError``."""
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=min(self._timeout_ms, self._opened().request_timeout_ms),
            topics=[
                ReassignableTopic(
                    name=topic,
                    partitions=[
                        ReassignablePartition(partition_index=number, replicas=_list_or_none(targets[topic, number]))
                        for number in numbers
                    ],
                )
                for topic, numbers in _by_topic(targets).items()
            ],
        )
        response = await self._ask(
            AlterPartitionReassignmentsResponse, request, code_of=lambda each: ErrorCode.of(each.error_code)
        )
        if response.error_code:
            raise KafkaError(ErrorCode.of(response.error_code), response.error_message)
        raise_failures(
            {
                f"{topic.name}-{part.partition_index}": KafkaError(ErrorCode.of(part.error_code), part.error_message)
                for topic in response.responses
                for part in topic.partitions
                if part.error_code
            }
        )

    async def list_partition_reassignments(self) -> dict[TopicPartition, PartitionReassignment]:
        """Returns the moves of replicas that are under way."""
        response = await self._ask(
            ListPartitionReassignmentsResponse,
            ListPartitionReassignmentsRequest(timeout_ms=min(self._timeout_ms, self._opened().request_timeout_ms)),
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

    async def describe_log_dirs(self, broker_ids: Iterable[int]) -> dict[int, list[LogDirDescription]]:
        """Returns the log directories of brokers with the partitions in them."""
        found: dict[int, list[LogDirDescription]] = {}
        for node_id in broker_ids:
            await self._node_known(node_id)
            response = await self._ask(DescribeLogDirsResponse, DescribeLogDirsRequest(topics=None), node_id=node_id)
            if response.error_code:
                raise KafkaError(ErrorCode.of(response.error_code), f"broker {node_id}")
            found[node_id] = [
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
                )
                for each in response.results
            ]
        return found


def _list_or_none(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _member(member: DescribedGroupMember, protocol_type: str) -> GroupMember:
    assignment: tuple[TopicPartition, ...] = ()
    if protocol_type == "consumer":
        try:
            assignment = tuple(sorted(decode_assignment(member.member_assignment)))
        except DecodeError:
            # Members may use an assignment format of their own; the rest of the description is still right.
            assignment = ()
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        assignment=assignment,
    )
