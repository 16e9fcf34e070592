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
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from moldau_broker.coordinator.group.consumer.core.heartbeat import Draft, HeartbeatDecisions
from moldau_broker.coordinator.group.consumer.core.records import change_record
from moldau_broker.coordinator.group.consumer.core.state import (
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Current,
    GroupEpoch,
    MemberState,
    Regex,
    Subscription,
    Target,
    TargetEpoch,
)
from moldau_broker.coordinator.group.core.member_memory import GROUP_BYTES, MEMBER_BYTES
from moldau_broker.coordinator.runtime.pending import ConsumerGroupWritten
from moldau_broker.coordinator.runtime.timers import Deadlines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.consumer.core.state import Change
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext, StateRecord

_SESSION, _REBALANCE = "session", "rebalance"
_TOPIC_BYTES = 64
CHANGES_MAX = 1_000
"""Changes after which a write takes no more parked requests."""
PARKED_MAX = 10_000
"""Parked requests of a group; further ones are refused with COORDINATOR_NOT_AVAILABLE."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A heartbeat that waits for its turn or for its write."""

    request_id: int
    request: ConsumerGroupHeartbeatRequest
    context: RequestContext


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fence:
    """The removal of a member whose session or rebalance timeout has passed; ``epoch`` is the one it was stuck in."""

    member_id: str
    kind: str
    epoch: int = 0


_Operation = _Request | _Fence


@dataclass(slots=True, kw_only=True)
class _Room:
    """A group with what this coordinator knows of it beyond the log.

    Invariants: ``draft`` is set while a write is in flight; ``group`` contains committed changes only.
    """

    group: ConsumerGroup
    draft: Draft | None = None
    append_id: int | None = None
    timed_out: bool = False
    """True while a write is in flight whose requests have been answered with an error."""
    waiting: list[tuple[int, ConsumerGroupHeartbeatResponse]] = field(default_factory=list)
    """Answers that follow the commit of the write."""
    fences: list[_Fence] = field(default_factory=list)
    """Removals in the write; they are repeated if it fails."""
    parked: deque[_Operation] = field(default_factory=deque)
    looked_version: int | None = None
    """The version of the topics at the last look of a committed write."""
    held: dict[str, int] = field(default_factory=dict)
    """The approximate memory of each member."""
    held_bytes: int = 0

    @property
    def latest(self) -> ConsumerGroup:
        """The group with the changes of the write in flight."""
        return self.group if self.draft is None else self.draft.group

    @property
    def is_idle(self) -> bool:
        """True if no write is in flight and nothing is parked."""
        return self.draft is None and not self.parked


