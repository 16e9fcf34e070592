"""The records of consumer groups in ``__consumer_offsets``, in Kafka's own formats.

| key version | record | change |
|---|---|---|
| 3 | ConsumerGroupMetadata | `GroupEpoch` |
| 4 | ConsumerGroupPartitionMetadata | none: Kafka 4.0 wrote it, later versions keep a hash in record 3 |
| 5 | ConsumerGroupMemberMetadata | `Subscription` |
| 6 | ConsumerGroupTargetAssignmentMetadata | `TargetEpoch` |
| 7 | ConsumerGroupTargetAssignmentMember | `Target` |
| 8 | ConsumerGroupCurrentMemberAssignment | `Current` |
| 16 | ConsumerGroupRegularExpression | `Regex` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.codec import decode
from moldau.protocol.messages.internal.consumer_group import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TargetTopicPartition,
    TopicPartitions,
)
from moldau_broker.coordinator.group.consumer.core.state import (
    Change,
    ClassicMetadata,
    ConsumerMember,
    Current,
    GroupEpoch,
    MemberState,
    Regex,
    ResolvedRegex,
    Subscription,
    Target,
    TargetEpoch,
)
from moldau_broker.coordinator.runtime.versioned import FIELDS_AT, decode_versioned, state_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from moldau.protocol.schema import Data
    from moldau.values import Buffer
    from moldau_broker.coordinator.group.consumer.core.state import Partitions, TopicIdPartition
    from moldau_broker.coordinator.runtime.effects import StateRecord


GROUP_EPOCH, SUBSCRIPTION, TARGET_EPOCH, TARGET, CURRENT, REGEX = 3, 5, 6, 7, 8, 16
KEY_VERSIONS = frozenset({GROUP_EPOCH, SUBSCRIPTION, TARGET_EPOCH, TARGET, CURRENT, REGEX})
"""Versions of keys that `parse_change` understands."""


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    """Returns sorted partitions by sorted topic id."""
    found: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return found


def _target(partitions: Partitions) -> list[TargetTopicPartition]:
    return [TargetTopicPartition(topic_id=topic, partitions=found) for topic, found in by_topic(partitions).items()]


def _current(partitions: Partitions) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id=topic, partitions=found) for topic, found in by_topic(partitions).items()]


def _partitions(topics: Sequence[TargetTopicPartition] | Sequence[TopicPartitions]) -> Partitions:
    return frozenset((topic.topic_id, partition) for topic in topics for partition in topic.partitions)


def change_record(change: Change) -> StateRecord:
    """Returns the record of a change."""
    return state_record(*_messages(change))


def _messages(change: Change) -> tuple[Data, Data | None]:
    group_id = change.group_id
    if isinstance(change, GroupEpoch):
        epoch = change.epoch
        value = None if epoch is None else ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=change.metadata_hash)
        return ConsumerGroupMetadataKey(group_id=group_id), value
    if isinstance(change, TargetEpoch):
        return ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), (
            None
            if change.epoch is None
            else ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=change.epoch, assignment_timestamp=change.assigned_ms
            )
        )
    if isinstance(change, Target):
        return ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=change.member_id), (
            None
            if change.partitions is None
            else ConsumerGroupTargetAssignmentMemberValue(topic_partitions=_target(change.partitions))
        )
    if isinstance(change, Regex):
        found = change.resolved
        return ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=change.regex), (
            None
            if found is None
            else ConsumerGroupRegularExpressionValue(
                topics=list(found.topics), version=found.version, timestamp=found.resolved_ms
            )
        )
    if isinstance(change, Subscription):
        return ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=change.member_id), (
            None if change.member is None else _subscription(change.member)
        )
    return ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=change.member_id), (
        None
        if change.member is None
        else ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=change.member.epoch,
            previous_member_epoch=change.member.previous_epoch,
            state=int(change.member.state),
            assigned_partitions=_current(change.member.assigned),
            partitions_pending_revocation=_current(change.member.revoking),
        )
    )


def _subscription(member: ConsumerMember) -> ConsumerGroupMemberMetadataValue:
    return ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=None if member.classic is None else _classic(member.classic),
    )


def _classic(classic: ClassicMetadata) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=data) for name, data in classic.protocols],
    )


def parse_change(version: int, key: Buffer, value: Buffer | None) -> Change:
    """Parses a record whose key has one of `KEY_VERSIONS`.

    Raises:
        DecodeError: the record is malformed.
    """
    if version == GROUP_EPOCH:
        group_id = decode(ConsumerGroupMetadataKey, version, key, FIELDS_AT).group_id
        group = None if value is None else decode_versioned(ConsumerGroupMetadataValue, value)
        if group is None:
            return GroupEpoch(group_id=group_id, epoch=None)
        return GroupEpoch(group_id=group_id, epoch=group.epoch, metadata_hash=group.metadata_hash)
    if version == TARGET_EPOCH:
        group_id = decode(ConsumerGroupTargetAssignmentMetadataKey, version, key, FIELDS_AT).group_id
        if value is None:
            return TargetEpoch(group_id=group_id, epoch=None)
        found = decode_versioned(ConsumerGroupTargetAssignmentMetadataValue, value)
        return TargetEpoch(group_id=group_id, epoch=found.assignment_epoch, assigned_ms=found.assignment_timestamp)
    if version == TARGET:
        target = decode(ConsumerGroupTargetAssignmentMemberKey, version, key, FIELDS_AT)
        partitions = (
            None
            if value is None
            else _partitions(decode_versioned(ConsumerGroupTargetAssignmentMemberValue, value).topic_partitions)
        )
        return Target(group_id=target.group_id, member_id=target.member_id, partitions=partitions)
    if version == REGEX:
        regex = decode(ConsumerGroupRegularExpressionKey, version, key, FIELDS_AT)
        return Regex(group_id=regex.group_id, regex=regex.regular_expression, resolved=_parse_resolved(value))
    if version == SUBSCRIPTION:
        name = decode(ConsumerGroupMemberMetadataKey, version, key, FIELDS_AT)
        return Subscription(
            group_id=name.group_id, member_id=name.member_id, member=_parse_subscription(name.member_id, value)
        )
    assert version == CURRENT, f"records of consumer groups have no key version {version}"
    current = decode(ConsumerGroupCurrentMemberAssignmentKey, version, key, FIELDS_AT)
    return Current(
        group_id=current.group_id, member_id=current.member_id, member=_parse_current(current.member_id, value)
    )


def _parse_resolved(value: Buffer | None) -> ResolvedRegex | None:
    if value is None:
        return None
    found = decode_versioned(ConsumerGroupRegularExpressionValue, value)
    return ResolvedRegex(topics=tuple(sorted(found.topics)), version=found.version, resolved_ms=found.timestamp)


def _parse_subscription(member_id: str, value: Buffer | None) -> ConsumerMember | None:
    if value is None:
        return None
    found = decode_versioned(ConsumerGroupMemberMetadataValue, value)
    return ConsumerMember(
        member_id=member_id,
        instance_id=found.instance_id,
        rack_id=found.rack_id,
        client_id=found.client_id,
        client_host=found.client_host,
        topics=tuple(sorted(set(found.subscribed_topic_names))),
        regex=found.subscribed_topic_regex or "",
        rebalance_timeout_ms=found.rebalance_timeout_ms,
        assignor=found.server_assignor,
        classic=None if found.classic_member_metadata is None else _parse_classic(found.classic_member_metadata),
    )


def _parse_classic(found: ClassicMemberMetadata) -> ClassicMetadata:
    return ClassicMetadata(
        session_timeout_ms=found.session_timeout_ms,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in found.supported_protocols),
    )


def _parse_current(member_id: str, value: Buffer | None) -> ConsumerMember | None:
    if value is None:
        return None
    found = decode_versioned(ConsumerGroupCurrentMemberAssignmentValue, value)
    known = found.state in (MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS)
    return ConsumerMember(
        member_id=member_id,
        epoch=found.member_epoch,
        previous_epoch=found.previous_member_epoch,
        state=MemberState(found.state) if known else MemberState.UNKNOWN,
        assigned=_partitions(found.assigned_partitions),
        revoking=_partitions(found.partitions_pending_revocation),
    )
