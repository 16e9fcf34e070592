"""The classic groups of a partition as its consumer groups see them: a group id belongs to one kind at a time. Pure."""

from __future__ import annotations

from collections import ChainMap
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau_broker.coordinator.group.core.group import Group, GroupState
from moldau_broker.coordinator.group.core.records import group_record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau.protocol.messages.leave_group import LeaveGroupRequest
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.group.core.membership import Membership
    from moldau_broker.coordinator.group.core.rebalance import Rebalancer
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext, StateRecord


class ClassicSide:
    """Knows which classic groups are in use, ends those that are not, and converts those that are."""

    def __init__(
        self,
        rebalancer: Rebalancer,
        membership: Membership,
        effects: EffectQueue,
        memory: MemberMemory,
        written: Mapping[str, GroupMetadataValue],
    ) -> None:
        """Works on the groups of ``rebalancer``; ``written`` are the last committed records of classic groups."""
        self._rebalancer = rebalancer
        self._membership = membership
        self._effects = effects
        self._memory = memory
        self._written = written
        self._frozen: dict[str, Group] = {}
        """Groups whose conversion is being written."""

    def get(self, group_id: str) -> Group | None:
        """Returns a classic group that is in use; an id that MEMBER_ID_REQUIRED has given does not make it so.

        Its client may never come back. If it does, it joins the group that has taken the id since.
        """
        group = self._rebalancer.groups.get(group_id)
        return None if group is None or group.state is GroupState.EMPTY else group

    def shown(self) -> Mapping[str, Group]:
        """Returns the groups that clients see: one whose conversion is being written is still a classic one."""
        return ChainMap(self._rebalancer.groups, self._frozen)

    def generation(self, group_id: str) -> int:
        """Returns the generation of a group; 0 if there is none."""
        group = self._rebalancer.groups.get(group_id)
        return self._membership.former_generation(group_id) if group is None else group.generation

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Drops an unused classic group, and returns its tombstone if the log has it."""
        group = self._rebalancer.groups.get(group_id)
        if group is not None:
            self._rebalancer.forget(group)
        return (group_record(group_id, None),) if group is not None or group_id in self._written else ()

    def take_back(self, group_id: str) -> None:
        """Drops a group whose id is not free after all; its members must join again."""
        if group_id in self._rebalancer.groups:
            self._rebalancer.suspend(group_id, ErrorCode.COORDINATOR_NOT_AVAILABLE).release()

    # Conversions

    def freeze(self, group_id: str) -> tuple[StateRecord, ...]:
        """Stops a group that becomes a consumer group, and returns its tombstone; its members must join again."""
        self._frozen[group_id] = self._rebalancer.suspend(group_id, ErrorCode.REBALANCE_IN_PROGRESS)
        return (group_record(group_id, None),)

    def thaw(self, group_id: str, moment: Moment) -> None:
        """Goes on with a group after the write of its conversion has failed."""
        self._rebalancer.resume(self._frozen.pop(group_id), moment)

    def drop(self, group_id: str) -> None:
        """Drops a group after its conversion is committed."""
        self._frozen.pop(group_id).release()

    def begin(self, group_id: str, moment: Moment) -> None:
        """Begins to serve a group whose record is committed; one without a leader rebalances, as after a downgrade."""
        value = self._written[group_id]
        group = Group.load(group_id, value, self._memory)
        self._rebalancer.load(group, moment)
        if value.leader is None and group.members:
            self._rebalancer.prepare_rebalance(group, moment)

    def resign(self) -> None:
        """Frees the memory of the groups whose conversion is open after leadership is lost."""
        for group in self._frozen.values():
            group.release()

    # Requests

    def serve(
        self,
        request_id: int,
        request: JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest,
        context: RequestContext,
        moment: Moment,
    ) -> None:
        """Serves a request of a member of a classic group."""
        if isinstance(request, JoinGroupRequest):
            self._membership.join(request_id, request, context, moment)
        elif isinstance(request, SyncGroupRequest):
            self._membership.sync(request_id, request, context, moment)
        elif isinstance(request, HeartbeatRequest):
            self._effects.answer(request_id, self._membership.heartbeat(request, moment))
        else:
            self._effects.answer(request_id, self._membership.leave(request, context, moment))
