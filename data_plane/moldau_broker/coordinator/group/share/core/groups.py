"""The share groups of one partition of ``__consumer_offsets``: writes, sessions, and questions to share coordinators.

Pure. Theory of operation, as for consumer groups: the state of a group is a function of the committed log. Operations
are decided on a copy of the group, and their changes become one write. A group has at most one write in flight; further
operations are parked until its outcome is known. So each decision sees the decisions before it, and clients see
committed state only.

A partition is assigned after its state has begun. The share coordinator, which may be another broker, begins it: the
effect `AskShareState` follows the commit that marks the partition as ``initializing``, and the answer comes back as an
operation. An answer that never arrives does no harm, because the question can be repeated: a new coordinator asks again
with the next heartbeat.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from moldau.protocol.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from moldau.protocol.messages.initialize_share_group_state import InitializeShareGroupStateRequest
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from moldau.protocol.refusals import refusal
from moldau_broker.coordinator.group.consumer.core.served import TOPIC_BYTES, for_members
from moldau_broker.coordinator.group.core.member_memory import MEMBER_BYTES
from moldau_broker.coordinator.group.core.served_groups import (
    SESSION,
    GroupsOfType,
    ServedGroup,
    ServedGroups,
    WriteRecords,
)
from moldau_broker.coordinator.group.share.core import administration
from moldau_broker.coordinator.group.share.core.questions import Question, begin_request, codes_of, delete_request
from moldau_broker.coordinator.group.share.core.records import change_record
from moldau_broker.coordinator.group.share.core.state import (
    LEAVE_EPOCH,
    ShareDraft,
    ShareGroup,
    ShareStates,
    ShareSubscription,
)
from moldau_broker.coordinator.group.share.core.state_partitions import (
    first_offsets,
    not_begun,
    to_begin,
    topic_ids_of,
    with_beginning,
    with_begun,
    with_failed,
    without_topics,
)
from moldau_broker.coordinator.runtime.effects import AskShareState
from moldau_broker.coordinator.runtime.pending import ShareGroupWritten

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.consumer.core.catalogue import Catalogue
    from moldau_broker.coordinator.group.core.config import GroupConfig
    from moldau_broker.coordinator.group.core.effect_queue import EffectQueue
    from moldau_broker.coordinator.group.core.member_memory import MemberMemory
    from moldau_broker.coordinator.group.share.core.administration import AdminRequest, Codes, Plan
    from moldau_broker.coordinator.group.share.core.heartbeat import ShareDecisions
    from moldau_broker.coordinator.group.share.core.state import ShareChange, ShareMember
    from moldau_broker.coordinator.group.share.core.state_partitions import ByTopic, FirstOffsets
    from moldau_broker.coordinator.runtime.effects import Moment, RequestContext

_TOPICS = "topics"
"""The kind of deadline at which a group looks again for topics that are gone."""
ASK_AGAIN_MS = 1_000
"""How long a group waits before it asks again after a share coordinator has refused a share-partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """A request about one group; see ``served_groups.ParkedRequest``."""

    request_id: int
    request: ShareGroupHeartbeatRequest | AdminRequest
    version: int
    context: RequestContext | None = None
    session_ms: int | None = None

    @property
    def member_id(self) -> str:
        """The sender of a heartbeat; empty for a request of an administrator."""
        return self.request.member_id if isinstance(self.request, ShareGroupHeartbeatRequest) else ""

    def refused(self, code: ErrorCode, message: str | None = None) -> Response:
        """Returns the answer to the request if it is refused."""
        return refusal(self.request, for_members(code), message, version=self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The session of a member has ended."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAnswer:
    """The answer of a share coordinator to a question."""

    question: Question
    codes: Codes


@dataclass(frozen=True, slots=True)
class TopicsGone:
    """Topics have been deleted."""


Operation = ShareRequest | Expiry | ShareAnswer | TopicsGone


@dataclass(slots=True, kw_only=True)
class ServedShareGroup(ServedGroup[ShareGroup, ShareDraft, ShareRequest, Operation]):
    """A share group with what this coordinator knows of it beyond the log."""

    questions: list[Question] = field(default_factory=list)
    """Questions that follow the commit of the write."""
    expiries: list[Expiry] = field(default_factory=list)
    """Removals in the write; they are repeated if it fails."""
    looked_version: int | None = None
    first_offsets: FirstOffsets = field(default_factory=dict)
    """The start offsets of states that the share coordinator has been asked to begin; kept until the log says begun."""
    is_beginning: bool = False
    """Whether the share coordinator has been asked to begin states, and has not answered."""
    ask_again_ms: int = 0

    @property
    def is_used(self) -> bool:
        """True if the id belongs to a share group, or may belong to one when what is under way is done."""
        return self.latest.exists or self.group.exists or bool(self.parked)


class ShareGroups(GroupsOfType[ServedShareGroup, ShareGroup]):
    """All share groups of one partition. Effects go to the queue of the core."""

    def __init__(
        self,
        config: GroupConfig,
        effects: EffectQueue,
        decisions: ShareDecisions,
        catalogue: Catalogue,
        memory: MemberMemory,
    ) -> None:
        """Starts without groups.

        Args:
            config: limits.
            effects: takes answers, writes and questions.
            decisions: decides on requests of members.
            catalogue: the topics.
            memory: the memory of all groups of the broker.
        """
        super().__init__(ServedGroups(_new_group, ShareRequest, effects, memory, config))
        self._effects = effects
        self._decisions = decisions
        self._catalogue = catalogue
        self._asked: dict[int, Question] = {}
        """Questions to share coordinators, by id."""
        self._next_question_id = 0

    # The log

    def replay(self, change: ShareChange) -> None:
        """Applies a committed change."""
        served = self._served.open(change.group_id)
        served.group.apply(change)
        if isinstance(change, ShareSubscription):
            member = served.group.members.get(change.member_id)
            self._served.count(served, change.member_id, None if member is None else bytes_of(member))
        self._served.close_if_forgotten(served)

    def start(self, moment: Moment) -> None:
        """Begins to serve the loaded groups; the sessions of their members begin now."""
        for served in list(self._served.all.values()):
            for member_id in served.group.members:
                self._renew(served.group.group_id, member_id, moment)
        self.topics_deleted(moment)

    def topics_deleted(self, moment: Moment) -> None:
        """Forgets the share-partitions of deleted topics."""
        for served in list(self._served.all.values()):
            if self._gone(served.latest):
                served.parked.append(TopicsGone())
                self._work(served, moment)

    def _gone(self, group: ShareGroup) -> list[UUID]:
        return [each for each in sorted(topic_ids_of(group.states)) if self._catalogue.topic_name(each) is None]

    # Queries

    def has(self, group_id: str) -> bool:
        """Returns whether an id belongs to a share group, also to one that is being written."""
        served = self._served.all.get(group_id)
        return served is not None and served.is_used

    def _has_room(self, served: ServedShareGroup, member: ShareMember) -> ErrorCode:
        return self._served.has_room(served, bytes_of(member) - served.held.get(member.member_id, 0))

    # Requests

    def heartbeat(
        self, request_id: int, request: ShareGroupHeartbeatRequest, context: RequestContext, moment: Moment
    ) -> None:
        """Handles a heartbeat; it is answered when its changes are committed, or at once if there are none."""
        asked = ShareRequest(request_id=request_id, request=request, version=context.version, context=context)
        try:
            self._decisions.check(request)
        except KafkaError as error:
            self._effects.answer(request_id, asked.refused(error.code, error.message))
            return
        member = self._member(request.group_id, request.member_id)
        if member is not None and request.member_epoch == member.epoch:
            # The member is alive, even if its request has to be refused because the log is not available.
            asked = replace(asked, session_ms=self._renew(request.group_id, member.member_id, moment))
        self._accept(request.group_id, asked, moment)

    def administrate(self, request_id: int, group_id: str, request: AdminRequest, version: int, moment: Moment) -> None:
        """Handles a request that changes offsets, or deletes a group; DeleteGroups names this group only."""
        self._accept(group_id, ShareRequest(request_id=request_id, request=request, version=version), moment)

    def _member(self, group_id: str, member_id: str) -> ShareMember | None:
        served = self._served.all.get(group_id)
        return None if served is None else served.group.members.get(member_id)

    def _accept(self, group_id: str, asked: ShareRequest, moment: Moment) -> None:
        served = self._served.open_if_fits(group_id)
        if self._served.park(served, asked):
            assert served is not None
            self._work(served, moment)

    def share_state_answered(self, question_id: int, response: Response, moment: Moment) -> None:
        """Goes on after the answer of a share coordinator."""
        question = self._asked.pop(question_id)
        served = self._served.open(question.group_id)
        served.parked.append(ShareAnswer(question=question, codes=codes_of(question, response)))
        self._work(served, moment)

    # Decisions

    def _work(self, served: ServedShareGroup, moment: Moment) -> None:
        """Decides on what is parked, unless a write is in flight, and writes the changes."""
        if served.draft is not None:
            return
        draft = ShareDraft(served.group)
        alive: list[str] = []
        write = WriteRecords(change_record)
        while served.parked and not write.is_full:
            operation = served.parked.popleft()
            if isinstance(operation, ShareRequest):
                try:
                    alive += self._decide(served, draft, operation, moment)
                except KafkaError as error:
                    self._served.refuse(served, operation, error)
            elif isinstance(operation, Expiry):
                self._expire(served, draft, operation)
            elif isinstance(operation, ShareAnswer):
                self._finish(served, draft, operation, moment)
            else:
                self._forget_topics(draft)
            write.add(draft.changes)
        if draft.changes:
            served.draft = draft
            append_id = self._effects.append(
                tuple(write.records), ShareGroupWritten(group_id=served.group.group_id), moment
            )
            self._served.in_flight(served, append_id)
        for member_id in alive:
            self._renew(served.group.group_id, member_id, moment)
        if not draft.changes:
            self._after_commit(served)
            self._served.close_if_forgotten(served)

    def _decide(self, served: ServedShareGroup, draft: ShareDraft, asked: ShareRequest, moment: Moment) -> list[str]:
        """Decides on a request; returns the members that are alive by it."""
        request = asked.request
        if isinstance(request, ShareGroupHeartbeatRequest):
            return self._heartbeat(served, draft, asked, request, moment)
        begins = isinstance(request, AlterShareGroupOffsetsRequest)
        if not draft.group.members and _is_asked(served, self._asked.values(), begins_only=not begins):
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "Another change of the group's offsets is under way.")
        plan: Plan | None
        if isinstance(request, AlterShareGroupOffsetsRequest):
            plan = administration.plan_alter(draft, request, self._catalogue)
        elif isinstance(request, DeleteShareGroupOffsetsRequest):
            plan = administration.plan_delete_offsets(draft, request, self._catalogue)
        else:
            plan = administration.plan_delete_group(draft, self._catalogue)
        if plan is None:
            self._answer_admin(served, draft, asked, {})
            return []
        group_id, epoch = served.group.group_id, draft.group.epoch
        message = (
            begin_request(group_id, plan.partitions, epoch, plan.offsets)
            if begins
            else delete_request(group_id, plan.partitions)
        )
        served.questions.append(Question(group_id=group_id, message=message, partitions=plan.partitions, asked=asked))
        return []

    def _heartbeat(
        self,
        served: ServedShareGroup,
        draft: ShareDraft,
        asked: ShareRequest,
        request: ShareGroupHeartbeatRequest,
        moment: Moment,
    ) -> list[str]:
        assert asked.context is not None
        version = self._catalogue.version()
        response = self._decisions.heartbeat(
            draft,
            request,
            asked.context,
            moment,
            looks=served.looked_version != version,
            has_room=partial(self._has_room, served),
        )
        served.waiting.append((asked, response))
        if response.member_epoch == LEAVE_EPOCH:
            return []
        served.looked_version = version
        self._begin(served, draft, moment)
        return [request.member_id]

    def _begin(self, served: ServedShareGroup, draft: ShareDraft, moment: Moment) -> None:
        """Asks the share coordinator to begin the states of subscribed partitions, unless it is being asked already."""
        if served.is_beginning or moment.now_ms < served.ask_again_ms:
            return
        group = draft.group
        partitions = to_begin(group.states, group.subscribed_topics(), self._catalogue)
        if not partitions or _is_asked(served, self._asked.values()):
            return
        states = with_beginning(group.states, partitions, self._catalogue)
        draft.add(ShareStates(group_id=group.group_id, partitions=states))
        served.first_offsets = first_offsets(group.states, partitions, served.first_offsets)
        message = begin_request(group.group_id, partitions, group.epoch, served.first_offsets)
        served.is_beginning = True
        served.questions.append(Question(group_id=group.group_id, message=message, partitions=partitions))

    def _expire(self, served: ServedShareGroup, draft: ShareDraft, expiry: Expiry) -> None:
        """Removes a member whose session has ended, unless it has been heard of since."""
        key = (SESSION, served.group.group_id, expiry.member_id)
        if expiry.member_id in draft.group.members and self.deadlines.get(key) is None:
            self._decisions.fence(draft, expiry.member_id)
            served.expiries.append(expiry)

    def _forget_topics(self, draft: ShareDraft) -> None:
        gone = frozenset(self._gone(draft.group))
        if gone:
            states = without_topics(draft.group.states, gone)
            draft.add(ShareStates(group_id=draft.group.group_id, partitions=states))

    # Answers of share coordinators

    def _finish(self, served: ServedShareGroup, draft: ShareDraft, answer: ShareAnswer, moment: Moment) -> None:
        """Takes over what a share coordinator has done."""
        asked = answer.question.asked
        if asked is None:
            served.is_beginning = False
        if asked is None or isinstance(asked.request, AlterShareGroupOffsetsRequest):
            self._begun(served, draft, answer, moment)
        if asked is not None:
            self._answer_admin(served, draft, asked, answer.codes)

    def _begun(self, served: ServedShareGroup, draft: ShareDraft, answer: ShareAnswer, moment: Moment) -> None:
        """Moves the partitions whose states have begun on; members get them with their next heartbeat."""
        before = draft.group.states
        begun: ByTopic = {}
        for topic_id, numbers in answer.question.partitions.items():
            open_numbers = before.initializing[topic_id].partitions if topic_id in before.initializing else frozenset()
            done = frozenset(n for n in numbers if answer.codes.get((topic_id, n)) is ErrorCode.NONE) & open_numbers
            if done and self._catalogue.topic_name(topic_id) is not None:
                begun[topic_id] = done
        if any(code is not ErrorCode.NONE for code in answer.codes.values()):
            served.ask_again_ms = moment.now_ms + ASK_AGAIN_MS
        states = with_begun(before, begun, self._catalogue)
        states = with_failed(states, answer.question.partitions)
        if states == before:
            return
        draft.add(ShareStates(group_id=draft.group.group_id, partitions=states))
        if begun and draft.group.members:
            draft.raise_epoch()
            self._decisions.assign_if_due(draft, moment)

    def _answer_admin(self, served: ServedShareGroup, draft: ShareDraft, asked: ShareRequest, codes: Codes) -> None:
        """Ends a request of an administrator; the answer follows the commit of what it changes."""
        request, group_id = asked.request, served.group.group_id
        response: Response
        if isinstance(request, AlterShareGroupOffsetsRequest):
            response = administration.altered(request, codes, self._catalogue)
        elif isinstance(request, DeleteShareGroupOffsetsRequest):
            by_topic = administration.finish_deletion(draft, codes)
            response = administration.offsets_deleted(request, by_topic, self._catalogue)
        else:
            by_topic = administration.finish_deletion(draft, codes)
            code = next((each for each in by_topic.values() if each is not ErrorCode.NONE), ErrorCode.NONE)
            if code is ErrorCode.NONE and draft.group.members:
                code = ErrorCode.NON_EMPTY_GROUP  # a member has joined since
            if code is ErrorCode.NONE:
                administration.end_group(draft)
            response = administration.group_deleted(group_id, code)
        served.waiting.append((asked, response))

    # Outcomes of writes

    def answer_write(self, append_id: int, code: ErrorCode) -> None:
        """Answers the requests of a write, if it is one of a share group.

        ``code`` is not NONE if the write has failed or takes too long; then what is parked is refused too.
        """
        served = self._served.writing(append_id)
        if served is None or code is ErrorCode.NONE:
            return  # `written` follows
        served.timed_out = True
        self._refuse(served, code)

    def _refuse(self, served: ServedShareGroup, code: ErrorCode) -> None:
        """Refuses all requests of a group, also those that wait for a question which follows the write."""
        self._served.refuse_all(served, code)
        questions, served.questions = served.questions, []
        for question in questions:
            if question.asked is None:
                served.is_beginning = False
            else:
                self._effects.answer(question.asked.request_id, question.asked.refused(code))

    def written(self, append_id: int, moment: Moment, *, failed: bool = False) -> None:
        """Goes on after the outcome of a write is known: its changes have been replayed, or are lost."""
        served = self._served.landed(append_id)
        if served is None:
            return
        expiries, served.expiries = served.expiries, []
        served.draft = None
        if failed:
            served.looked_version = None
            for expiry in expiries:
                self._served.retry_removal(SESSION, served.group.group_id, expiry.member_id, moment)
            if self._gone(served.group):
                self._served.retry_removal(_TOPICS, served.group.group_id, "", moment)
        else:
            served.first_offsets = not_begun(served.group.states, served.first_offsets)
            self._after_commit(served)
        self._work(served, moment)

    def _after_commit(self, served: ServedShareGroup) -> None:
        """Sends the answers and asks the questions that have waited for a write."""
        self._served.answer_waiting(served)
        questions, served.questions = served.questions, []
        for question in questions:
            question_id = self._next_question_id
            self._next_question_id += 1
            self._asked[question_id] = question
            self._effects.ask(AskShareState(question_id=question_id, request=question.message))

    # Time

    def _renew(self, group_id: str, member_id: str, moment: Moment) -> int:
        """Begins a session again, and returns when it would have ended."""
        return self._served.renew(group_id, member_id, self._decisions.session_timeout_ms(group_id), moment)

    def on_timer(self, moment: Moment) -> None:
        """Removes the members whose sessions have ended, and topics whose end was not written."""
        while (key := self.deadlines.pop_due(moment.now_ms)) is not None:
            kind, group_id, member_id = key
            served = self._served.all.get(group_id)
            if served is None:
                continue
            if kind == _TOPICS:
                served.parked.append(TopicsGone())
            # A member that joins, or leaves, with the write in flight: that write may fail.
            elif member_id in served.group.members or member_id in served.latest.members:
                served.parked.append(Expiry(member_id=member_id))
            else:
                continue
            self._work(served, moment)

    def resign(self, code: ErrorCode) -> None:
        """Answers all requests that are open after leadership is lost."""
        for question in self._asked.values():
            if question.asked is not None:
                self._effects.answer(question.asked.request_id, question.asked.refused(code))
        self._asked.clear()
        for served in self._served.all.values():
            self._refuse(served, code)
            for operation in served.parked:
                if isinstance(operation, ShareAnswer) and operation.question.asked is not None:
                    asked = operation.question.asked
                    self._effects.answer(asked.request_id, asked.refused(code))
        self._served.resign(code)


def _new_group(group_id: str) -> ServedShareGroup:
    return ServedShareGroup(group=ShareGroup(group_id=group_id))


def _is_asked(served: ServedShareGroup, asked: Iterable[Question], *, begins_only: bool = False) -> bool:
    """Returns whether share coordinators are asked, or about to be, about states of a group; or to begin some.

    Questions may be answered in any order, so they wait for each other, except deletions for other deletions. A
    deletion that came last would leave no state where one has begun. A beginning that came last would leave one that
    fences the next group of this id, or one without the offset that an administrator has set.
    """
    ours = [each for each in asked if each.group_id == served.group.group_id]
    kinds = [type(each.message) for each in (*served.questions, *ours)]
    return InitializeShareGroupStateRequest in kinds if begins_only else bool(kinds)


def bytes_of(member: ShareMember) -> int:
    """Returns the approximate memory of a member."""
    names = len(member.member_id) + len(member.client_id) + len(member.rack_id or "")
    return MEMBER_BYTES + names + sum(TOPIC_BYTES + len(name) for name in member.topics)
