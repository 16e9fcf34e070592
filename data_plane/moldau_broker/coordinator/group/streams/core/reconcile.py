"""The next step of one member towards its target assignment. Pure (KIP-1071).

A task is taken from a member before another gets it. The member stays in its epoch until it reports that it has closed
the revoked tasks. Then it moves to the epoch of the target and gets what is free. It waits for the tasks that others
still have (UnreleasedTasks). An active task keeps the epoch at which it was assigned, by which late commits are judged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.streams.core.state import EMPTY_TASKS, MemberState, TaskSets

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_broker.coordinator.group.streams.core.state import StreamsMember
    from moldau_broker.coordinator.group.streams.core.topology import Task, Tasks


def reconcile(
    member: StreamsMember,
    target_epoch: int,
    target: TaskSets,
    is_free: Callable[[int, Task], bool],
    reported: TaskSets | None,
    *,
    joins: bool,
) -> StreamsMember:
    """Returns the member after its next step towards the target assignment.

    Args:
        member: the member as it is.
        target_epoch: the epoch of the target assignment.
        target: the tasks that the member is to have in the end.
        is_free: whether the member may begin to run a task as one of a kind.
        reported: the tasks that the member says it has; None if it says nothing.
        joins: whether the member joins, and so has no task.

    A member in an unknown state, which a newer coordinator has left, must join or report that it has no task.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED_TASKS:
        if not joins and (reported is None or reported.overlaps(member.revoking)):
            return member
        epoch += 1
    elif member.state is MemberState.UNKNOWN:
        is_bare = joins or (reported is not None and reported.is_empty)
        assert is_bare, f"{member.member_id} may have tasks that nothing records"
        epoch = target_epoch
    return _next(member, epoch, target_epoch, target, is_free, joins=joins)


def _next(
    member: StreamsMember,
    epoch: int,
    target_epoch: int,
    target: TaskSets,
    is_free: Callable[[int, Task], bool],
    *,
    joins: bool,
) -> StreamsMember:
    kept = _each(member.assigned, target, lambda has, gets: has & gets)
    revoking = _each(member.assigned, target, lambda has, gets: has - gets)
    # A report that precedes the order to close proves nothing: the member may be about to get what it was given.
    if not revoking.is_empty and not joins:
        return _moved(member, epoch, MemberState.UNREVOKED_TASKS, kept, revoking)
    wanted = _each(target, kept, lambda gets, has: gets - has)
    given = TaskSets(
        active=_free(0, wanted.active, is_free),
        standby=_free(1, wanted.standby, is_free),
        warmup=_free(2, wanted.warmup, is_free),
    )
    state = MemberState.STABLE if given == wanted else MemberState.UNRELEASED_TASKS
    assigned = _each(kept, given, lambda has, gets: has | gets)
    return _moved(member, target_epoch, state, assigned, EMPTY_TASKS)


def _free(kind: int, tasks: Tasks, is_free: Callable[[int, Task], bool]) -> Tasks:
    return frozenset(task for task in sorted(tasks) if is_free(kind, task))


def _each(first: TaskSets, second: TaskSets, combine: Callable[[Tasks, Tasks], Tasks]) -> TaskSets:
    return TaskSets(
        active=combine(first.active, second.active),
        standby=combine(first.standby, second.standby),
        warmup=combine(first.warmup, second.warmup),
    )


def _moved(
    member: StreamsMember, epoch: int, state: MemberState, assigned: TaskSets, revoking: TaskSets
) -> StreamsMember:
    # In a step that gives tasks, the member reaches ``epoch``: it is that of the new tasks. A task that the member has
    # closed and gets again is one of these.
    kept = member.assigned.active
    since = {
        task: member.since.get(task, epoch) if task in kept else epoch
        for task in sorted(assigned.active | revoking.active)
    }
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.epoch,
        state=state,
        assigned=assigned,
        revoking=revoking,
        since=since,
    )
