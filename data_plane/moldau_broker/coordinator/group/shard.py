"""The shell of one partition of ``__consumer_offsets`` that this broker leads, around its `GroupCore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.coordinator.group.core.group_core import GroupCore
from moldau_broker.coordinator.runtime.pending import Reply
from moldau_broker.coordinator.runtime.replicated import ReplicatedShard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from moldau.protocol.errors import ErrorCode
    from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
    from moldau.protocol.schema import Request, Response
    from moldau_broker.coordinator.runtime.completion import Completion
    from moldau_broker.coordinator.runtime.effects import Marker, RequestContext


class GroupShard(ReplicatedShard[GroupCore]):
    """The groups of one partition. Its methods may be called only while `refusal` is NONE."""

    def submit(self, request: Request, context: RequestContext) -> Completion:
        """Accepts a request and returns the completion of its answer."""
        assert self.core is not None
        request_id, completion = self.open_request()
        self.perform(self.core.handle(request_id, request, context, self.moment()))
        return completion

    def fetch(self, group: OffsetFetchRequestGroup, require_stable: bool) -> OffsetFetchResponseGroup:
        """Reads committed offsets."""
        assert self.core is not None
        return self.core.fetch(group, require_stable)

    def topics_deleted(self, names: Collection[str]) -> None:
        """Removes the offsets of deleted topics."""
        assert self.core is not None
        self.perform(self.core.topics_deleted(names, self.moment()))

    def complete_transaction(self, marker: Marker, respond: Callable[[ErrorCode], Response]) -> Completion:
        """Writes a transaction marker."""
        assert self.core is not None
        request_id, completion = self.open_request()
        reply = Reply(request_id=request_id, respond=respond)
        self.perform(self.core.complete_transaction(request_id, marker, reply, self.moment()))
        return completion
