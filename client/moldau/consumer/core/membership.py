"""A member of a classic consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. Pure.

States: UNJOINED (must join), JOINING (JoinGroup sent), SYNCING (SyncGroup sent), STABLE (has an assignment). The
methods ``on_...`` take answers and return the next action. An answer that voids the generation leads to UNJOINED:

| answer | generation | member id |
|---|---|---|
| REBALANCE_IN_PROGRESS | kept until the next JoinGroup | kept |
| ILLEGAL_GENERATION | lost | kept |
| UNKNOWN_MEMBER_ID | lost | lost |
| MEMBER_ID_REQUIRED | - | given; join again with it (KIP-394) |
| FENCED_INSTANCE_ID, authorization, inconsistent protocols ... | lost | fatal |

A fenced member does not join again by itself: it would fence the member that took over its instance id in turn.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moldau.cluster.group_bytes import decode_assignment, encode_assignment
from moldau.consumer.core.assignors import (
    NO_GENERATION,
    PROTOCOL_TYPE,
    Assignment,
    Assignor,
    MemberSubscription,
    decode_subscription,
    encode_sticky_user_data,
    encode_subscription,
)
from moldau.protocol.codec import DecodeError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from moldau.cluster.metadata import TopicPartition


class MemberState(enum.Enum):
    """The states of a member."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Next(enum.Enum):
    """The next action after an answer."""

    GO_ON = "go on"
    JOIN_AGAIN = "join again at once"
    RETRY = "try again after a back-off"
    FIND_COORDINATOR = "find the coordinator, then try again after a back-off"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupIdentity:
    """The configuration of a member; times in milliseconds."""

    group_id: str
    instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    rack: str | None = None


NO_MEMBERSHIP = (NO_GENERATION, "")
"""Generation and member id of a consumer that is not a member."""

_COORDINATOR_GONE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


