"""The consumer groups of one partition of ``__consumer_offsets``: their writes, sessions and open requests. Pure.

Theory of operation. The state of a group is a function of the committed log: `replay` is its only mutator. A request is
decided on a copy of the group (`Draft`). Its changes become one write, and its answer waits until the write is
committed; ``served_groups`` says what waits meanwhile.
"""

from __future__ import annotations

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
from moldau_broker.coordinator.group.consumer.core.served import (
    MemberAsked,
    ServedConsumerGroup,
    bytes_of,
    heartbeat_error,
    sender_of,
)
from moldau_broker.coordinator.group.consumer.core.state import (
    JOIN_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Current,
    Subscription,
)
from moldau_broker.coordinator.group.core.served_groups import (
    REBALANCE,
    SESSION,
    Fence,
    FencingGroups,
    ServedGroups,
    WriteRecords,
)
from moldau_broker.coordinator.runtime.pending import ConsumerGroupWritten

if TYPE_CHECKING:
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.consumer.core.classic_members import ClassicRequest
    from moldau_broker.coordinator.group.consumer.core.served import ClassicGroups
    from moldau_broker.coordinator.group.consumer.core.state import Change
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext, StateRecord

_JOIN, _SYNC = "join", "sync"
_KINDS = (SESSION, REBALANCE, _JOIN, _SYNC)
"""Deadlines of members. The last two are those of classic members, by which they must join again, or send SyncGroup."""


