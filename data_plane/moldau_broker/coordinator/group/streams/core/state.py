"""The state of streams groups: members, epochs, topology and tasks. Data, predicates and the replay of changes. Pure.

A member is a thread of an application; threads of one process share its ``process_id``. A member has *active* tasks,
which process records, and *standby* and *warm-up* tasks, which keep copies of state. The states of a member:

    Stable --a newer target takes tasks away--> UnrevokedTasks
    Stable --a newer target gives tasks that others still have--> UnreleasedTasks
    UnrevokedTasks --the member stops to report them--> Stable, UnreleasedTasks or UnrevokedTasks
    UnreleasedTasks --the others release them--> Stable

`StreamsGroup.apply` is the only mutator. It is called for each record of the log, and on a copy of the group for each
change that a request makes, so that the two cannot differ.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.streams.core.topology import NO_TASKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from moldau_broker.coordinator.group.streams.core.topology import Task, Tasks, Topology

JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH = 0, -1, -2
"""The member epochs of requests with which a member joins or leaves."""
FIRST_EPOCH = 2
"""The first epoch of a group; members have epoch 1 while the first assignment is delayed."""
STREAMS_TYPE = "streams"
"""The type and the protocol type of streams groups in ListGroups."""
ASSIGNOR = "sticky"
STANDBY_REPLICAS = "num.standby.replicas"
"""The setting of the assignor that a group's record keeps, so that a change of it is noticed."""


