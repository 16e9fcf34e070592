"""Builds the answers of ShareGroupDescribe, and the entries of ListGroups. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.share_group_describe import Assignment, DescribedGroup, Member, TopicPartitions
from moldau_broker.coordinator.group.consumer.core.records import by_topic
from moldau_broker.coordinator.group.share.core.state import ASSIGNOR, ShareGroupState

if TYPE_CHECKING:
    from moldau_broker.coordinator.group.consumer.core.state import Partitions
    from moldau_broker.coordinator.group.share.core.state import ShareGroup
    from moldau_broker.coordinator.runtime.ports import TopicNames


def not_found(group_id: str, *, is_other: bool) -> str:
    """Returns the message for a group that is no share group; ``is_other``: a group of another type has the id."""
    return f"Group {group_id} is not a share group." if is_other else f"Group {group_id} not found."


def described(group_id: str, group: ShareGroup | None, topics: TopicNames, *, is_other: bool) -> DescribedGroup:
    """Returns one group of a ShareGroupDescribe answer."""
    if group is None:
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=not_found(group_id, is_other=is_other),
            group_state=ShareGroupState.DEAD.value,
        )
    members = [
        Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.topics),
            assignment=_assignment(member.assigned, topics),
        )
        for _, member in sorted(group.members.items())
    ]
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=members,
    )


def _assignment(partitions: Partitions, topics: TopicNames) -> Assignment:
    """Returns partitions by topic; leaves out deleted topics, which have no name."""
    named = [(topics.topic_name(topic_id), topic_id, numbers) for topic_id, numbers in by_topic(partitions).items()]
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
            for name, topic_id, numbers in named
            if name is not None
        ]
    )
