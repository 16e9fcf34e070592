"""Decides on the requests of classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. Pure.

Theory of operation (KIP-848). While a group migrates, a part of its members speaks the classic protocol. The
coordinator assigns for all of them: it names no leader, and no JoinGroup waits for other members. JoinGroup does what
a heartbeat of the consumer protocol does, with the member's epoch as generation. SyncGroup fetches the assignment. A
heartbeat is answered with REBALANCE_IN_PROGRESS whenever the member has to join again: the group epoch has risen, it
has to release partitions, or all partitions that it waits for have become free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau_broker.coordinator.group.consumer.core.embedded import (
    assignment_bytes,
    owned_partitions,
    parse_subscription,
    version_of,
)
from moldau_broker.coordinator.group.consumer.core.heartbeat import Step
from moldau_broker.coordinator.group.consumer.core.state import (
    NO_PARTITIONS,
    ClassicMetadata,
    ConsumerMember,
    MemberState,
)
from moldau_broker.coordinator.group.core.group import CONSUMER_PROTOCOL_TYPE
from moldau_broker.coordinator.group.core.membership import new_member_id, protocols_of, rebalance_timeout_of
from moldau_broker.coordinator.group.core.responses import join_error, leave_answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
    from moldau.protocol.messages.leave_group import MemberIdentity
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.consumer.core.heartbeat import Draft, HeartbeatDecisions
    from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup, Partitions
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext
    from moldau_broker.coordinator.runtime.ports import TopicNames

ClassicRequest = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
KNOWN_MEMBER_ID_FROM: Final = 4
"""The first version of JoinGroup whose new members join with the id that a first answer gives them (KIP-394)."""
_GENERATION_IN_METADATA_FROM: Final = 2
_NO_GENERATION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer to a request of a classic member, and what it means for the member's deadlines."""

    response: Response
    member_id: str = ""
    """The member that is alive; empty if the request shows none."""
    joined: bool = False
    """Whether the member has joined, and must send SyncGroup next."""
    synced: bool = False
    must_join: bool = False
    """Whether an answer has asked the member to join again."""
    looked: bool = False
    """Whether the request has looked at the topics, if they may have changed."""


