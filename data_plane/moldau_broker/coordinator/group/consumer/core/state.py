"""The state of consumer groups: members, epochs and assignments. Data, predicates and the replay of changes.

The states of a member (KIP-848):

    Stable --a newer target takes partitions away--> UnrevokedPartitions
    Stable --a newer target gives partitions that others still own--> UnreleasedPartitions
    UnrevokedPartitions --the member stops to report them--> Stable, UnreleasedPartitions or UnrevokedPartitions
    UnreleasedPartitions --the others release them--> Stable

`ConsumerGroup.apply` is the only mutator. It is called for each record of the log, and on a copy of the group for each
change that a request makes, so that the two cannot differ.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Iterable

TopicIdPartition = tuple[UUID, int]
Partitions = frozenset[TopicIdPartition]

LEAVE_EPOCH = -1
"""The member epoch of a request with which a member leaves."""
LEAVE_STATIC_EPOCH = -2
"""The member epoch of a static member that leaves for a short time; its partitions stay reserved for it."""
JOIN_EPOCH = 0
"""The member epoch of a request with which a member joins, or joins again."""
NO_PARTITIONS: Partitions = frozenset()


class MemberState(enum.IntEnum):
    """How far a member is with its target assignment, with the values that records contain."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    UNRELEASED_PARTITIONS = 3
    UNKNOWN = 127


class ConsumerGroupState(enum.Enum):
    """States of a consumer group, by the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMetadata:
    """The content of a classic member's last JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata in the member's order of preference; at least one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member of a consumer group.

    ``assigned`` are the partitions that the member may read, ``revoking`` those that it must still release. It owns
    both. Invariants: they are disjoint; ``revoking`` is not empty in UnrevokedPartitions only; the epoch is -2 while a
    static member is away.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """Names of the subscription, sorted, each once."""
    regex: str = ""
    """The regular expression of the subscription; empty if there is none."""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    classic: ClassicMetadata | None = None
    """Set for a member that speaks the classic protocol, while its group migrates."""
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS

    @property
    def owned(self) -> Partitions:
        """All partitions that no other member may get."""
        return self.assigned | self.revoking

    @property
    def is_revoking(self) -> bool:
        """Whether the member has partitions left to release."""
        return self.state is MemberState.UNREVOKED_PARTITIONS

    def is_reconciled_to(self, epoch: int) -> bool:
        """Returns whether the member has its whole target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def subscribed_as(self, other: ConsumerMember) -> bool:
        """Returns whether both have the same subscription."""
        return self.topics == other.topics and self.regex == other.regex


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that match a regular expression, with the version of the topic names that were searched."""

    topics: tuple[str, ...]
    version: int
    resolved_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEpoch:
    """Sets the group epoch; ``epoch`` is None for the end of the group."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Sets what a member says of itself; ``member`` is None for its removal.

    Only the fields that belong to the record count: assignment and epochs of ``member`` are ignored.
    """

    group_id: str
    member_id: str
    member: ConsumerMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetEpoch:
    """Sets the epoch of the target assignment; None for its removal."""

    group_id: str
    epoch: int | None
    assigned_ms: int = 0
    """When the target was computed, in Unix time; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Sets the target assignment of a member; None for its removal."""

    group_id: str
    member_id: str
    partitions: Partitions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """Sets epochs, state and partitions of a member; ``member`` is None for their removal."""

    group_id: str
    member_id: str
    member: ConsumerMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regex:
    """Sets the topics of a regular expression; None for its removal."""

    group_id: str
    regex: str
    resolved: ResolvedRegex | None


Change = GroupEpoch | Subscription | TargetEpoch | Target | Current | Regex


