"""Membership of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and the deadlines behind them. Pure.

Theory of operation. A generation begins with a join phase: every member sends JoinGroup and its request waits. The
phase ends when all members have come, or at the rebalance deadline without those who have not (static members stay
until their session ends, KIP-345). The answers tell the leader who is in, and each member sends SyncGroup; the
leader's brings the assignments. They become the group's state when the record that holds them is committed, and only
then are SyncGroups answered.

A member that the coordinator does not hear from for its session timeout is removed. Members that wait in the join
phase send no heartbeats and are not expired, except new ones, whose client may have gone and come back under another
id.

The membership of a running rebalance is soft state: it dies with the coordinator, and members rejoin. `write` and
`answer` of the owner collect effects; nothing here waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from moldau.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse
from moldau.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from moldau_broker.coordinator.group import Group, GroupState, Member
from moldau_broker.coordinator.group_records import group_record
from moldau_broker.coordinator.pending import AssignmentWritten, StaticMemberWritten
from moldau_broker.coordinator.responses import join_error
from moldau_broker.coordinator.timers import Deadlines

if TYPE_CHECKING:
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.effects import Moment, RequestContext, StateRecord
    from moldau_broker.coordinator.group_config import GroupConfig
    from moldau_broker.coordinator.pending import Continuation

MEMBER_NAME_CHARACTERS_MAX = 255
"""How much of a client's own name goes into its member id; the rest makes it unique, and no string may exceed 32767."""
_MEMBER = "member"
_PENDING_MEMBER = "pending member"
_JOIN = "join phase"
_SYNC = "sync phase"


class Output(Protocol):
    """Where decisions go: the owner turns them into effects."""

    def answer(self, request_id: int, response: Response) -> None:
        """Completes a request."""
        ...

    def write(self, records: tuple[StateRecord, ...], then: Continuation | None, moment: Moment) -> int:
        """Appends records; ``then`` is handed back with the outcome. Returns the id of the write."""
        ...