class ClassicMemberDecisions:
    """The decisions for the classic members of all consumer groups of one coordinator."""

    def __init__(self, config: GroupConfig, topics: TopicNames, decisions: HeartbeatDecisions) -> None:
        """Decides by these limits and topics; ``decisions`` assigns for the members of both protocols."""
        self._config = config
        self._topics = topics
        self._decisions = decisions

    def decide(
        self,
        draft: Draft,
        request: ClassicRequest,
        context: RequestContext,
        moment: Moment,
        *,
        looks: bool,
        has_room: Callable[[ConsumerMember], ErrorCode],
    ) -> Decision:
        """Handles a request, and returns its answer.

        Raises:
            KafkaError: the request is refused, and the draft is unchanged.
        """
        if not request.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        if isinstance(request, JoinGroupRequest):
            return self._join(draft, request, context, moment, looks=looks, has_room=has_room)
        if isinstance(request, SyncGroupRequest):
            return self._sync(draft.group, request, moment)
        if isinstance(request, HeartbeatRequest):
            return self._heartbeat(draft.group, request, moment)
        return self._leave(draft, request, context)

    # JoinGroup

    def _join(
        self,
        draft: Draft,
        request: JoinGroupRequest,
        context: RequestContext,
        moment: Moment,
        *,
        looks: bool,
        has_room: Callable[[ConsumerMember], ErrorCode],
    ) -> Decision:
        group, config = draft.group, self._config
        if not config.session_timeout_min_ms <= request.session_timeout_ms <= config.session_timeout_max_ms:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        instance_id = request.group_instance_id
        holder = None if instance_id is None else group.static_member(instance_id)
        known = holder if holder is not None and not request.member_id else group.members.get(request.member_id)
        if known is None and len(group.members) >= config.consumer_size_max:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        self._check_protocols(group, request)
        version, subscription = _subscription(request)
        member_id = request.member_id or new_member_id(instance_id, context)
        if not request.member_id and instance_id is None and context.version >= KNOWN_MEMBER_ID_FROM:
            return Decision(response=join_error(ErrorCode.MEMBER_ID_REQUIRED, context.version, member_id))
        replaced: ConsumerMember | None = None
        if holder is not None and not request.member_id:
            before, replaced = replace(holder, member_id=member_id, epoch=0, previous_epoch=0), holder
        elif instance_id is not None and request.member_id and (holder is None or holder.member_id != member_id):
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID if holder is None else ErrorCode.FENCED_INSTANCE_ID)
        elif known is not None:
            before = known
            if known.classic is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} speaks the consumer protocol.")
        else:
            if subscription.owned_partitions or subscription.generation_id != _NO_GENERATION:
                # A member that was removed and does not know it: it must give up what it reads before it joins.
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            before = ConsumerMember(member_id=member_id)
        reported = self._reported(before, version, subscription)
        if before.state is MemberState.UNKNOWN and reported != NO_PARTITIONS:
            # A newer coordinator has left that state: the member must give up what it reads before it joins.
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        step = Step(
            before=before,
            after=_updated(before, request, subscription, context),
            replaced=replaced,
            reported=reported,
            joins=known is None or replaced is not None,
            right=context.may_describe,
        )
        moved = self._decisions.advance(draft, step, moment, looks=looks, has_room=has_room)
        response = JoinGroupResponse(
            generation_id=moved.epoch,
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=request.protocols[0].name,
            leader="",
            member_id=member_id,
        )
        return Decision(response=response, member_id=member_id, joined=True, looked=True)

    def _check_protocols(self, group: ConsumerGroup, request: JoinGroupRequest) -> None:
        """Checks that all classic members have a protocol in common, so that the group can be downgraded."""
        offered = dict.fromkeys(protocol.name for protocol in request.protocols)
        others = [
            dict(member.classic.protocols)
            for _, member in sorted(group.members.items())
            if member.classic is not None and member.member_id != request.member_id
        ]
        common = [name for name in offered if all(name in names for names in others)]
        if request.protocol_type != CONSUMER_PROTOCOL_TYPE or not common:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _reported(
        self, member: ConsumerMember, version: int, subscription: ConsumerProtocolSubscription
    ) -> Partitions | None:
        """Returns what the member says it owns, unless it said so before it heard of its present epoch."""
        generation = subscription.generation_id
        if version >= _GENERATION_IN_METADATA_FROM and generation not in (_NO_GENERATION, member.epoch):
            return None
        return owned_partitions(subscription, self._topics)

    # SyncGroup, Heartbeat, LeaveGroup

    def _find(self, group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
        if instance_id is not None:
            holder = group.static_member(instance_id)
            if holder is not None and holder.member_id != member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
            if holder is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = group.members.get(member_id)
        if member is None or member.classic is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _sync(self, group: ConsumerGroup, request: SyncGroupRequest, moment: Moment) -> Decision:
        member = self._find(group, request.member_id, request.group_instance_id)
        assert member.classic is not None
        name, metadata = member.classic.protocols[0]
        if request.generation_id != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        due_epoch = self._decisions.due_epoch(group, moment)
        if due_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            return Decision(
                response=SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS),
                member_id=member.member_id,
                must_join=True,
            )
        response = SyncGroupResponse(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            protocol_name=name,
            assignment=assignment_bytes(member.assigned, self._topics, version_of(metadata)),
        )
        return Decision(response=response, member_id=member.member_id, synced=True)

    def _heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, moment: Moment) -> Decision:
        member = self._find(group, request.member_id, request.group_instance_id)
        if request.generation_id != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        must_join = must_join_again(group, member, self._decisions.due_epoch(group, moment))
        code = ErrorCode.REBALANCE_IN_PROGRESS if must_join else ErrorCode.NONE
        return Decision(response=HeartbeatResponse(error_code=code), member_id=member.member_id, must_join=must_join)

    def _leave(self, draft: Draft, request: LeaveGroupRequest, context: RequestContext) -> Decision:
        def leave(identity: MemberIdentity) -> ErrorCode:
            try:
                self._leave_one(draft, identity)
            except KafkaError as error:
                return error.code
            return ErrorCode.NONE

        return Decision(response=leave_answer(request, context.version, leave))

    def _leave_one(self, draft: Draft, identity: MemberIdentity) -> None:
        """Removes a member of either protocol: administrators name members of both in this request."""
        member_id, instance_id = identity.member_id, identity.group_instance_id
        member = draft.group.members.get(member_id) if instance_id is None else draft.group.static_member(instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if member_id and member.member_id != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        self._decisions.fence(draft, member.member_id)


def must_join_again(group: ConsumerGroup, member: ConsumerMember, due_epoch: int) -> bool:
    """Returns whether only another JoinGroup brings a member closer to its target assignment.

    ``due_epoch`` is the one that it can come to now. While the target of the group epoch waits for its time, the member
    would get the same answer again, at once.
    """
    if member.epoch < due_epoch or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    wanted = group.targets.get(member.member_id, NO_PARTITIONS) - member.assigned
    return all(group.is_free(partition, member.member_id) for partition in sorted(wanted))


def _subscription(request: JoinGroupRequest) -> tuple[int, ConsumerProtocolSubscription]:
    try:
        return parse_subscription(bytes(request.protocols[0].metadata))
    except DecodeError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def _updated(
    member: ConsumerMember,
    request: JoinGroupRequest,
    subscription: ConsumerProtocolSubscription,
    context: RequestContext,
) -> ConsumerMember:
    """Returns the member as its JoinGroup describes it."""
    return replace(
        member,
        instance_id=member.instance_id if request.group_instance_id is None else request.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        regex="",
        rebalance_timeout_ms=rebalance_timeout_of(request),
        assignor=None,
        classic=ClassicMetadata(session_timeout_ms=request.session_timeout_ms, protocols=protocols_of(request)),
    )
