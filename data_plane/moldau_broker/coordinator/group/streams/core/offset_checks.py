"""Checks whether the sender of an offset request may act for a streams group. Pure (KIP-1071).

Tasks commit independently of heartbeats, so a commit may carry an epoch that its member has just left. It is accepted
for a partition whose active task the member has had since that epoch or longer: no other member can have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.offset_commit import OffsetCommitRequest
from moldau_broker.coordinator.group.consumer.core.offset_checks import (
    MEMBER_EPOCH_FROM,
    epoch_of,
    knows_member_epochs,
    needs_no_member,
)

if TYPE_CHECKING:
    from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup
    from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
    from moldau_broker.coordinator.group.streams.core.state import StreamsGroup, StreamsMember


def check_commit(group: StreamsGroup, request: OffsetCommitRequest | TxnOffsetCommitRequest, version: int) -> ErrorCode:
    """Returns whether the sender may commit: a member, or a client that need not be one.

    Transactional producers before KIP-1319 do not know STALE_MEMBER_EPOCH and get ILLEGAL_GENERATION.
    """
    if needs_no_member(request, has_members=bool(group.members)):
        return ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if isinstance(request, OffsetCommitRequest) and version < MEMBER_EPOCH_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    epoch = epoch_of(request)
    if epoch == member.epoch >= 0:
        return ErrorCode.NONE
    knows = knows_member_epochs(request, version)
    stale = ErrorCode.STALE_MEMBER_EPOCH if knows else ErrorCode.ILLEGAL_GENERATION
    if epoch > member.epoch:
        return stale
    named = [(topic.name, part.partition_index) for topic in request.topics for part in topic.partitions]
    fits = all(_had_since(group, member, topic, partition, epoch) for topic, partition in named)
    return ErrorCode.NONE if fits else stale


def _had_since(group: StreamsGroup, member: StreamsMember, topic: str, partition: int, epoch: int) -> bool:
    """Returns whether a member has the active task that reads a partition, and had it in an epoch."""
    reader = None if group.topology is None else group.topology.reader_of(topic)
    since = None if reader is None else member.since.get((reader, partition))
    return since is not None and since <= epoch


def check_fetch(group: StreamsGroup, request: OffsetFetchRequestGroup) -> ErrorCode:
    """Returns whether the sender may read offsets: a member in its present epoch, or a client that names no member."""
    if not request.member_id and request.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(request.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if request.member_epoch == member.epoch else ErrorCode.STALE_MEMBER_EPOCH
