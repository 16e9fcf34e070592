"""Refuses messages that no member can have sent, because they would break an invariant of Raft.

Messages come from outside, so the core must not assert on them. A sender of these is no member, is broken, or lies.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

from moldau_quorum.log.raft.core.messages import AppendRequest, AppendResponse, SnapshotRequest
from moldau_quorum.log.raft.envelope import MessageError

if TYPE_CHECKING:
    from moldau_quorum.log.raft.core.messages import Message
    from moldau_quorum.log.raft.core.raft_core import RaftCore

EPOCH_STEP_MAX: Final = 1 << 24
"""No quorum holds so many elections while a member is away; a message that is further ahead is forged or damaged."""


def check_plausible(core: RaftCore, sender: int, message: Message) -> None:
    """Checks that believing the message breaks no invariant of Raft.

    Raises:
        MessageError: it would break one.
    """
    if 0 < core.epoch < message.epoch - EPOCH_STEP_MAX:
        raise MessageError(f"node {sender} speaks of epoch {message.epoch}; this node is in {core.epoch}")
    if message.epoch < core.epoch:
        return
    if isinstance(message, AppendRequest | SnapshotRequest):
        leader_id = core.leader_id if message.epoch == core.epoch else None
        if leader_id not in (None, sender) or message.epoch == 0:
            raise MessageError(f"nodes {leader_id} and {sender} both claim to lead epoch {message.epoch}")
    if isinstance(message, AppendRequest):
        _check_agreement(core, sender, message)
    elif isinstance(message, SnapshotRequest) and message.index > core.commit_index:
        committed_epoch = core.log.epoch_at(core.commit_index) or 0
        if message.index_epoch < committed_epoch:
            raise MessageError(
                f"node {sender} offers a snapshot of {message.index}, epoch {message.index_epoch}; here entries of "
                f"epoch {committed_epoch} are committed"
            )
    elif isinstance(message, AppendResponse) and message.epoch == core.epoch and core.leader is not None:
        _check_match(core, sender, message)


def _check_match(core: RaftCore, sender: int, response: AppendResponse) -> None:
    if response.accepted and response.match_index > core.log.last_index:
        raise MessageError(f"node {sender} agrees up to {response.match_index}; the log ends at {core.log.last_index}")


def _check_agreement(core: RaftCore, sender: int, request: AppendRequest) -> None:
    """Checks a request against the entries committed here, which every leader holds.

    Raises:
        MessageError: the request contradicts a committed entry.
    """
    committed_epoch = core.log.epoch_at(core.commit_index) or 0
    positions = chain(
        ((request.prev_index, request.prev_epoch),), ((entry.index, entry.epoch) for entry in request.entries)
    )
    for index, epoch in positions:
        if index > core.commit_index:
            if epoch < committed_epoch:
                raise MessageError(f"node {sender} has epoch {epoch} at {index}, behind committed {committed_epoch}")
            return  # epochs of a log never fall: what follows is newer still
        known = core.log.epoch_at(index)
        if index > 0 and known is not None and known != epoch:
            raise MessageError(f"node {sender} has epoch {epoch} at {index}, where epoch {known} is committed")
