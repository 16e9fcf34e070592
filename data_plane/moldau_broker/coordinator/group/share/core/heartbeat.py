"""Decides on the requests of members of share groups: joins, heartbeats and leaves. Pure (KIP-932).

A heartbeat creates or updates the member; a new subscription, or topics that have changed, raise the group epoch. Then
the assignor computes a new target, at most once in an assignment interval, and the member moves to it. All checks of a
request come before its first change, so a refused request changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.share_group_heartbeat import Assignment, ShareGroupHeartbeatResponse, TopicPartitions
from moldau_broker.coordinator.group.consumer.core.catalogue import group_setting, metadata_hash
from moldau_broker.coordinator.group.consumer.core.records import by_topic
from moldau_broker.coordinator.group.consumer.core.state import NO_PARTITIONS
from moldau_broker.coordinator.group.core.assignment_pace import heartbeat_after_ms, target_wait_ms
from moldau_broker.coordinator.group.core.member_checks import check_texts
from moldau_broker.coordinator.group.share.core.assignor import Sharer, simple_assignor
from moldau_broker.coordinator.group.share.core.state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ShareCurrent,
    ShareMember,
    ShareSubscription,
    ShareTarget,
    ShareTargetEpoch,
)
from moldau_broker.coordinator.share.core.state import GROUP_ID_BYTES_MAX, MEMBER_ID_CHARACTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.consumer.core.state import Partitions
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.share.core.state import ShareDraft, ShareGroup
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext

HEARTBEAT_INTERVAL, SESSION_TIMEOUT = "share.heartbeat.interval.ms", "share.session.timeout.ms"
ASSIGNMENT_INTERVAL = "share.assignment.interval.ms"
"""Keys of the dynamic configuration of a group."""


class ShareDecisions:
    """The decisions for all share groups of one coordinator."""

    def __init__(self, config: GroupConfig, catalogue: Catalogue) -> None:
        """Decides by these limits and topics."""
        self._config = config
        self._catalogue = catalogue

    def session_timeout_ms(self, group_id: str) -> int:
        """Returns the session timeout of a group."""
        return group_setting(self._catalogue, group_id, SESSION_TIMEOUT, self._config.share_session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Returns the heartbeat interval that the answers of a group contain."""
        return group_setting(self._catalogue, group_id, HEARTBEAT_INTERVAL, self._config.share_heartbeat_interval_ms)

    def check(self, request: ShareGroupHeartbeatRequest) -> None:
        """Checks what a request says on its own.

        Raises:
            KafkaError: INVALID_REQUEST.
        """
        check_texts(MemberId=request.member_id, GroupId=request.group_id, RackId=request.rack_id)
        if len(request.member_id) > MEMBER_ID_CHARACTERS_MAX:
            raise _invalid(f"MemberId is too long: it may have {MEMBER_ID_CHARACTERS_MAX} characters.")
        if len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
            raise _invalid(f"GroupId is too long: it may have {GROUP_ID_BYTES_MAX} bytes.")
        if request.member_epoch < LEAVE_EPOCH:
            raise _invalid(f"MemberEpoch is invalid: {request.member_epoch}; it must be -1 or more.")
        if request.member_epoch == JOIN_EPOCH and not request.subscribed_topic_names:
            raise _invalid("SubscribedTopicNames must be set in first request.")

    def heartbeat(
        self,
        draft: ShareDraft,
        request: ShareGroupHeartbeatRequest,
        context: RequestContext,
        moment: Moment,
        *,
        looks: bool,
        has_room: Callable[[ShareMember], ErrorCode],
    ) -> ShareGroupHeartbeatResponse:
        """Handles a request that `check` has accepted, and returns its answer.

        Args:
            draft: the group; it takes the changes.
            request: the request.
            context: its sender.
            moment: now.
            looks: whether topics may have changed since the group's metadata hash was computed.
            has_room: the code with which the memory limits refuse a new or changed member.

        Raises:
            KafkaError: the request is refused, and the draft is unchanged.
        """
        if request.member_epoch == LEAVE_EPOCH:
            self._find(draft.group, request)
            self.fence(draft, request.member_id)
            return ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
        before = self._find(draft.group, request)
        after = _updated(before, request, context)
        is_new = before.member_id not in draft.group.members
        if is_new or after != before:
            code = has_room(after)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, "The members of groups take all the memory that they may.")
            draft.add(ShareSubscription(group_id=draft.group.group_id, member_id=after.member_id, member=after))
        bumps = is_new or after.topics != before.topics
        if bumps or looks:
            hashed = metadata_hash(draft.group.subscribed_topics(), self._catalogue)
            if bumps or hashed != draft.group.metadata_hash:
                draft.raise_epoch(hashed)
        self.assign_if_due(draft, moment)
        moved = self._move(draft, request.member_id)
        answer = ShareGroupHeartbeatResponse(
            member_id=moved.member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=heartbeat_after_ms(
                self.heartbeat_interval_ms(draft.group.group_id), self._wait_ms(draft.group, moment)
            ),
        )
        is_full = request.member_epoch == JOIN_EPOCH or request.subscribed_topic_names is not None
        if is_full or moved.assigned != before.assigned:
            answer.assignment = _assignment(moved.assigned)
        return answer

    def _find(self, group: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareMember:
        """Returns the member of the sender."""
        member_id, epoch = request.member_id, request.member_epoch
        if not group.exists and epoch != JOIN_EPOCH:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} not found.")
        found = group.members.get(member_id)
        if found is None:
            if epoch != JOIN_EPOCH:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
                )
            size = self._config.share_size_max
            if len(group.members) >= size:
                raise KafkaError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED,
                    f"The share group has reached its maximum capacity of {size} members.",
                )
            return ShareMember(member_id=member_id)
        # The answer with the present epoch may have been lost: the former one is accepted too.
        if epoch > JOIN_EPOCH and epoch not in (found.epoch, found.previous_epoch):
            size_text = "greater" if epoch > found.epoch else "smaller"
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                f"The share group member has a {size_text} member epoch ({epoch}) than the one known by the group "
                f"coordinator ({found.epoch}). The member must abandon all its partitions and rejoin.",
            )
        return found

    def _move(self, draft: ShareDraft, member_id: str) -> ShareMember:
        """Brings a member to the target assignment, which takes one step: nothing has to be released before."""
        group = draft.group
        present = group.members[member_id]
        target = group.targets.get(member_id, NO_PARTITIONS)
        if present.epoch == group.assignment_epoch and present.assigned == target:
            return present
        moved = replace(present, epoch=group.assignment_epoch, previous_epoch=present.epoch, assigned=target)
        draft.add(ShareCurrent(group_id=group.group_id, member_id=member_id, member=moved))
        return moved

    def fence(self, draft: ShareDraft, member_id: str) -> None:
        """Removes a member; the next heartbeat of another member assigns its partitions."""
        group_id, topics = draft.group.group_id, draft.group.members[member_id].topics
        draft.add(ShareCurrent(group_id=group_id, member_id=member_id, member=None))
        draft.add(ShareTarget(group_id=group_id, member_id=member_id, partitions=None))
        draft.add(ShareSubscription(group_id=group_id, member_id=member_id, member=None))
        # Many members may be removed at once. Topics that have changed besides are found by the next look.
        if any(other.topics == topics for other in draft.group.members.values()):
            draft.raise_epoch()
        else:
            draft.raise_epoch(metadata_hash(draft.group.subscribed_topics(), self._catalogue))

    def _wait_ms(self, group: ShareGroup, moment: Moment) -> int:
        """Returns how long a group still waits for a new target assignment; see ``target_wait_ms``."""
        default = self._config.share_assignment_interval_ms
        interval_ms = group_setting(self._catalogue, group.group_id, ASSIGNMENT_INTERVAL, default)
        return target_wait_ms(group, interval_ms, moment.wall_ms, is_assigned=any(group.targets.values()))

    def assign_if_due(self, draft: ShareDraft, moment: Moment) -> None:
        """Computes the target assignment of the group epoch, unless it exists or its time has not come."""
        if draft.group.epoch > draft.group.assignment_epoch and self._wait_ms(draft.group, moment) == 0:
            self.assign(draft, moment)

    def assign(self, draft: ShareDraft, moment: Moment) -> None:
        """Computes the target assignment of the group epoch, and writes what differs from the last one."""
        group = draft.group
        ids: dict[str, UUID] = {}
        for name in group.subscribed_topics():
            topic_id = self._catalogue.topic_id(name)
            if topic_id is not None:
                ids[name] = topic_id
        sharers = [
            Sharer(
                member_id=member.member_id,
                topics=frozenset(ids[name] for name in member.topics if name in ids),
                previous=group.targets.get(member.member_id, NO_PARTITIONS),
            )
            for member in group.members.values()
        ]
        assignable = {
            topic_id: group.states.initialized[topic_id].partitions
            for topic_id in ids.values()
            if topic_id in group.states.initialized
        }
        for member_id, partitions in sorted(simple_assignor(sharers, assignable).items()):
            if partitions != group.targets.get(member_id, NO_PARTITIONS):
                draft.add(ShareTarget(group_id=group.group_id, member_id=member_id, partitions=partitions))
        draft.add(ShareTargetEpoch(group_id=group.group_id, epoch=group.epoch, assigned_ms=moment.wall_ms))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _updated(member: ShareMember, request: ShareGroupHeartbeatRequest, context: RequestContext) -> ShareMember:
    """Returns the member with what a request says of it; fields that the request leaves out stay."""
    names = request.subscribed_topic_names
    return replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        topics=member.topics if names is None else tuple(sorted(set(names))),
    )


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in by_topic(partitions).items()
        ]
    )
