"""Streams groups: groups of Kafka Streams applications, their tasks and offsets (KIP-1071)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.admin.failures import first_retriable
from moldau.admin.requester import operations_of
from moldau.admin.values import StreamsGroupDescription, StreamsGroupMember
from moldau.cluster import arguments
from moldau.protocol.messages.streams_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    TaskIds,
)
from moldau.values import join_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from moldau.admin.calls.groups import Groups
    from moldau.admin.requester import Located, Requester
    from moldau.cluster.committed import CommittedOffset
    from moldau.cluster.metadata import TopicPartition


class StreamsGroups:
    """Sends the requests about streams groups; their offsets are those of any group."""

    def __init__(self, requester: Requester, groups: Groups) -> None:
        self._requester = requester
        self._groups = groups

    async def describe_streams_groups(
        self, group_ids: Iterable[str], *, include_authorized_operations: bool = False
    ) -> dict[str, StreamsGroupDescription]:
        """Implements ``Admin.describe_streams_groups``."""
        ask = partial(self._ask, with_operations=include_authorized_operations)
        return await self._groups.describe_each("describe_streams_groups", group_ids, ask, _description)

    @staticmethod
    async def _ask(
        requester: Requester, group_id: str, at: Located, *, with_operations: bool
    ) -> Sequence[DescribedGroup]:
        response = await requester.ask(
            StreamsGroupDescribeResponse,
            StreamsGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=with_operations),
            at=at,
            code_of=lambda each: first_retriable(group.error_code for group in each.groups),
        )
        return response.groups

    async def delete_streams_groups(self, group_ids: Iterable[str]) -> None:
        """Implements ``Admin.delete_streams_groups``."""
        names = arguments.texts("delete_streams_groups", "group_ids", group_ids)
        await self.describe_streams_groups(names)  # so that no group of another type is deleted
        await self._groups.delete_groups(names)

    async def list_streams_group_offsets(
        self, group_id: str, *, require_stable: bool = False
    ) -> dict[TopicPartition, CommittedOffset]:
        """Implements ``Admin.list_streams_group_offsets``."""
        return await self._groups.list_group_offsets(group_id, require_stable=require_stable)

    async def alter_streams_group_offsets(
        self, group_id: str, offsets: Mapping[tuple[str, int], int | CommittedOffset]
    ) -> None:
        """Implements ``Admin.alter_streams_group_offsets``."""
        await self._groups.alter_group_offsets(group_id, offsets)

    async def delete_streams_group_offsets(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Implements ``Admin.delete_streams_group_offsets``."""
        await self._groups.delete_group_offsets(group_id, partitions)


def _description(group: DescribedGroup, node_id: int) -> StreamsGroupDescription:
    parts = () if group.topology is None else group.topology.subtopologies or ()
    return StreamsGroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        coordinator=node_id,
        epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        topology_epoch=-1 if group.topology is None else group.topology.epoch,
        subtopologies={
            part.subtopology_id: tuple(
                sorted((*part.source_topics, *(topic.name for topic in part.repartition_source_topics)))
            )
            for part in parts
        },
        internal_topics=tuple(
            sorted(
                topic.name
                for part in parts
                for topic in (*part.repartition_source_topics, *part.state_changelog_topics)
            )
        ),
        members=tuple(_member(member) for member in group.members),
        authorized_operations=operations_of(group.authorized_operations),
    )


def _member(member: Member) -> StreamsGroupMember:
    endpoint = member.user_endpoint
    now, target = member.assignment, member.target_assignment
    return StreamsGroupMember(
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        process_id=member.process_id,
        epoch=member.member_epoch,
        topology_epoch=member.topology_epoch,
        endpoint=None if endpoint is None else join_address(endpoint.host, endpoint.port),
        active=_tasks(now.active_tasks),
        standby=_tasks(now.standby_tasks),
        warmup=_tasks(now.warmup_tasks),
        is_settled=_all(now) == _all(target),
    )


def _tasks(entries: Sequence[TaskIds]) -> tuple[str, ...]:
    """Returns tasks by the names that Kafka Streams logs."""
    found = sorted((entry.subtopology_id, number) for entry in entries for number in entry.partitions)
    return tuple(f"{subtopology_id}_{number}" for subtopology_id, number in found)


def _all(assignment: Assignment) -> tuple[tuple[str, ...], ...]:
    return _tasks(assignment.active_tasks), _tasks(assignment.standby_tasks), _tasks(assignment.warmup_tasks)
