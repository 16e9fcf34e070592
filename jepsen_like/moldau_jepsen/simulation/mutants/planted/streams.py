"""Bugs in streams groups, which clients must meet: tasks of two members, lost tasks, commits of strangers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.core.offsets.committed import OffsetStore
from moldau_broker.coordinator.group.streams.core import assignor, heartbeat, offset_checks, reconcile
from moldau_broker.coordinator.group.streams.core.groups import StreamsGroups
from moldau_broker.coordinator.group.streams.core.state import EMPTY_TASKS, MemberState, StreamsGroup, TaskSets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.coordinator.group.core.records import OffsetRecord
    from moldau_broker.coordinator.group.streams.core.assignor import Worker
    from moldau_broker.coordinator.group.streams.core.state import StreamsMember
    from moldau_jepsen.planted_bug import Patch


def active_task_given_before_release() -> list[Patch]:
    """A member gets an active task that another still owns."""
    return [(StreamsGroup, "is_free", lambda self, kind, task, member: True)]


def silence_counts_as_release() -> list[Patch]:
    """A member need not report that it has closed revoked tasks."""
    good = reconcile.reconcile

    def step(member: StreamsMember, *args: object, joins: bool) -> StreamsMember:
        if member.state is MemberState.UNREVOKED_TASKS:
            member = replace(member, state=MemberState.UNRELEASED_TASKS, revoking=EMPTY_TASKS)
        return good(member, *args, joins=joins)  # type: ignore[arg-type]

    return [(heartbeat, "reconcile", step)]


def revoked_without_order() -> list[Patch]:
    """A member loses tasks without being asked first, as soon as its target shrinks."""

    def following(
        member: StreamsMember, epoch: int, target_epoch: int, target: TaskSets, *args: object, joins: bool
    ) -> StreamsMember:
        return reconcile._moved(member, target_epoch, MemberState.STABLE, target, EMPTY_TASKS)

    return [(reconcile, "_next", following)]


def streams_session_never_ends() -> list[Patch]:
    """The sessions of members of streams groups never end."""
    return [(StreamsGroups, "_remove", lambda self, served, draft, member_id: None)]


def commit_of_stranger_accepted() -> list[Patch]:
    """A sender that is no member of the group may commit."""
    good = offset_checks.check_commit

    def check(*args: object) -> ErrorCode:
        code = good(*args)  # type: ignore[arg-type]
        return ErrorCode.NONE if code is ErrorCode.UNKNOWN_MEMBER_ID else code

    return [(offset_checks, "check_commit", check)]


def task_forgotten_by_assignor() -> list[Patch]:
    """The assignor leaves out the last task."""
    good = assignor.sticky_assignor

    def assign(workers: Sequence[Worker], parts: object, standby_replicas: int) -> dict[str, TaskSets]:
        found = dict(good(workers, parts, standby_replicas))  # type: ignore[arg-type]
        for member_id, tasks in found.items():
            if tasks.active:
                found[member_id] = replace(tasks, active=tasks.active - {max(tasks.active)})
                break
        return found

    return [(heartbeat, "sticky_assignor", assign)]


def task_assigned_twice() -> list[Patch]:
    """The assignor gives the first task to two members, and none waits for the other."""
    good = assignor.sticky_assignor

    def assign(workers: Sequence[Worker], parts: object, standby_replicas: int) -> dict[str, TaskSets]:
        found = dict(good(workers, parts, standby_replicas))  # type: ignore[arg-type]
        every = sorted(task for tasks in found.values() for task in tasks.active)
        return {name: replace(tasks, active=tasks.active | set(every[:1])) for name, tasks in found.items()}

    return [(heartbeat, "sticky_assignor", assign), *active_task_given_before_release()]


def some_offsets_not_applied() -> list[Patch]:
    """A coordinator writes an offset, and leaves some out when it applies its log."""
    good = OffsetStore.replay_offset

    def replay(self: OffsetStore, record: OffsetRecord, producer_id: int | None) -> None:
        if record.committed is None or record.committed.offset % 3:
            good(self, record, producer_id)

    return [(OffsetStore, "replay_offset", replay)]
