"""Bugs in groups of the consumer protocol (KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau_broker.coordinator.group.consumer.core import offset_checks
from moldau_broker.coordinator.group.consumer.core.heartbeat import HeartbeatDecisions
from moldau_broker.coordinator.group.consumer.core.regexes import TopicRegexes
from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup, GroupEpoch

if TYPE_CHECKING:
    from moldau_broker.coordinator.group.consumer.core.heartbeat import Draft
    from moldau_broker.coordinator.runtime.effects import DescribeRight, Moment
    from moldau_jepsen.planted_bug import Patch


def given_before_released() -> list[Patch]:
    """A member gets its whole target at once, also what another one has yet to release."""
    return [(ConsumerGroup, "is_free", lambda self, partition, member_id: True)]


def member_epoch_unchecked() -> list[Patch]:
    """Any sender may commit offsets of a consumer group: member and epoch are not checked."""
    return [(offset_checks, "check_commit", lambda group, request, version: ErrorCode.NONE)]


def fenced_member_keeps() -> list[Patch]:
    """A member whose session ends raises the group epoch, and keeps its assignment."""

    def fence(self: HeartbeatDecisions, draft: Draft, member_id: str) -> None:
        group = draft.group
        draft.add(GroupEpoch(group_id=group.group_id, epoch=group.epoch + 1, metadata_hash=group.metadata_hash))

    return [(HeartbeatDecisions, "fence", fence)]


def regex_resolved_once() -> list[Patch]:
    """The topics of a regular expression are looked up when a member brings it, and never again."""
    original = TopicRegexes.resolve

    def resolve(self: TopicRegexes, draft: Draft, moment: Moment, right: DescribeRight | None) -> None:
        used = {member.regex for member in draft.group.members.values() if member.regex}
        if not used or used - set(draft.group.regexes):
            original(self, draft, moment, right)

    return [(TopicRegexes, "resolve", resolve)]
