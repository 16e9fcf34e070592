"""A member of a group whose assignment the coordinator computes (KIP-848). Pure.

It maps the consumer protocol onto the states of `Membership`, so that polls see both protocols alike: ``generation`` is
the member epoch, a "join" is the takeover of a new target, and all rebalances are cooperative. One message, the
ConsumerGroupHeartbeat, joins, reports what the member holds, and brings the target.

| answer | effect |
|---|---|
| an assignment | UNJOINED: the next poll takes it over |
| FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND of a member | all partitions are lost; join again |
| UNRELEASED_INSTANCE_ID, coordinator errors | try again |
| others | fatal: the next poll raises |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer.core.membership import NO_MEMBERSHIP, GroupIdentity, Membership, MemberState, Next
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse

_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_LEAVE_STATIC_EPOCH = -2
_LOST = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)

TopicIdPartition = tuple["UUID", int]


class EpochMembership(Membership):
    """The core. Invariant: ``target`` is None unless the coordinator has given one since the last loss."""

    def __init__(self, identity: GroupIdentity, member_id: str, assignor: str | None) -> None:
        """``member_id`` is unique and stays the same for the life of the consumer (KIP-1082)."""
        super().__init__(identity, ())
        self.member_id = member_id
        self._assignor = assignor
        self.topics: tuple[str, ...] | None = None
        """The subscription to send; None before the first one, and after the member left."""
        self.target: frozenset[TopicIdPartition] | None = None
        self.fatal: KafkaError | None = None
        """The error that the next join raises."""
        self._sends_all = False  # a heartbeat that joins contains everything anyway
        self._topics_sent: tuple[str, ...] | None = None

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep partitions during a rebalance; in this protocol they always do."""
        return True

    @property
    def commits_as(self) -> tuple[int, str] | None:
        """An identity that changes when the partitions are lost, not with each epoch; see `Membership.commits_as`."""
        if self.has_generation and self._taken_losses == self.losses:
            return self.losses, self.member_id
        return NO_MEMBERSHIP if self.assigned_as == NO_MEMBERSHIP else None

    def commit_generation(self, member: tuple[int, str]) -> int:
        """Returns the present member epoch: the coordinator accepts no other."""
        return self.generation

    @property
    def holds(self) -> bool:
        """Whether the positions belong to this membership, so that heartbeats report them."""
        return self.has_generation and self._taken_losses == self.losses

    # --- heartbeats

    def want(self, topics: Sequence[str]) -> None:
        """Sets the subscription of the next heartbeat."""
        self.topics = tuple(sorted(topics))
        self.fatal = None

    def epoch_heartbeat(self, held: Iterable[TopicIdPartition]) -> ConsumerGroupHeartbeatRequest:
        """Returns the next heartbeat; ``held`` are the partitions of the positions."""
        assert self.topics is not None
        joins = not self.has_generation
        self._has_asked_to_join |= joins
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.identity.group_id,
            member_id=self.member_id,
            member_epoch=_JOIN_EPOCH if joins else self.generation,
            instance_id=self.identity.instance_id,
            topic_partitions=_by_topic(held if self.holds else ()),
        )
        if joins or self._sends_all or self.topics != self._topics_sent:
            request.rack_id = self.identity.rack
            request.rebalance_timeout_ms = self.identity.rebalance_timeout_ms
            request.subscribed_topic_names = list(self.topics)
            request.server_assignor = self._assignor
        return request

    def on_epoch_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, response: ConsumerGroupHeartbeatResponse, losses: int
    ) -> Next:
        """Takes the answer to a heartbeat that was sent after ``losses`` losses."""
        if losses != self.losses:
            return Next.GO_ON  # the member has given up meanwhile what the answer is about
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            return self._on_refusal(code, response.error_message)
        if request.subscribed_topic_names is not None:
            self._topics_sent = tuple(request.subscribed_topic_names)
        self._sends_all = self._has_asked_to_join = False
        self.generation = response.member_epoch
        if self._taken_losses == self.losses and self.assigned_as != NO_MEMBERSHIP:
            self.assigned_as = (self.generation, self.member_id)
        if response.assignment is not None:
            target = frozenset(
                (topic.topic_id, number)
                for topic in response.assignment.topic_partitions
                for number in topic.partitions
            )
            if target != self.target:
                self.target = target
                if self.state is MemberState.STABLE:
                    self.rejoin("the coordinator gave another assignment")
        return Next.GO_ON

    def on_epoch_error(self, error: KafkaError, losses: int) -> Next:
        """Takes an error that came in place of the answer to a heartbeat, which was sent after ``losses`` losses."""
        return Next.GO_ON if losses != self.losses else self._on_refusal(error.code, error.message)

    def unanswered(self) -> None:
        """Notes that an answer may have been lost: the next heartbeat contains everything."""
        self._sends_all = True

    def _on_refusal(self, code: ErrorCode, message: str | None) -> Next:
        self._sends_all = True
        joins = not self.has_generation
        if code in _LOST or (code is ErrorCode.GROUP_ID_NOT_FOUND and not joins):
            self.lose_generation(f"heartbeat: {code.name}")
            return Next.RETRY
        if code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR):
            return Next.FIND_COORDINATOR
        if code.retriable or code is ErrorCode.UNRELEASED_INSTANCE_ID:
            return Next.RETRY
        self.lose_generation(f"heartbeat: {code.name}")
        self.is_fenced = code is ErrorCode.FENCED_INSTANCE_ID
        self._has_asked_to_join = False
        text = message or code.message
        if code is ErrorCode.UNSUPPORTED_VERSION:
            text = f"the brokers do not serve group.protocol=consumer (KIP-848), use classic: {text}"
        self.fatal = KafkaError(code, f"group {self.identity.group_id}: {text}")
        self.topics = None
        return Next.RETRY

    @property
    def has_answer(self) -> bool:
        """Whether a join can end: the coordinator knows the subscription and has given a target, or has refused."""
        return self.fatal is not None or (self.target is not None and self.topics == self._topics_sent)

    def take_target(self) -> None:
        """Notes that the target is about to be taken over by the application."""
        self.state = MemberState.STABLE
        self.owned_generation = self.generation
        self._given_as, self._given_losses = (self.generation, self.member_id), self.losses
        if self._taken_losses == self.losses:
            self.assigned_as = self._given_as

    def take_over(self) -> None:
        """Notes that the application has taken over the target, and holds it in the present epoch."""
        super().take_over()
        if self.holds:
            self.assigned_as = (self.generation, self.member_id)

    # --- the end of a membership

    def lose_generation(self, reason: str) -> None:
        """Prepares to join again without a claim to the owned partitions."""
        super().lose_generation(reason)
        self.target = None

    def lose_member_id(self, reason: str) -> None:
        """Prepares to join again; the member id stays."""
        self.lose_generation(reason)

    def end(self, reason: str) -> None:
        """Notes that the application has given up all partitions in order; see `Membership.end`."""
        super().end(reason)
        self.topics = None

    def epoch_leave_request(self, reason: str, *, rejoins: bool = False) -> ConsumerGroupHeartbeatRequest | None:
        """Returns the request that leaves the group; a static member leaves for a short time.

        None for a member that has not asked to join: the coordinator may know it before its first answer arrives.
        ``rejoins``: the subscription stays, and the next heartbeat joins again.
        """
        is_known = self.has_generation or self._has_asked_to_join
        self._has_asked_to_join = False
        self.lose_member_id(reason)
        if not rejoins:
            self.topics = None
        if not is_known:
            return None
        return ConsumerGroupHeartbeatRequest(
            group_id=self.identity.group_id,
            member_id=self.member_id,
            member_epoch=_LEAVE_EPOCH if self.identity.instance_id is None else _LEAVE_STATIC_EPOCH,
            instance_id=self.identity.instance_id,
        )


def _by_topic(partitions: Iterable[TopicIdPartition]) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
    found: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        found.setdefault(topic_id, []).append(number)
    return [
        ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in found.items()
    ]
