"""Builds the answers of ConsumerGroupDescribe, and the entries of ListGroups. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_describe import Assignment, DescribedGroup, Member, TopicPartitions
from moldau_broker.coordinator.group.consumer.core.records import by_topic
from moldau_broker.coordinator.group.consumer.core.state import NO_PARTITIONS, ConsumerGroupState

if TYPE_CHECKING:
    from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup, Partitions
    from moldau_broker.coordinator.runtime.ports import TopicNames

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""The types of members in ConsumerGroupDescribe, by the protocol that they speak."""


def described(
    group_id: str, group: ConsumerGroup | None, assignor: str, topics: TopicNames, *, is_other: bool
) -> DescribedGroup:
    """Returns one group of a ConsumerGroupDescribe answer; ``is_other``: a group of another type has the id."""
    if group is None:
        why = f"Group {group_id} is not a consumer group." if is_other else f"Group {group_id} not found."
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=why,
            group_state=ConsumerGroupState.DEAD.value,
        )
    members = [
        Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.topics),
            subscribed_topic_regex=member.regex or None,
            assignment=_assignment(member.owned, topics),
            target_assignment=_assignment(group.targets.get(member.member_id, NO_PARTITIONS), topics),
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
        )
        for _, member in sorted(group.members.items())
    ]
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
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
