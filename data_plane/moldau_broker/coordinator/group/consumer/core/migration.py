"""Converts a classic group into a consumer group, and back, while its members go on (KIP-848). Pure.

The generation becomes the group epoch, and each member's epoch. A converted member owns what the last assignment gave
it, and what it said it owns when it last joined: a member of a cooperative protocol keeps reading partitions until its
next SyncGroup, so no other member may get them before. If two members name a partition, the later generation counts.

On the way back each classic member takes along what it owned. The record of the classic group names no leader, by which
its coordinator knows that the members must join again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue, MemberMetadata
from moldau_broker.coordinator.group.consumer.core.embedded import (
    assignment_bytes,
    owned_partitions,
    parse_assignment,
    parse_subscription,
    version_of,
)
from moldau_broker.coordinator.group.consumer.core.state import (
    ClassicMetadata,
    ConsumerMember,
    Current,
    GroupEpoch,
    Regex,
    Subscription,
    Target,
    TargetEpoch,
)
from moldau_broker.coordinator.group.core.group import CONSUMER_PROTOCOL_TYPE, GroupState
from moldau_broker.coordinator.group.core.records import group_record

if TYPE_CHECKING:
    from moldau_broker.coordinator.group.consumer.core.heartbeat import Draft
    from moldau_broker.coordinator.group.consumer.core.state import (
        Change,
        ConsumerGroup,
        Partitions,
        TopicIdPartition,
    )
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.group import Group, Member
    from moldau_broker.coordinator.runtime.ports import TopicNames

DISABLED: Final = "disabled"
UPGRADE: Final = "upgrade"
DOWNGRADE: Final = "downgrade"
BIDIRECTIONAL: Final = "bidirectional"
_NO_GENERATION = -1


def upgraded(group: Group, topics: TopicNames, config: GroupConfig) -> list[Change]:
    """Returns the changes that make a consumer group of a classic group with members.

    Raises:
        KafkaError: GROUP_ID_NOT_FOUND, because the group must stay a classic one.
    """
    if config.migration_policy not in (UPGRADE, BIDIRECTIONAL):
        raise _refused(group, "online upgrade is disabled")
    if group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _refused(group, f"its members speak {group.protocol_type!r}, not {CONSUMER_PROTOCOL_TYPE!r}")
    if not group.members:
        raise _refused(group, "its members have yet to join")
    if len(group.members) > config.consumer_size_max:
        raise _refused(group, f"it has more members than group.consumer.max.size = {config.consumer_size_max}")
    try:
        members = [_member(group, member) for member in group.members.values()]
        owned = _owned(group, topics)
    except DecodeError as error:
        raise _refused(group, f"what a member sent cannot be parsed: {error}") from error
    group_id, generation = group.group_id, group.generation
    changes: list[Change] = []
    for member in members:
        partitions = owned[member.member_id]
        moved = ConsumerMember(
            member_id=member.member_id, epoch=generation, previous_epoch=generation, assigned=partitions
        )
        changes += [
            Subscription(group_id=group_id, member_id=member.member_id, member=member),
            Target(group_id=group_id, member_id=member.member_id, partitions=partitions),
            Current(group_id=group_id, member_id=member.member_id, member=moved),
        ]
    changes += [GroupEpoch(group_id=group_id, epoch=generation), TargetEpoch(group_id=group_id, epoch=generation)]
    return changes


def _refused(group: Group, reason: str) -> KafkaError:
    text = f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}."
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)


def _metadata(group: Group, member: Member) -> bytes:
    return member.metadata(group.protocol_name) or member.protocols[0][1]


def _member(group: Group, member: Member) -> ConsumerMember:
    _, subscription = parse_subscription(_metadata(group, member))
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMetadata(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )


def _owned(group: Group, topics: TopicNames) -> dict[str, Partitions]:
    """Returns what each member may be reading; no partition belongs to two members."""
    # The assignment of a generation whose leader has not sent it yet is still the one of the generation before.
    is_new = group.state is GroupState.STABLE or group.assignment_append is not None
    given = group.generation if is_new else group.generation - 1
    claims: dict[TopicIdPartition, tuple[int, str]] = {}

    def claim(member_id: str, generation: int, partitions: Partitions) -> None:
        for partition in sorted(partitions):
            known = claims.get(partition)
            if known is None or known[0] < generation:
                claims[partition] = generation, member_id

    for member in group.members.values():
        claim(member.member_id, given, parse_assignment(member.assignment, topics))
    for member in group.members.values():
        _, subscription = parse_subscription(_metadata(group, member))
        said = subscription.generation_id
        claim(
            member.member_id,
            group.generation - 1 if said == _NO_GENERATION else said,
            owned_partitions(subscription, topics),
        )
    owned: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in group.members}
    for partition, (_, member_id) in claims.items():
        owned[member_id].add(partition)
    return {member_id: frozenset(partitions) for member_id, partitions in owned.items()}


def may_downgrade(group: ConsumerGroup, config: GroupConfig) -> bool:
    """Returns whether a group whose last member of the consumer protocol is gone becomes a classic group."""
    is_allowed = config.migration_policy in (DOWNGRADE, BIDIRECTIONAL)
    return is_allowed and group.is_classic and len(group.members) <= config.size_max


def downgraded(group: ConsumerGroup, epoch: int, topics: TopicNames, wall_ms: int) -> GroupMetadataValue:
    """Returns the record's value of the classic group that a consumer group with classic members only becomes.

    Its generation is ``epoch``, the group epoch before the last member of the consumer protocol went, so that the
    others learn of the rebalance by their heartbeats; or the epoch of a member if that is newer.
    """
    protocol = _common_protocol(group)
    members = [_stored(member, protocol, topics) for _, member in sorted(group.members.items())]
    return GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=max(epoch, *(member.epoch for _, member in sorted(group.members.items()))),
        protocol=protocol,
        leader=None,
        current_state_timestamp=wall_ms,
        members=members,
    )


def downgrade(draft: Draft, epoch: int, topics: TopicNames, wall_ms: int) -> None:
    """Ends a group whose members all speak the classic protocol; a classic group takes them over in the same write."""
    group = draft.group
    value = downgraded(group, epoch, topics, wall_ms)
    for member_id in sorted(group.members):
        draft.add(Current(group_id=group.group_id, member_id=member_id, member=None))
        draft.add(Subscription(group_id=group.group_id, member_id=member_id, member=None))
    end_group(draft)
    draft.after = (group_record(group.group_id, value),)


def make_way(draft: Draft, wall_ms: int) -> None:
    """Ends a group without members; an empty classic group follows, which goes on with the count of generations."""
    group = draft.group
    value = GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=group.epoch,
        protocol=None,
        leader=None,
        current_state_timestamp=wall_ms,
        members=[],
    )
    end_group(draft)
    draft.after = (group_record(group.group_id, value),)


def taken_over(group_id: str, generation: int) -> list[Change]:
    """Returns the changes by which a new consumer group goes on with the generations of an empty classic group."""
    if generation <= 0:
        return []
    return [GroupEpoch(group_id=group_id, epoch=generation), TargetEpoch(group_id=group_id, epoch=generation)]


def end_group(draft: Draft) -> None:
    """Removes what is left of a group without members."""
    group = draft.group  # the original: the changes below do not concern what is read here
    for regex in sorted(group.regexes):
        draft.add(Regex(group_id=group.group_id, regex=regex, resolved=None))
    for member_id in sorted(group.targets):
        draft.add(Target(group_id=group.group_id, member_id=member_id, partitions=None))
    draft.add(TargetEpoch(group_id=group.group_id, epoch=None))
    draft.add(GroupEpoch(group_id=group.group_id, epoch=None))


def _stored(member: ConsumerMember, protocol: str, topics: TopicNames) -> MemberMetadata:
    assert member.classic is not None
    metadata = dict(reversed(member.classic.protocols))[protocol]
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.classic.session_timeout_ms,
        subscription=metadata,
        assignment=assignment_bytes(member.owned, topics, version_of(metadata)),
    )


def _common_protocol(group: ConsumerGroup) -> str:
    """Returns the protocol that all members support and most prefer; JoinGroup ensures that there is one."""
    supported = [[name for name, _ in member.classic.protocols] for member in group.members.values() if member.classic]
    common = [name for name in supported[0] if all(name in names for names in supported)]
    assert common, f"{group.group_id}: classic members without a common protocol"
    votes = dict.fromkeys(common, 0)
    for names in supported:
        votes[next(name for name in names if name in votes)] += 1
    return max(common, key=lambda name: votes[name])
