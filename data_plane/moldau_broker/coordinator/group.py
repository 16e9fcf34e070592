"""A classic consumer group: members, generation, leader and the protocol they agree on. Data and predicates, no
decisions.

States and the transitions that `membership` makes:

    Empty --join--> PreparingRebalance --all joined or deadline--> CompletingRebalance --leader's sync committed-->
    Stable Stable, CompletingRebalance --join, leave, expiry--> PreparingRebalance
    PreparingRebalance --nobody left--> Empty
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from moldau.protocol.codec import DecodeError, decode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue, MemberMetadata

CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupState(enum.Enum):
    """States of a classic group, by the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: dict[GroupState, tuple[GroupState, ...]] = {
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE, GroupState.DEAD),
    GroupState.PREPARING_REBALANCE: (GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD),
    GroupState.COMPLETING_REBALANCE: (GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD),
    GroupState.STABLE: (GroupState.PREPARING_REBALANCE, GroupState.DEAD),
    GroupState.DEAD: (),
}
"""Every transition there is; any other is a broken invariant."""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A member of a group.

    ``join_request`` and ``sync_request`` are the ids of requests that wait for an answer, with the version they came
    in. Invariant: at most one of them is set.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    join_request: tuple[int, int] | None = None
    sync_request: tuple[int, int] | None = None

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its identity over restarts (KIP-345)."""
        return self.group_instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata under a protocol; empty if it does not know the protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: tuple[str, ...]) -> str:
        """The member's favourite of the candidates, all of which it supports."""
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """One group as its coordinator holds it.

    Invariants: ``leader_id`` is a member or None; ``generation`` never falls; ``protocol_name`` is None in Empty;
    pending members are no members; in Stable no member waits for an answer.
    """

    group_id: str
    state: GroupState = GroupState.EMPTY
    state_since_ms: int = 0
    """Unix milliseconds of the last transition."""
    generation: int = 0
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_members: dict[str, None] = field(default_factory=dict)
    """Ids given out by MEMBER_ID_REQUIRED whose holders have not joined yet (KIP-394)."""
    pending_sync: dict[str, None] = field(default_factory=dict)
    """Members of the generation that have not sent SyncGroup yet."""
    initial_delay_left_ms: int | None = None
    """While the first rebalance of a new group waits for more members: how much longer it may; else None."""
    new_member_added: bool = False
    assignment_append: int | None = None
    """The write of the generation's assignment that is under way."""

    def transition(self, state: GroupState, wall_ms: int) -> None:
        """Changes state; only along `TRANSITIONS`."""
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state.value} to {state.value}"
        self.state = state
        self.state_since_ms = wall_ms
        self.assignment_append = None
        if state is not GroupState.PREPARING_REBALANCE:
            self.initial_delay_left_ms = None

    def add(self, member: Member, protocol_type: str) -> None:
        """Takes in a member; the first one is the leader and sets the type."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        self.members[member.member_id] = member
        self.pending_members.pop(member.member_id, None)
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        """Drops a member; if it led, the oldest one left leads."""
        del self.members[member.member_id]
        self.pending_sync.pop(member.member_id, None)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, old: Member, new_member_id: str) -> Member:
        """Gives a static member a new id; it keeps assignment and leadership. The old member object is dead
        afterwards."""
        assert old.group_instance_id is not None
        new = Member(
            member_id=new_member_id,
            group_instance_id=old.group_instance_id,
            client_id=old.client_id,
            client_host=old.client_host,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            session_timeout_ms=old.session_timeout_ms,
            protocols=old.protocols,
            assignment=old.assignment,
        )
        self.members = {
            new.member_id if key == old.member_id else key: new if key == old.member_id else member
            for key, member in self.members.items()
        }
        self.static_members[old.group_instance_id] = new_member_id
        if self.leader_id == old.member_id:
            self.leader_id = new_member_id
        if old.member_id in self.pending_sync:
            del self.pending_sync[old.member_id]
            self.pending_sync[new_member_id] = None
        return new

    def candidate_protocols(self) -> tuple[str, ...]:
        """Protocols that all members support, in the order of the oldest member's preference."""
        members = list(self.members.values())
        if not members:
            return ()
        common = [name for name, _ in members[0].protocols]
        for member in members[1:]:
            names = {name for name, _ in member.protocols}
            common = [name for name in common if name in names]
        return tuple(common)

    def select_protocol(self) -> str:
        """The protocol that most members vote for; of equals, the one the oldest member likes better."""
        candidates = self.candidate_protocols()
        assert candidates, f"{self.group_id}: members without a common protocol"
        votes = dict.fromkeys(candidates, 0)
        for member in self.members.values():
            votes[member.vote(candidates)] += 1
        return max(candidates, key=lambda name: votes[name])

    def supports(self, protocol_type: str, names: tuple[str, ...]) -> bool:
        """Whether a member with these protocols could join."""
        if not self.members:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and any(name in names for name in self.candidate_protocols())

    @property
    def awaiting_join(self) -> int:
        """How many members wait in the join phase."""
        return sum(1 for member in self.members.values() if member.join_request is not None)

    @property
    def all_joined(self) -> bool:
        """Whether the join phase can end: every member has rejoined and no id given out is outstanding."""
        return self.awaiting_join == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest time that a member needs to rejoin."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def is_simple(self) -> bool:
        """Whether the group only stores offsets and never had members (manual assignment)."""
        return self.protocol_type is None

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member of a consumer group reads the topic; other protocol types say nothing about topics.

        A member whose metadata cannot be read may read anything.
        """
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or self.protocol_name is None:
            return False
        subscriptions = [subscribed_topics(member.metadata(self.protocol_name)) for member in self.members.values()]
        return any(topics is None or topic in topics for topics in subscriptions)

    def snapshot(self) -> GroupMetadataValue:
        """The group as its record says it."""
        members = [
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(self.protocol_name),
                assignment=member.assignment,
            )
            for member in self.members.values()
        ]
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_since_ms,
            members=members,
        )

    @classmethod
    def load(cls, group_id: str, value: GroupMetadataValue) -> Group:
        """The group that a record tells of: Stable with members, Empty without."""
        group = cls(
            group_id=group_id,
            state=GroupState.STABLE if value.members else GroupState.EMPTY,
            state_since_ms=value.current_state_timestamp,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol_name=value.protocol if value.members else None,
            leader_id=value.leader,
        )
        for stored in value.members:
            timeout = stored.rebalance_timeout or stored.session_timeout
            group.members[stored.member_id] = Member(
                member_id=stored.member_id,
                group_instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=timeout,
                session_timeout_ms=stored.session_timeout,
                protocols=((value.protocol or "", bytes(stored.subscription)),),
                assignment=bytes(stored.assignment),
            )
            if stored.group_instance_id is not None:
                group.static_members[stored.group_instance_id] = stored.member_id
        if group.leader_id not in group.members:
            group.leader_id = next(iter(group.members), None)
        return group


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Topics of a consumer's metadata; None if it is not readable (clients may put anything there)."""
    if len(metadata) < 2:
        return None
    version = int.from_bytes(metadata[:2], "big", signed=True)
    if version < 0:
        return None
    try:
        # Later versions only append fields, so what a newer client wrote is read as the newest version known here.
        known = min(version, ConsumerProtocolSubscription.__versions__.last)
        return tuple(decode(ConsumerProtocolSubscription, known, metadata, 2).topics)
    except DecodeError:
        return None
