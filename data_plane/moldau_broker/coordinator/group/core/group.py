"""A classic consumer group: its members, generation, leader and protocol. Data and predicates, without decisions.

`rebalance` makes these transitions:

    Empty --join--> PreparingRebalance
    PreparingRebalance --all joined, or deadline--> CompletingRebalance
    PreparingRebalance --no member left--> Empty
    CompletingRebalance --leader's sync committed--> Stable
    Stable, CompletingRebalance --join, leave, expiry--> PreparingRebalance
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.protocol.codec import DecodeError, decode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue, MemberMetadata
from moldau_broker.coordinator.group.core.member_memory import (
    GROUP_BYTES,
    MEMBER_BYTES,
    PENDING_BYTES,
    MemberMemory,
    protocols_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Collection

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
"""All legal transitions; any other is a broken invariant."""


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A member of a group.

    ``join_request`` and ``sync_request`` are the id and the API version of an open request. Invariant: at most one of
    them is set. ``join_request``, ``protocols`` and ``client_id`` change through the group, which counts them.
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
        """True if the member keeps its identity across restarts (KIP-345)."""
        return self.group_instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Returns the member's metadata for a protocol; empty if the member does not support it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def held_bytes(self) -> int:
        """The approximate memory that the member takes."""
        names = len(self.member_id) + len(self.client_id) + len(self.group_instance_id or "")
        return MEMBER_BYTES + names + protocols_bytes(self.protocols)

    def vote(self, candidates: Collection[str]) -> str:
        """Returns the candidate that the member prefers; it supports all of them."""
        return next(name for name, _ in self.protocols if name in candidates)


@dataclass(slots=True, kw_only=True, eq=False)
class Group:
    """The state of one group at its coordinator.

    Invariants: ``leader_id`` is a member or None; ``generation`` never decreases; ``protocol_name`` is None in Empty;
    pending members are not in ``members``; in Stable no member waits for an answer; ``awaiting_join``, ``supporters``
    and ``held_bytes`` equal a count over all members, so the cost of a join does not depend on their number.
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
    """Ids that MEMBER_ID_REQUIRED has assigned and whose clients have not joined yet (KIP-394)."""
    pending_sync: dict[str, None] = field(default_factory=dict)
    """Members of the generation that have not sent SyncGroup yet."""
    initial_delay_left_ms: int | None = None
    """The rest of the wait for more members in the first rebalance of a new group; None at other times."""
    new_member_added: bool = False
    assignment_append: int | None = None
    """The id of the pending write of the generation's assignment."""
    awaiting_join: int = 0
    """The number of members that wait in the join phase."""
    supporters: dict[str, int] = field(default_factory=dict)
    """The number of members that support each protocol."""
    memory: MemberMemory = field(default_factory=MemberMemory)
    """The memory of all groups of the broker."""
    held_bytes: int = 0
    """The part of ``memory`` that this group takes."""

    def __post_init__(self) -> None:
        self._hold(GROUP_BYTES + len(self.group_id))

    def _hold(self, more_bytes: int) -> None:
        self.held_bytes += more_bytes
        self.memory.used_bytes += more_bytes

    def release(self) -> None:
        """Frees the memory of a dropped group."""
        self._hold(-self.held_bytes)

    def _count(self, member: Member, sign: int) -> None:
        """Counts a member in (1) or out (-1)."""
        self._hold(sign * member.held_bytes)
        for name in dict.fromkeys(name for name, _ in member.protocols):
            self.supporters[name] = self.supporters.get(name, 0) + sign
            if not self.supporters[name]:
                del self.supporters[name]
        if member.join_request is not None:
            self.awaiting_join += sign

    def redescribe(self, member: Member, client_id: str, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Replaces the client id and the protocols of a member."""
        self._count(member, -1)
        member.client_id = client_id
        member.protocols = protocols
        self._count(member, 1)

    def wait_join(self, member: Member, request: tuple[int, int]) -> None:
        """Sets the member's JoinGroup, which waits for the end of the join phase."""
        assert member.join_request is None
        member.join_request = request
        self.awaiting_join += 1

    def end_join(self, member: Member) -> tuple[int, int] | None:
        """Removes and returns the member's open JoinGroup; None if there is none."""
        request, member.join_request = member.join_request, None
        if request is not None:
            self.awaiting_join -= 1
        return request

    def expect(self, member_id: str) -> None:
        """Adds a pending member: an id that is assigned and has not joined yet."""
        self.pending_members[member_id] = None
        self._hold(PENDING_BYTES + len(member_id))

    def expect_no_more(self, member_id: str) -> None:
        """Removes a pending member, if the id is one."""
        if member_id in self.pending_members:
            del self.pending_members[member_id]
            self._hold(-PENDING_BYTES - len(member_id))

    def transition(self, state: GroupState, wall_ms: int) -> None:
        """Changes the state along `TRANSITIONS`."""
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state.value} to {state.value}"
        self.state = state
        self.state_since_ms = wall_ms
        self.assignment_append = None
        if state is not GroupState.PREPARING_REBALANCE:
            self.initial_delay_left_ms = None

    def add(self, member: Member, protocol_type: str) -> None:
        """Adds a member; the first one becomes the leader and sets the protocol type."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        assert self.protocol_type == protocol_type
        self.members[member.member_id] = member
        self._count(member, 1)
        self.expect_no_more(member.member_id)
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member: Member) -> None:
        """Removes a member; if it was the leader, the oldest remaining member becomes the leader."""
        del self.members[member.member_id]
        self._count(member, -1)
        self.pending_sync.pop(member.member_id, None)
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)

    def replace_static(self, old: Member, new_member_id: str) -> Member:
        """Gives a static member a new id; it keeps its assignment and leadership, and becomes the youngest member.

        The old member object must not be used afterwards.
        """
        assert old.group_instance_id is not None
        assert old.join_request is None
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
        del self.members[old.member_id]
        self._count(old, -1)
        self.members[new_member_id] = new
        self._count(new, 1)
        self.static_members[old.group_instance_id] = new_member_id
        if self.leader_id == old.member_id:
            self.leader_id = new_member_id
        if old.member_id in self.pending_sync:
            del self.pending_sync[old.member_id]
            self.pending_sync[new_member_id] = None
        return new

    def candidate_protocols(self) -> dict[str, None]:
        """Returns the protocols that all members support, in the oldest member's order of preference."""
        oldest = next(iter(self.members.values()), None)
        if oldest is None:
            return {}
        return {name: None for name, _ in oldest.protocols if self.supporters[name] == len(self.members)}

    def select_protocol(self) -> str:
        """Returns the protocol with the most votes; among equals, the one that the oldest member prefers."""
        candidates = self.candidate_protocols()
        assert candidates, f"{self.group_id}: members without a common protocol"
        votes = dict.fromkeys(candidates, 0)
        for member in self.members.values():
            votes[member.vote(candidates)] += 1
        return max(candidates, key=lambda name: votes[name])

    def supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Returns whether a member with these protocols could join."""
        if not self.members:
            return bool(protocol_type) and bool(names)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(self.supporters.get(name) == count for name in names)

    @property
    def all_joined(self) -> bool:
        """True if the join phase can end: every member has joined and no member id is pending."""
        return self.awaiting_join == len(self.members) and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def is_simple(self) -> bool:
        """True if the group only stores offsets and never had members (manual assignment)."""
        return self.protocol_type is None

    def subscription(self) -> frozenset[str] | None:
        """Returns the topics that the members of a consumer group read.

        None means that any topic may be read, because the metadata of a member cannot be parsed, or because the group
        has members and no protocol yet. The metadata of other protocol types contain no topics.
        """
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol_name))
            if topics is None:
                return None
            found.update(topics)
        return frozenset(found)

    def snapshot(self) -> GroupMetadataValue:
        """Returns the value of the group's record."""
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
    def load(cls, group_id: str, value: GroupMetadataValue, memory: MemberMemory) -> Group:
        """Restores a group from its record: Stable if it has members, else Empty."""
        group = cls(
            group_id=group_id,
            memory=memory,
            state=GroupState.STABLE if value.members else GroupState.EMPTY,
            state_since_ms=value.current_state_timestamp,
            generation=value.generation,
            protocol_type=value.protocol_type or None,
            protocol_name=value.protocol if value.members else None,
            leader_id=value.leader,
        )
        for stored in value.members:
            timeout = stored.rebalance_timeout or stored.session_timeout
            member = group.members[stored.member_id] = Member(
                member_id=stored.member_id,
                group_instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                rebalance_timeout_ms=timeout,
                session_timeout_ms=stored.session_timeout,
                protocols=((value.protocol or "", bytes(stored.subscription)),),
                assignment=bytes(stored.assignment),
            )
            group._count(member, 1)
            if stored.group_instance_id is not None:
                group.static_members[stored.group_instance_id] = stored.member_id
        if group.leader_id not in group.members:
            group.leader_id = next(iter(group.members), None)
        return group


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Returns the topics in a consumer's metadata; None if it cannot be parsed (clients may send any bytes)."""
    if len(metadata) < 2 or int.from_bytes(metadata[:2], "big", signed=True) < 0:
        return None
    try:
        # Later versions only append fields. Clients leave them out and name the version all the same, so Kafka's
        # coordinator, too, reads those of version 0 alone.
        return tuple(decode(ConsumerProtocolSubscription, 0, metadata, 2).topics)
    except DecodeError:
        return None
