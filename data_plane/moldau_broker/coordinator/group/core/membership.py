"""The requests of members of classic groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup. Pure.

Each request is checked against the group in the same order as in Kafka, and then drives the phases of `rebalance`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.leave_group import LeaveGroupResponse
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau_broker.coordinator.group.core.group import Group, GroupState, Member
from moldau_broker.coordinator.group.core.member_memory import GROUP_BYTES, MEMBER_BYTES, protocols_bytes
from moldau_broker.coordinator.group.core.rebalance import MEMBER, PENDING_MEMBER, sync_answer
from moldau_broker.coordinator.group.core.records import group_record
from moldau_broker.coordinator.group.core.responses import join_error, leave_answer
from moldau_broker.coordinator.runtime.pending import AssignmentWritten, StaticMemberWritten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.internal.group_metadata import GroupMetadataValue
    from moldau.protocol.messages.join_group import JoinGroupRequest
    from moldau.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.group.core.rebalance import Rebalancer
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext

MEMBER_NAME_CHARACTERS_MAX = 255
"""Characters of the client id or instance id in a member id; no protocol string may exceed 32767 bytes."""


class Membership:
    """Serves the members of the classic groups of one partition of ``__consumer_offsets``."""

    def __init__(
        self,
        config: GroupConfig,
        rebalancer: Rebalancer,
        effects: EffectQueue,
        memory: MemberMemory,
        written: Mapping[str, GroupMetadataValue],
    ) -> None:
        """Serves the groups of ``rebalancer``.

        ``memory`` counts the members of the whole broker; ``written`` has the last committed records of groups.
        """
        self.groups = rebalancer.groups
        """The same dictionary as `Rebalancer.groups`; both add to it."""
        self._config = config
        self._rebalancer = rebalancer
        self._effects = effects
        self._memory = memory
        self._written = written

    def join(self, request_id: int, request: JoinGroupRequest, context: RequestContext, moment: Moment) -> None:
        """Handles JoinGroup; answers at the end of the join phase, or at once if nothing changes."""
        code = self._join(request_id, request, context, moment)
        if code is not ErrorCode.NONE:
            self._effects.answer(request_id, join_error(code, context.version, request.member_id))

    def _join(self, request_id: int, request: JoinGroupRequest, context: RequestContext, moment: Moment) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        config = self._config
        if not config.session_timeout_min_ms <= request.session_timeout_ms <= config.session_timeout_max_ms:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        group = self.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if not (request.protocol_type and request.protocols):
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            code = self._check_memory(None, request, context)
            if code is not ErrorCode.NONE:
                return code
            group = self.groups[request.group_id] = Group(
                group_id=request.group_id, state_since_ms=moment.wall_ms, memory=self._memory
            )
            group.generation = self.former_generation(request.group_id)
        if self._is_full(group, request):
            member = group.members.get(request.member_id)
            if member is not None:
                self._rebalancer.remove(group, member, moment)
            self._rebalancer.forget_pending(group, request.member_id, moment)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.supports(request.protocol_type, [protocol.name for protocol in request.protocols]):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        code = self._check_memory(group, request, context)
        if code is not ErrorCode.NONE:
            return code
        if not request.member_id:
            return self._join_unknown(group, request_id, request, context, moment)
        return self._join_known(group, request_id, request, context, moment)

    def former_generation(self, group_id: str) -> int:
        """Returns the generation after which those of a group go on that is not in memory.

        The log may hold records of a group that was deleted: it can still refuse the tombstone, and commit generations
        that were written before.
        """
        written = self._written.get(group_id)
        return max(0 if written is None else written.generation, self._effects.generation_in_flight(group_id))

    def _is_full(self, group: Group, request: JoinGroupRequest) -> bool:
        """Returns whether the group has no room for the sender.

        In the join phase the first ``group.max.size`` members to join are accepted.
        """
        size_max = self._config.size_max
        member = self._member_of(group, request)
        if group.state is GroupState.EMPTY:
            return False
        if group.state is GroupState.PREPARING_REBALANCE:
            return not (member is not None and member.join_request is not None) and group.awaiting_join >= size_max
        return member is None and len(group.members) >= size_max

    def _check_memory(self, group: Group | None, request: JoinGroupRequest, context: RequestContext) -> ErrorCode:
        """Checks the memory for the sender's metadata, which replaces its former metadata."""
        member = None if group is None else self._member_of(group, request)
        id_length = len(request.member_id or new_member_id(request.group_instance_id, context))
        names = id_length + len(context.client_id) + len(request.group_instance_id or "")
        more = MEMBER_BYTES + names + protocols_bytes(protocols_of(request))
        held = 0
        if group is None:
            more += GROUP_BYTES + len(request.group_id)
        else:
            held = group.held_bytes
            more -= 0 if member is None else member.held_bytes
        if more <= 0:
            return ErrorCode.NONE
        if held + more > self._config.metadata_bytes_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE if self._memory.has_room(more) else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _member_of(self, group: Group, request: JoinGroupRequest) -> Member | None:
        """Returns the member of the sender; a static member that restarts sends no id."""
        member_id = request.member_id
        if not member_id and request.group_instance_id is not None:
            member_id = group.static_members.get(request.group_instance_id, "")
        return group.members.get(member_id)

    def _join_unknown(
        self, group: Group, request_id: int, request: JoinGroupRequest, context: RequestContext, moment: Moment
    ) -> ErrorCode:
        """Handles a JoinGroup without a member id: of a new member, or of a static member that has restarted."""
        instance_id = request.group_instance_id
        member_id = new_member_id(instance_id, context)
        if instance_id is not None:
            if instance_id in group.static_members:
                return self._replace_static(group, member_id, request_id, request, context, moment)
        elif context.version >= 4:
            if len(group.pending_members) + len(group.members) >= self._config.size_max:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
            group.expect(member_id)
            deadline = moment.now_ms + request.session_timeout_ms
            self._rebalancer.deadlines.set((PENDING_MEMBER, group.group_id, member_id), deadline)
            required = join_error(ErrorCode.MEMBER_ID_REQUIRED, context.version, member_id)
            self._effects.answer(request_id, required)
            return ErrorCode.NONE
        self._add_member(group, member_id, request_id, request, context, moment)
        return ErrorCode.NONE

    def _join_known(
        self, group: Group, request_id: int, request: JoinGroupRequest, context: RequestContext, moment: Moment
    ) -> ErrorCode:
        if request.member_id in group.pending_members:
            if request.group_instance_id is not None:
                # A static member gets its id with the answer to its join, never in advance.
                return ErrorCode.UNKNOWN_SERVER_ERROR
            self._rebalancer.deadlines.cancel((PENDING_MEMBER, group.group_id, request.member_id))
            self._add_member(group, request.member_id, request_id, request, context, moment)
            return ErrorCode.NONE
        code, member = self.find_member(group, request.member_id, request.group_instance_id)
        if member is None:
            return code
        protocols = protocols_of(request)
        if group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        unchanged = member.protocols == protocols
        settled = group.state is GroupState.COMPLETING_REBALANCE or (
            group.state is GroupState.STABLE and member.member_id != group.leader_id
        )
        if unchanged and settled:
            # The member has missed the answer of this generation.
            self._effects.answer(request_id, self._rebalancer.join_answer(group, member, context.version))
            self._rebalancer.renew_session(group, member, moment)
            return ErrorCode.NONE
        self._update_member(group, member, request_id, request, context, moment)
        self._rebalancer.prepare_rebalance(group, moment)
        self._rebalancer.complete_join_if_ready(group, moment)
        return ErrorCode.NONE

    def _add_member(
        self,
        group: Group,
        member_id: str,
        request_id: int,
        request: JoinGroupRequest,
        context: RequestContext,
        moment: Moment,
    ) -> None:
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=context.client_id,
            client_host=context.client_host,
            rebalance_timeout_ms=rebalance_timeout_of(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols_of(request),
            is_new=True,
            join_request=(request_id, context.version),
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member, request.protocol_type)
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is not None:
            group.new_member_added = True
        self._rebalancer.expire_newcomer(group, member, moment)
        self._rebalancer.prepare_rebalance(group, moment)
        self._rebalancer.complete_join_if_ready(group, moment)

    def _update_member(
        self,
        group: Group,
        member: Member,
        request_id: int,
        request: JoinGroupRequest,
        context: RequestContext,
        moment: Moment,
    ) -> None:
        """Updates a member that rejoins; its older open JoinGroup is answered with REBALANCE_IN_PROGRESS."""
        self._rebalancer.abandon(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        group.redescribe(member, context.client_id, protocols_of(request))
        member.rebalance_timeout_ms = rebalance_timeout_of(request)
        member.session_timeout_ms = request.session_timeout_ms
        member.client_host = context.client_host
        group.wait_join(member, (request_id, context.version))
        if member.is_new:
            self._rebalancer.expire_newcomer(group, member, moment)
        else:
            self._rebalancer.deadlines.cancel((MEMBER, group.group_id, member.member_id))

    def _replace_static(
        self,
        group: Group,
        member_id: str,
        request_id: int,
        request: JoinGroupRequest,
        context: RequestContext,
        moment: Moment,
    ) -> ErrorCode:
        """Gives a static member that has restarted a new id and fences the old one (KIP-345)."""
        assert request.group_instance_id is not None
        old = group.members[group.static_members[request.group_instance_id]]
        old_leader_id = group.leader_id
        self._rebalancer.abandon(group, old, ErrorCode.FENCED_INSTANCE_ID)
        self._rebalancer.deadlines.cancel((MEMBER, group.group_id, old.member_id))
        member = group.replace_static(old, member_id)
        self._update_member(group, member, request_id, request, context, moment)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol_name:
            self._rebalancer.prepare_rebalance(group, moment)
            self._rebalancer.complete_join_if_ready(group, moment)
            return ErrorCode.NONE
        # Other members are unaffected: the new id is stored, and the member keeps its assignment.
        answer = self._rebalancer.join_answer(group, member, context.version)
        if context.version < 9:
            # Before skip_assignment (KIP-814), a leader that knows that it leads would assign again.
            answer.members = ()
            answer.leader = old_leader_id or ""
        then = StaticMemberWritten(
            group_id=group.group_id, member_id=member_id, request_id=request_id, version=context.version, answer=answer
        )
        group.end_join(member)
        self._rebalancer.renew_session(group, member, moment)
        self._effects.append((group_record(group.group_id, group.snapshot()),), then, moment)
        return ErrorCode.NONE

    def sync(self, request_id: int, request: SyncGroupRequest, context: RequestContext, moment: Moment) -> None:
        """Handles SyncGroup; in the sync phase it is answered when the leader's assignments are committed."""
        code = self._sync(request_id, request, context, moment)
        if code is not ErrorCode.NONE:
            self._effects.answer(request_id, SyncGroupResponse(error_code=code))

    def _present(self, request: SyncGroupRequest | HeartbeatRequest) -> tuple[Group, Member] | ErrorCode:
        """Returns group and member of a request of the present generation, or the code that refuses the request."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code, member = self.find_member(group, request.member_id, request.group_instance_id)
        if member is None:
            return code
        return (group, member) if request.generation_id == group.generation else ErrorCode.ILLEGAL_GENERATION

    def _sync(self, request_id: int, request: SyncGroupRequest, context: RequestContext, moment: Moment) -> ErrorCode:
        found = self._present(request)
        if isinstance(found, ErrorCode):
            return found
        group, member = found
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and group.protocol_name not in (None, request.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if group.state is GroupState.STABLE:
            group.pending_sync.pop(member.member_id, None)
            self._effects.answer(request_id, sync_answer(group, member))
            self._rebalancer.renew_session(group, member, moment)
            return ErrorCode.NONE
        assert group.state is GroupState.COMPLETING_REBALANCE
        self._rebalancer.abandon(group, member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_request = (request_id, context.version)
        group.pending_sync.pop(member.member_id, None)
        if member.member_id == group.leader_id and group.assignment_append is None:
            given = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
            for other in group.members.values():
                other.assignment = given.get(other.member_id, b"")
            then = AssignmentWritten(group_id=group.group_id, generation=group.generation)
            record = group_record(group.group_id, group.snapshot())
            group.assignment_append = self._effects.append((record,), then, moment)
        return ErrorCode.NONE

    def heartbeat(self, request: HeartbeatRequest, moment: Moment) -> HeartbeatResponse:
        """Handles Heartbeat and returns its answer."""
        return HeartbeatResponse(error_code=self._heartbeat(request, moment))

    def _heartbeat(self, request: HeartbeatRequest, moment: Moment) -> ErrorCode:
        found = self._present(request)
        if isinstance(found, ErrorCode):
            return found
        group, member = found
        if group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._rebalancer.renew_session(group, member, moment)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, request: LeaveGroupRequest, context: RequestContext, moment: Moment) -> LeaveGroupResponse:
        """Handles LeaveGroup of one member (before version 3) or of many, and returns its answer."""
        if not request.group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(request.group_id)

        def leave(identity: MemberIdentity) -> ErrorCode:
            return ErrorCode.UNKNOWN_MEMBER_ID if group is None else self._leave(group, identity, moment)

        return leave_answer(request, context.version, leave)

    def _leave(self, group: Group, identity: MemberIdentity, moment: Moment) -> ErrorCode:
        member_id = identity.member_id
        if not member_id and identity.group_instance_id is not None:
            member_id = group.static_members.get(identity.group_instance_id, "")
        if member_id in group.pending_members:
            self._rebalancer.forget_pending(group, member_id, moment)
            return ErrorCode.NONE
        code, member = self.find_member(group, member_id, identity.group_instance_id)
        if member is None:
            return code
        self._rebalancer.remove(group, member, moment)
        return ErrorCode.NONE

    def renew_session(self, group: Group, member: Member, moment: Moment) -> None:
        """Starts the session timeout of a member over."""
        self._rebalancer.renew_session(group, member, moment)

    def find_member(self, group: Group, member_id: str, instance_id: str | None) -> tuple[ErrorCode, Member | None]:
        """Returns the member of a request, or the error code if it is unknown or its instance id is taken over."""
        if instance_id is not None:
            holder = group.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID, None
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID, None
        member = group.members.get(member_id)
        return (ErrorCode.NONE if member is not None else ErrorCode.UNKNOWN_MEMBER_ID), member


def new_member_id(instance_id: str | None, context: RequestContext) -> str:
    name = instance_id if instance_id is not None else context.client_id
    return f"{name[:MEMBER_NAME_CHARACTERS_MAX]}-{context.fresh_id}"


def protocols_of(request: JoinGroupRequest) -> tuple[tuple[str, bytes], ...]:
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)


def rebalance_timeout_of(request: JoinGroupRequest) -> int:
    """Returns the rebalance timeout; version 0 has none and uses the session timeout."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms
