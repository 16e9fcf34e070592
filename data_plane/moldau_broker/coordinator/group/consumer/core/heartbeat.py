"""Decides on the requests of members of consumer groups: joins, heartbeats and leaves. Pure.

Theory of operation (KIP-848). A heartbeat does three things. It creates or updates the member; a new subscription, or
topics that have changed, raise the group epoch. If the group epoch is above the epoch of the target assignment, the
assignor computes a new target, at most once in an assignment interval. And the member makes its next step towards its
target (`reconcile`).

All checks of a request come before its first change, so a refused request changes nothing. Changes go to a `Draft`,
a copy of the group with the list of changes; `groups` writes them to the log.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)
from moldau_broker.coordinator.group.consumer.core.assignors import ASSIGNORS, Subscriber
from moldau_broker.coordinator.group.consumer.core.catalogue import group_setting, metadata_hash
from moldau_broker.coordinator.group.consumer.core.reconcile import reconcile
from moldau_broker.coordinator.group.consumer.core.records import by_topic
from moldau_broker.coordinator.group.consumer.core.regexes import TopicRegexes, note_right
from moldau_broker.coordinator.group.consumer.core.state import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    NO_PARTITIONS,
    ConsumerMember,
    Current,
    GroupEpoch,
    MemberState,
    Subscription,
    Target,
    TargetEpoch,
)
from moldau_broker.coordinator.group.core.assignment_pace import heartbeat_after_ms, target_wait_ms
from moldau_broker.coordinator.group.core.member_checks import check_instance, check_texts, is_blank, leaving_member

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue, Compile
    from moldau_broker.coordinator.group.consumer.core.state import (
        Change,
        ConsumerGroup,
        Partitions,
    )
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.runtime.effects import DescribeRight, Moment, RequestContext, StateRecord

HEARTBEAT_INTERVAL, SESSION_TIMEOUT = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
"""Keys of the dynamic configuration of a group."""


@dataclass(slots=True)
class Draft:
    """A group with the changes that are made to it.

    Invariant: ``group`` is the original as long as there are no changes, else a copy with the changes applied. So read
    it again after each `add`.
    """

    group: ConsumerGroup
    changes: list[Change] = field(default_factory=list)
    rights: dict[str, DescribeRight] = field(default_factory=dict)
    """The topics that clients of members with a regular expression may describe, by their last heartbeats."""
    before: tuple[StateRecord, ...] = ()
    """Records of the classic group that ends, which precede the changes in the write."""
    after: tuple[StateRecord, ...] = ()
    """The record of the classic group that follows, if the group is downgraded."""

    def add(self, change: Change) -> None:
        """Applies a change to the copy."""
        if not self.changes:
            self.group = self.group.copy()
        self.group.apply(change)
        self.changes.append(change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A request of a member: what was known of the member, and what it says now."""

    before: ConsumerMember
    after: ConsumerMember
    replaced: ConsumerMember | None = None
    """The static member whose place it takes, with another member id."""
    reported: Partitions | None = None
    """The partitions that it says it owns; None if it says nothing that counts."""
    joins: bool = False
    """Whether it joins, and so owns nothing."""
    right: DescribeRight | None = None
    """Which topics its client may describe; None if everyone may describe all topics."""