class MemberState(enum.IntEnum):
    """How far a member is with its target assignment, with the values that records contain."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    UNRELEASED_TASKS = 3
    UNKNOWN = 127


class StreamsGroupState(enum.Enum):
    """States of a streams group, by the names that clients see."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSets:
    """Tasks by their kind."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    @property
    def is_empty(self) -> bool:
        """True if there is no task."""
        return not (self.active or self.standby or self.warmup)

    @property
    def kinds(self) -> tuple[Tasks, Tasks, Tasks]:
        """The tasks of each kind."""
        return self.active, self.standby, self.warmup

    def overlaps(self, other: TaskSets) -> bool:
        """Returns whether any task is in both with the same kind."""
        return any(mine & others for mine, others in zip(self.kinds, other.kinds, strict=True))

    def contains(self, other: TaskSets) -> bool:
        """Returns whether all tasks of the other are here with the same kind."""
        return all(others <= mine for mine, others in zip(self.kinds, other.kinds, strict=True))


EMPTY_TASKS = TaskSets()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a process answers interactive queries."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    """A member of a streams group.

    ``assigned`` are the tasks that the member may run, ``revoking`` those that it must still close. It owns both.
    Invariants: they are disjoint; ``revoking`` is not empty in UnrevokedTasks only; ``since`` has the epoch at which
    each owned active task was assigned; the epoch is -2 while a static member is away.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: Endpoint | None = None
    tags: tuple[tuple[str, str], ...] = ()
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: TaskSets = EMPTY_TASKS
    revoking: TaskSets = EMPTY_TASKS
    since: Mapping[Task, int] = field(default_factory=dict)

    @property
    def is_revoking(self) -> bool:
        """Whether the member has tasks left to close."""
        return self.state is MemberState.UNREVOKED_TASKS

    def is_reconciled_to(self, epoch: int) -> bool:
        """Returns whether the member has its whole target assignment of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch

    def owned(self, kind: int) -> Tasks:
        """Returns the tasks of a kind (0 active, 1 standby, 2 warm-up) that the member has not given back."""
        return self.assigned.kinds[kind] | self.revoking.kinds[kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsEpoch:
    """Sets the group epoch, and on what it is based; ``epoch`` is None for the end of the group."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0
    validated_epoch: int = -1
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsTopology:
    """Sets the topology; None for its removal."""

    group_id: str
    topology: Topology | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMetadata:
    """Sets what a member says of itself; ``member`` is None for its removal. Epochs and tasks do not count."""

    group_id: str
    member_id: str
    member: StreamsMember | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsTargetEpoch:
    """Sets the epoch of the target assignment; None for its removal."""

    group_id: str
    epoch: int | None
    assigned_ms: int = 0
    """When the target was computed, in Unix time; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsTarget:
    """Sets the target assignment of a member; None for its removal."""

    group_id: str
    member_id: str
    tasks: TaskSets | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsCurrent:
    """Sets epochs, state and tasks of a member; ``member`` is None for their removal."""

    group_id: str
    member_id: str
    member: StreamsMember | None


STREAMS_CHANGES = (
    StreamsEpoch,
    StreamsTopology,
    StreamsMetadata,
    StreamsTargetEpoch,
    StreamsTarget,
    StreamsCurrent,
)
StreamsChange = StreamsEpoch | StreamsTopology | StreamsMetadata | StreamsTargetEpoch | StreamsTarget | StreamsCurrent


@dataclass(slots=True, kw_only=True)
class StreamsGroup:
    """One streams group.

    Invariants: ``assignment_epoch <= epoch``; ``active_owners`` holds each active task that a member owns, with that
    member; ``copies`` holds each standby and warm-up task with the members that own it; ``static_members`` maps each
    instance id to its member.
    """

    group_id: str
    exists: bool = False
    """Whether the log has the group's epoch."""
    epoch: int = 0
    metadata_hash: int = 0
    validated_epoch: int = -1
    """The epoch of the topology that fits the topics, as far as the group epoch knows; -1 if none does."""
    configs: tuple[tuple[str, str], ...] = ()
    """The settings of the assignor at the time of the group epoch."""
    assignment_epoch: int = 0
    assigned_ms: int = 0
    """When the target assignment was computed, in Unix time; 0 if unknown."""
    topology: Topology | None = None
    members: dict[str, StreamsMember] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    targets: dict[str, TaskSets] = field(default_factory=dict)
    active_owners: dict[Task, str] = field(default_factory=dict)
    copies: dict[Task, frozenset[str]] = field(default_factory=dict)

    def copy(self) -> StreamsGroup:
        """Returns a group that can change on its own."""
        return replace(
            self,
            members=dict(self.members),
            static_members=dict(self.static_members),
            targets=dict(self.targets),
            active_owners=dict(self.active_owners),
            copies=dict(self.copies),
        )

    @property
    def is_forgotten(self) -> bool:
        """True if nothing is left of the group."""
        return not (self.exists or self.members or self.targets or self.assignment_epoch or self.topology)

    @property
    def state(self) -> StreamsGroupState:
        """The state that clients see."""
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_epoch:
            return StreamsGroupState.NOT_READY
        if self.epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return StreamsGroupState.STABLE
        return StreamsGroupState.RECONCILING

    def static_member(self, instance_id: str) -> StreamsMember | None:
        """Returns the member with an instance id."""
        return self.members.get(self.static_members.get(instance_id, ""))

    def subscribed_topics(self) -> tuple[str, ...]:
        """Returns the names of all topics that members read, sorted; none if there are no members."""
        if not self.members or self.topology is None:
            return ()
        return tuple(sorted({name for part in self.topology.subtopologies for name in part.inputs}))

    def is_free(self, kind: int, task: Task, member: StreamsMember) -> bool:
        """Returns whether a member may begin to run a task as one of a kind (0 active, 1 standby, 2 warm-up).

        An active task has one owner in the group. Besides, one process has a task at most once in any kind, because
        its threads share the directory of the task's state.
        """
        holders = sorted(self.copies.get(task, frozenset()))
        if any(self._is_neighbour(each, member) for each in holders):
            return False
        owner = self.active_owners.get(task)
        if owner is None or owner == member.member_id:
            return True
        return kind != 0 and not self._is_neighbour(owner, member)

    def _is_neighbour(self, member_id: str, member: StreamsMember) -> bool:
        other = self.members.get(member_id)
        return other is not None and member_id != member.member_id and other.process_id == member.process_id

    def apply(self, change: StreamsChange) -> None:
        """Applies a change."""
        if isinstance(change, StreamsEpoch):
            self.exists = change.epoch is not None
            self.epoch = change.epoch or 0
            self.metadata_hash = change.metadata_hash
            self.validated_epoch = change.validated_epoch
            self.configs = change.configs
        elif isinstance(change, StreamsTopology):
            self.topology = change.topology
        elif isinstance(change, StreamsTargetEpoch):
            self.assignment_epoch = change.epoch or 0
            self.assigned_ms = change.assigned_ms
        elif isinstance(change, StreamsTarget):
            if change.tasks is None:
                self.targets.pop(change.member_id, None)
            else:
                self.targets[change.member_id] = change.tasks
        elif isinstance(change, StreamsMetadata):
            self._describe(change)
        else:
            self._move(change)

    def _describe(self, change: StreamsMetadata) -> None:
        old = self.members.get(change.member_id)
        instance_id = None if old is None else old.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == change.member_id:
            del self.static_members[instance_id]
        if change.member is None:
            if old is not None:
                self._disown(old)
                del self.members[change.member_id]
            return
        if change.member.instance_id is not None:
            self.static_members[change.member.instance_id] = change.member_id
        base = old or StreamsMember(member_id=change.member_id)
        self.members[change.member_id] = replace(
            change.member,
            epoch=base.epoch,
            previous_epoch=base.previous_epoch,
            state=base.state,
            assigned=base.assigned,
            revoking=base.revoking,
            since=base.since,
        )

    def _move(self, change: StreamsCurrent) -> None:
        old = self.members.get(change.member_id)
        if old is None:
            if change.member is None:
                return
            old = StreamsMember(member_id=change.member_id)
        new = change.member or StreamsMember(member_id=change.member_id)
        self._disown(old)
        moved = self.members[change.member_id] = replace(
            old,
            epoch=new.epoch,
            previous_epoch=new.previous_epoch,
            state=new.state,
            assigned=new.assigned,
            revoking=new.revoking,
            since=new.since,
        )
        for task in sorted(moved.owned(0)):
            self.active_owners[task] = change.member_id
        for task in sorted(moved.owned(1) | moved.owned(2)):
            self.copies[task] = self.copies.get(task, frozenset()) | {change.member_id}

    def _disown(self, member: StreamsMember) -> None:
        for task in sorted(member.owned(0)):
            # While a compacted log is loaded, a later record may have named another owner already.
            if self.active_owners.get(task) == member.member_id:
                del self.active_owners[task]
        for task in sorted(member.owned(1) | member.owned(2)):
            left = self.copies.get(task, frozenset()) - {member.member_id}
            if left:
                self.copies[task] = left
            else:
                self.copies.pop(task, None)


