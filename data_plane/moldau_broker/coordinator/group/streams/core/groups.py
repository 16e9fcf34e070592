"""The streams groups of one partition of ``__consumer_offsets``: writes, sessions and the first assignment's delay.

Pure. Theory of operation, as for consumer groups: the state of a group is a function of the committed log. Operations
are decided on a copy of the group, and their changes become one write. A group has at most one write in flight; further
operations are parked until its outcome is known. So each decision sees the decisions before it, and clients see
committed state only.

A group id belongs to one type at a time. A streams group takes the id of an empty classic group, whose committed
offsets it keeps, and an empty streams group makes way for a classic one: so an application can change its protocol
while it is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.refusals import refusal
from moldau_broker.coordinator.group.consumer.core.served import TOPIC_BYTES, for_members
from moldau_broker.coordinator.group.core.member_memory import MEMBER_BYTES
from moldau_broker.coordinator.group.core.served_groups import (
    REBALANCE,
    SESSION,
    Fence,
    FencedGroup,
    FencingGroups,
    ServedGroups,
    WriteRecords,
)
from moldau_broker.coordinator.group.streams.core.heartbeat import Surroundings
from moldau_broker.coordinator.group.streams.core.records import change_record
from moldau_broker.coordinator.group.streams.core.state import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    StreamsCurrent,
    StreamsDraft,
    StreamsGroup,
    StreamsMetadata,
    StreamsTopology,
    end_of,
)
from moldau_broker.coordinator.runtime.effects import CreateTopics
from moldau_broker.coordinator.runtime.pending import StreamsGroupWritten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from moldau.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatRequest
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.group import Group
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.group.streams.core.heartbeat import StreamsDecisions
    from moldau_broker.coordinator.group.streams.core.internal_topics import Configured
    from moldau_broker.coordinator.group.streams.core.state import StreamsChange, StreamsMember
    from moldau_broker.coordinator.group.streams.core.topology import Topology
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext, StateRecord

_DELAY = "delay"
_KINDS = (SESSION, REBALANCE)
"""Deadlines of members; the delay before the first assignment is one of the group."""
CREATE_AGAIN_MS = 10_000
"""How long a group waits before it has internal topics created again after an attempt has failed."""


class ClassicGroups(Protocol):
    """The classic groups of the same partition."""

    def get(self, group_id: str) -> Group | None:
        """Returns a classic group that is in use; None if a streams group may take its id."""
        ...

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Ends an unused classic group whose id a streams group takes, and returns its tombstones."""
        ...

    def take_back(self, group_id: str) -> None:
        """Drops a classic group that took the id of a streams group whose end was not written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsRequest:
    """A heartbeat that waits for its turn; see ``served_groups.ParkedRequest``."""

    request_id: int
    request: StreamsGroupHeartbeatRequest
    context: RequestContext
    session_ms: int | None = None

    @property
    def member_id(self) -> str:
        """The sender."""
        return self.request.member_id

    def refused(self, code: ErrorCode, message: str | None = None) -> Response:
        """Returns the answer to the request if it is refused."""
        return refusal(self.request, for_members(code), message, version=self.context.version)


@dataclass(frozen=True, slots=True)
class DelayOver:
    """A new group has waited long enough for further members."""


Operation = StreamsRequest | Fence | DelayOver


@dataclass(slots=True, kw_only=True)
class ServedStreamsGroup(FencedGroup[StreamsGroup, StreamsDraft, StreamsRequest, Operation]):
    """A streams group with what this coordinator knows of it beyond the log; holds its topology under an empty id."""

    around: Surroundings = field(default_factory=Surroundings)
    creation: CreateTopics | None = None
    """Topics whose creation follows the commit of the write."""
    is_creating: bool = False
    create_again_ms: int = 0


class StreamsGroups(FencingGroups[ServedStreamsGroup, StreamsGroup]):
    """All streams groups of one partition. Effects go to the queue of the core."""

    def __init__(
        self,
        config: GroupConfig,
        effects: EffectQueue,
        decisions: StreamsDecisions,
        memory: MemberMemory,
        classic: ClassicGroups,
    ) -> None:
        """Starts without groups.

        Args:
            config: limits.
            effects: takes answers and writes.
            decisions: decides on requests.
            memory: the memory of all groups of the broker.
            classic: the classic groups, with which the streams groups share their ids.
        """
        super().__init__(ServedGroups(_new_group, StreamsRequest, effects, memory, config))
        self._effects = effects
        self._decisions = decisions
        self._classic = classic

    # The log

    def replay(self, change: StreamsChange) -> None:
        """Applies a committed change."""
        served = self._served.open(change.group_id)
        served.group.apply(change)
        if isinstance(change, StreamsMetadata):
            member = served.group.members.get(change.member_id)
            self._served.count(served, change.member_id, None if member is None else bytes_of(member))
        elif isinstance(change, StreamsTopology):
            self._served.count(served, "", None if change.topology is None else bytes_of_topology(change.topology))
        self._close_if_forgotten(served)

    def start(self, moment: Moment) -> None:
        """Begins to serve the loaded groups; the sessions of their members begin now."""
        for served in self._served.all.values():
            # The epoch of endpoints is not in the log. Clients read the endpoints again if it differs from theirs.
            served.around.endpoint_epoch = served.group.epoch
            for member in served.group.members.values():
                self._renew(served.group.group_id, member.member_id, moment)
                self._watch(served.group.group_id, member, moment)

    # Queries

    def has(self, group_id: str) -> bool:
        """Returns whether an id belongs to a streams group, or may belong to one when what is parked is decided."""
        served = self._served.all.get(group_id)
        return served is not None and (
            served.latest.exists or any(isinstance(each, StreamsRequest) for each in served.parked)
        )

    def for_commits(self, group_id: str) -> StreamsGroup | None:
        """Returns the group by which commits are checked."""
        return self.latest(group_id)

    def is_converting(self, group_id: str) -> bool:
        """Returns False: a streams group that makes way has no members that a classic group could take over."""
        return False

    def configured(self, group_id: str) -> Configured | None:
        """Returns the topology of a group on the topics at its last heartbeat; None if there was none."""
        served = self._served.all.get(group_id)
        return None if served is None else served.around.configured

    # Memory

    def _close_if_forgotten(self, served: ServedStreamsGroup) -> None:
        if self._served.close_if_forgotten(served):
            self.deadlines.cancel((_DELAY, served.group.group_id))

    def _has_room(self, served: ServedStreamsGroup, member: StreamsMember, topology: Topology | None) -> ErrorCode:
        more = bytes_of(member) - served.held.get(member.member_id, 0)
        if topology is not None:
            more += bytes_of_topology(topology) - served.held.get("", 0)
        return self._served.has_room(served, more)

    # Requests

    def heartbeat(
        self, request_id: int, request: StreamsGroupHeartbeatRequest, context: RequestContext, moment: Moment
    ) -> None:
        """Handles a heartbeat; it is answered when its changes are committed, or at once if there are none."""
        asked = StreamsRequest(request_id=request_id, request=request, context=context)
        try:
            self._decisions.check(request)
        except KafkaError as error:
            self._effects.answer(request_id, asked.refused(error.code, error.message))
            return
        group_id = request.group_id
        served = self._served.open_if_fits(group_id)
        member = None if served is None else served.group.members.get(request.member_id)
        if member is not None and request.member_epoch == member.epoch != LEAVE_STATIC_EPOCH:
            # The member is alive, even if its request has to be refused because the log is not available.
            asked = replace(asked, session_ms=self._renew(group_id, member.member_id, moment))
        if self._served.park(served, asked):
            assert served is not None
            self._work(served, moment)

    def _work(self, served: ServedStreamsGroup, moment: Moment) -> None:
        """Decides on what is parked, unless a write is in flight, and writes the changes."""
        if served.draft is not None:
            return
        draft = StreamsDraft(served.group)
        write = WriteRecords(change_record)
        alive: dict[str, None] = {}
        waiting: list[tuple[StreamsRequest, Response]] = []
        while served.parked and not write.is_full:
            operation = served.parked.popleft()
            if isinstance(operation, Fence):
                self._fence(served, draft, operation)
            elif isinstance(operation, DelayOver):
                self._decisions.assign_after_delay(draft, served.around, moment)
            else:
                try:
                    waiting.append((operation, self._decide(served, draft, operation, moment)))
                except KafkaError as error:
                    self._served.refuse(served, operation, error)
                    continue
                if operation.request.member_epoch > LEAVE_EPOCH:
                    alive[operation.request.member_id] = None
            write.add(draft.changes)
        served.waiting = waiting
        if draft.changes:
            self._write(served, draft, write, moment)
        for member_id in alive:
            self._renew(served.group.group_id, member_id, moment)
        if not draft.changes:
            self._served.answer_waiting(served)
            self._create(served)
            self._close_if_forgotten(served)

    def _decide(
        self, served: ServedStreamsGroup, draft: StreamsDraft, asked: StreamsRequest, moment: Moment
    ) -> Response:
        """Returns the answer to a request."""
        request, group_id = asked.request, served.group.group_id
        if not draft.group.exists and self._classic.get(group_id) is not None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
        was_empty = not draft.group.members
        response = self._decisions.heartbeat(
            draft,
            served.around,
            request,
            asked.context,
            moment,
            is_delayed=lambda: self._is_delayed(
                group_id, moment, begins=was_empty and request.member_epoch == JOIN_EPOCH
            ),
            has_room=partial(self._has_room, served),
        )

        if request.member_epoch > LEAVE_EPOCH:
            self._note_missing_topics(served, asked.context, moment)
        return response

    def _note_missing_topics(self, served: ServedStreamsGroup, context: RequestContext, moment: Moment) -> None:
        """Prepares the creation of missing internal topics, unless they are being created or could not be created."""
        configured = served.around.configured
        if configured is None or not configured.missing or context.creator is None:
            return
        if not served.is_creating and moment.now_ms >= served.create_again_ms:
            served.creation = CreateTopics(
                group_id=served.group.group_id, topics=configured.missing, creator=context.creator
            )

    def _create(self, served: ServedStreamsGroup) -> None:
        creation, served.creation = served.creation, None
        if creation is not None:
            served.is_creating = True
            self._effects.create(creation)

    def topics_created(self, group_id: str, errors: Mapping[str, ErrorCode], moment: Moment) -> None:
        """Notes the outcome of a creation; members read of errors with their next heartbeats."""
        served = self._served.all.get(group_id)
        if served is None:
            return
        served.is_creating = False
        served.create_again_ms = moment.now_ms + CREATE_AGAIN_MS if errors else 0
        served.around.creation_errors = tuple(sorted((name, code.name) for name, code in errors.items()))

    def _is_delayed(self, group_id: str, moment: Moment, *, begins: bool) -> bool:
        """Returns whether a group waits for further members; the first one begins the wait."""
        key = (_DELAY, group_id)
        if begins and self.deadlines.get(key) is None:
            delay = self._decisions.initial_delay_ms(group_id)
            if delay > 0:
                self.deadlines.set(key, moment.now_ms + delay)
        return self.deadlines.get(key) is not None

    def _write(
        self, served: ServedStreamsGroup, draft: StreamsDraft, write: WriteRecords[StreamsChange], moment: Moment
    ) -> None:
        group_id = served.group.group_id
        # An unused classic group with this id, or what is left of it, ends with the same batch.
        before = () if served.group.exists or not draft.group.exists else self._classic.end_records(group_id)
        write.add(draft.changes)
        served.draft = draft
        append_id = self._effects.append((*before, *write.records), StreamsGroupWritten(group_id=group_id), moment)
        self._served.in_flight(served, append_id)

    def _remove(self, served: ServedStreamsGroup, draft: StreamsDraft, member_id: str) -> None:
        self._decisions.fence(draft, served.around, member_id)

    # Outcomes of writes

    def answer_write(self, append_id: int, code: ErrorCode) -> None:
        """Answers the requests of a write, if it is one of a streams group; see ``ServedGroups.answer_write``.

        A topology that is committed has its internal topics created.
        """
        served = self._served.answer_write(append_id, code)
        if served is None:
            return
        if code is ErrorCode.NONE:
            self._create(served)
        else:
            served.creation = None

    def written(self, append_id: int, moment: Moment, *, failed: bool = False) -> None:
        """Goes on after the outcome of a write is known: its changes have been replayed, or are lost."""
        served = self._served.landed(append_id)
        if served is None:
            return
        group_id = served.group.group_id
        draft, fences = served.draft, served.fences
        assert draft is not None
        served.draft, served.fences = None, []
        if failed:
            served.around.configured = None
            if not draft.group.exists:
                self._classic.take_back(group_id)
            for fence in fences:
                self._served.retry_removal(fence.kind, group_id, fence.member_id, moment)
        else:
            moved = dict.fromkeys(change.member_id for change in draft.changes if isinstance(change, StreamsCurrent))
            for member_id in moved:
                self._follow(served.group, member_id, moment)
        self._work(served, moment)

    def _follow(self, group: StreamsGroup, member_id: str, moment: Moment) -> None:
        """Brings the deadlines of a member in step with its committed state."""
        member = group.members.get(member_id)
        if member is not None:
            self._watch(group.group_id, member, moment)
            return
        for kind in _KINDS:
            self.deadlines.cancel((kind, group.group_id, member_id))

    # Time

    def _renew(self, group_id: str, member_id: str, moment: Moment) -> int:
        """Begins a session again, and returns when it would have ended."""
        return self._served.renew(group_id, member_id, self._decisions.session_timeout_ms(group_id), moment)

    def _due(self, served: ServedStreamsGroup, key: tuple[str, ...]) -> object | None:
        """Returns the operation that a deadline of a member, or the delay of a new group, begins."""
        return DelayOver() if key[0] == _DELAY else super()._due(served, key)

    # The end of groups

    def give_way(self, group_id: str, moment: Moment) -> ErrorCode:
        """Writes the end of a group without members, so that its id is free; NONE if there is no such group any more.

        Members of a classic group may then join, because their records follow in the log.
        """
        served = self._served.all.get(group_id)
        if served is None:
            return ErrorCode.NONE
        code = self._served.keeps_id(served)
        if code is ErrorCode.NONE and served.latest.exists:
            draft = StreamsDraft(served.group)
            draft.add_all(end_of(served.group))
            self._write(served, draft, WriteRecords(change_record), moment)
        return code

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Takes an empty, idle group for a deletion and returns its tombstones; `deleting` follows."""
        served = self._served.all[group_id]
        assert served.is_idle
        assert not served.group.members
        served.draft = StreamsDraft(served.group)
        served.draft.add_all(end_of(served.group))
        return tuple(change_record(change) for change in served.draft.changes)


def _new_group(group_id: str) -> ServedStreamsGroup:
    return ServedStreamsGroup(group=StreamsGroup(group_id=group_id))


def bytes_of(member: StreamsMember) -> int:
    """Returns the approximate memory of a member."""
    names = (member.member_id, member.instance_id or "", member.client_id, member.rack_id or "", member.process_id)
    tags = sum(TOPIC_BYTES + len(key) + len(value) for key, value in member.tags)
    host = 0 if member.endpoint is None else len(member.endpoint.host)
    return MEMBER_BYTES + sum(map(len, names)) + tags + host


def bytes_of_topology(topology: Topology) -> int:
    """Returns the approximate memory of a topology."""
    size = 0
    for part in topology.subtopologies:
        internal = (*part.repartition_sources, *part.changelogs)
        size += MEMBER_BYTES + sum(TOPIC_BYTES + len(name) for name in (*part.sources, *part.repartition_sinks))
        size += sum(TOPIC_BYTES + len(topic.name) for topic in internal)
        size += sum(TOPIC_BYTES + len(key) + len(value) for topic in internal for key, value in topic.configs)
        size += sum(8 * (len(first) + len(second)) for first, second in part.copartitioned)
    return size