class ClassicGroups(Protocol):
    """The classic groups of the same partition: a group is of one kind at a time."""

    def has_members(self, group_id: str) -> bool:
        """Returns whether a classic group is in use, so that no consumer group may take its id."""
        ...

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Ends an unused classic group whose id a consumer group takes, and returns its tombstones."""
        ...


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
        self._rooms: dict[str, _Room] = {}
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

    def _open(self, group_id: str) -> _Room:
        room = self._rooms[group_id] = _Room(group=ConsumerGroup(group_id=group_id))
        self._hold(room, GROUP_BYTES + len(group_id))
        return room

    def _close_if_forgotten(self, room: _Room) -> None:
        if not (room.group.is_forgotten and room.is_idle):
            return
        del self._rooms[room.group.group_id]
        self._hold(room, -room.held_bytes)

    # Memory

    def _hold(self, room: _Room, more_bytes: int) -> None:
        room.held_bytes += more_bytes
        self._memory.used_bytes += more_bytes

    def _count(self, room: _Room, member_id: str) -> None:
        member = room.group.members.get(member_id)
        held = room.held.pop(member_id, 0)
        if member is not None:
            room.held[member_id] = _bytes_of(member)
        self._hold(room, room.held.get(member_id, 0) - held)

    def _has_room(self, room: _Room, member: ConsumerMember) -> ErrorCode:
        more = _bytes_of(member) - room.held.get(member.member_id, 0)
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
            self._refuse(request_id, error)
            return
        room = self._rooms.get(request.group_id)
        if room is None:
            if not self._memory.has_room(GROUP_BYTES + len(request.group_id)):
                self._effects.answer(request_id, heartbeat_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
                return
            room = self._open(request.group_id)
        member = room.group.members.get(request.member_id)
        if member is not None and request.member_epoch == member.epoch and member.epoch != LEAVE_STATIC_EPOCH:
            # The member is alive, even if its request has to be refused because the log is not available.
            self._renew(request.group_id, member.member_id, moment)
        if room.timed_out or len(room.parked) >= PARKED_MAX:
            self._effects.answer(request_id, heartbeat_error(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        room.parked.append(_Request(request_id=request_id, request=request, context=context))
        self._work(room, moment)

    def _refuse(self, request_id: int, error: KafkaError) -> None:
        self._effects.answer(request_id, heartbeat_error(error.code, error.message))

    def _work(self, room: _Room, moment: Moment) -> None:
        """Decides on what is parked, unless a write is in flight, and writes the changes."""
        if room.draft is not None:
            return
        draft = Draft(room.group)
        version = self._catalogue.version()
        waiting: list[tuple[int, ConsumerGroupHeartbeatResponse]] = []
        while room.parked and len(draft.changes) < CHANGES_MAX:
            operation = room.parked.popleft()
            if isinstance(operation, _Fence):
                self._fence(room, draft, operation)
                continue
            try:
                if not draft.group.exists and self._classic.has_members(room.group.group_id):
                    text = f"Group {room.group.group_id} is not a consumer group."
                    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
                response = self._decisions.heartbeat(
                    draft,
                    operation.request,
                    operation.context,
                    moment,
                    looks=room.looked_version != version,
                    has_room=partial(self._has_room, room),
                )
            except KafkaError as error:
                self._refuse(operation.request_id, error)
                continue
            assert response.member_id is not None
            if response.member_epoch >= 0:
                self._renew(room.group.group_id, response.member_id, moment)
                room.looked_version = version
            waiting.append((operation.request_id, response))
        if draft.changes:
            room.waiting = waiting
            self._write(room, draft, moment)
            return
        for request_id, response in waiting:
            self._effects.answer(request_id, response)
        self._close_if_forgotten(room)

    def _write(self, room: _Room, draft: Draft, moment: Moment) -> None:
        group_id = room.group.group_id
        before = () if room.group.exists else self._classic.end_records(group_id)
        room.draft = draft
        records = (*before, *(change_record(change) for change in draft.changes))
        append_id = self._effects.append(records, ConsumerGroupWritten(group_id=group_id), moment)
        self._in_flight(room, append_id)

    def _in_flight(self, room: _Room, append_id: int) -> None:
        assert room.append_id is None
        room.append_id = append_id
        self._writing[append_id] = room.group.group_id

    def _fence(self, room: _Room, draft: Draft, fence: _Fence) -> None:
        """Removes a member whose time is up, unless it has been heard of since."""
        member = draft.group.members.get(fence.member_id)
        if member is None:
            return
        if fence.kind == _SESSION and self.deadlines.get((_SESSION, room.group.group_id, fence.member_id)) is not None:
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
            for request_id, response in waiting:
                self._effects.answer(request_id, response)
            return
        room.timed_out = True
        code = _for_members(code)
        for request_id, _ in waiting:
            self._effects.answer(request_id, heartbeat_error(code))
        self._refuse_parked(room, code)

    def _refuse_parked(self, room: _Room, code: ErrorCode) -> None:
        parked, room.parked = room.parked, deque()
        for operation in parked:
            if isinstance(operation, _Request):
                self._effects.answer(operation.request_id, heartbeat_error(code))
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
        if failed:
            room.looked_version = None
            for fence in fences:
                # The member is still there: try again, unless it comes back.
                due = moment.now_ms + self._config.gone_offsets_retry_ms
                self.deadlines.set(_key(fence, group_id), due)
        else:
            moved = dict.fromkeys(change.member_id for change in draft.changes if isinstance(change, Current))
            for member_id in moved:
                self._follow(room.group, member_id, moment)
        self._work(room, moment)

    def _follow(self, group: ConsumerGroup, member_id: str, moment: Moment) -> None:
        """Brings the deadlines of a member in step with its committed state."""
        member = group.members.get(member_id)
        if member is None:
            for key in (_SESSION, _REBALANCE):
                self.deadlines.cancel((key, group.group_id, member_id))
        else:
            self._watch(group.group_id, member, moment)

    # Time

    def _renew(self, group_id: str, member_id: str, moment: Moment) -> None:
        timeout = self._decisions.session_timeout_ms(group_id)
        self.deadlines.set((_SESSION, group_id, member_id), moment.now_ms + timeout)

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
            member = None if room is None else room.group.members.get(member_id)
            if room is None or member is None:
                continue
            room.parked.append(_Fence(member_id=member_id, kind=kind, epoch=member.epoch))
            self._work(room, moment)

    # The end of groups

    def give_way(self, group_id: str, moment: Moment) -> ErrorCode:
        """Writes the end of a group without members, so that its id is free; NONE if there is no such group any more.

        Members of a classic group may then join, because their records follow in the log.
        """
        room = self._rooms.get(group_id)
        if room is None:
            return ErrorCode.NONE
        if room.group.members or room.latest.members or any(isinstance(each, _Request) for each in room.parked):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if room.latest.exists:
            if not room.is_idle:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            draft = Draft(room.group)
            self._end(draft)
            self._write(room, draft, moment)
        return ErrorCode.NONE

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Takes an empty, idle group for a deletion and returns its tombstones; `deleting` follows."""
        room = self._rooms[group_id]
        assert room.is_idle
        assert not room.group.members
        room.draft = Draft(room.group)
        self._end(room.draft)
        return tuple(change_record(change) for change in room.draft.changes)

    def deleting(self, group_id: str, append_id: int) -> None:
        """Names the write that contains the records of `end_records`."""
        room = self._rooms[group_id]
        assert room.draft is not None
        self._in_flight(room, append_id)

    def _end(self, draft: Draft) -> None:
        group = draft.group  # the original: the changes below do not concern what is read here
        for regex in sorted(group.regexes):
            draft.add(Regex(group_id=group.group_id, regex=regex, resolved=None))
        for member_id in sorted(group.targets):
            draft.add(Target(group_id=group.group_id, member_id=member_id, partitions=None))
        draft.add(TargetEpoch(group_id=group.group_id, epoch=None))
        draft.add(GroupEpoch(group_id=group.group_id, epoch=None))

    def resign(self, code: ErrorCode) -> None:
        """Answers what is parked after leadership is lost; `answer` serves what waits for a write."""
        for room in self._rooms.values():
            self._refuse_parked(room, code)
            self._hold(room, -room.held_bytes)


def heartbeat_error(code: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    """Returns an answer to a heartbeat that contains an error only."""
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)


def _for_members(code: ErrorCode) -> ErrorCode:
    """Returns the code of a failed write for members, which can do nothing about its size."""
    return ErrorCode.UNKNOWN_SERVER_ERROR if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE else code


def _key(fence: _Fence, group_id: str) -> tuple[str, str, str]:
    return fence.kind, group_id, fence.member_id


def _bytes_of(member: ConsumerMember) -> int:
    names = len(member.member_id) + len(member.client_id) + len(member.instance_id or "") + len(member.rack_id or "")
    return MEMBER_BYTES + names + len(member.regex) + sum(_TOPIC_BYTES + len(name) for name in member.topics)