@dataclass(slots=True)
class StreamsDraft:
    """A group with the changes that are made to it.

    Invariant: ``group`` is the original as long as there are no changes, else a copy with the changes applied. So read
    it again after each `add`.
    """

    group: StreamsGroup
    changes: list[StreamsChange] = field(default_factory=list)

    def add(self, change: StreamsChange) -> None:
        """Applies a change to the copy."""
        if not self.changes:
            self.group = self.group.copy()
        self.group.apply(change)
        self.changes.append(change)

    def add_all(self, changes: Iterable[StreamsChange]) -> None:
        """Applies changes in order."""
        for change in changes:
            self.add(change)


def removal_of(group_id: str, member_id: str) -> tuple[StreamsChange, ...]:
    """Returns the changes that remove a member."""
    return (
        StreamsCurrent(group_id=group_id, member_id=member_id, member=None),
        StreamsTarget(group_id=group_id, member_id=member_id, tasks=None),
        StreamsMetadata(group_id=group_id, member_id=member_id, member=None),
    )


def end_of(group: StreamsGroup) -> tuple[StreamsChange, ...]:
    """Returns the changes that end a group without members."""
    return (
        StreamsTargetEpoch(group_id=group.group_id, epoch=None),
        StreamsEpoch(group_id=group.group_id, epoch=None),
        StreamsTopology(group_id=group.group_id, topology=None),
    )
