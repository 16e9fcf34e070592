"""The phases of a rebalance, and the deadlines and removals that drive them. Pure.

Theory of operation. A generation begins with a join phase: every member sends JoinGroup, and its request waits. The
phase ends when all members have joined, or at the rebalance deadline without the absent members (static members stay
until their session ends, KIP-345). The JoinGroup answer of the leader lists the members. Each member then sends
SyncGroup; the request of the leader contains the assignments. They become the group's state when their record is
committed, and only then are the SyncGroups answered.

The coordinator removes a member that sends nothing for its session timeout. Members that wait in the join phase send
no heartbeats and do not expire, except new ones, whose client may have come back under another id.

The membership of a running rebalance is soft state: it is lost with the coordinator, and members rejoin. `membership`
handles the requests of members; effects go to the `EffectQueue` of the core.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau_broker.coordinator.group.core.group import Group, GroupState, Member
from moldau_broker.coordinator.group.core.records import group_record
from moldau_broker.coordinator.group.core.responses import join_error
from moldau_broker.coordinator.runtime.timers import Deadlines

if TYPE_CHECKING:
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.runtime.effects import Moment
    from moldau_broker.coordinator.runtime.pending import AssignmentWritten, StaticMemberWritten

MEMBER = "member"
PENDING_MEMBER = "pending member"
ABSENT_STATIC_WAIT_MIN_MS = 1_000
"""The minimum wait of a join phase for static members, whose own rebalance timeout may be 0."""
_GENERATION_MAX = (1 << 31) - 1
"""The greatest generation of the protocol; the next one is 1 again. No member is so late that it could be mistaken."""
_JOIN = "join phase"
_SYNC = "sync phase"


class Rebalancer:
    """The classic groups of one partition of ``__consumer_offsets``: their phases and deadlines."""

    def __init__(self, config: GroupConfig, effects: EffectQueue) -> None:
        """Starts without groups; puts answers and writes into ``effects``."""
        self.groups: dict[str, Group] = {}
        self.deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._config = config
        self._effects = effects

    def load(self, group: Group, moment: Moment) -> None:
        """Adds a group from the log; the sessions of its members start over."""
        self.groups[group.group_id] = group
        for member in group.members.values():
            self.renew_session(group, member, moment)

    def suspend(self, group_id: str, code: ErrorCode) -> Group:
        """Takes a group out of service, and answers its open requests with ``code``."""
        group = self.groups.pop(group_id)
        for member in group.members.values():
            self.abandon(group, member, code)
            self.deadlines.cancel((MEMBER, group_id, member.member_id))
        for member_id in list(group.pending_members):
            self.deadlines.cancel((PENDING_MEMBER, group_id, member_id))
            group.expect_no_more(member_id)
        for phase in (_JOIN, _SYNC):
            self.deadlines.cancel((phase, group_id))
        return group

    def resume(self, group: Group, moment: Moment) -> None:
        """Serves a suspended group again; a rebalance that was under way starts over."""
        self.load(group, moment)
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.prepare_rebalance(group, moment)
        elif group.state is GroupState.PREPARING_REBALANCE:
            group.initial_delay_left_ms = None
            self.deadlines.set((_JOIN, group.group_id), moment.now_ms + group.rebalance_timeout_ms)
        elif group.pending_sync:
            self.deadlines.set((_SYNC, group.group_id), moment.now_ms + group.rebalance_timeout_ms)

    def join_answer(self, group: Group, member: Member, version: int) -> JoinGroupResponse:
        """Returns a member's answer about the generation; only the answer of the leader lists the members."""
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

    def prepare_rebalance(self, group: Group, moment: Moment) -> None:
        """Begins a join phase unless one is under way."""
        if group.state is GroupState.PREPARING_REBALANCE:
            return
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
                self.answer_sync(group, member, ErrorCode.REBALANCE_IN_PROGRESS, moment)
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

    def complete_join_if_ready(self, group: Group, moment: Moment) -> None:
        """Ends the join phase if all members have joined and the initial delay of a new group is over."""
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
        """Ends the join phase: the members that have joined form the next generation."""
        assert group.state is GroupState.PREPARING_REBALANCE
        group.initial_delay_left_ms = None
        for member in list(group.members.values()):
            if member.join_request is None and not member.is_static:
                self.deadlines.cancel((MEMBER, group.group_id, member.member_id))
                group.remove(member)
        if group.members and not self._elect_joined_leader(group):
            # Only static members are left, and none has joined: wait for one, or for the end of their sessions.
            wait_ms = max(group.rebalance_timeout_ms, ABSENT_STATIC_WAIT_MIN_MS)
            self.deadlines.set((_JOIN, group.group_id), moment.now_ms + wait_ms)
            return
        self.deadlines.cancel((_JOIN, group.group_id))
        group.generation = 1 if group.generation >= _GENERATION_MAX else group.generation + 1
        if not group.members:
            group.protocol_name = None
            group.transition(GroupState.EMPTY, moment.wall_ms)
            self._effects.append((group_record(group.group_id, group.snapshot()),), None, moment)
            return
        group.protocol_name = group.select_protocol()
        group.transition(GroupState.COMPLETING_REBALANCE, moment.wall_ms)
        for member in group.members.values():
            group.pending_sync[member.member_id] = None
            waiting = group.end_join(member)
            if waiting is None:
                continue
            request_id, version = waiting
            member.is_new = False
            self._effects.answer(request_id, self.join_answer(group, member, version))
            self.renew_session(group, member, moment)
        self.deadlines.set((_SYNC, group.group_id), moment.now_ms + group.rebalance_timeout_ms)

    def _elect_joined_leader(self, group: Group) -> bool:
        """Makes a member that has joined the leader; returns False if no member has joined."""
        leader = group.members.get(group.leader_id or "")
        if leader is not None and leader.join_request is not None:
            return True
        joined = next((member for member in group.members.values() if member.join_request is not None), None)
        if joined is not None:
            group.leader_id = joined.member_id
        return joined is not None

    def assignment_written(self, then: AssignmentWritten, append_id: int, code: ErrorCode, moment: Moment) -> None:
        """Answers the SyncGroups of a generation after the write of its assignment has been committed or has failed."""
        group = self.groups.get(then.group_id)
        if group is None or group.assignment_append != append_id:
            return
        assert group.generation == then.generation
        if code is not ErrorCode.NONE:
            if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE:
                code = ErrorCode.UNKNOWN_SERVER_ERROR  # too large for a batch, which members cannot change
            for member in group.members.values():
                member.assignment = b""
                self.answer_sync(group, member, code, moment)
            self.prepare_rebalance(group, moment)
            self.complete_join_if_ready(group, moment)
            return
        group.transition(GroupState.STABLE, moment.wall_ms)
        for member in group.members.values():
            self.answer_sync(group, member, ErrorCode.NONE, moment)

    def static_member_written(self, then: StaticMemberWritten, code: ErrorCode) -> None:
        """Answers the JoinGroup of a static member after the write of its new id."""
        answer = then.answer if code is ErrorCode.NONE else join_error(code, then.version)
        self._effects.answer(then.request_id, answer)

    def answer_sync(self, group: Group, member: Member, code: ErrorCode, moment: Moment) -> None:
        """Answers the SyncGroup of a member, if one waits."""
        if member.sync_request is None:
            return
        request_id, _ = member.sync_request
        member.sync_request = None
        answer = sync_answer(group, member) if code is ErrorCode.NONE else SyncGroupResponse(error_code=code)
        self._effects.answer(request_id, answer)
        self.renew_session(group, member, moment)

    def _sync_deadline(self, group: Group, moment: Moment) -> None:
        """Removes the members that got their JoinGroup answer but sent no SyncGroup, and rebalances."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            member = group.members[member_id]
            self.deadlines.cancel((MEMBER, group.group_id, member_id))
            self.abandon(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
            group.remove(member)
        self.prepare_rebalance(group, moment)
        self.complete_join_if_ready(group, moment)

    def on_timer(self, moment: Moment) -> None:
        """Performs what is due."""
        while (key := self.deadlines.pop_due(moment.now_ms)) is not None:
            group = self.groups.get(key[1])
            if group is None:
                continue
            if key[0] == _JOIN:
                self._join_deadline(group, moment)
            elif key[0] == _SYNC:
                self._sync_deadline(group, moment)
            elif key[0] == PENDING_MEMBER:
                self.forget_pending(group, key[2], moment)
            else:
                self._session_ended(group, group.members[key[2]], moment)

    def _session_ended(self, group: Group, member: Member, moment: Moment) -> None:
        """Removes a member whose session timed out, unless the member waits for an answer."""
        if not member.is_new and (member.join_request is not None or member.sync_request is not None):
            self.renew_session(group, member, moment)
            return
        self.remove(group, member, moment)

    def renew_session(self, group: Group, member: Member, moment: Moment) -> None:
        """Starts the session timeout of a member over."""
        self.deadlines.set((MEMBER, group.group_id, member.member_id), moment.now_ms + member.session_timeout_ms)

    def expire_newcomer(self, group: Group, member: Member, moment: Moment) -> None:
        """Sets the deadline of a new member, which sends no heartbeats before its first answer."""
        deadline = moment.now_ms + self._config.new_member_join_timeout_ms
        self.deadlines.set((MEMBER, group.group_id, member.member_id), deadline)

    def remove(self, group: Group, member: Member, moment: Moment) -> None:
        """Removes a member and rebalances the others; answers its open request with UNKNOWN_MEMBER_ID."""
        self.deadlines.cancel((MEMBER, group.group_id, member.member_id))
        self.abandon(group, member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(group, moment)
        self.complete_join_if_ready(group, moment)

    def forget_pending(self, group: Group, member_id: str, moment: Moment) -> None:
        """Drops a pending member id that its client will not use."""
        self.deadlines.cancel((PENDING_MEMBER, group.group_id, member_id))
        group.expect_no_more(member_id)
        self.complete_join_if_ready(group, moment)

    def abandon(self, group: Group, member: Member, code: ErrorCode) -> None:
        """Answers the open request of a member with an error."""
        waiting = group.end_join(member)
        if waiting is not None:
            request_id, version = waiting
            self._effects.answer(request_id, join_error(code, version, member.member_id))
        if member.sync_request is not None:
            request_id, _ = member.sync_request
            member.sync_request = None
            self._effects.answer(request_id, SyncGroupResponse(error_code=code))

    def forget(self, group: Group) -> None:
        """Drops an empty group after its deletion or expiry."""
        assert not group.members
        for member_id in group.pending_members:
            self.deadlines.cancel((PENDING_MEMBER, group.group_id, member_id))
        self.deadlines.cancel((_JOIN, group.group_id))
        del self.groups[group.group_id]
        group.release()

    def resign(self, code: ErrorCode) -> None:
        """Answers all open requests after leadership is lost."""
        for group in self.groups.values():
            for member in group.members.values():
                self.abandon(group, member, code)
            group.release()


def sync_answer(group: Group, member: Member) -> SyncGroupResponse:
    """Returns the SyncGroup answer with the assignment of a member."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
