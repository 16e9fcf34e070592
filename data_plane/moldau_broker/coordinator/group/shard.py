"""The shell of one partition of ``__consumer_offsets`` that this broker leads, around its `GroupCore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.protocol.refusals import refusal
from moldau_broker.coordinator.group.core.group_core import GroupCore
from moldau_broker.coordinator.runtime.effects import AskShareState, CreateTopics
from moldau_broker.coordinator.runtime.pending import Reply
from moldau_broker.coordinator.runtime.replicated import ReplicatedShard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
    from moldau.protocol.schema import Request, Response
    from moldau_broker.coordinator.group.share.core.state import ShareGroup
    from moldau_broker.coordinator.runtime.completion import Completion
    from moldau_broker.coordinator.runtime.effects import Effect, Marker, RequestContext
    from moldau_broker.coordinator.runtime.ports import ShareStates


QUESTIONS_MAX = 64
"""Questions to share coordinators that one partition's coordinator asks at a time; a group has few open."""

CREATIONS_MAX = 8
"""Streams groups of one partition whose internal topics are created at a time; a group has one creation open."""


class GroupShard(ReplicatedShard[GroupCore]):
    """The groups of one partition. Its methods may be called only while `refusal` is NONE."""

    share_states: ShareStates

    def begin(self, nursery: trio.Nursery) -> None:
        """Keeps the nursery for the tasks that ask share coordinators and create topics; they end with leadership."""
        self._nursery = nursery
        self._questions = trio.CapacityLimiter(QUESTIONS_MAX)
        self._creations = trio.CapacityLimiter(CREATIONS_MAX)

    def perform_other(self, effect: Effect) -> None:
        """Asks share coordinators, or has topics created."""
        if isinstance(effect, CreateTopics):
            self._nursery.start_soon(self._create, effect)
            return
        assert isinstance(effect, AskShareState)
        self._nursery.start_soon(self._ask, effect)

    async def _create(self, creation: CreateTopics) -> None:
        async with self._creations:
            errors = await creation.creator.create(creation.topics)
        if self.core is not None:
            self.perform(self.core.topics_created(creation.group_id, errors, self.moment()))

    async def _ask(self, question: AskShareState) -> None:
        async with self._questions:
            response = await self.share_states.ask(question.request)
        if self.core is not None:
            self.perform(self.core.share_state_answered(question.question_id, response, self.moment()))

    def share_group(self, group_id: str) -> ShareGroup | None:
        """Returns a committed share group; None if there is none."""
        assert self.core is not None
        return self.core.shares.get(group_id)

    def submit(self, request: Request, context: RequestContext) -> Completion:
        """Accepts a request and returns the completion of its answer."""
        return self.ask(
            lambda code: refusal(request, code, version=context.version),
            lambda core, request_id, moment: core.handle(request_id, request, context, moment),
        )

    def fetch(self, group: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Reads committed offsets."""
        assert self.core is not None
        return self.core.fetch(group, require_stable)

    def topics_deleted(self, names: Collection[str]) -> None:
        """Removes the offsets of deleted topics."""
        self.happened(lambda core, moment: core.topics_deleted(names, moment))

    def complete_transaction(self, marker: Marker, respond: Callable[[ErrorCode], Response]) -> Completion:
        """Writes a transaction marker."""
        return self.ask(
            respond,
            lambda core, request_id, moment: core.complete_transaction(
                request_id, marker, Reply(request_id=request_id, respond=respond), moment
            ),
        )