class Membership:
    """All classic groups of one partition of ``__consumer_offsets``."""

    def __init__(self, config: GroupConfig, output: Output) -> None:
        """No groups yet."""
        self.groups: dict[str, Group] = {}
        self.deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._config = config
        self._output = output

    def load(self, group: Group, moment: Moment) -> None:
        """Takes over a group from the log; the sessions of its members begin anew."""
        self.groups[group.group_id] = group
        for member in group.members.values():
            self._renew_session(group, member, moment)

    # Joining

    def join(self, request_id: int, request: JoinGroupRequest, context: RequestContext, moment: Moment) -> None:
        """Handles JoinGroup; the answer comes at the end of the join phase, or at once if there is nothing to wait
        for."""
        code = self._join(request_id, request, context, moment)
        if code is not ErrorCode.NONE:
            self._output.answer(request_id, join_error(code, context.version, request.member_id))

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
            group = Group(group_id=request.group_id, state_since_ms=moment.wall_ms)
            if not group.supports(request.protocol_type, tuple(protocol.name for protocol in request.protocols)):
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            self.groups[request.group_id] = group
        names = tuple(protocol.name for protocol in request.protocols)
        if self._is_full(group, request):
            member = group.members.get(request.member_id)
            if member is not None:
                self._remove(group, member, moment)
            self._forget_pending(group, request.member_id, moment)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.supports(request.protocol_type, names):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not request.member_id:
            return self._join_unknown(group, request_id, request, context, moment)
        return self._join_known(group, request_id, request, context, moment)

    def _is_full(self, group: Group, request: JoinGroupRequest) -> bool:
        """Whether the group has no room for the sender: while preparing, the first ``group.max.size`` to come are
        in."""
        size_max = self._config.size_max
        member_id = request.member_id
        if not member_id and request.group_instance_id is not None:
            member_id = group.static_members.get(request.group_instance_id, "")
        member = group.members.get(member_id)
        if group.state is GroupState.EMPTY:
            return False
        if group.state is GroupState.PREPARING_REBALANCE:
            return not (member is not None and member.join_request is not None) and group.awaiting_join >= size_max
        return member is None and len(group.members) >= size_max

    def _join_unknown(
        self, group: Group, request_id: int, request: JoinGroupRequest, context: RequestContext, moment: Moment
    ) -> ErrorCode:
        """A sender without a member id: new, or a static member that has restarted."""
        instance_id = request.group_instance_id
        name = instance_id if instance_id is not None else context.client_id
        member_id = f"{name[:MEMBER_NAME_CHARACTERS_MAX]}-{context.fresh_id}"
        if instance_id is not None:
            if instance_id in group.static_members:
                return self._replace_static(group, member_id, request_id, request, context, moment)
        elif context.version >= 4:
            if len(group.pending_members) + len(group.members) >= self._config.size_max:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
            group.pending_members[member_id] = None
            deadline = moment.now_ms + request.session_timeout_ms
            self.deadlines.set((_PENDING_MEMBER, group.group_id, member_id), deadline)
            required = join_error(ErrorCode.MEMBER_ID_REQUIRED, context.version, member_id)
            self._output.answer(request_id, required)
            return ErrorCode.NONE
        self._add_member(group, member_id, request_id, request, context, moment)
        return ErrorCode.NONE

    def _join_known(
        self, group: Group, request_id: int, request: JoinGroupRequest, context: RequestContext, moment: Moment
    ) -> ErrorCode:
        if request.member_id in group.pending_members:
            self.deadlines.cancel((_PENDING_MEMBER, group.group_id, request.member_id))
            self._add_member(group, request.member_id, request_id, request, context, moment)
            return ErrorCode.NONE
        code, member = self.find_member(group, request.member_id, request.group_instance_id)
        if member is None:
            return code
        protocols = _protocols(request)
        if group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        unchanged = member.protocols == protocols
        settled = group.state is GroupState.COMPLETING_REBALANCE or (
            group.state is GroupState.STABLE and member.member_id != group.leader_id
        )
        if unchanged and settled:
            # The member has missed the answer of this generation, so it is told again.
            self._output.answer(request_id, self._join_answer(group, member, context.version))
            self._renew_session(group, member, moment)
            return ErrorCode.NONE
        self._update_member(group, member, request_id, request, context, moment)
        self._prepare_rebalance(group, moment)
        self._complete_join_if_ready(group, moment)
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
            rebalance_timeout_ms=_rebalance_timeout(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=_protocols(request),
            is_new=True,
            join_request=(request_id, context.version),
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member, request.protocol_type)
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is not None:
            group.new_member_added = True
        self._expire_newcomer(group, member, moment)
        self._prepare_rebalance(group, moment)
        self._complete_join_if_ready(group, moment)

    def _update_member(
        self,
        group: Group,
        member: Member,
        request_id: int,
        request: JoinGroupRequest,
        context: RequestContext,
        moment: Moment,
    ) -> None:
        """Takes what a rejoining member says now; a join of it that still waits is told to rejoin."""
        self._abandon(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.protocols = _protocols(request)
        member.rebalance_timeout_ms = _rebalance_timeout(request)
        member.session_timeout_ms = request.session_timeout_ms
        member.client_id = context.client_id
        member.client_host = context.client_host
        member.join_request = (request_id, context.version)
        if member.is_new:
            self._expire_newcomer(group, member, moment)
        else:
            self.deadlines.cancel((_MEMBER, group.group_id, member.member_id))

    def _replace_static(
        self,
        group: Group,
        member_id: str,
        request_id: int,
        request: JoinGroupRequest,
        context: RequestContext,
        moment: Moment,
    ) -> ErrorCode:
        """A static member is back under a new id (KIP-345); the old holder of the instance id is fenced."""
        assert request.group_instance_id is not None
        old = group.members[group.static_members[request.group_instance_id]]
        old_leader_id = group.leader_id
        self._abandon(old, ErrorCode.FENCED_INSTANCE_ID)
        self.deadlines.cancel((_MEMBER, group.group_id, old.member_id))
        member = group.replace_static(old, member_id)
        self._update_member(group, member, request_id, request, context, moment)
        if group.state is not GroupState.STABLE or group.select_protocol() != group.protocol_name:
            self._prepare_rebalance(group, moment)
            self._complete_join_if_ready(group, moment)
            return ErrorCode.NONE
        # Nothing changes for the others: the new id is stored, and the member goes on with its old assignment.
        answer = self._join_answer(group, member, context.version)
        if context.version < 9:
            # Without skip_assignment (KIP-814) the leader must not believe that it leads, or it would assign anew.
            answer.members = ()
            answer.leader = old_leader_id or ""
        then = StaticMemberWritten(
            group_id=group.group_id, member_id=member_id, request_id=request_id, version=context.version, answer=answer
        )
        member.join_request = None
        self._renew_session(group, member, moment)
        self._output.write((group_record(group.group_id, group.snapshot()),), then, moment)
        return ErrorCode.NONE

    def _join_answer(self, group: Group, member: Member, version: int) -> JoinGroupResponse:
        """What a member learns about the generation; only the leader learns who is in."""
        is_leader = group.leader_id == member.member_id
        members: list[JoinGroupResponseMember] = []
        if is_leader:
            members = [
                JoinGroupResponseMember(
                    member_id=other.member_id,
                    group_instance_id=other.group_instance_id,
                    metadata=other.metadata(group.protocol_name),
                )
                for other in group.members.values()
            ]
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol_name if group.protocol_name is not None or version >= 7 else "",
            leader=group.leader_id or "",
            skip_assignment=is_leader and group.state is GroupState.STABLE,
            member_id=member.member_id,
            members=members,
        )

    # The join phase

    def _prepare_rebalance(self, group: Group, moment: Moment) -> None:
        """Begins a join phase unless one is under way."""
        if group.state is GroupState.PREPARING_REBALANCE:
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                self._answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS, moment)
        self.deadlines.cancel((_SYNC, group.group_id))
        group.pending_sync.clear()
        was_empty = group.state is GroupState.EMPTY
        group.transition(GroupState.PREPARING_REBALANCE, moment.wall_ms)
        wait = group.rebalance_timeout_ms
        if was_empty:
            delay = min(self._config.initial_rebalance_delay_ms, wait)
            group.initial_delay_left_ms = wait - delay
            group.new_member_added = False
            wait = delay
        self.deadlines.set((_JOIN, group.group_id), moment.now_ms + wait)

    def _complete_join_if_ready(self, group: Group, moment: Moment) -> None:
        """Ends the join phase as soon as everybody is there; a new group waits out its initial delay."""
        if group.state is GroupState.PREPARING_REBALANCE and group.initial_delay_left_ms is None and group.all_joined:
            self._complete_join(group, moment)

    def _join_deadline(self, group: Group, moment: Moment) -> None:
        left = group.initial_delay_left_ms
        if left is not None and left > 0 and group.new_member_added:
            delay = min(self._config.initial_rebalance_delay_ms, left)
            group.initial_delay_left_ms = left - delay
            group.new_member_added = False
            self.deadlines.set((_JOIN, group.group_id), moment.now_ms + delay)
            return
        self._complete_join(group, moment)

    def _complete_join(self, group: Group, moment: Moment) -> None:
        """Ends the join phase: the members that came are the next generation."""
        assert group.state is GroupState.PREPARING_REBALANCE
        group.initial_delay_left_ms = None
        for member in list(group.members.values()):
            if member.join_request is None and not member.is_static:
                self.deadlines.cancel((_MEMBER, group.group_id, member.member_id))
                group.remove(member)
        if group.members and not self._elect_joined_leader(group):
            # Only static members, none of which has come: wait for one, or for their sessions to end.
            self.deadlines.set((_JOIN, group.group_id), moment.now_ms + group.rebalance_timeout_ms)
            return
        self.deadlines.cancel((_JOIN, group.group_id))
        group.generation += 1
        if not group.members:
            group.protocol_name = None
            group.transition(GroupState.EMPTY, moment.wall_ms)
            self._output.write((group_record(group.group_id, group.snapshot()),), None, moment)
            return
        group.protocol_name = group.select_protocol()
        group.transition(GroupState.COMPLETING_REBALANCE, moment.wall_ms)
        for member in group.members.values():
            group.pending_sync[member.member_id] = None
            waiting = member.join_request
            if waiting is None:
                continue
            request_id, version = waiting
            member.join_request = None
            member.is_new = False
            self._output.answer(request_id, self._join_answer(group, member, version))
            self._renew_session(group, member, moment)
        self.deadlines.set((_SYNC, group.group_id), moment.now_ms + group.rebalance_timeout_ms)

    def _elect_joined_leader(self, group: Group) -> bool:
        """Sees to it that the leader is a member that has come; False if nobody has."""
        leader = group.members.get(group.leader_id or "")
        if leader is not None and leader.join_request is not None:
            return True
        joined = next((member for member in group.members.values() if member.join_request is not None), None)
        if joined is not None:
            group.leader_id = joined.member_id
        return joined is not None

    # The sync phase

    def sync(self, request_id: int, request: SyncGroupRequest, context: RequestContext, moment: Moment) -> None:
        """Handles SyncGroup; in the sync phase the answer comes when the leader's assignments are committed."""
        code = self._sync(request_id, request, context, moment)
        if code is not ErrorCode.NONE:
            self._output.answer(request_id, SyncGroupResponse(error_code=code))

    def _sync(self, request_id: int, request: SyncGroupRequest, context: RequestContext, moment: Moment) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code, member = self.find_member(group, request.member_id, request.group_instance_id)
        if member is None:
            return code
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type is not None and request.protocol_type != group.protocol_type:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name is not None and group.protocol_name not in (None, request.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        if group.state is GroupState.STABLE:
            group.pending_sync.pop(member.member_id, None)
            self._output.answer(request_id, _sync_answer(group, member))
            self._renew_session(group, member, moment)
            return ErrorCode.NONE
        assert group.state is GroupState.COMPLETING_REBALANCE
        self._abandon(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_request = (request_id, context.version)
        group.pending_sync.pop(member.member_id, None)
        if member.member_id == group.leader_id and group.assignment_append is None:
            given = {entry.member_id: bytes(entry.assignment) for entry in request.assignments}
            for other in group.members.values():
                other.assignment = given.get(other.member_id, b"")
            then = AssignmentWritten(group_id=group.group_id, generation=group.generation)
            record = group_record(group.group_id, group.snapshot())
            group.assignment_append = self._output.write((record,), then, moment)
        return ErrorCode.NONE

    def assignment_written(self, then: AssignmentWritten, append_id: int, code: ErrorCode, moment: Moment) -> None:
        """The record of a generation's assignment is committed, or is not and nobody may act on it."""
        group = self.groups.get(then.group_id)
        if group is None or group.assignment_append != append_id:
            return
        assert group.generation == then.generation
        if code is not ErrorCode.NONE:
            if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
                code = ErrorCode.UNKNOWN_SERVER_ERROR  # too large for a batch: nothing a member can do about it
            for member in group.members.values():
                member.assignment = b""
                self._answer_sync(group, member, code, moment)
            self._prepare_rebalance(group, moment)
            self._complete_join_if_ready(group, moment)
            return
        group.transition(GroupState.STABLE, moment.wall_ms)
        for member in group.members.values():
            self._answer_sync(group, member, ErrorCode.NONE, moment)

    def static_member_written(self, then: StaticMemberWritten, code: ErrorCode) -> None:
        """The new id of a static member is committed, or the member has to try again."""
        answer = then.answer if code is ErrorCode.NONE else join_error(code, then.version)
        self._output.answer(then.request_id, answer)

    def _answer_sync(self, group: Group, member: Member, code: ErrorCode, moment: Moment) -> None:
        if member.sync_request is None:
            return
        request_id, _ = member.sync_request
        member.sync_request = None
        answer = _sync_answer(group, member) if code is ErrorCode.NONE else SyncGroupResponse(error_code=code)
        self._output.answer(request_id, answer)
        self._renew_session(group, member, moment)

    def _sync_deadline(self, group: Group, moment: Moment) -> None:
        """Members that got their join answer and never synced are not coming."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            member = group.members[member_id]
            self.deadlines.cancel((_MEMBER, group.group_id, member_id))
            self._abandon(member, ErrorCode.UNKNOWN_MEMBER_ID)
            group.remove(member)
        self._prepare_rebalance(group, moment)
        self._complete_join_if_ready(group, moment)

    # Staying and leaving

    def heartbeat(self, request: HeartbeatRequest, moment: Moment) -> HeartbeatResponse:
        """Handles Heartbeat; always answered at once."""
        return HeartbeatResponse(error_code=self._heartbeat(request, moment))

    def _heartbeat(self, request: HeartbeatRequest, moment: Moment) -> ErrorCode:
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        code, member = self.find_member(group, request.member_id, request.group_instance_id)
        if member is None:
            return code
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        self._renew_session(group, member, moment)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, request: LeaveGroupRequest, context: RequestContext, moment: Moment) -> LeaveGroupResponse:
        """Handles LeaveGroup, of one member (before version 3) or of many; always answered at once."""
        if not request.group_id:
            return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        identities = request.members
        if context.version < 3:
            identities = [MemberIdentity(member_id=request.member_id)]
        group = self.groups.get(request.group_id)
        answers: list[MemberResponse] = []
        for identity in identities:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            if group is not None:
                code = self._leave(group, identity, moment)
            answers.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
                )
            )
        if context.version < 3:
            return LeaveGroupResponse(error_code=answers[0].error_code)
        return LeaveGroupResponse(members=answers)

    def _leave(self, group: Group, identity: MemberIdentity, moment: Moment) -> ErrorCode:
        member_id = identity.member_id
        if not member_id and identity.group_instance_id is not None:
            member_id = group.static_members.get(identity.group_instance_id, "")
        if member_id in group.pending_members:
            self._forget_pending(group, member_id, moment)
            return ErrorCode.NONE
        code, member = self.find_member(group, member_id, identity.group_instance_id)
        if member is None:
            return code
        self._remove(group, member, moment)
        return ErrorCode.NONE

    def find_member(self, group: Group, member_id: str, instance_id: str | None) -> tuple[ErrorCode, Member | None]:
        """The member of a request, or why it is refused: unknown, or its instance id belongs to another by now."""
        if instance_id is not None:
            holder = group.static_members.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID, None
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID, None
        member = group.members.get(member_id)
        return (ErrorCode.NONE if member is not None else ErrorCode.UNKNOWN_MEMBER_ID), member

    def renew_session(self, group: Group, member: Member, moment: Moment) -> None:
        """A request of the member has shown that it lives."""
        self._renew_session(group, member, moment)

    # Deadlines

    def on_timer(self, moment: Moment) -> None:
        """Performs everything that is due."""
        while (key := self.deadlines.pop_due(moment.now_ms)) is not None:
            group = self.groups.get(key[1])
            if group is None:
                continue
            if key[0] == _JOIN:
                self._join_deadline(group, moment)
            elif key[0] == _SYNC:
                self._sync_deadline(group, moment)
            elif key[0] == _PENDING_MEMBER:
                self._forget_pending(group, key[2], moment)
            else:
                self._session_ended(group, group.members[key[2]], moment)

    def _session_ended(self, group: Group, member: Member, moment: Moment) -> None:
        """Removes a member that has not been heard of, unless it waits for an answer of ours."""
        if not member.is_new and (member.join_request is not None or member.sync_request is not None):
            self._renew_session(group, member, moment)
            return
        self._remove(group, member, moment)

    def _renew_session(self, group: Group, member: Member, moment: Moment) -> None:
        self.deadlines.set((_MEMBER, group.group_id, member.member_id), moment.now_ms + member.session_timeout_ms)

    def _expire_newcomer(self, group: Group, member: Member, moment: Moment) -> None:
        """A member that waits for its first answer and sends no heartbeats; its client may be gone."""
        deadline = moment.now_ms + self._config.new_member_join_timeout_ms
        self.deadlines.set((_MEMBER, group.group_id, member.member_id), deadline)

    # Removal

    def _remove(self, group: Group, member: Member, moment: Moment) -> None:
        """Takes a member out and rebalances the rest. A request of it that waits learns that it is not a member."""
        self.deadlines.cancel((_MEMBER, group.group_id, member.member_id))
        self._abandon(member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(group, moment)
        self._complete_join_if_ready(group, moment)

    def _forget_pending(self, group: Group, member_id: str, moment: Moment) -> None:
        self.deadlines.cancel((_PENDING_MEMBER, group.group_id, member_id))
        group.pending_members.pop(member_id, None)
        self._complete_join_if_ready(group, moment)

    def _abandon(self, member: Member, code: ErrorCode) -> None:
        """Answers what a member waits for, so that no request is left without an answer."""
        if member.join_request is not None:
            request_id, version = member.join_request
            member.join_request = None
            self._output.answer(request_id, join_error(code, version, member.member_id))
        if member.sync_request is not None:
            request_id, _ = member.sync_request
            member.sync_request = None
            self._output.answer(request_id, SyncGroupResponse(error_code=code))

    def forget(self, group: Group) -> None:
        """Drops an empty group that was deleted or has expired."""
        assert not group.members
        for member_id in group.pending_members:
            self.deadlines.cancel((_PENDING_MEMBER, group.group_id, member_id))
        self.deadlines.cancel((_JOIN, group.group_id))
        del self.groups[group.group_id]

    def resign(self, code: ErrorCode) -> None:
        """Answers everything that waits; the coordinator is not this broker any more."""
        for group in self.groups.values():
            for member in group.members.values():
                self._abandon(member, code)


def _protocols(request: JoinGroupRequest) -> tuple[tuple[str, bytes], ...]:
    return tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols)


def _rebalance_timeout(request: JoinGroupRequest) -> int:
    """Version 0 has no rebalance timeout; the session timeout served for both."""
    return request.rebalance_timeout_ms if request.rebalance_timeout_ms >= 0 else request.session_timeout_ms


def _sync_answer(group: Group, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
