"""A rule for the group coordinator's core after each event: nothing waits without a time limit.

A member that falls silent must go in the end, and so must a phase that members keep open. So each member has a session,
or a removal that is decided or being written, and so on. A time limit that an event has dropped shows only much later,
if at all: as a dead member that keeps its partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau_broker.coordinator.group.core.group import GroupState
from moldau_broker.coordinator.group.core.served_groups import SESSION, Fence
from moldau_broker.coordinator.group.share.core.groups import Expiry

if TYPE_CHECKING:
    from moldau_broker.coordinator.group.core.group import Group
    from moldau_broker.coordinator.group.core.group_core import GroupCore

MEMBERS_MAX = 50
"""Larger groups are left out: their tests measure the cost of an event."""
JOIN, SYNC, MEMBER, PENDING = "join phase", "sync phase", "member", "pending member"
RELEASE = "rebalance"
KINDS = (SESSION, RELEASE, "join", "sync")
NO_LIMIT = [None] * len(KINDS)
UNREVOKED = 2
"""The state of members that have to release partitions or tasks."""


def check_timers(core: GroupCore) -> None:
    """Checks the deadlines of all groups that a core serves."""
    for group in core.rebalancer.groups.values():
        if len(group.members) <= MEMBERS_MAX:
            _check_classic(core, group)
    _check_present(core)
    for groups in core._all:
        for served in groups._served.all.values():
            if len(served.group.members) <= MEMBERS_MAX:
                _check_served(groups.deadlines, served)


def _check_present(core: GroupCore) -> None:
    """Checks that the time limits of classic groups belong to a group, and to a member that is there."""
    for kind, group_id, *names in core.rebalancer.deadlines._due:
        group = core.rebalancer.groups.get(group_id)
        assert group is not None, f"a time limit of {group_id} outlives it"
        known = group.members if kind == MEMBER else group.pending_members
        assert all(name in known for name in names), f"a time limit of {names} outlives it"


def _check_classic(core: GroupCore, group: Group) -> None:
    deadlines, group_id = core.rebalancer.deadlines, group.group_id
    if group.state is GroupState.PREPARING_REBALANCE:
        assert deadlines.get((JOIN, group_id)) is not None, "a join phase has no end"
    if group.pending_sync:
        assert deadlines.get((SYNC, group_id)) is not None, f"nothing ends the wait for {list(group.pending_sync)}"
    for member_id, member in group.members.items():
        if member.is_new or member.join_request is None:
            assert deadlines.get((MEMBER, group_id, member_id)) is not None, f"{member_id} has no session"
    for member_id in group.pending_members:
        assert deadlines.get((PENDING, group_id, member_id)) is not None, f"{member_id} is awaited for ever"


def _check_served(deadlines: Any, served: Any) -> None:
    group_id = served.group.group_id
    operations = [*served.parked, *getattr(served, "fences", ()), *getattr(served, "expiries", ())]
    removals = [each for each in operations if isinstance(each, Fence | Expiry)]
    removed = {each.member_id for each in removals}
    for member_id, member in served.group.members.items():
        # If a removal was not written, its own time limit is set again: that of the session has passed meanwhile.
        limits = [deadlines.get((kind, group_id, member_id)) for kind in KINDS]
        assert member_id in removed or limits != NO_LIMIT, f"{member_id} has no session"
        if getattr(member, "state", None) == UNREVOKED and member_id not in removed:
            limit = deadlines.get((RELEASE, group_id, member_id))
            assert limit is not None, f"{member_id} may keep for ever what it has to release"
