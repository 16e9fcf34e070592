"""Share groups and the start offsets of their share-partitions (KIP-932)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.admin.failures import error_of, first_retriable, group_error_of, raise_failures, raise_group_error
from moldau.admin.requester import by_partition, by_topic, operations_of
from moldau.admin.values import GroupDescription, GroupMember, ShareOffset
from moldau.cluster import arguments
from moldau.cluster.metadata import TopicPartition
from moldau.protocol.answers import judge, judge_one
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from moldau.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from moldau.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from moldau.protocol.messages.share_group_describe import (
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau.admin.calls.groups import Groups
    from moldau.admin.requester import Located, Requester

_SHARE = "share"
_NOT_ANSWERED = (
    ", so its offset is as before; brokers of Kafka 4.1 lose the topics of this request and change nothing, later ones "
    "do not"
)


class ShareGroups:
    """Sends the requests about share groups."""

    def __init__(self, requester: Requester, groups: Groups) -> None:
        self._requester = requester
        self._groups = groups

    async def describe_share_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, GroupDescription]:
        """Implements ``Admin.describe_share_groups``."""
        ask = partial(self._ask, with_operations=include_authorized_operations)
        return await self._groups.describe_each("describe_share_groups", group_ids, ask, _description)

    @staticmethod
    async def _ask(
        requester: Requester, group_id: str, at: Located, *, with_operations: bool
    ) -> Sequence[DescribedGroup]:
        response = await requester.ask(
            ShareGroupDescribeResponse,
            ShareGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=with_operations),
            at=at,
            code_of=lambda each: first_retriable(group.error_code for group in each.groups),
        )
        return response.groups

    async def delete_share_groups(self, group_ids: Iterable[str]) -> None:
        """Implements ``Admin.delete_share_groups``."""
        names = arguments.texts("delete_share_groups", "group_ids", group_ids)
        await self.describe_share_groups(names)  # so that no group of another type is deleted
        await self._groups.delete_groups(names)

    async def list_share_group_offsets(self, group_id: str) -> dict[TopicPartition, ShareOffset]:
        """Implements ``Admin.list_share_group_offsets``."""
        arguments.text("list_share_group_offsets", "group_id", group_id)
        request = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)]
        )
        response = await self._requester.ask(
            DescribeShareGroupOffsetsResponse,
            request,
            at=self._requester.group_coordinator(group_id),
            code_of=lambda each: first_retriable(group.error_code for group in each.groups),
        )
        found: dict[TopicPartition, ShareOffset] = {}
        failures: dict[str, KafkaError] = {}
        group = judge_one(
            "group",
            group_id,
            (
                (each.group_id, group_error_of(each.error_code, group_id, each.error_message), each)
                for each in response.groups
            ),
        )
        for topic in group.topics:
            for part in topic.partitions:
                partition = TopicPartition(topic.topic_name, part.partition_index)
                if part.error_code:
                    failures[str(partition)] = KafkaError(ErrorCode.of(part.error_code), part.error_message)
                else:
                    found[partition] = ShareOffset(
                        start_offset=part.start_offset, leader_epoch=part.leader_epoch, lag=part.lag
                    )
        raise_failures(failures, found)
        return found

    async def alter_share_group_offsets(self, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Implements ``Admin.alter_share_group_offsets``."""
        call = "alter_share_group_offsets"
        arguments.text(call, "group_id", group_id)
        wanted = {
            partition: arguments.offset(call, offset)
            for partition, offset in arguments.by_partition(call, "offsets", offsets, "42")
        }
        topics = [
            AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(
                        partition_index=number, start_offset=wanted[TopicPartition(name, number)]
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic(list(wanted)).items()
        ]
        response = await self._requester.ask(
            AlterShareGroupOffsetsResponse,
            AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics),
            at=self._requester.group_coordinator(group_id),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        raise_group_error(response.error_code, group_id, response.error_message)
        answers = by_partition((topic.topic_name, topic.partitions) for topic in response.responses)
        raise_failures(judge("partition", wanted, answers, hint=_NOT_ANSWERED).failures)

    async def delete_share_group_offsets(self, group_id: str, topics: Iterable[str]) -> None:
        """Implements ``Admin.delete_share_group_offsets``."""
        call = "delete_share_group_offsets"
        arguments.text(call, "group_id", group_id)
        names = arguments.texts(call, "topics", topics)
        response = await self._requester.ask(
            DeleteShareGroupOffsetsResponse,
            DeleteShareGroupOffsetsRequest(
                group_id=group_id, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in names]
            ),
            at=self._requester.group_coordinator(group_id),
            code_of=lambda each: ErrorCode.of(each.error_code),
        )
        raise_group_error(response.error_code, group_id, response.error_message)
        answers = (
            (topic.topic_name, error_of(topic.error_code, topic.error_message), None) for topic in response.responses
        )
        raise_failures(judge("topic", names, answers).failures)


def _description(group: DescribedGroup, node_id: int) -> GroupDescription:
    return GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=_SHARE,
        protocol=group.assignor_name,
        coordinator=node_id,
        members=tuple(_member(member) for member in group.members),
        type=_SHARE,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        authorized_operations=operations_of(group.authorized_operations),
    )


def _member(member: Member) -> GroupMember:
    assignment = tuple(
        sorted(
            TopicPartition(topic.topic_name, number)
            for topic in member.assignment.topic_partitions
            for number in topic.partitions
        )
    )
    return GroupMember(
        member_id=member.member_id,
        instance_id=None,
        client_id=member.client_id,
        client_host=member.client_host,
        assignment=assignment,
        epoch=member.member_epoch,
        target=assignment,
        type=_SHARE,
    )
