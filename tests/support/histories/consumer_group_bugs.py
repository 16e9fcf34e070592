"""Planted bugs of consumer groups (KIP-848) that short histories of two members find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau_broker.coordinator.group.consumer.core import offset_checks, reconcile
from moldau_broker.coordinator.group.consumer.core.state import MemberState

if TYPE_CHECKING:
    from moldau_jepsen.planted_bug import Patch


def former_epoch_commits() -> list[Patch]:
    """A member may commit in the epoch before its present one."""
    original = offset_checks.check_commit

    def check_commit(group, request, version):  # type: ignore[no-untyped-def]
        code = original(group, request, version)
        member = group.members.get(request.member_id)
        if member is not None and isinstance(request, OffsetCommitRequest):
            late = 0 < request.generation_id_or_member_epoch == member.previous_epoch
            return ErrorCode.NONE if late else code
        return code

    return [(offset_checks, "check_commit", check_commit)]


def lost_partitions_are_free() -> list[Patch]:
    """Partitions that a member has to release count as free at once."""
    original = reconcile._moved

    def moved(member, epoch, state, assigned, revoking):  # type: ignore[no-untyped-def]
        changed = original(member, epoch, state, assigned, revoking)
        return original(member, epoch, MemberState.STABLE, assigned, frozenset()) if revoking else changed

    return [(reconcile, "_moved", moved)]