@dataclass(slots=True, kw_only=True)
class ConsumerGroup:
    """One consumer group.

    Invariants: ``assignment_epoch <= epoch``; ``owners`` holds each partition that a member owns, with that member;
    ``static_members`` maps each instance id to its member.
    """

    group_id: str
    exists: bool = False
    """Whether the log has the group's epoch; a group without it holds nothing that clients can see."""
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assigned_ms: int = 0
    """When the target assignment was computed, in Unix time; 0 if unknown."""
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    owners: dict[TopicIdPartition, str] = field(default_factory=dict)

    def copy(self) -> ConsumerGroup:
        """Returns a group that can change on its own."""
        return ConsumerGroup(
            group_id=self.group_id,
            exists=self.exists,
            epoch=self.epoch,
            metadata_hash=self.metadata_hash,
            assignment_epoch=self.assignment_epoch,
            assigned_ms=self.assigned_ms,
            members=dict(self.members),
            static_members=dict(self.static_members),
            targets=dict(self.targets),
            regexes=dict(self.regexes),
            owners=dict(self.owners),
        )

    @property
    def is_forgotten(self) -> bool:
        """True if nothing is left of the group."""
        return not (self.exists or self.members or self.targets or self.regexes or self.assignment_epoch)

    @property
    def state(self) -> ConsumerGroupState:
        """The state that clients see."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def is_classic(self) -> bool:
        """True if the group has members, and all of them speak the classic protocol."""
        return bool(self.members) and all(member.classic is not None for member in self.members.values())

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Returns the member with an instance id."""
        return self.members.get(self.static_members.get(instance_id, ""))

    def topics_of(self, member: ConsumerMember) -> tuple[str, ...]:
        """Returns the names of all topics to which a member subscribes, by name or by regular expression."""
        resolved = self.regexes.get(member.regex)
        if not member.regex or resolved is None:
            return member.topics
        return tuple(sorted({*member.topics, *resolved.topics}))

    def subscribed_topics(self) -> tuple[str, ...]:
        """Returns the names of all topics to which any member subscribes, sorted."""
        found: set[str] = set()
        for member in self.members.values():
            found.update(self.topics_of(member))
        return tuple(sorted(found))

    def is_free(self, partition: TopicIdPartition, member_id: str) -> bool:
        """Returns whether no other member owns a partition."""
        return self.owners.get(partition, member_id) == member_id

    def apply(self, change: Change) -> None:
        """Applies a change."""
        if isinstance(change, GroupEpoch):
            self.exists = change.epoch is not None
            self.epoch = change.epoch or 0
            self.metadata_hash = change.metadata_hash
        elif isinstance(change, TargetEpoch):
            self.assignment_epoch = change.epoch or 0
            self.assigned_ms = change.assigned_ms
        elif isinstance(change, Target):
            if change.partitions is None:
                self.targets.pop(change.member_id, None)
            else:
                self.targets[change.member_id] = change.partitions
        elif isinstance(change, Regex):
            if change.resolved is None:
                self.regexes.pop(change.regex, None)
            else:
                self.regexes[change.regex] = change.resolved
        elif isinstance(change, Subscription):
            self._subscribe(change)
        else:
            self._reconcile(change)

    def _subscribe(self, change: Subscription) -> None:
        old = self.members.get(change.member_id)
        if (
            old is not None
            and old.instance_id is not None
            and self.static_members.get(old.instance_id) == old.member_id
        ):
            del self.static_members[old.instance_id]
        if change.member is None:
            if old is not None:
                self._disown(old.member_id, old.owned)
                del self.members[change.member_id]
            return
        base = old if old is not None else ConsumerMember(member_id=change.member_id)
        self.members[change.member_id] = replace(
            change.member,
            epoch=base.epoch,
            previous_epoch=base.previous_epoch,
            state=base.state,
            assigned=base.assigned,
            revoking=base.revoking,
        )
        if change.member.instance_id is not None:
            self.static_members[change.member.instance_id] = change.member_id

    def _reconcile(self, change: Current) -> None:
        old = self.members.get(change.member_id)
        if old is None:
            if change.member is None:
                return
            old = ConsumerMember(member_id=change.member_id)
        new = change.member or ConsumerMember(member_id=change.member_id)
        self._disown(old.member_id, old.owned)
        self.members[change.member_id] = replace(
            old,
            epoch=new.epoch,
            previous_epoch=new.previous_epoch,
            state=new.state,
            assigned=new.assigned,
            revoking=new.revoking,
        )
        for partition in sorted(new.owned):
            self.owners[partition] = change.member_id

    def _disown(self, member_id: str, partitions: Iterable[TopicIdPartition]) -> None:
        for partition in sorted(partitions):
            # While a compacted log is loaded, a later record may have named another owner already.
            if self.owners.get(partition) == member_id:
                del self.owners[partition]
