"""Planted bugs of the classic group coordinator that short histories of two members find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau_broker.coordinator.group.core import group_core
from moldau_broker.coordinator.group.core.group import Group, GroupState, Member
from moldau_broker.coordinator.group.core.membership import Membership
from moldau_broker.coordinator.group.core.offsets import requests as offset_requests
from moldau_broker.coordinator.group.core.rebalance import MEMBER, Rebalancer

if TYPE_CHECKING:
    from moldau_broker.coordinator.runtime.effects import Moment
    from moldau_broker.coordinator.runtime.pending import AssignmentWritten
    from moldau_jepsen.planted_bug import Patch


def last_generation_commits() -> list[Patch]:
    """A commit of the generation before is accepted while the group rebalances, or has just done so."""
    original = offset_requests.check_commit

    def check_commit(membership, request, moment):  # type: ignore[no-untyped-def]
        code = original(membership, request, moment)
        group = membership.groups.get(request.group_id)
        if code is ErrorCode.ILLEGAL_GENERATION and group is not None and isinstance(request, OffsetCommitRequest):
            late = request.generation_id_or_member_epoch == group.generation - 1
            return ErrorCode.NONE if late and request.member_id in group.members else code
        return code

    return [(group_core, "check_commit", check_commit)]


def replaced_member_commits() -> list[Patch]:
    """The instance id of a static member is compared at joins only, and the former member id stays known."""
    original = Membership.find_member

    def find_member(self, group, member_id, instance_id):  # type: ignore[no-untyped-def]
        code, member = original(self, group, member_id, instance_id)
        if code is ErrorCode.FENCED_INSTANCE_ID:
            return ErrorCode.NONE, group.members[group.static_members[instance_id]]
        return code, member

    return [(Membership, "find_member", find_member)]


def late_write_completes_next_generation() -> list[Patch]:
    """The write of an assignment completes the generation that is under way, though it was made for an earlier one."""
    original = Rebalancer.assignment_written

    def assignment_written(
        self: Rebalancer, then: AssignmentWritten, append_id: int, code: ErrorCode, moment: Moment
    ) -> None:
        group = self.groups.get(then.group_id)
        if group is not None and group.state is GroupState.COMPLETING_REBALANCE and code is ErrorCode.NONE:
            group.transition(GroupState.STABLE, moment.wall_ms)
            for member in group.members.values():
                self.answer_sync(group, member, ErrorCode.NONE, moment)
            return
        original(self, then, append_id, code, moment)

    return [(Rebalancer, "assignment_written", assignment_written)]


def session_not_renewed_by_sync() -> list[Patch]:
    """A member that waits for its assignment when its session ends is removed, and its request stays open."""

    def remove(self: Rebalancer, group: Group, member: Member, moment: Moment) -> None:
        self.deadlines.cancel((MEMBER, group.group_id, member.member_id))
        group.end_join(member)
        member.sync_request = None
        group.remove(member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(group, moment)
        self.complete_join_if_ready(group, moment)

    return [(Rebalancer, "remove", remove)]


def departure_ends_no_join_phase() -> list[Patch]:
    """The departure of the last member that had not joined does not end the join phase."""
    original = Rebalancer.complete_join_if_ready

    def remove(self: Rebalancer, group: Group, member: Member, moment: Moment) -> None:
        self.deadlines.cancel((MEMBER, group.group_id, member.member_id))
        self.abandon(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(group, moment)
            original(self, group, moment)

    return [(Rebalancer, "remove", remove)]