class ConsumerGroups(FencingGroups[ServedConsumerGroup, ConsumerGroup]):
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
        super().__init__(ServedGroups(_new_group, MemberAsked, effects, memory, config))
        self._config = config
        self._effects = effects
        self._decisions = decisions
        self._catalogue = catalogue
        self._classic = classic
        self._classic_decisions = ClassicMemberDecisions(config, catalogue, decisions)

    # The log

    def replay(self, change: Change) -> None:
        """Applies a committed change."""
        served = self._served.open(change.group_id)
        served.group.apply(change)
        if isinstance(change, Subscription):
            member = served.group.members.get(change.member_id)
            self._served.count(served, change.member_id, None if member is None else bytes_of(member))
        self._served.close_if_forgotten(served)

    def start(self, moment: Moment) -> None:
        """Begins to serve the loaded groups; the sessions of their members begin now."""
        for served in self._served.all.values():
            for member in served.group.members.values():
                self._renew(served.group.group_id, member.member_id, moment)
                self._watch(served.group.group_id, member, moment)

    # Queries

    def is_converting(self, group_id: str) -> bool:
        """Returns whether a write in flight ends a group and begins a classic one."""
        served = self._served.all.get(group_id)
        return served is not None and served.converts

    def for_commits(self, group_id: str) -> ConsumerGroup | None:
        """Returns the group by which commits are checked: a classic group that begins knows the same members."""
        served = self._served.all.get(group_id)
        if served is not None and served.converts:
            return served.group
        return self.latest(group_id)

    def assignor_of(self, group: ConsumerGroup) -> str:
        """Returns the assignor of a group."""
        return self._decisions.assignor_of(group)

    # Requests

    def _has_room(self, served: ServedConsumerGroup, member: ConsumerMember) -> ErrorCode:
        return self._served.has_room(served, bytes_of(member) - served.held.get(member.member_id, 0))

    def heartbeat(
        self, request_id: int, request: ConsumerGroupHeartbeatRequest, context: RequestContext, moment: Moment
    ) -> None:
        """Handles a heartbeat; it is answered when its changes are committed, or at once if there are none."""
        try:
            self._decisions.check(request, context.version)
        except KafkaError as error:
            self._effects.answer(request_id, heartbeat_error(error.code, error.message))
            return
        asked = MemberAsked(request_id=request_id, request=request, context=context)
        self._accept(self._served.open_if_fits(request.group_id), asked, moment)

    def serves_classic(self, group_id: str) -> bool:
        """Returns whether `classic_request` takes the requests of classic members of a group."""
        served = self._served.all.get(group_id)
        return served is not None and served.serves_classic

    def classic_request(
        self, request_id: int, request: ClassicRequest, context: RequestContext, moment: Moment
    ) -> None:
        """Handles a request of a classic member of a consumer group."""
        asked = MemberAsked(request_id=request_id, request=request, context=context)
        self._accept(self._served.all[request.group_id], asked, moment)

    def _accept(self, served: ServedConsumerGroup | None, asked: MemberAsked, moment: Moment) -> None:
        member_id, epoch = sender_of(asked.request)
        member = None if served is None else served.group.members.get(member_id)
        if served is not None and member is not None and epoch == member.epoch and epoch != LEAVE_STATIC_EPOCH:
            # The member is alive, even if its request has to be refused because the log is not available.
            asked = replace(asked, session_ms=self._renew(served.group.group_id, member_id, moment))
        if self._served.park(served, asked):
            assert served is not None
            self._work(served, moment)

    def _work(self, served: ServedConsumerGroup, moment: Moment) -> None:
        """Decides on what is parked, unless a write is in flight, and writes the changes."""
        if served.draft is not None:
            return
        draft = Draft(served.group, rights=served.rights)
        version, refresh_ms = self._catalogue.version(), self._config.consumer_regex_refresh_interval_ms
        waiting: list[tuple[MemberAsked, Response]] = []
        decisions: list[Decision] = []
        alive: dict[str, None] = {}
        write = WriteRecords(change_record)
        while served.parked and not write.is_full and not draft.after:
            operation = served.parked.popleft()
            epoch, is_mixed = draft.group.epoch, bool(draft.group.members) and not draft.group.is_classic
            if isinstance(operation, Fence):
                self._fence(served, draft, operation)
            elif not isinstance(operation.request, ConsumerGroupHeartbeatRequest) and not draft.group.members:
                # A member that names an id is refused: the classic group, if there is one, does not know it.
                begins = isinstance(operation.request, JoinGroupRequest) and not operation.request.member_id
                if begins and draft.group.exists:
                    make_way(draft, moment.wall_ms)  # the id is free once that is committed
                    served.parked.appendleft(operation)
                    break
                self._classic.serve(operation.request_id, operation.request, operation.context, moment)
            else:
                try:
                    looks = served.must_look(version, moment.now_ms, refresh_ms)
                    draft, answer = self._decide(served, draft, operation, moment, looks=looks)
                except KafkaError as error:
                    self._served.refuse(served, operation, error)
                    continue
                if answer.member_id:
                    alive[answer.member_id] = None
                    if looks and answer.looked:
                        served.looked_version, served.looked_ms = version, moment.now_ms
                    decisions.append(answer)
                waiting.append((operation, answer.response))
            if is_mixed and may_downgrade(draft.group, self._config):
                downgrade(draft, epoch, self._catalogue, moment.wall_ms)
            write.add(draft.changes)
        served.waiting = waiting
        if draft.changes:
            self._write(served, draft, write, moment)
        self._note(served, alive, decisions, moment)
        if not draft.changes:
            self._served.answer_waiting(served)
            self._served.close_if_forgotten(served)

    def _decide(
        self, served: ServedConsumerGroup, draft: Draft, operation: MemberAsked, moment: Moment, *, looks: bool
    ) -> tuple[Draft, Decision]:
        """Returns the answer to a request, and the draft with its changes."""
        request, context, group_id = operation.request, operation.context, served.group.group_id
        has_room = partial(self._has_room, served)
        if not isinstance(request, ConsumerGroupHeartbeatRequest):
            return draft, self._classic_decisions.decide(
                draft, request, context, moment, looks=looks, has_room=has_room
            )
        classic = None if draft.group.exists else self._classic.get(group_id)
        if classic is None and not draft.group.exists and request.member_epoch == JOIN_EPOCH:
            draft = Draft(served.group, rights=served.rights)
            for change in taken_over(group_id, self._classic.generation(group_id)):
                draft.add(change)
        if classic is not None:
            if request.member_epoch != JOIN_EPOCH:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
            # On a draft of its own: if the request is refused, the group stays a classic one.
            draft = Draft(served.group, rights=served.rights)
            for change in upgraded(classic, self._catalogue, self._config):
                draft.add(change)
        response = self._decisions.heartbeat(draft, request, context, moment, looks=looks, has_room=has_room)
        if classic is not None:
            draft.before = self._classic.freeze(group_id)
        assert response.member_id is not None
        stays = response.member_epoch >= 0
        return draft, Decision(response=response, member_id=response.member_id if stays else "", looked=stays)

    def _note(
        self, served: ServedConsumerGroup, alive: dict[str, None], decisions: list[Decision], moment: Moment
    ) -> None:
        """Sets the deadlines of the members whose requests have been decided."""
        group_id = served.group.group_id
        for member_id in alive:
            self._renew(group_id, member_id, moment)
        for decision in decisions:
            member = served.latest.members.get(decision.member_id)
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

    def _write(self, served: ServedConsumerGroup, draft: Draft, write: WriteRecords[Change], moment: Moment) -> None:
        group_id = served.group.group_id
        before = draft.before or (() if served.group.exists else self._classic.end_records(group_id))
        served.draft, served.converts = draft, bool(draft.after)
        write.add(draft.changes)
        append_id = self._effects.append(
            (*before, *write.records, *draft.after), ConsumerGroupWritten(group_id=group_id), moment
        )
        self._served.in_flight(served, append_id)

    def _remove(self, served: ServedConsumerGroup, draft: Draft, member_id: str) -> None:
        self._decisions.fence(draft, member_id)

    # Outcomes of writes

    def written(self, append_id: int, moment: Moment, *, failed: bool = False) -> None:
        """Goes on after the outcome of a write is known: its changes have been replayed, or are lost."""
        served = self._served.landed(append_id)
        if served is None:
            return
        group_id = served.group.group_id
        draft, fences = served.draft, served.fences
        assert draft is not None
        served.draft, served.fences, served.converts = None, [], False
        if failed:
            served.looked_version = None
            if draft.before:
                self._classic.thaw(group_id, moment)
            for fence in fences:
                self._served.retry_removal(fence.kind, group_id, fence.member_id, moment)
        else:
            moved = dict.fromkeys(change.member_id for change in draft.changes if isinstance(change, Current))
            for member_id in moved:
                self._follow(served.group, member_id, moment)
            if draft.before:
                self._classic.drop(group_id)
                for member in served.group.members.values():
                    if member.classic is not None:
                        self._renew(group_id, member.member_id, moment)
            if draft.after:
                self._classic.begin(group_id, moment)
        self._work(served, moment)

    def _follow(self, group: ConsumerGroup, member_id: str, moment: Moment) -> None:
        """Brings the deadlines of a member in step with its committed state."""
        member = group.members.get(member_id)
        if member is None:
            served = self._served.all[group.group_id]
            if served.rights.pop(member_id, None) is not None:
                served.looked_version = None  # it may have kept topics from the others with its regular expression
            for kind in _KINDS:
                self.deadlines.cancel((kind, group.group_id, member_id))
        else:
            self._watch(group.group_id, member, moment)

    # Time

    def _renew(self, group_id: str, member_id: str, moment: Moment) -> int:
        """Begins a session again, and returns when it would have ended."""
        member = self._served.all[group_id].latest.members.get(member_id)
        if member is not None and member.classic is not None:
            timeout = member.classic.session_timeout_ms
        else:
            timeout = self._decisions.session_timeout_ms(group_id)
        return self._served.renew(group_id, member_id, timeout, moment)

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
            draft = Draft(served.group)
            end_group(draft)
            self._write(served, draft, WriteRecords(change_record), moment)
        return code

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Takes an empty, idle group for a deletion and returns its tombstones; `deleting` follows."""
        served = self._served.all[group_id]
        assert served.is_idle
        assert not served.group.members
        served.draft = Draft(served.group)
        end_group(served.draft)
        return tuple(change_record(change) for change in served.draft.changes)


def _new_group(group_id: str) -> ServedConsumerGroup:
    return ServedConsumerGroup(group=ConsumerGroup(group_id=group_id))
