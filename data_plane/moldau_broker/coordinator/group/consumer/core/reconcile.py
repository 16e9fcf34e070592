"""Brings a member from its present partitions to its target, without two owners of a partition at any time. Pure.

A member first releases what its target lacks (UnrevokedPartitions); it keeps its epoch until it no longer reports those
partitions, or has said so in an earlier heartbeat. Then it moves to the epoch of the target and gets what is free. It
waits for the partitions that others still own (UnreleasedPartitions).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.consumer.core.state import NO_PARTITIONS, MemberState

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_broker.coordinator.group.consumer.core.state import ConsumerMember, Partitions, TopicIdPartition


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    is_free: Callable[[TopicIdPartition], bool],
    reported: Partitions | None,
    *,
    joins: bool,
) -> ConsumerMember:
    """Returns the member after its next step towards the target assignment.

    Args:
        member: the member as it is.
        target_epoch: the epoch of the target assignment.
        target: the partitions that the member is to have in the end.
        is_free: whether no other member owns a partition.
        reported: the partitions that the member says it owns; None if it says nothing.
        joins: whether the member joins, and so owns nothing.

    A member in an unknown state, which a newer coordinator has left, must report that it owns nothing.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _still_owns(reported, member.revoking):
            return member
        epoch += 1
    elif member.state is MemberState.UNKNOWN:
        assert reported == NO_PARTITIONS, f"{member.member_id} may own partitions that nothing records"
        epoch = target_epoch
    return _next(member, epoch, target_epoch, target, is_free, joins=joins)


def _still_owns(reported: Partitions | None, revoking: Partitions) -> bool:
    """Returns whether the member may still read one of the partitions; silence means that it may."""
    return reported is None or bool(reported & revoking)


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    is_free: Callable[[TopicIdPartition], bool],
    *,
    joins: bool,
) -> ConsumerMember:
    kept = member.assigned & target
    revoking = member.assigned - target
    # A report that precedes the order to release proves nothing: the member may be about to read what it was given.
    if revoking and not joins:
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    wanted = target - kept
    given = frozenset(partition for partition in sorted(wanted) if is_free(partition))
    state = MemberState.STABLE if given == wanted else MemberState.UNRELEASED_PARTITIONS
    return _moved(member, target_epoch, state, kept | given, NO_PARTITIONS)


def _moved(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Partitions, revoking: Partitions
) -> ConsumerMember:
    return replace(member, epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned, revoking=revoking)
