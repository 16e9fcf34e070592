"""Checks whether the sender of an offset request may act for a consumer group. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.offset_commit import OffsetCommitRequest

if TYPE_CHECKING:
    from moldau.protocol.messages.offset_fetch import OffsetFetchRequestGroup
    from moldau.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
    from moldau_broker.coordinator.group.consumer.core.state import ConsumerGroup, ConsumerMember

MEMBER_EPOCH_FROM = 9
"""The first version of OffsetCommit whose senders know STALE_MEMBER_EPOCH."""
TXN_MEMBER_EPOCH_FROM = 6
"""The first version of TxnOffsetCommit whose senders know STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND (KIP-1319)."""


def knows_member_epochs(request: OffsetCommitRequest | TxnOffsetCommitRequest, version: int) -> bool:
    """Returns whether the sender of a commit may get the codes that came with member epochs."""
    return isinstance(request, OffsetCommitRequest) or version >= TXN_MEMBER_EPOCH_FROM


def epoch_of(request: OffsetCommitRequest | TxnOffsetCommitRequest) -> int:
    """Returns the member epoch, or generation, that the sender of a commit shows; negative if it shows none."""
    return request.generation_id_or_member_epoch if isinstance(request, OffsetCommitRequest) else request.generation_id


def needs_no_member(request: OffsetCommitRequest | TxnOffsetCommitRequest, *, has_members: bool) -> bool:
    """Returns whether a commit is allowed although its sender is no member of a group whose members are in the log.

    Any client that shows no epoch may commit while there are no members. Transactional producers before KIP-447 do not
    name a member; they may always commit.
    """
    if epoch_of(request) >= 0:
        return False
    is_anonymous = not request.member_id and request.group_instance_id is None
    return not has_members or (is_anonymous and not isinstance(request, OffsetCommitRequest))


def check_commit(
    group: ConsumerGroup, request: OffsetCommitRequest | TxnOffsetCommitRequest, version: int
) -> ErrorCode:
    """Returns whether the sender may commit: a member in its present epoch, or a client that need not be one.

    Transactional producers before KIP-1319 do not know STALE_MEMBER_EPOCH and get ILLEGAL_GENERATION, as members of the
    classic protocol do.
    """
    if needs_no_member(request, has_members=bool(group.members)):
        return ErrorCode.NONE
    member = group.members.get(request.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if isinstance(request, OffsetCommitRequest) and member.classic is None and version < MEMBER_EPOCH_FROM:
        return ErrorCode.UNSUPPORTED_VERSION
    epoch = epoch_of(request)
    if epoch < 0 or epoch != member.epoch:
        return _stale(member) if knows_member_epochs(request, version) else ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def check_fetch(group: ConsumerGroup, request: OffsetFetchRequestGroup) -> ErrorCode:
    """Returns whether the sender may read offsets: a member in its present epoch, or a client that names no member."""
    if not request.member_id and request.member_epoch < 0:
        return ErrorCode.NONE
    member = group.members.get(request.member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if request.member_epoch == member.epoch else _stale(member)


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