class Membership:
    """The core. Invariant: ``generation`` is -1 unless the member took part in it under ``member_id``."""

    def __init__(self, identity: GroupIdentity, assignors: Sequence[Assignor]) -> None:
        self.identity = identity
        self.assignors = list(assignors)
        self.state = MemberState.UNJOINED
        self.member_id = ""
        self.generation = NO_GENERATION
        self.protocol_name = ""
        self.rejoin_reason = "the member is new"
        self.owned_generation = NO_GENERATION  # that of the present partitions' assignment
        self.losses = 0  # how often the member lost its generation with all its partitions
        self.assigned_as = NO_MEMBERSHIP
        """Generation and member id under which the application holds its partitions.

        They belong to the assignment that it took over last, or to a later one if nothing was lost in between. They
        stay after the member loses both, and after its next assignment, so that commits for lost partitions are refused
        until the application takes over the new assignment.
        """
        self._taken_losses = 0  # ``losses`` when the assignment was made that the application took over last
        self._given_as = NO_MEMBERSHIP  # of the last assignment, which the application may not know yet
        self._given_losses = 0
        self._has_asked_to_join = False  # since the coordinator last named a generation
        self.is_fenced = False
        """Whether another member has taken over the instance id; until the application leaves the group."""

    @property
    def is_cooperative(self) -> bool:
        """Whether members keep partitions during a rebalance; all assignors must allow it."""
        return all(assignor.is_cooperative for assignor in self.assignors)

    @property
    def assignor(self) -> Assignor:
        """The assignor that the group chose."""
        for assignor in self.assignors:
            if assignor.name == self.protocol_name:
                return assignor
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the coordinator chose {self.protocol_name!r}, which was not offered",
        )

    # --- join

    def join_request(self, topics: Sequence[str], owned: Sequence[TopicPartition]) -> JoinGroupRequest:
        """Begins to join. ``owned`` is what the member holds now, or held last under the eager protocol."""
        self.state = MemberState.JOINING
        self._has_asked_to_join = True
        identity = self.identity
        protocols: list[JoinGroupRequestProtocol] = []
        for assignor in self.assignors:
            remembers = assignor.name == "sticky" and owned
            protocols.append(
                JoinGroupRequestProtocol(
                    name=assignor.name,
                    metadata=encode_subscription(
                        topics,
                        owned if self.is_cooperative else (),
                        self.owned_generation,
                        identity.rack,
                        encode_sticky_user_data(owned, self.owned_generation) if remembers else None,
                    ),
                )
            )
        return JoinGroupRequest(
            group_id=identity.group_id,
            session_timeout_ms=identity.session_timeout_ms,
            rebalance_timeout_ms=identity.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=identity.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
            reason=self.rejoin_reason[:255],
        )

    def on_join(self, response: JoinGroupResponse) -> Next:
        """Takes the answer to JoinGroup.

        Raises:
            KafkaError: the error is not retriable.
        """
        code = ErrorCode.of(response.error_code)
        match code:
            case ErrorCode.NONE:
                self.member_id = response.member_id
                self.generation = response.generation_id
                self.protocol_name = response.protocol_name or ""
                self.state = MemberState.SYNCING
                self._has_asked_to_join = False
                return Next.GO_ON
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = response.member_id
                self.state = MemberState.UNJOINED
                return Next.JOIN_AGAIN
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self.lose_member_id("the coordinator did not know the member")
                return Next.JOIN_AGAIN
        return self._on_error(code, "JoinGroup")

    @staticmethod
    def is_leader(response: JoinGroupResponse) -> bool:
        """Returns whether this member computes the assignment; a static leader that returns does not (KIP-814)."""
        return response.leader == response.member_id and not response.skip_assignment

    @staticmethod
    def members_of(response: JoinGroupResponse, warn: Callable[..., None]) -> list[MemberSubscription]:
        """Decodes the members that the leader gets.

        One with malformed metadata subscribes to nothing, so that the others have their partitions, and ``warn`` logs
        it. Kafka's leader fails at each poll instead, and the whole group reads nothing.
        """
        found = []
        for each in response.members:
            try:
                one = decode_subscription(
                    each.member_id, each.group_instance_id, each.metadata, response.protocol_name or ""
                )
            except DecodeError as error:
                warn("subscription-unreadable", member=each.member_id, instance=each.group_instance_id, error=error)
                one = MemberSubscription(member_id=each.member_id, topics=(), instance_id=each.group_instance_id)
            found.append(one)
        return found

    # --- sync

    def sync_request(self, assignment: Assignment | None) -> SyncGroupRequest:
        """Returns the request for the assignment; the leader's request holds those of all members."""
        return SyncGroupRequest(
            group_id=self.identity.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.identity.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self.protocol_name,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(partitions))
                for member_id, partitions in (assignment or {}).items()
            ],
        )

    def on_sync(self, response: SyncGroupResponse) -> tuple[Next, list[TopicPartition]]:
        """Takes the answer to SyncGroup: what to do, and the assignment if it is to go on.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        code = ErrorCode.of(response.error_code)
        if code is ErrorCode.NONE:
            try:
                assigned = decode_assignment(response.assignment)
            except DecodeError as error:
                reason = f"the assignment from the leader of group {self.identity.group_id!r} cannot be read: {error}"
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, reason) from error
            self.state = MemberState.STABLE
            self.owned_generation = self.generation
            self._given_as, self._given_losses = (self.generation, self.member_id), self.losses
            if self._taken_losses == self.losses:
                self.assigned_as = self._given_as  # what is held was kept: it is held in the new generation too
            return Next.GO_ON, assigned
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin("the group began another rebalance")
            return Next.JOIN_AGAIN, []
        return self._on_error(code, "SyncGroup"), []

    def take_over(self) -> None:
        """Notes that the application has taken over the last assignment and dropped lost partitions."""
        self.assigned_as, self._taken_losses = self._given_as, self._given_losses

    @property
    def is_assignment_lost(self) -> bool:
        """Whether the generation of the last assignment was lost: others may have owned its partitions since."""
        return self._given_losses != self.losses

    # --- heartbeats and commits

    @property
    def commits_as(self) -> tuple[int, str] | None:
        """The generation and member id to commit under; those of ``NO_MEMBERSHIP`` before the first assignment.

        None for a member that lost the partitions that the application holds, until the application has taken over
        another assignment: commits for lost partitions would be accepted under the new membership, or without one.
        """
        if self.has_generation and self._taken_losses == self.losses:
            return self.generation, self.member_id
        return NO_MEMBERSHIP if self.assigned_as == NO_MEMBERSHIP else None

    def commit_generation(self, member: tuple[int, str]) -> int:
        """Returns the generation to send with a commit that was asked as ``member`` (`commits_as`)."""
        return member[0]

    def heartbeat_request(self) -> HeartbeatRequest:
        """Returns the next heartbeat."""
        return HeartbeatRequest(
            group_id=self.identity.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.identity.instance_id,
        )

    def on_heartbeat(self, code: ErrorCode) -> Next:
        """Takes the answer to Heartbeat, or the code of a commit.

        Raises:
            KafkaError: the broker or the client reports an error.
        """
        if code is ErrorCode.NONE:
            return Next.GO_ON
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.rejoin("the group is rebalancing")
            return Next.JOIN_AGAIN
        return self._on_error(code, "Heartbeat")

    def _on_error(self, code: ErrorCode, api: str) -> Next:
        if code in _COORDINATOR_GONE:
            self._fall_back()
            return Next.FIND_COORDINATOR
        if code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS):
            self._fall_back()
            return Next.RETRY
        if code is ErrorCode.ILLEGAL_GENERATION:
            self.lose_generation(f"{api}: the generation was over")
            return Next.JOIN_AGAIN
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.lose_member_id(f"{api}: the coordinator did not know the member")
            return Next.JOIN_AGAIN
        self.lose_member_id(f"{api}: {code.name}")
        self.is_fenced = code is ErrorCode.FENCED_INSTANCE_ID
        raise KafkaError(code, f"group {self.identity.group_id}: {code.message}")

    def _fall_back(self) -> None:
        # A stable member stays stable while its coordinator moves; one that was joining starts again.
        if self.state is not MemberState.STABLE:
            self.state = MemberState.UNJOINED

    def rejoin(self, reason: str) -> None:
        """Prepares to join again with the same member id and generation."""
        self.state = MemberState.UNJOINED
        self.rejoin_reason = reason

    def lose_generation(self, reason: str) -> None:
        """Prepares to join again without a claim to the owned partitions."""
        self.rejoin(reason)
        self.losses += 1
        self.generation = NO_GENERATION
        self.owned_generation = NO_GENERATION

    def lose_member_id(self, reason: str) -> None:
        """Prepares to join again as a new member."""
        self.lose_generation(reason)
        self.member_id = ""

    def end(self, reason: str) -> None:
        """Notes that the application has given up all partitions in order; it may then commit without a member id.

        A static member keeps its place at the coordinator, but takes part in no generation until it joins again.
        """
        self.lose_member_id(reason)
        self.is_fenced = False
        self.assigned_as = self._given_as = NO_MEMBERSHIP
        self._taken_losses = self._given_losses = self.losses

    @property
    def is_stable(self) -> bool:
        """Whether the member has its assignment."""
        return self.state is MemberState.STABLE

    @property
    def sends_heartbeats(self) -> bool:
        """Whether heartbeats keep the place of the member, which has its assignment, or has to join again.

        A rebalance waits for a member longer than a session lasts. From JoinGroup on the coordinator waits without
        heartbeats, which would name a former generation.
        """
        if self.state is MemberState.UNJOINED:
            return self.has_generation and not self._has_asked_to_join
        return self.state is MemberState.STABLE

    @property
    def has_generation(self) -> bool:
        """Whether the member belongs to a generation of the group."""
        return self.generation != NO_GENERATION

    def leave_request(self, reason: str) -> LeaveGroupRequest | None:
        """Leaves the group.

        Returns None for a static member, which keeps its place until its session ends, and for one that never joined.
        """
        member_id = self.member_id
        if not member_id:
            return None
        self.lose_member_id(reason)
        if self.identity.instance_id is not None:
            return None
        return LeaveGroupRequest(
            group_id=self.identity.group_id,
            member_id=member_id,
            members=[MemberIdentity(member_id=member_id, reason=reason)],
        )


def assign_partitions(
    assignor: Assignor, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
) -> Assignment:
    """Computes the assignment and checks it: every member has an entry, no partition has two owners."""
    assignment = assignor.assign(partition_counts, members)
    seen: dict[TopicPartition, str] = {}
    for member_id, partitions in assignment.items():
        for partition in partitions:
            assert partition not in seen, f"{partition} is assigned to {seen[partition]} and {member_id}"
            seen[partition] = member_id
    return assignment