class HeartbeatDecisions:
    """The decisions for all consumer groups of one coordinator."""

    def __init__(self, config: GroupConfig, catalogue: Catalogue, compile_regex: Compile) -> None:
        """Decides by these limits, topics and regular expressions."""
        self._config = config
        self._catalogue = catalogue
        self._compile = compile_regex
        self._regexes = TopicRegexes(catalogue, compile_regex)

    def session_timeout_ms(self, group_id: str) -> int:
        """Returns the session timeout of a group."""
        return group_setting(self._catalogue, group_id, SESSION_TIMEOUT, self._config.consumer_session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Returns the heartbeat interval that answers give to members of a group."""
        return group_setting(self._catalogue, group_id, HEARTBEAT_INTERVAL, self._config.consumer_heartbeat_interval_ms)

    # Requests

    def check(self, request: ConsumerGroupHeartbeatRequest, version: int) -> None:
        """Checks what a request says on its own.

        Raises:
            KafkaError: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR or INVALID_REGULAR_EXPRESSION.
        """
        check_texts(GroupId=request.group_id, InstanceId=request.instance_id, RackId=request.rack_id)
        epoch = request.member_epoch
        if is_blank(request.member_id) and (epoch != JOIN_EPOCH or version >= 1):
            raise _invalid("MemberId can't be empty.")
        if epoch < LEAVE_STATIC_EPOCH:
            raise _invalid(f"MemberEpoch is invalid: {epoch}; it must be -2 or more.")
        if epoch == LEAVE_STATIC_EPOCH and request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
        if epoch == JOIN_EPOCH:
            if request.rebalance_timeout_ms == -1:
                raise _invalid("RebalanceTimeoutMs must be provided in first request.")
            if request.topic_partitions is None or request.topic_partitions:
                raise _invalid("TopicPartitions must be empty when (re-)joining.")
            if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
                raise _invalid(
                    "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
                )
        if request.rebalance_timeout_ms != -1 and request.rebalance_timeout_ms < 0:
            raise _invalid(f"RebalanceTimeoutMs is invalid: {request.rebalance_timeout_ms}; it must not be negative.")
        assignor = request.server_assignor
        if assignor is not None and assignor not in self._config.consumer_assignors:
            served = ", ".join(self._config.consumer_assignors)
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {assignor} is not supported. Supported assignors: {served}.",
            )
        if request.subscribed_topic_regex:
            self._compile(request.subscribed_topic_regex)

    def heartbeat(
        self,
        draft: Draft,
        request: ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        moment: Moment,
        *,
        looks: bool,
        has_room: Callable[[ConsumerMember], ErrorCode],
    ) -> ConsumerGroupHeartbeatResponse:
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
        member_epoch = request.member_epoch
        if member_epoch < JOIN_EPOCH:
            return self._leave(draft, request)
        member_id = request.member_id or context.fresh_id
        reported = _reported(request)
        before, replaced = self._find(draft.group, member_id, request, reported)
        after = _updated(before, request, context)
        step = Step(
            before=before,
            after=after,
            replaced=replaced,
            reported=reported,
            joins=member_epoch == JOIN_EPOCH,
            right=context.may_describe,
        )
        moved = self.advance(draft, step, moment, looks=looks, has_room=has_room)
        answer = ConsumerGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=moved.epoch,
            heartbeat_interval_ms=heartbeat_after_ms(
                self.heartbeat_interval_ms(draft.group.group_id), self._wait_ms(draft.group, moment)
            ),
        )
        if _is_full(request) or moved.assigned != before.assigned:
            answer.assignment = _assignment(moved.assigned)
        return answer

    def advance(
        self, draft: Draft, step: Step, moment: Moment, *, looks: bool, has_room: Callable[[ConsumerMember], ErrorCode]
    ) -> ConsumerMember:
        """Writes what a member says of itself, brings epoch and target up to date, and moves the member towards it.

        Raises:
            KafkaError: the memory limits refuse the member, and the draft is unchanged.
        """
        before, after = step.before, step.after
        group_id, member_id = draft.group.group_id, after.member_id
        is_new = before.member_id not in draft.group.members or step.replaced is not None
        if is_new or after != before:
            code = has_room(after)
            if code is not ErrorCode.NONE:
                raise KafkaError(code, "The members of groups take all the memory that they may.")
        votes = after.assignor != before.assignor
        assignor = self.assignor_of(draft.group) if votes else ""
        if step.replaced is not None:
            self._replace(draft, step.replaced, after)
        elif after != before or is_new:
            draft.add(Subscription(group_id=group_id, member_id=member_id, member=after))
        bumps = not after.subscribed_as(before) or (is_new and step.replaced is None)
        bumps = bumps or (votes and self.assignor_of(draft.group) != assignor)
        right_changed = note_right(draft, after, step.right)
        self._refresh(draft, moment, step.right, bumps=bumps, looks=looks or right_changed)
        if draft.group.epoch > draft.group.assignment_epoch and self._wait_ms(draft.group, moment) == 0:
            self._assign(draft, moment)
        group = draft.group
        present = group.members[member_id]
        moved = reconcile(
            present,
            group.assignment_epoch,
            group.targets.get(member_id, NO_PARTITIONS),
            lambda partition: group.is_free(partition, member_id),
            step.reported,
            joins=step.joins,
        )
        if moved != present:
            draft.add(Current(group_id=group_id, member_id=member_id, member=moved))
        return moved

    # Members

    def _find(
        self,
        group: ConsumerGroup,
        member_id: str,
        request: ConsumerGroupHeartbeatRequest,
        reported: Partitions | None,
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        """Returns the member of the sender, and the static member that it replaces."""
        joins = request.member_epoch == JOIN_EPOCH
        if not joins and not group.exists:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} not found.")
        found = group.members.get(member_id)
        if found is None and joins and len(group.members) >= self._config.consumer_size_max:
            away = group.static_member(request.instance_id or "")
            if away is None:
                size = self._config.consumer_size_max
                raise KafkaError(
                    ErrorCode.GROUP_MAX_SIZE_REACHED, f"The group has reached its maximum capacity of {size} members."
                )
        if request.instance_id is not None:
            holder = group.static_member(request.instance_id)
            # A static member of the classic protocol does not leave when it stops: its next process takes its place.
            if (
                joins
                and holder is not None
                and (
                    holder.epoch == LEAVE_STATIC_EPOCH or (holder.classic is not None and holder.member_id != member_id)
                )
            ):
                return replace(holder, member_id=member_id, epoch=0, previous_epoch=0), holder
            holder_id = None if holder is None else holder.member_id
            check_instance(request.instance_id, holder_id, member_id, joins=joins)
        if found is None:
            if not joins:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}."
                )
            return ConsumerMember(member_id=member_id), None
        # A member that has been fenced, or whose leave was lost, joins again with its id. Epoch 0 is never too old.
        if not joins:
            if found.classic is not None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} speaks the classic protocol.")
            check_epoch(found, request.member_epoch, reported)
        return found, None

    def _leave(self, draft: Draft, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        group = draft.group
        if not group.exists:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} not found.")
        member = leaving_member(group, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH:
            away = replace(member, epoch=LEAVE_STATIC_EPOCH, previous_epoch=member.epoch, revoking=NO_PARTITIONS)
            if away.state is MemberState.UNREVOKED_PARTITIONS:
                away = replace(away, state=MemberState.UNRELEASED_PARTITIONS)
            draft.add(Current(group_id=group.group_id, member_id=member.member_id, member=away))
        else:
            self.fence(draft, member.member_id)
        return ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch)

    def fence(self, draft: Draft, member_id: str) -> None:
        """Removes a member; the next heartbeat of another member assigns its partitions."""
        member = draft.group.members[member_id]
        self._remove(draft, member_id)
        self._regexes.forget(draft, member.regex)
        hashed = draft.group.metadata_hash
        # Many members may be removed at once. Topics that have changed besides are found by the next look.
        if not any(other.subscribed_as(member) for other in draft.group.members.values()):
            hashed = metadata_hash(draft.group.subscribed_topics(), self._catalogue)
        self._raise_epoch(draft, hashed)

    def _remove(self, draft: Draft, member_id: str) -> None:
        group_id = draft.group.group_id
        draft.add(Current(group_id=group_id, member_id=member_id, member=None))
        draft.add(Target(group_id=group_id, member_id=member_id, partitions=None))
        draft.add(Subscription(group_id=group_id, member_id=member_id, member=None))

    def _replace(self, draft: Draft, old: ConsumerMember, new: ConsumerMember) -> None:
        """Gives the partitions of a static member that was away to its new member id."""
        group_id = draft.group.group_id
        target = draft.group.targets.get(old.member_id, NO_PARTITIONS)
        self._remove(draft, old.member_id)
        draft.add(Subscription(group_id=group_id, member_id=new.member_id, member=new))
        draft.add(Target(group_id=group_id, member_id=new.member_id, partitions=target))
        draft.add(Current(group_id=group_id, member_id=new.member_id, member=new))

    # Epochs

    def _refresh(self, draft: Draft, moment: Moment, right: DescribeRight | None, *, bumps: bool, looks: bool) -> None:
        """Looks at the topics again if anything may have changed, and raises the group epoch if anything has."""
        if not (bumps or looks):
            return
        self._regexes.resolve(draft, moment, right)
        hashed = metadata_hash(draft.group.subscribed_topics(), self._catalogue)
        if bumps or hashed != draft.group.metadata_hash:
            self._raise_epoch(draft, hashed)

    def _raise_epoch(self, draft: Draft, hashed: int) -> None:
        group = draft.group
        draft.add(GroupEpoch(group_id=group.group_id, epoch=group.epoch + 1, metadata_hash=hashed))

    def due_epoch(self, group: ConsumerGroup, moment: Moment) -> int:
        """Returns the epoch to which members can come now: that of the last target while the next one is not due."""
        return group.epoch if self._wait_ms(group, moment) == 0 else group.assignment_epoch

    def _wait_ms(self, group: ConsumerGroup, moment: Moment) -> int:
        """Returns how long a group still waits for a new target assignment; see ``target_wait_ms``."""
        default = self._config.consumer_assignment_interval_ms
        interval_ms = group_setting(self._catalogue, group.group_id, ASSIGNMENT_INTERVAL, default)
        return target_wait_ms(group, interval_ms, moment.wall_ms, is_assigned=any(group.targets.values()))

    def _assign(self, draft: Draft, moment: Moment) -> None:
        """Computes the target assignment of the group epoch, and writes what differs from the last one."""
        group = draft.group
        ids = {
            name: topic_id
            for name in group.subscribed_topics()
            if (topic_id := self._catalogue.topic_id(name)) is not None
        }
        subscribers = [
            Subscriber(
                member_id=member.member_id,
                instance_id=member.instance_id,
                topics=frozenset(ids[name] for name in group.topics_of(member) if name in ids),
                previous=group.targets.get(member.member_id, NO_PARTITIONS),
            )
            for member in group.members.values()
        ]
        counts = {topic_id: self._catalogue.partition_count(name) for name, topic_id in ids.items()}
        targets = ASSIGNORS[self.assignor_of(group)](subscribers, counts)
        for member_id, partitions in sorted(targets.items()):
            if partitions != group.targets.get(member_id, NO_PARTITIONS):
                draft.add(Target(group_id=group.group_id, member_id=member_id, partitions=partitions))
        draft.add(TargetEpoch(group_id=group.group_id, epoch=group.epoch, assigned_ms=moment.wall_ms))

    def assignor_of(self, group: ConsumerGroup) -> str:
        """Returns the assignor that most members prefer; the first configured one if none has a preference."""
        votes = Counter(member.assignor for member in group.members.values() if member.assignor is not None)
        served = self._config.consumer_assignors
        return max(served, key=lambda name: (votes[name], -served.index(name)))


def check_epoch(member: ConsumerMember, epoch: int, reported: Partitions | None) -> None:
    """Checks the epoch of a heartbeat.

    The former epoch is accepted too if the member owns no more than what it has: the answer with the present epoch may
    have been lost.

    Raises:
        KafkaError: FENCED_MEMBER_EPOCH.
    """
    if member.state is MemberState.UNKNOWN and reported == NO_PARTITIONS and epoch <= member.epoch:
        return  # nothing is left of the state that a newer coordinator had
    repeats = epoch == member.previous_epoch and reported is not None and reported <= member.assigned
    if member.state is MemberState.UNKNOWN or (epoch != member.epoch and not (epoch < member.epoch and repeats)):
        size = "greater" if epoch > member.epoch else "smaller"
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
        )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _reported(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return frozenset((topic.topic_id, number) for topic in request.topic_partitions for number in topic.partitions)


def _updated(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> ConsumerMember:
    """Returns the member with what a request says of it; fields that the request leaves out stay."""
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=context.client_id,
        client_host=context.client_host,
        topics=member.topics if names is None else tuple(sorted(set(names))),
        regex=member.regex if regex is None else regex,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms
        ),
        assignor=member.assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Returns whether a request contains all fields, as members send after they may have missed an answer."""
    return request.member_epoch == JOIN_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in by_topic(partitions).items()
        ]
    )
