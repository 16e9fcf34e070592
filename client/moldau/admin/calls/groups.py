"""Consumer groups and their committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from moldau.admin.failures import (
    ABSENT,
    AdminError,
    error_of,
    first_retriable,
    raise_error,
    raise_failures,
    raise_group_error,
)
from moldau.admin.requester import by_partition, by_topic, operations_of
from moldau.admin.values import (
    GroupDescription,
    GroupListing,
    GroupMember,
)
from moldau.cluster import arguments
from moldau.cluster.committed import CommittedOffset
from moldau.cluster.group_bytes import decode_assignment
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.answers import judge, judge_one
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    Member,
)
from moldau.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from moldau.protocol.messages.describe_groups import DescribedGroupMember, DescribeGroupsRequest, DescribeGroupsResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from moldau.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from moldau.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from moldau.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from moldau.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from moldau.runtime.config import CONSUMER_CONFIG
from moldau.runtime.net.served_versions import NeededVersion, UnsupportedApiError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from moldau.admin.requester import Located, Requester


class _Described(Protocol):
    """A group in a response of one of the requests that describe groups."""

    group_id: str
    error_code: int
    error_message: str | None


G = TypeVar("G", bound=_Described)
D = TypeVar("D")

_LISTED_BY_STATE = NeededVersion(4, "a list of groups by their state (KIP-518, Kafka 2.6)")
_LISTED_BY_TYPE = NeededVersion(5, "a list of groups by their type (KIP-848)")
_OFFSET_FETCH_VERSION_MAX = 9
_OFFSET_FETCH_WITH_GROUPS = 8
_OFFSET_COMMIT_WITH_RETENTION = 4
"""The last version with ``retention_time_ms``; an offset that has one does not expire with the others of its group."""
_DEAD = "Dead"
_CLASSIC_MEMBER = 0


class Groups:
    """Sends the requests about groups."""

    def __init__(self, requester: Requester, bootstrap_servers: Sequence[str]) -> None:
        self._requester = requester
        self._bootstrap_servers = bootstrap_servers

    async def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
        """Implements ``Admin.list_groups``."""
        request = ListGroupsRequest(
            states_filter=arguments.texts("list_groups", "states", states),
            types_filter=arguments.texts("list_groups", "types", types),
        )

        def read(node_id: int, response: ListGroupsResponse) -> dict[str, GroupListing]:
            raise_error(response.error_code)
            return {
                group.group_id: GroupListing(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    state=group.group_state,
                    type=group.group_type or "classic",
                )
                for group in response.groups
            }

        return await self._requester.ask_each(
            ListGroupsResponse,
            request,
            read,
            code_of=lambda each: ErrorCode.of(each.error_code),
            needed=_LISTED_BY_TYPE if request.types_filter else _LISTED_BY_STATE if request.states_filter else None,
        )

    async def describe_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Implements ``Admin.describe_groups``."""

        async def describe(requester: Requester, group_id: str) -> GroupDescription:
            at = requester.group_coordinator(group_id)
            response = await requester.ask(
                DescribeGroupsResponse,
                DescribeGroupsRequest(groups=[group_id], include_authorized_operations=include_authorized_operations),
                at=at,
                code_of=lambda each: first_retriable(group.error_code for group in each.groups),
            )
            group = judge_one("group", group_id, ((each.group_id, None, each) for each in response.groups))
            code = ErrorCode.of(group.error_code)
            if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                raise KafkaError(code, group.error_message)
            if code is ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == _DEAD:
                consumers = await _describe_consumers(requester, group_id, at, include_authorized_operations)
                if consumers is not None:
                    return consumers
            return GroupDescription(
                group_id=group.group_id,
                state=group.group_state,
                protocol_type=group.protocol_type,
                protocol=group.protocol_data,
                coordinator=at.node_id,
                members=tuple(_member(member, group.protocol_type) for member in group.members),
                authorized_operations=operations_of(group.authorized_operations),
            )

        return await self._requester.each(arguments.texts("describe_groups", "group_ids", group_ids), describe)

    async def describe_each(
        self,
        call: str,
        group_ids: Iterable[str],
        ask: Callable[[Requester, str, Located], Awaitable[Sequence[G]]],
        describe: Callable[[G, int], D],
    ) -> dict[str, D]:
        """Returns the descriptions of groups whose coordinators ``ask`` asks, for the calls of one type of group.

        ``ask`` takes a requester, a group and the place of its coordinator; ``describe`` makes the call's value of an
        answer without an error.

        Raises:
            AdminError: a group cannot be described.
        """

        async def describe_one(requester: Requester, group_id: str) -> D:
            at = requester.group_coordinator(group_id)
            answers = await ask(requester, group_id, at)
            group = judge_one(
                "group", group_id, ((one.group_id, error_of(one.error_code, one.error_message), one) for one in answers)
            )
            return describe(group, at.node_id)

        return await self._requester.each(arguments.texts(call, "group_ids", group_ids), describe_one)

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Implements ``Admin.delete_groups``."""

        async def delete(requester: Requester, group_id: str) -> None:
            response = await requester.ask(
                DeleteGroupsResponse,
                DeleteGroupsRequest(groups_names=[group_id]),
                at=requester.group_coordinator(group_id),
                code_of=lambda each: first_retriable(result.error_code for result in each.results),
            )
            answers = (
                (each.group_id, error_of(each.error_code, each.error_message), None) for each in response.results
            )
            judge_one("group", group_id, answers)

        await self._requester.each(arguments.texts("delete_groups", "group_ids", group_ids), delete)

    async def list_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Implements ``Admin.list_group_offsets``."""
        arguments.text("list_group_offsets", "group_id", group_id)
        at = self._requester.group_coordinator(group_id)
        response = await self._requester.ask(
            OffsetFetchResponse,
            OffsetFetchRequest(
                group_id=group_id,
                topics=None,
                groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)],
                require_stable=require_stable,
            ),
            at=at,
            code_of=lambda each: _offset_fetch_code(each, require_stable=require_stable),
            version_max=_OFFSET_FETCH_VERSION_MAX,
        )
        raise_group_error(_offset_fetch_code(response, require_stable=require_stable), group_id)
        if response.groups or self._names_groups(at.node_id, response):
            judge_one("group", group_id, ((each.group_id, None, each) for each in response.groups))
        return _offsets_of(response)

    def _names_groups(self, node_id: int, response: OffsetFetchResponse) -> bool:
        """Returns whether an answer should name its group: those of older versions are about one, and do not.

        Without the connection, only topics show such a version.
        """
        if response.topics:
            return False
        connection = self._requester.client.connection_nowait(node_id)
        if connection is None:
            return True
        return connection.version_for(OffsetFetchRequest, _OFFSET_FETCH_VERSION_MAX) >= _OFFSET_FETCH_WITH_GROUPS

    async def delete_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Implements ``Admin.delete_group_offsets``."""
        call = "delete_group_offsets"
        arguments.text(call, "group_id", group_id)
        wanted = arguments.partitions(call, partitions)
        topics = [
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=number) for number in numbers]
            )
            for topic, numbers in by_topic(wanted).items()
        ]
        response = await self._requester.ask(
            OffsetDeleteResponse,
            OffsetDeleteRequest(group_id=group_id, topics=topics),
            at=self._requester.group_coordinator(group_id),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        raise_group_error(response.error_code, group_id)
        answers = by_partition((topic.name, topic.partitions) for topic in response.topics)
        raise_failures(judge("partition", wanted, answers).failures)

    async def remove_group_members(
        self, group_id: str, instance_ids: Iterable[str] | None = None, *, reason: str | None = None
    ) -> list[str]:
        """Implements ``Admin.remove_group_members``."""
        call = "remove_group_members"
        arguments.text(call, "group_id", group_id)
        if instance_ids is None:
            described = (await self.describe_groups([group_id]))[group_id]
            members = [
                MemberIdentity(member_id="" if each.instance_id else each.member_id, group_instance_id=each.instance_id)
                for each in described.members
            ]
        else:
            names = arguments.texts(call, "instance_ids", instance_ids)
            members = [MemberIdentity(member_id="", group_instance_id=name) for name in names]
        if not members:
            return []
        for member in members:
            member.reason = reason
        response = await self._requester.ask(
            LeaveGroupResponse,
            LeaveGroupRequest(group_id=group_id, members=members),
            at=self._requester.group_coordinator(group_id),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        raise_group_error(response.error_code, group_id)
        judged = judge(
            "member",
            (each.group_instance_id or each.member_id for each in members),
            ((each.group_instance_id or each.member_id, error_of(each.error_code), None) for each in response.members),
        )
        raise_failures(judged.failures, list(judged.done))
        return list(judged.done)

    async def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[tuple[str, int], int | CommittedOffset],
        *,
        retention_ms: int | None = None,
    ) -> None:
        """Implements ``Admin.alter_group_offsets``."""
        arguments.text("alter_group_offsets", "group_id", group_id)
        committed = {
            partition: CommittedOffset(offset=offset, leader_epoch=epoch, metadata=metadata)
            for partition, offset, epoch, metadata in arguments.committed_offsets("alter_group_offsets", offsets)
        }
        if retention_ms is not None:
            kept_ms = arguments.at_least(
                "alter_group_offsets", "retention_ms", retention_ms, 1, bits=arguments.INT64_BITS
            )
            await self._keep_offsets(group_id, committed, kept_ms)
            return
        # The consumer takes long to load, and only this call needs it.
        from moldau.consumer.group import GroupClient, OffsetsRefusedError

        consumer = CONSUMER_CONFIG.parse({"bootstrap.servers": ",".join(self._bootstrap_servers), "group.id": group_id})
        group = GroupClient(self._requester.client, group_id, consumer, None)
        client, requester = self._requester.client, self._requester
        try:
            with trio.fail_after(requester.limit_s()):
                asked = group.ask_commit(committed, is_automatic=True)
                await group.carry_out(asked, client.now_ms + requester.timeout_ms)
        except trio.TooSlowError as error:
            trouble = group.commit_trouble or "no answer in time"
            text = str(error) or f"group {group_id}: {trouble}"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from error
        except OffsetsRefusedError as error:
            if len(error.refused) == len(committed):
                raise
            raise AdminError({str(one): failure for one, failure in error.failures.items()}) from error

    async def _keep_offsets(
        self, group_id: str, committed: Mapping[TopicPartition, CommittedOffset], retention_ms: int
    ) -> None:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, number), offset in sorted(committed.items()):
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=number,
                    committed_offset=offset.offset,
                    committed_metadata=offset.metadata,
                )
            )
        response = await self._requester.ask(
            OffsetCommitResponse,
            OffsetCommitRequest(
                group_id=group_id,
                retention_time_ms=retention_ms,
                topics=[OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()],
            ),
            at=self._requester.group_coordinator(group_id),
            code_of=lambda each: first_retriable(
                (part.error_code for one in each.topics for part in one.partitions), final=ABSENT
            ),
            version_max=_OFFSET_COMMIT_WITH_RETENTION,
        )
        answers = by_partition((one.name, one.partitions) for one in response.topics)
        raise_failures(judge("partition", committed, answers).failures)


async def _describe_consumers(
    requester: Requester, group_id: str, at: Located, with_operations: bool
) -> GroupDescription | None:
    """Returns a group of the consumer protocol; None if there is none, or the broker does not serve them."""
    try:
        response = await requester.ask(
            ConsumerGroupDescribeResponse,
            ConsumerGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=with_operations),
            at=at,
            code_of=lambda each: first_retriable(group.error_code for group in each.groups),
        )
    except UnsupportedApiError:
        return None
    group = judge_one("group", group_id, ((each.group_id, None, each) for each in response.groups))
    if ErrorCode.of(group.error_code) in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    raise_group_error(group.error_code, group_id, group.error_message)
    return GroupDescription(
        group_id=group_id,
        state=group.group_state,
        protocol_type="consumer",
        protocol=group.assignor_name,
        coordinator=at.node_id,
        members=tuple(_consumer_member(member) for member in group.members),
        type="consumer",
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        authorized_operations=operations_of(group.authorized_operations),
    )


def _consumer_member(member: Member) -> GroupMember:
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        assignment=_partitions(member.assignment),
        epoch=member.member_epoch,
        target=_partitions(member.target_assignment),
        type="classic" if member.member_type == _CLASSIC_MEMBER else "consumer",
    )


def _partitions(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, number)
            for topic in assignment.topic_partitions
            for number in topic.partitions
        )
    )


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


def _offset_fetch_code(response: OffsetFetchResponse, *, require_stable: bool) -> ErrorCode:
    """Returns the first error of a response; errors of single partitions count only with ``require_stable``."""
    codes = [response.error_code, *(group.error_code for group in response.groups)]
    if require_stable:
        codes += [part.error_code for group in response.groups for topic in group.topics for part in topic.partitions]
        codes += [part.error_code for topic in response.topics for part in topic.partitions]
    return next((ErrorCode.of(code) for code in codes if code), ErrorCode.NONE)


def _offsets_of(response: OffsetFetchResponse) -> dict[TopicPartition, CommittedOffset]:
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
