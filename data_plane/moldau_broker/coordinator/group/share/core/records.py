"""The records of share groups in ``__consumer_offsets``, in Kafka's own formats (KIP-932).

| key version | record | change |
|---|---|---|
| 10 | ShareGroupMemberMetadata | `ShareSubscription` |
| 11 | ShareGroupMetadata | `ShareEpoch` |
| 12 | ShareGroupTargetAssignmentMetadata | `ShareTargetEpoch` |
| 13 | ShareGroupTargetAssignmentMember | `ShareTarget` |
| 14 | ShareGroupCurrentMemberAssignment | `ShareCurrent` |
| 15 | ShareGroupStatePartitionMetadata | `ShareStates` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.codec import decode
from moldau.protocol.messages.internal.share_group import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TargetTopicPartition,
    TopicInfo,
    TopicPartitions,
    TopicPartitionsInfo,
)
from moldau_broker.coordinator.group.consumer.core.records import by_topic
from moldau_broker.coordinator.group.consumer.core.state import MemberState
from moldau_broker.coordinator.group.share.core.state import (
    ShareChange,
    ShareCurrent,
    ShareEpoch,
    ShareMember,
    ShareStates,
    ShareSubscription,
    ShareTarget,
    ShareTargetEpoch,
    StatePartitions,
    TopicState,
)
from moldau_broker.coordinator.runtime.versioned import FIELDS_AT, decode_versioned, state_record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from moldau.protocol.schema import Data
    from moldau.values import Buffer
    from moldau_broker.coordinator.group.consumer.core.state import Partitions
    from moldau_broker.coordinator.runtime.effects import StateRecord


SUBSCRIPTION, EPOCH, TARGET_EPOCH, TARGET, CURRENT, STATES = 10, 11, 12, 13, 14, 15
KEY_VERSIONS = frozenset({SUBSCRIPTION, EPOCH, TARGET_EPOCH, TARGET, CURRENT, STATES})
"""Versions of keys that `parse_change` understands."""


def change_record(change: ShareChange) -> StateRecord:
    """Returns the record of a change."""
    return state_record(*_messages(change))


def _messages(change: ShareChange) -> tuple[Data, Data | None]:
    group_id = change.group_id
    if isinstance(change, ShareEpoch):
        epoch = change.epoch
        value = None if epoch is None else ShareGroupMetadataValue(epoch=epoch, metadata_hash=change.metadata_hash)
        return ShareGroupMetadataKey(group_id=group_id), value
    if isinstance(change, ShareTargetEpoch):
        return ShareGroupTargetAssignmentMetadataKey(group_id=group_id), (
            None
            if change.epoch is None
            else ShareGroupTargetAssignmentMetadataValue(
                assignment_epoch=change.epoch, assignment_timestamp=change.assigned_ms
            )
        )
    if isinstance(change, ShareStates):
        states = None if change.partitions is None else _states(change.partitions)
        return ShareGroupStatePartitionMetadataKey(group_id=group_id), states
    member_id = change.member_id
    if isinstance(change, ShareTarget):
        return ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), (
            None if change.partitions is None else _target(change.partitions)
        )
    member = change.member
    if isinstance(change, ShareSubscription):
        return ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), (
            None if member is None else _subscription(member)
        )
    return ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), (
        None if member is None else _current(member)
    )


def _target(partitions: Partitions) -> ShareGroupTargetAssignmentMemberValue:
    return ShareGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TargetTopicPartition(topic_id=topic, partitions=found) for topic, found in by_topic(partitions).items()
        ]
    )


def _subscription(member: ShareMember) -> ShareGroupMemberMetadataValue:
    return ShareGroupMemberMetadataValue(
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
    )


def _current(member: ShareMember) -> ShareGroupCurrentMemberAssignmentValue:
    return ShareGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=MemberState.STABLE,  # members of share groups have no other
        assigned_partitions=[
            TopicPartitions(topic_id=topic, partitions=found) for topic, found in by_topic(member.assigned).items()
        ],
    )


def _states(states: StatePartitions) -> ShareGroupStatePartitionMetadataValue:
    return ShareGroupStatePartitionMetadataValue(
        initializing_topics=_topics(states.initializing),
        initialized_topics=_topics(states.initialized),
        deleting_topics=[
            TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in sorted(states.deleting.items())
        ],
    )


def _topics(topics: Mapping[UUID, TopicState]) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(
            topic_id=topic_id,
            topic_name=topic.name,
            partitions=sorted(topic.partitions),
        )
        for topic_id, topic in sorted(topics.items())
    ]


def parse_change(version: int, key: Buffer, value: Buffer | None) -> ShareChange:
    """Parses a record whose key has one of `KEY_VERSIONS`.

    Raises:
        DecodeError: the record is malformed.
    """
    if version == EPOCH:
        group_id = decode(ShareGroupMetadataKey, version, key, FIELDS_AT).group_id
        group = None if value is None else decode_versioned(ShareGroupMetadataValue, value)
        if group is None:
            return ShareEpoch(group_id=group_id, epoch=None)
        return ShareEpoch(group_id=group_id, epoch=group.epoch, metadata_hash=group.metadata_hash)
    if version == TARGET_EPOCH:
        group_id = decode(ShareGroupTargetAssignmentMetadataKey, version, key, FIELDS_AT).group_id
        if value is None:
            return ShareTargetEpoch(group_id=group_id, epoch=None)
        stored = decode_versioned(ShareGroupTargetAssignmentMetadataValue, value)
        return ShareTargetEpoch(
            group_id=group_id, epoch=stored.assignment_epoch, assigned_ms=stored.assignment_timestamp
        )
    if version == STATES:
        group_id = decode(ShareGroupStatePartitionMetadataKey, version, key, FIELDS_AT).group_id
        return ShareStates(group_id=group_id, partitions=None if value is None else _parse_states(value))
    if version == TARGET:
        target = decode(ShareGroupTargetAssignmentMemberKey, version, key, FIELDS_AT)
        found = (
            None if value is None else decode_versioned(ShareGroupTargetAssignmentMemberValue, value).topic_partitions
        )
        return ShareTarget(
            group_id=target.group_id,
            member_id=target.member_id,
            partitions=None if found is None else _partitions(found),
        )
    if version == SUBSCRIPTION:
        name = decode(ShareGroupMemberMetadataKey, version, key, FIELDS_AT)
        return ShareSubscription(
            group_id=name.group_id, member_id=name.member_id, member=_parse_subscription(name.member_id, value)
        )
    assert version == CURRENT, f"records of share groups have no key version {version}"
    current = decode(ShareGroupCurrentMemberAssignmentKey, version, key, FIELDS_AT)
    return ShareCurrent(
        group_id=current.group_id, member_id=current.member_id, member=_parse_current(current.member_id, value)
    )


def _partitions(topics: Sequence[TargetTopicPartition] | Sequence[TopicPartitions]) -> Partitions:
    return frozenset((topic.topic_id, partition) for topic in topics for partition in topic.partitions)


def _parse_subscription(member_id: str, value: Buffer | None) -> ShareMember | None:
    if value is None:
        return None
    found = decode_versioned(ShareGroupMemberMetadataValue, value)
    return ShareMember(
        member_id=member_id,
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        topics=tuple(sorted(set(found.subscribed_topic_names))),
    )


def _parse_current(member_id: str, value: Buffer | None) -> ShareMember | None:
    if value is None:
        return None
    found = decode_versioned(ShareGroupCurrentMemberAssignmentValue, value)
    return ShareMember(
        member_id=member_id,
        epoch=found.member_epoch,
        previous_epoch=found.previous_member_epoch,
        assigned=_partitions(found.assigned_partitions),
    )


def _parse_states(value: Buffer) -> StatePartitions:
    found = decode_versioned(ShareGroupStatePartitionMetadataValue, value)
    return StatePartitions(
        initializing=_parse_topics(found.initializing_topics),
        initialized=_parse_topics(found.initialized_topics),
        deleting={topic.topic_id: topic.topic_name for topic in found.deleting_topics},
    )


def _parse_topics(topics: Sequence[TopicPartitionsInfo]) -> dict[UUID, TopicState]:
    return {
        topic.topic_id: TopicState(name=topic.topic_name, partitions=frozenset(topic.partitions)) for topic in topics
    }
