"""The state of share groups: members, epochs, assignments, and share-partitions. Data and the replay of changes. Pure.

Members of a share group read partitions together, so no member has to release a partition before another gets it. A
member moves to its target assignment with its next heartbeat.

A partition is assigned only after the share coordinator has begun its state. The group's *state partitions* say how far
that is: ``initializing`` until the coordinator has answered, then ``initialized``; ``deleting`` while an administrator
removes a topic or the group. `ShareGroup.apply` is the only mutator.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.consumer.core.state import NO_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from moldau_broker.coordinator.group.consumer.core.state import Partitions

JOIN_EPOCH, LEAVE_EPOCH = 0, -1
"""The member epochs of requests with which a member joins or leaves."""
SHARE_TYPE = "share"
"""The type and the protocol type of share groups in ListGroups."""
ASSIGNOR = "simple"


class ShareGroupState(enum.Enum):
    """States of a share group, by the names that clients see."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """A member of a share group. Invariant: ``topics`` are sorted, each once."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    epoch: int = 0
    previous_epoch: int = -1
    assigned: Partitions = NO_PARTITIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """The share-partitions of one topic in one state."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePartitions:
    """The share-partitions of a group by the state of their state, and the topics that are being deleted."""

    initializing: Mapping[UUID, TopicState] = field(default_factory=dict)
    initialized: Mapping[UUID, TopicState] = field(default_factory=dict)
    deleting: Mapping[UUID, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if the group has no share-partition."""
        return not (self.initializing or self.initialized or self.deleting)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareEpoch:
    """Sets the group epoch; ``epoch`` is None for the end of the group."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareSubscription:
    """Sets what a member says of itself; ``member`` is None for its removal. Epochs and assignment do not count."""

    group_id: str
    member_id: str
    member: ShareMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTargetEpoch:
    """Sets the epoch of the target assignment; None for its removal."""

    group_id: str
    epoch: int | None
    assigned_ms: int = 0
    """When the target was computed, in Unix time; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTarget:
    """Sets the target assignment of a member; None for its removal."""

    group_id: str
    member_id: str
    partitions: Partitions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCurrent:
    """Sets epochs and partitions of a member; ``member`` is None for their removal."""

    group_id: str
    member_id: str
    member: ShareMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStates:
    """Sets the state partitions; None for their removal."""

    group_id: str
    partitions: StatePartitions | None


SHARE_CHANGES = (ShareEpoch, ShareSubscription, ShareTargetEpoch, ShareTarget, ShareCurrent, ShareStates)
ShareChange = ShareEpoch | ShareSubscription | ShareTargetEpoch | ShareTarget | ShareCurrent | ShareStates


@dataclass(slots=True, kw_only=True)
class ShareGroup:
    """One share group. Invariant: ``assignment_epoch <= epoch``."""

    group_id: str
    exists: bool = False
    """Whether the log has the group's epoch."""
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assigned_ms: int = 0
    """When the target assignment was computed, in Unix time; 0 if unknown."""
    members: dict[str, ShareMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    states: StatePartitions = field(default_factory=StatePartitions)

    def copy(self) -> ShareGroup:
        """Returns a group that can change on its own."""
        return replace(self, members=dict(self.members), targets=dict(self.targets))

    @property
    def is_forgotten(self) -> bool:
        """True if nothing is left of the group."""
        return not (self.exists or self.members or self.targets or self.assignment_epoch) and self.states.is_empty

    @property
    def state(self) -> ShareGroupState:
        """The state that clients see."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def subscribed_topics(self) -> tuple[str, ...]:
        """Returns the names of all topics to which any member subscribes, sorted."""
        return tuple(sorted({name for member in self.members.values() for name in member.topics}))

    def apply(self, change: ShareChange) -> None:
        """Applies a change."""
        if isinstance(change, ShareEpoch):
            self.exists = change.epoch is not None
            self.epoch = change.epoch or 0
            self.metadata_hash = change.metadata_hash
        elif isinstance(change, ShareTargetEpoch):
            self.assignment_epoch = change.epoch or 0
            self.assigned_ms = change.assigned_ms
        elif isinstance(change, ShareStates):
            self.states = change.partitions or StatePartitions()
        elif isinstance(change, ShareTarget):
            if change.partitions is None:
                self.targets.pop(change.member_id, None)
            else:
                self.targets[change.member_id] = change.partitions
        elif isinstance(change, ShareSubscription):
            self._subscribe(change)
        else:
            self._move(change)

    def _subscribe(self, change: ShareSubscription) -> None:
        if change.member is None:
            self.members.pop(change.member_id, None)
            return
        base = self.members.get(change.member_id) or ShareMember(member_id=change.member_id)
        self.members[change.member_id] = replace(
            change.member, epoch=base.epoch, previous_epoch=base.previous_epoch, assigned=base.assigned
        )

    def _move(self, change: ShareCurrent) -> None:
        old = self.members.get(change.member_id)
        if old is None and change.member is None:
            return
        base = old or ShareMember(member_id=change.member_id)
        new = change.member or ShareMember(member_id=change.member_id)
        self.members[change.member_id] = replace(
            base, epoch=new.epoch, previous_epoch=new.previous_epoch, assigned=new.assigned
        )


@dataclass(slots=True)
class ShareDraft:
    """A group with the changes that are made to it.

    Invariant: ``group`` is the original as long as there are no changes, else a copy with the changes applied. So read
    it again after each `add`.
    """

    group: ShareGroup
    changes: list[ShareChange] = field(default_factory=list)

    def add(self, change: ShareChange) -> None:
        """Applies a change to the copy."""
        if not self.changes:
            self.group = self.group.copy()
        self.group.apply(change)
        self.changes.append(change)

    def raise_epoch(self, metadata_hash: int | None = None) -> None:
        """Increments the group epoch."""
        group = self.group
        hashed = group.metadata_hash if metadata_hash is None else metadata_hash
        self.add(ShareEpoch(group_id=group.group_id, epoch=group.epoch + 1, metadata_hash=hashed))
