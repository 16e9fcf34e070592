"""The client's half of an incremental fetch session (KIP-227). Pure.

Theory of operation: the first request names every partition and opens a session with epoch 0. Each later request
carries the session id and the next epoch, and names only new, changed and forgotten partitions; the broker fetches all
others as before. Its answer leaves out partitions without changes. After an error or a lost answer the client does not
know the state of the broker's session, so the next request is a full one, which closes the session and opens another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from moldau.cluster.metadata import TopicPartition

NO_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
"""The epoch of a request without a session."""
_EPOCH_MAX = (1 << 31) - 1

SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""Errors that a full request resolves; they do not concern the partitions of the request."""


class Asked(NamedTuple):
    """The fields of one partition in a request."""

    topic_id: UUID
    leader_epoch: int
    fetch_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """A request: ``partitions`` to add or change, ``forgotten`` to drop, with the topic id that the broker knows."""

    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, Asked]
    forgotten: Mapping[TopicPartition, UUID]


def full_request(wanted: Mapping[TopicPartition, Asked]) -> SessionRequest:
    """Returns a request without a session."""
    return SessionRequest(session_id=NO_SESSION_ID, epoch=FINAL_EPOCH, partitions=wanted, forgotten={})


class FetchSession:
    """The session with one broker. Invariant: while ``epoch`` > 0, ``_known`` is what the broker remembers."""

    __slots__ = ("_by_topic_id", "_known", "epoch", "session_id")

    def __init__(self) -> None:
        self.session_id = NO_SESSION_ID
        self.epoch = INITIAL_EPOCH
        self._known: dict[TopicPartition, Asked] = {}
        self._by_topic_id = False

    def next_request(self, wanted: Mapping[TopicPartition, Asked], *, by_topic_id: bool) -> SessionRequest:
        """Returns the request that makes the broker fetch exactly ``wanted``; one at a time may be under way.

        ``by_topic_id`` says how the request names topics. A session knows them in one of the two ways only.
        """
        if by_topic_id != self._by_topic_id:
            self._by_topic_id = by_topic_id
            self.epoch = INITIAL_EPOCH
        if self.epoch == INITIAL_EPOCH:
            self._known = dict(wanted)
            return SessionRequest(session_id=self.session_id, epoch=INITIAL_EPOCH, partitions=wanted, forgotten={})
        changed = {each: asked for each, asked in wanted.items() if self._known.get(each) != asked}
        forgotten = {
            each: known.topic_id
            for each, known in self._known.items()
            if each not in wanted or (by_topic_id and wanted[each].topic_id != known.topic_id)
        }
        self._known = dict(wanted)
        return SessionRequest(session_id=self.session_id, epoch=self.epoch, partitions=changed, forgotten=forgotten)

    def final_request(self) -> SessionRequest | None:
        """Returns the request that closes the session without a new one; None if the broker keeps no session."""
        if self.session_id == NO_SESSION_ID:
            return None
        return SessionRequest(session_id=self.session_id, epoch=FINAL_EPOCH, partitions={}, forgotten={})

    def answered(self, session_id: int) -> None:
        """Notes that the broker answered the request, with its session id (0 for no session)."""
        if session_id == NO_SESSION_ID:
            self.session_id, self.epoch = NO_SESSION_ID, INITIAL_EPOCH
        else:
            self.session_id = session_id
            self.epoch = 1 if self.epoch >= _EPOCH_MAX else self.epoch + 1

    def lost(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Notes that the request was refused or lost; the next one opens another session."""
        if code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id = NO_SESSION_ID
        self.epoch = INITIAL_EPOCH
