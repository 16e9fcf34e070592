"""The consumer groups of one partition of ``__consumer_offsets``: their writes, sessions and open requests. Pure.

Theory of operation. The state of a group is a function of the committed log: `replay` is its only mutator. A request is
decided on a copy of the group (`Draft`). Its changes become one write, and its answer waits until the write is
committed. A group has at most one write in flight. Requests that arrive meanwhile are parked; then all of them are
decided on one copy, and their changes are one write again. So each decision sees the decisions before it, clients
see committed state only, and a group of many members needs few writes.

Each wait has an end: a write that is not committed within ``offsets.commit.timeout.ms`` is answered with
COORDINATOR_NOT_AVAILABLE, together with everything that is parked behind it, and further requests are refused until its
outcome is known. The sessions of members are soft state; they start over with each coordinator.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from moldau.protocol.messages.join_group import JoinGroupRequest
from moldau_broker.coordinator.group.consumer.core.classic_members import ClassicMemberDecisions, Decision
from moldau_broker.coordinator.group.consumer.core.heartbeat import Draft, HeartbeatDecisions
from moldau_broker.coordinator.group.consumer.core.migration import (
    downgrade,
    end_group,
    make_way,
    may_downgrade,
    taken_over,
    upgraded,
)
from moldau_broker.coordinator.group.consumer.core.records import change_record
from moldau_broker.coordinator.group.consumer.core.rooms import (
    Fence,
    ParkedRequest,
    Room,
    bytes_of,
    for_members,
    heartbeat_error,
    refused,
    sender_of,
)
from moldau_broker.coordinator.group.consumer.core.state import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Current,
    MemberState,
    Subscription,
)
from moldau_broker.coordinator.group.core.member_memory import GROUP_BYTES
from moldau_broker.coordinator.runtime.pending import ConsumerGroupWritten
from moldau_broker.coordinator.runtime.timers import Deadlines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.consumer.core.classic_members import ClassicRequest
    from moldau_broker.coordinator.group.consumer.core.rooms import ClassicGroups
    from moldau_broker.coordinator.group.consumer.core.state import Change
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext, StateRecord

_SESSION, _REBALANCE, _JOIN, _SYNC = "session", "rebalance", "join", "sync"
_KINDS = (_SESSION, _REBALANCE, _JOIN, _SYNC)
"""Deadlines of members. The last two are those of classic members, by which they must join again, or send SyncGroup."""
CHANGES_MAX = 1_000
"""Changes after which a write takes no more parked requests."""
PARKED_MAX = 10_000
"""Parked requests of a group; further ones are refused with COORDINATOR_NOT_AVAILABLE."""


class ConsumerGroups:
    """All consumer groups of one partition. Effects go to the queue of the core."""

    def __init__(
        self,
        config: GroupConfig,
        effects: EffectQueue,
        decisions: HeartbeatDecisions,
        catalogue: Catalogue,
        memory: MemberMemory,
        classic: ClassicGroups,
    ) -> None:
        """Starts without groups.

        Args:
            config: limits.
            effects: takes answers and writes.
            decisions: decides on requests.
            catalogue: the topics.
            memory: the memory of all groups of the broker.
            classic: the classic groups, with which the consumer groups share their ids.
        """
        self.deadlines: Deadlines[tuple[str, ...]] = Deadlines()
        self._config = config
        self._effects = effects
        self._decisions = decisions
        self._catalogue = catalogue
        self._memory = memory
        self._classic = classic
        self._classic_decisions = ClassicMemberDecisions(config, catalogue, decisions)
        self._rooms: dict[str, Room] = {}
        self._writing: dict[int, str] = {}
        """Groups by the id of their write in flight."""

    # The log

    def replay(self, change: Change) -> None:
        """Applies a committed change."""
        group_id = change.group_id
        room = self._rooms.get(group_id)
        if room is None:
            room = self._open(group_id)
        room.group.apply(change)
        if isinstance(change, Subscription):
            self._count(room, change.member_id)
        self._close_if_forgotten(room)

    def start(self, moment: Moment) -> None:
        """Begins to serve the loaded groups; the sessions of their members begin now."""
        for room in self._rooms.values():
            for member in room.group.members.values():
                self._renew(room.group.group_id, member.member_id, moment)
                self._watch(room.group.group_id, member, moment)

    def _open(self, group_id: str) -> Room:
        room = self._rooms[group_id] = Room(group=ConsumerGroup(group_id=group_id))
        self._hold(room, GROUP_BYTES + len(group_id))
        return room

    def _close_if_forgotten(self, room: Room) -> None:
        if not (room.group.is_forgotten and room.is_idle):
            return
        del self._rooms[room.group.group_id]
        self._hold(room, -room.held_bytes)

    # Memory

    def _hold(self, room: Room, more_bytes: int) -> None:
        room.held_bytes += more_bytes
        self._memory.used_bytes += more_bytes

    def _count(self, room: Room, member_id: str) -> None:
        member = room.group.members.get(member_id)
        held = room.held.pop(member_id, 0)
        if member is not None:
            room.held[member_id] = bytes_of(member)
        self._hold(room, room.held.get(member_id, 0) - held)

    def _has_room(self, room: Room, member: ConsumerMember) -> ErrorCode:
        more = bytes_of(member) - room.held.get(member.member_id, 0)
        if more <= 0:
            return ErrorCode.NONE
        if room.held_bytes + more > self._config.metadata_bytes_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE if self._memory.has_room(more) else ErrorCode.COORDINATOR_NOT_AVAILABLE

    # Queries

    @property
    def committed(self) -> Mapping[str, ConsumerGroup]:
        """The groups that the committed log contains, by id."""
        return {group_id: room.group for group_id, room in self._rooms.items() if room.group.exists}

    def get(self, group_id: str) -> ConsumerGroup | None:
        """Returns a group as the committed log has it."""
        room = self._rooms.get(group_id)
        return None if room is None or not room.group.exists else room.group

    def latest(self, group_id: str) -> ConsumerGroup | None:
        """Returns a group with the changes of its write in flight: commits of offsets follow that write in the log."""
        room = self._rooms.get(group_id)
        return None if room is None or not room.latest.exists else room.latest

    def is_converting(self, group_id: str) -> bool:
        """Returns whether a write in flight ends a group and begins a classic one."""
        room = self._rooms.get(group_id)
        return room is not None and room.converts

    def for_commits(self, group_id: str) -> ConsumerGroup | None:
        """Returns the group by which commits are checked: a classic group that begins knows the same members."""
        room = self._rooms.get(group_id)
        if room is not None and room.converts:
            return room.group
        return self.latest(group_id)

    def assignor_of(self, group: ConsumerGroup) -> str:
        """Returns the assignor of a group."""
        return self._decisions.assignor_of(group)

    def is_deletable(self, group_id: str) -> ErrorCode | None:
        """Returns whether a group can be deleted now; None if it is no consumer group."""
        room = self._rooms.get(group_id)
        if room is None or not (room.group.exists or room.latest.exists):
            return None
        if room.latest.members or room.group.members:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE if room.is_idle else ErrorCode.COORDINATOR_NOT_AVAILABLE

    # Requests

    def heartbeat(
        self, request_id: int, request: ConsumerGroupHeartbeatRequest, context: RequestContext, moment: Moment
    ) -> None:
        """Handles a heartbeat; it is answered when its changes are committed, or at once if there are none."""
        try:
            self._decisions.check(request, context.version)
        except KafkaError as error:
            self._effects.answer(request_id, heartbeat_error(error.code, error.message))
            return
        room = self._rooms.get(request.group_id)
        if room is None:
            if not self._memory.has_room(GROUP_BYTES + len(request.group_id)):
                self._effects.answer(request_id, heartbeat_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return
            room = self._open(request.group_id)
        self._accept(room, ParkedRequest(request_id=request_id, request=request, context=context), moment)

    def serves_classic(self, group_id: str) -> bool:
        """Returns whether `classic_request` takes the requests of classic members of a group."""
        room = self._rooms.get(group_id)
        return room is not None and room.serves_classic

    def classic_request(
        self, request_id: int, request: ClassicRequest, context: RequestContext, moment: Moment
    ) -> None:
        """Handles a request of a classic member of a consumer group."""
        room = self._rooms[request.group_id]
        self._accept(room, ParkedRequest(request_id=request_id, request=request, context=context), moment)

    def _accept(self, room: Room, parked: ParkedRequest, moment: Moment) -> None:
        member_id, epoch = sender_of(parked.request)
        member = room.group.members.get(member_id)
        if member is not None and epoch == member.epoch and epoch != LEAVE_STATIC_EPOCH:
            # The member is alive, even if its request has to be refused because the log is not available.
            parked = replace(parked, session_ms=self._renew(room.group.group_id, member.member_id, moment))
        if room.timed_out or len(room.parked) >= PARKED_MAX:
            self._effects.answer(parked.request_id, refused(parked, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        room.parked.append(parked)
        self._work(room, moment)

    def _work(self, room: Room, moment: Moment) -> None:
        """Decides on what is parked, unless a write is in flight, and writes the changes."""
        if room.draft is not None:
            return
        draft = Draft(room.group, rights=room.rights)
        version, refresh_ms = self._catalogue.version(), self._config.consumer_regex_refresh_interval_ms
        waiting: list[tuple[ParkedRequest, Response]] = []
        decisions: list[Decision] = []
        alive: dict[str, None] = {}
        while room.parked and len(draft.changes) < CHANGES_MAX and not draft.after:
            operation = room.parked.popleft()
            epoch, is_mixed = draft.group.epoch, bool(draft.group.members) and not draft.group.is_classic
            if isinstance(operation, Fence):
                self._fence(room, draft, operation)
            elif not isinstance(operation.request, ConsumerGroupHeartbeatRequest) and not draft.group.members:
                if isinstance(operation.request, JoinGroupRequest) and draft.group.exists:
                    make_way(draft, moment.wall_ms)  # the id is free once that is committed
                    room.parked.appendleft(operation)
                    break
                self._classic.serve(operation.request_id, operation.request, operation.context, moment)
            else:
                try:
                    looks = room.must_look(version, moment.now_ms, refresh_ms)
                    draft, answer = self._decide(room, draft, operation, moment, looks=looks)
                except KafkaError as error:
                    self._effects.answer(operation.request_id, refused(operation, error.code, error.message))
                    if operation.session_ms is not None and not error.code.retriable:
                        key = (_SESSION, room.group.group_id, sender_of(operation.request)[0])
                        self.deadlines.put_back(key, operation.session_ms)
                    continue
                if answer.member_id:
                    alive[answer.member_id] = None
                    if looks:
                        room.looked_version, room.looked_ms = version, moment.now_ms
                    decisions.append(answer)
                waiting.append((operation, answer.response))
            if is_mixed and may_downgrade(draft.group, self._config):
                downgrade(draft, epoch, self._catalogue, moment.wall_ms)
        if draft.changes:
            room.waiting = waiting
            self._write(room, draft, moment)
        self._note(room, alive, decisions, moment)
        if not draft.changes:
            for operation, response in waiting:
                self._effects.answer(operation.request_id, response)
            self._close_if_forgotten(room)

    def _decide(
        self, room: Room, draft: Draft, operation: ParkedRequest, moment: Moment, *, looks: bool
    ) -> tuple[Draft, Decision]:
        """Returns the answer to a request, and the draft with its changes."""
        request, context, group_id = operation.request, operation.context, room.group.group_id
        has_room = partial(self._has_room, room)
        if not isinstance(request, ConsumerGroupHeartbeatRequest):
            return draft, self._classic_decisions.decide(
                draft, request, context, moment, looks=looks, has_room=has_room
            )
        classic = None if draft.group.exists else self._classic.get(group_id)
        if classic is None and not draft.group.exists and request.member_epoch == JOIN_EPOCH:
            draft = Draft(room.group, rights=room.rights)
            for change in taken_over(group_id, self._classic.generation(group_id)):
                draft.add(change)
        if classic is not None:
            if request.member_epoch != JOIN_EPOCH:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            # On a draft of its own: if the request is refused, the group stays a classic one.
            draft = Draft(room.group, rights=room.rights)
            for change in upgraded(classic, self._catalogue, self._config):
                draft.add(change)
        response = self._decisions.heartbeat(draft, request, context, moment, looks=looks, has_room=has_room)
        if classic is not None:
            draft.before = self._classic.freeze(group_id)
        assert response.member_id is not None
        return draft, Decision(response=response, member_id=response.member_id if response.member_epoch >= 0 else "")

    def _note(self, room: Room, alive: dict[str, None], decisions: list[Decision], moment: Moment) -> None:
        """Sets the deadlines of the members whose requests have been decided."""
        group_id = room.group.group_id
        for member_id in alive:
            self._renew(group_id, member_id, moment)
        for decision in decisions:
            member = room.latest.members.get(decision.member_id)
            if member is None or member.classic is None:
                continue
            join, sync = (_JOIN, group_id, member.member_id), (_SYNC, group_id, member.member_id)
            due = moment.now_ms + member.rebalance_timeout_ms
            if decision.joined:
                self.deadlines.cancel(join)
                self.deadlines.set(sync, due)
            elif decision.must_join and self.deadlines.get(join) is None:
                self.deadlines.set(join, due)
            if decision.synced:
                self.deadlines.cancel(sync)

    def _write(self, room: Room, draft: Draft, moment: Moment) -> None:
        group_id = room.group.group_id
        before = draft.before or (() if room.group.exists else self._classic.end_records(group_id))
        room.draft, room.converts = draft, bool(draft.after)
        records = (*before, *(change_record(change) for change in draft.changes), *draft.after)
        append_id = self._effects.append(records, ConsumerGroupWritten(group_id=group_id), moment)
        self._in_flight(room, append_id)

    def _in_flight(self, room: Room, append_id: int) -> None:
        assert room.append_id is None
        room.append_id = append_id
        self._writing[append_id] = room.group.group_id

    def _fence(self, room: Room, draft: Draft, fence: Fence) -> None:
        """Removes a member whose time is up, unless it has been heard of since."""
        member = draft.group.members.get(fence.member_id)
        if member is None:
            return
        key = _key(fence, room.group.group_id)
        if fence.kind != _REBALANCE and self.deadlines.get(key) is not None:
            return
        stuck = member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch == fence.epoch
        if fence.kind == _REBALANCE and not stuck:
            return
        self._decisions.fence(draft, fence.member_id)
        room.fences.append(fence)

    # Outcomes of writes

    def settle(self, append_id: int, code: ErrorCode) -> None:
        """Answers the requests of a write, if it is one of a consumer group.

        ``code`` is not NONE if the write has failed or takes too long; then what is parked is refused too.
        """
        group_id = self._writing.get(append_id)
        if group_id is None:
            return
        room = self._rooms[group_id]
        waiting, room.waiting = room.waiting, []
        if code is ErrorCode.NONE:
            for parked, response in waiting:
                self._effects.answer(parked.request_id, response)
            return
        room.timed_out = True
        code = for_members(code)
        for parked, _ in waiting:
            self._effects.answer(parked.request_id, refused(parked, code))
        self._refuse_parked(room, code)

    def _refuse_parked(self, room: Room, code: ErrorCode) -> None:
        parked, room.parked = room.parked, deque()
        for operation in parked:
            if isinstance(operation, ParkedRequest):
                self._effects.answer(operation.request_id, refused(operation, code))
            else:
                room.parked.append(operation)

    def written(self, append_id: int, moment: Moment, *, failed: bool = False) -> None:
        """Goes on after the outcome of a write is known: its changes have been replayed, or are lost."""
        group_id = self._writing.pop(append_id, None)
        if group_id is None:
            return
        room = self._rooms[group_id]
        assert room.append_id == append_id
        draft, fences = room.draft, room.fences
        assert draft is not None
        room.draft, room.append_id, room.timed_out, room.fences = None, None, False, []
        room.converts = False
        if failed:
            room.looked_version = None
            if draft.before:
                self._classic.thaw(group_id, moment)
            for fence in fences:
                # The member is still there: try again, unless it comes back.
                due = moment.now_ms + self._config.gone_offsets_retry_ms
                self.deadlines.set(_key(fence, group_id), due)
        else:
            moved = dict.fromkeys(change.member_id for change in draft.changes if isinstance(change, Current))
            for member_id in moved:
                self._follow(room.group, member_id, moment)
            if draft.before:
                self._classic.drop(group_id)
                for member in room.group.members.values():
                    if member.classic is not None:
                        self._renew(group_id, member.member_id, moment)
            if draft.after:
                self._classic.begin(group_id, moment)
        self._work(room, moment)

    def _follow(self, group: ConsumerGroup, member_id: str, moment: Moment) -> None:
        """Brings the deadlines of a member in step with its committed state."""
        member = group.members.get(member_id)
        if member is None:
            room = self._rooms[group.group_id]
            if room.rights.pop(member_id, None) is not None:
                room.looked_version = None  # it may have kept topics from the others with its regular expression
            for kind in _KINDS:
                self.deadlines.cancel((kind, group.group_id, member_id))
        else:
            self._watch(group.group_id, member, moment)

    # Time

    def _renew(self, group_id: str, member_id: str, moment: Moment) -> int:
        """Begins a session again, and returns when it would have ended."""
        member = self._rooms[group_id].latest.members.get(member_id)
        if member is not None and member.classic is not None:
            timeout = member.classic.session_timeout_ms
        else:
            timeout = self._decisions.session_timeout_ms(group_id)
        return self.deadlines.renew((_SESSION, group_id, member_id), moment.now_ms + timeout, moment.now_ms)

    def _watch(self, group_id: str, member: ConsumerMember, moment: Moment) -> None:
        """Sets the deadline of a member that has to release partitions, or cancels it."""
        key = (_REBALANCE, group_id, member.member_id)
        if member.state is not MemberState.UNREVOKED_PARTITIONS:
            self.deadlines.cancel(key)
        else:
            self.deadlines.set(key, moment.now_ms + member.rebalance_timeout_ms)

    def on_timer(self, moment: Moment) -> None:
        """Removes the members whose time is up."""
        while (key := self.deadlines.pop_due(moment.now_ms)) is not None:
            kind, group_id, member_id = key
            room = self._rooms.get(group_id)
            if room is None:
                continue
            # A member that joins, or leaves, with the write in flight: that write may fail.
            member = room.group.members.get(member_id) or room.latest.members.get(member_id)
            if member is None:
                continue
            room.parked.append(Fence(member_id=member_id, kind=kind, epoch=member.epoch))
            self._work(room, moment)

    # The end of groups

    def give_way(self, group_id: str, moment: Moment) -> ErrorCode:
        """Writes the end of a group without members, so that its id is free; NONE if there is no such group any more.

        Members of a classic group may then join, because their records follow in the log.
        """
        room = self._rooms.get(group_id)
        if room is None:
            return ErrorCode.NONE
        if room.group.members or room.latest.members or any(isinstance(each, ParkedRequest) for each in room.parked):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if room.latest.exists:
            if not room.is_idle:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            draft = Draft(room.group)
            end_group(draft)
            self._write(room, draft, moment)
        return ErrorCode.NONE

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Takes an empty, idle group for a deletion and returns its tombstones; `deleting` follows."""
        room = self._rooms[group_id]
        assert room.is_idle
        assert not room.group.members
        room.draft = Draft(room.group)
        end_group(room.draft)
        return tuple(change_record(change) for change in room.draft.changes)

    def deleting(self, group_id: str, append_id: int) -> None:
        """Names the write that contains the records of `end_records`."""
        room = self._rooms[group_id]
        assert room.draft is not None
        self._in_flight(room, append_id)

    def resign(self, code: ErrorCode) -> None:
        """Answers what is parked after leadership is lost; `answer` serves what waits for a write."""
        for room in self._rooms.values():
            self._refuse_parked(room, code)
            self._hold(room, -room.held_bytes)


def _key(fence: Fence, group_id: str) -> tuple[str, str, str]:
    return fence.kind, group_id, fence.member_id
