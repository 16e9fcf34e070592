"""State of a consumer group beyond the log: its write in flight, and the requests that wait for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from moldau.protocol.messages.heartbeat import HeartbeatRequest
from moldau.protocol.messages.sync_group import SyncGroupRequest
from moldau.protocol.refusals import refusal
from moldau_broker.coordinator.group.consumer.core.classic_members import ClassicRequest
from moldau_broker.coordinator.group.consumer.core.heartbeat import Draft
from moldau_broker.coordinator.group.consumer.core.state import LEAVE_STATIC_EPOCH, ConsumerGroup
from moldau_broker.coordinator.group.core.member_memory import MEMBER_BYTES, protocols_bytes
from moldau_broker.coordinator.group.core.served_groups import Fence, FencedGroup

if TYPE_CHECKING:
    from moldau.protocol.schema import Response
    from moldau_broker.coordinator.group.consumer.core.state import ConsumerMember
    from moldau_broker.coordinator.group.core.group import Group
    from moldau_broker.coordinator.runtime.effects import DescribeRight, Moment, RequestContext, StateRecord

TOPIC_BYTES = 64
MemberRequest = ConsumerGroupHeartbeatRequest | ClassicRequest
"""Requests of members of either protocol to a consumer group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAsked:
    """A request of a member that waits for its turn; see ``served_groups.ParkedRequest``."""

    request_id: int
    request: MemberRequest
    context: RequestContext
    session_ms: int | None = None

    @property
    def member_id(self) -> str:
        """The sender; empty if the request shows none."""
        return sender_of(self.request)[0]

    def refused(self, code: ErrorCode, message: str | None = None) -> Response:
        """Returns the answer to the request if it is refused."""
        if isinstance(self.request, ConsumerGroupHeartbeatRequest):
            return heartbeat_error(for_members(code), message)
        return refusal(self.request, for_members(code), version=self.context.version)


Operation = MemberAsked | Fence


@dataclass(slots=True, kw_only=True)
class ServedConsumerGroup(FencedGroup[ConsumerGroup, Draft, MemberAsked, Operation]):
    """A consumer group with what this coordinator knows of it beyond the log."""

    converts: bool = False
    """Whether the write in flight ends the group, and begins a classic one with its members."""
    looked_version: int | None = None
    """The version of the topics at the last look of a committed write."""
    looked_ms: int = 0
    """The time of that look."""
    rights: dict[str, DescribeRight] = field(default_factory=dict)
    """The topics that clients of members with a regular expression may describe; at most one entry for each member."""

    @property
    def serves_classic(self) -> bool:
        """True if requests of classic members are decided here, or after what waits here."""
        return self.latest.exists or self.converts or any(isinstance(each, MemberAsked) for each in self.parked)

    def must_look(self, version: int, now_ms: int, refresh_ms: int) -> bool:
        """Returns whether topics may have changed, or regular expressions have not been resolved for ``refresh_ms``."""
        if self.looked_version != version:
            return True
        return bool(self.latest.regexes) and now_ms - self.looked_ms >= refresh_ms


class ClassicGroups(Protocol):
    """The classic groups of the same partition: a group is of one kind at a time."""

    def get(self, group_id: str) -> Group | None:
        """Returns a classic group that is in use; None if a consumer group may take its id."""
        ...

    def generation(self, group_id: str) -> int:
        """Returns the generation of a classic group; 0 if there is none."""
        ...

    def freeze(self, group_id: str) -> tuple[StateRecord, ...]:
        """Stops a classic group that becomes a consumer group, and returns its tombstone; its members must rejoin."""
        ...

    def thaw(self, group_id: str, moment: Moment) -> None:
        """Goes on with a frozen group after the write of its conversion has failed."""
        ...

    def drop(self, group_id: str) -> None:
        """Drops a frozen group after its conversion is committed."""
        ...

    def begin(self, group_id: str, moment: Moment) -> None:
        """Begins to serve the classic group whose record has been committed."""
        ...

    def serve(self, request_id: int, request: ClassicRequest, context: RequestContext, moment: Moment) -> None:
        """Serves a request of a member of a classic group."""
        ...

    def end_records(self, group_id: str) -> tuple[StateRecord, ...]:
        """Ends an unused classic group whose id a consumer group takes, and returns its tombstones."""
        ...


def heartbeat_error(code: ErrorCode, message: str | None = None) -> ConsumerGroupHeartbeatResponse:
    """Returns an answer to a heartbeat that contains an error only."""
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)


def for_members(code: ErrorCode) -> ErrorCode:
    """Returns the code of a failed write for members, which can do nothing about its size."""
    return ErrorCode.UNKNOWN_SERVER_ERROR if code is ErrorCode.INVALID_COMMIT_OFFSET_SIZE else code


def bytes_of(member: ConsumerMember) -> int:
    """Returns the approximate memory of a member."""
    names = len(member.member_id) + len(member.client_id) + len(member.instance_id or "") + len(member.rack_id or "")
    classic = 0 if member.classic is None else protocols_bytes(member.classic.protocols)
    return MEMBER_BYTES + names + classic + len(member.regex) + sum(TOPIC_BYTES + len(name) for name in member.topics)


def sender_of(request: MemberRequest) -> tuple[str, int]:
    """Returns the member that sends a request and the epoch that it has; -2 if the request shows none."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return request.member_id, request.member_epoch
    if isinstance(request, SyncGroupRequest | HeartbeatRequest):
        return request.member_id, request.generation_id
    return "", LEAVE_STATIC_EPOCH
