"""The output of the Raft core: roles, messages to send, entries to write, entries to apply."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_quorum.log.raft.core.messages import Message
    from moldau_quorum.log.raft.core.types import Entry, HardState, SnapshotPoint


class Role(enum.Enum):
    """States of a member."""

    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message and where it goes."""

    recipient: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReady:
    """The read ``read_id`` may be served once ``index`` is applied; -1: leadership was lost first."""

    read_id: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPiece:
    """A piece of an incoming snapshot, to be stored; with the last one the snapshot is to be installed."""

    point: SnapshotPoint
    piece: int
    last: bool
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The effects of the inputs since the last ``Ready``. ``raft_core`` gives the order in which to execute them."""

    number: int
    hard_state: HardState | None
    entries: tuple[Entry, ...]
    messages: tuple[Outgoing, ...]
    messages_synced: tuple[Outgoing, ...]
    committed: tuple[Entry, ...]
    reads: tuple[ReadReady, ...]
    snapshot_pieces: tuple[SnapshotPiece, ...]
