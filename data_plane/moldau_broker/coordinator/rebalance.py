"""The phases of a rebalance, and the deadlines and removals that drive them. Pure; `membership` brings the requests.

Theory of operation. A generation begins with a join phase: every member sends JoinGroup and its request waits. The
phase ends when all members have come, or at the rebalance deadline without those who have not (static members stay
until their session ends, KIP-345). The answers tell the leader who is in, and each member sends SyncGroup; the
leader's brings the assignments. They become the group's state when the record that holds them is committed, and only
then are SyncGroups answered.

A member that the coordinator does not hear from for its session timeout is removed. Members that wait in the join phase
send no heartbeats and are not expired, except new ones, whose client may have gone and come back under another id.

The membership of a running rebalance is soft state: it dies with the coordinator, and members rejoin. `write` and
`answer` of the owner collect effects; nothing here waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from moldau.protocol.messages.sync_group import SyncGroupResponse
from moldau_broker.coordinator.group import Group, GroupState, Member
from moldau_broker.coordinator.group_records import group_record
from moldau_broker.coordinator.responses import join_error
from moldau_broker.coordinator.timers import Deadlines

if TYPE_CHECKING:
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.effects import Moment, StateRecord
    from moldau_broker.coordinator.group_config import GroupConfig
    from moldau_broker.coordinator.pending import AssignmentWritten, Continuation, StaticMemberWritten

MEMBER = "member"
PENDING_MEMBER = "pending member"
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


class Rebalancer:
    """All classic groups of one partition of ``__consumer_offsets``, without the requests."""

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
            self.renew_session(group, member, moment)

    def join_answer(self, group: Group, member: Member, version: int) -> JoinGroupResponse:
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
                self.deadlines.cancel((MEMBER, group.group_id, member.member_id))
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
            self._output.answer(request_id, self.join_answer(group, member, version))
            self.renew_session(group, member, moment)
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
                self.answer_sync(group, member, code, moment)
            self.prepare_rebalance(group, moment)
            self.complete_join_if_ready(group, moment)
            return
        group.transition(GroupState.STABLE, moment.wall_ms)
        for member in group.members.values():
            self.answer_sync(group, member, ErrorCode.NONE, moment)

    def static_member_written(self, then: StaticMemberWritten, code: ErrorCode) -> None:
        """The new id of a static member is committed, or the member has to try again."""
        answer = then.answer if code is ErrorCode.NONE else join_error(code, then.version)
        self._output.answer(then.request_id, answer)

    def answer_sync(self, group: Group, member: Member, code: ErrorCode, moment: Moment) -> None:
        """Answers the SyncGroup of a member that waits, if it does."""
        if member.sync_request is None:
            return
        request_id, _ = member.sync_request
        member.sync_request = None
        answer = sync_answer(group, member) if code is ErrorCode.NONE else SyncGroupResponse(error_code=code)
        self._output.answer(request_id, answer)
        self.renew_session(group, member, moment)

    def _sync_deadline(self, group: Group, moment: Moment) -> None:
        """Members that got their join answer and never synced are not coming."""
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_sync:
            return
        for member_id in list(group.pending_sync):
            member = group.members[member_id]
            self.deadlines.cancel((MEMBER, group.group_id, member_id))
            self.abandon(member, ErrorCode.UNKNOWN_MEMBER_ID)
            group.remove(member)
        self.prepare_rebalance(group, moment)
        self.complete_join_if_ready(group, moment)

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
            elif key[0] == PENDING_MEMBER:
                self.forget_pending(group, key[2], moment)
            else:
                self._session_ended(group, group.members[key[2]], moment)

    def _session_ended(self, group: Group, member: Member, moment: Moment) -> None:
        """Removes a member that has not been heard of, unless it waits for an answer of ours."""
        if not member.is_new and (member.join_request is not None or member.sync_request is not None):
            self.renew_session(group, member, moment)
            return
        self.remove(group, member, moment)

    def renew_session(self, group: Group, member: Member, moment: Moment) -> None:
        """The member has been heard of."""
        self.deadlines.set((MEMBER, group.group_id, member.member_id), moment.now_ms + member.session_timeout_ms)

    def expire_newcomer(self, group: Group, member: Member, moment: Moment) -> None:
        """A member that waits for its first answer and sends no heartbeats; its client may be gone."""
        deadline = moment.now_ms + self._config.new_member_join_timeout_ms
        self.deadlines.set((MEMBER, group.group_id, member.member_id), deadline)

    def remove(self, group: Group, member: Member, moment: Moment) -> None:
        """Takes a member out and rebalances the rest. A request of it that waits learns that it is not a member."""
        self.deadlines.cancel((MEMBER, group.group_id, member.member_id))
        self.abandon(member, ErrorCode.UNKNOWN_MEMBER_ID)
        group.remove(member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(group, moment)
        self.complete_join_if_ready(group, moment)

    def forget_pending(self, group: Group, member_id: str, moment: Moment) -> None:
        """An id that was given out will not be used."""
        self.deadlines.cancel((PENDING_MEMBER, group.group_id, member_id))
        group.pending_members.pop(member_id, None)
        self.complete_join_if_ready(group, moment)

    def abandon(self, member: Member, code: ErrorCode) -> None:
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
            self.deadlines.cancel((PENDING_MEMBER, group.group_id, member_id))
        self.deadlines.cancel((_JOIN, group.group_id))
        del self.groups[group.group_id]

    def resign(self, code: ErrorCode) -> None:
        """Answers everything that waits; the coordinator is not this broker any more."""
        for group in self.groups.values():
            for member in group.members.values():
                self.abandon(member, code)


def sync_answer(group: Group, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )
