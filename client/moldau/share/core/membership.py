"""A member of a share group: what its heartbeats say, and which partitions it may fetch. Pure.

One message, ShareGroupHeartbeat, joins the group, reports a changed subscription and brings the assignment.

| answer | effect |
|---|---|
| an assignment | the member fetches these partitions from now on |
| UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, GROUP_ID_NOT_FOUND of a member | it holds nothing; join again |
| coordinator errors | find the coordinator, try again |
| others | fatal: the next poll raises |
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatResponse
    from moldau.share.core.session import TopicIdPartition

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
_LOST = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
_ELSEWHERE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


class Next(Enum):
    """The consequence of an answer."""

    GO_ON = auto()
    RETRY = auto()
    FIND_COORDINATOR = auto()


class ShareMembership:
    """The core. Invariant: ``assignment`` is empty unless the member is in the group (``epoch`` above 0)."""

    def __init__(self, group_id: str, member_id: str, rack: str | None) -> None:
        """``member_id`` is unique and stays the same for the life of the consumer."""
        self.group_id = group_id
        self.member_id = member_id
        self._rack = rack
        self.topics: tuple[str, ...] | None = None
        """The subscription; None before the first one, and after the member left."""
        self.epoch = JOIN_EPOCH
        self.assignment: tuple[TopicIdPartition, ...] = ()
        self.fatal: KafkaError | None = None
        """The error that the next poll raises."""
        self._topics_known: tuple[str, ...] | None = None  # to the coordinator
        self._has_asked_to_join = False  # and has no answer yet

    @property
    def is_member(self) -> bool:
        """Whether the member is in the group, as far as it knows."""
        return self.epoch > JOIN_EPOCH

    def subscribe(self, topics: Iterable[str]) -> None:
        """Sets the subscription, which the next heartbeat reports."""
        self.topics = tuple(sorted(dict.fromkeys(topics)))
        self.fatal = None

    def heartbeat(self) -> ShareGroupHeartbeatRequest:
        """Returns the next heartbeat of a subscribed member."""
        assert self.topics is not None
        request = ShareGroupHeartbeatRequest(group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch)
        self._has_asked_to_join |= not self.is_member
        if not self.is_member or self.topics != self._topics_known:
            request.rack_id = self._rack
            request.subscribed_topic_names = list(self.topics)
        return request

    def on_heartbeat(self, request: ShareGroupHeartbeatRequest, response: ShareGroupHeartbeatResponse) -> Next:
        """Takes the answer to a heartbeat."""
        if self.topics is None or request.member_epoch != self.epoch:
            return Next.GO_ON  # the member has left or joined again meanwhile
        code = ErrorCode.of(response.error_code)
        if code is not ErrorCode.NONE:
            return self._on_refusal(code, response.error_message)
        if request.subscribed_topic_names is not None:
            self._topics_known = tuple(request.subscribed_topic_names)
        self.epoch = response.member_epoch
        self._has_asked_to_join = False
        if response.assignment is not None:
            self.assignment = tuple(
                sorted(
                    (topic.topic_id, number)
                    for topic in response.assignment.topic_partitions
                    for number in topic.partitions
                )
            )
        return Next.GO_ON

    def on_error(self, error: KafkaError) -> Next:
        """Takes an error that came in place of the answer to a heartbeat."""
        return Next.GO_ON if self.topics is None else self._on_refusal(error.code, error.message)

    def unanswered(self) -> None:
        """Notes that an answer may be lost, so that the next heartbeat reports the whole subscription."""
        self._topics_known = None

    def _on_refusal(self, code: ErrorCode, message: str | None) -> Next:
        self._topics_known = None
        if code in _LOST or (code is ErrorCode.GROUP_ID_NOT_FOUND and self.is_member):
            self.lose()
            return Next.RETRY
        if code in _ELSEWHERE:
            return Next.FIND_COORDINATOR
        if code.retriable:
            return Next.RETRY
        self.lose()
        self._has_asked_to_join = False
        self.topics = None
        self.fatal = KafkaError(code, f"group {self.group_id}: {message or code.message}")
        return Next.RETRY

    def lose(self) -> None:
        """Notes that the member is no longer in the group; the next heartbeat joins it."""
        self.epoch = JOIN_EPOCH
        self.assignment = ()
        self._topics_known = None

    def leave(self, *, rejoins: bool = False) -> ShareGroupHeartbeatRequest | None:
        """Returns the request that leaves the group, None if the member has not asked to join.

        The coordinator may know the member before its first answer arrives. ``rejoins``: the subscription stays, and
        the next heartbeat joins again.
        """
        was_member = self.is_member or self._has_asked_to_join
        self._has_asked_to_join = False
        self.lose()
        if not rejoins:
            self.topics = None
        if not was_member:
            return None
        return ShareGroupHeartbeatRequest(group_id=self.group_id, member_id=self.member_id, member_epoch=LEAVE_EPOCH)
