"""Share sessions: the partitions that a member fetches from one broker. Pure.

A member of a share group has at most one session with each broker. A request of epoch 0 opens it with the partitions
that the request names. Each later request carries the next epoch (1, 2, ... 2**31 - 1, then 1 again), names partitions
to add or with acknowledgements, and partitions to forget; all others are fetched as before. Epoch -1 ends the session,
and releases the records that the member holds.

The sessions are bounded (``group.share.max.share.sessions``), and so is the number of their partitions: a request that
would exceed a bound gets SHARE_SESSION_LIMIT_REACHED. A session ends with the connection that opened it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from uuid import UUID

from moldau.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = (1 << 31) - 1

SessionKey = tuple[str, str]
"""Group id and member id."""
PartitionKey = tuple[UUID, int]
"""Topic id and partition number."""


class ShareSessionError(Exception):
    """A request does not fit its session; ``code`` is the answer."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def next_epoch(epoch: int) -> int:
    """Returns the epoch of the next request; wraps to 1, because 0 and -1 have special meanings."""
    return 1 if epoch >= _EPOCH_MAX else epoch + 1


class ShareSession:
    """One member's session. Invariant: the next request of the session must have ``epoch``."""

    __slots__ = ("epoch", "key", "owner", "partitions")

    def __init__(self, key: SessionKey, owner: Hashable) -> None:
        self.key = key
        self.owner = owner
        self.epoch = 1
        self.partitions: dict[PartitionKey, None] = {}

    def rotate(self, keys: Iterable[PartitionKey]) -> None:
        """Moves partitions that were answered with records to the end, so the next fetch begins with the others."""
        for key in keys:
            if key in self.partitions:
                del self.partitions[key]
                self.partitions[key] = None


class ShareSessions:
    """The share sessions of one broker."""

    __slots__ = ("_by_group", "_partition_count", "_partitions_max", "_sessions", "sessions_max")

    def __init__(self, *, sessions_max: int, partitions_max: int = 1_000_000) -> None:
        self.sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._partition_count = 0
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_group: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """The number of partitions of all sessions."""
        return self._partition_count

    def get(self, key: SessionKey) -> ShareSession | None:
        """Returns the session of a member, if it has one."""
        return self._sessions.get(key)

    def fetch(
        self,
        key: SessionKey,
        epoch: int,
        added: Iterable[PartitionKey],
        forgotten: Iterable[PartitionKey],
        *,
        acknowledges: bool,
        owner: Hashable,
    ) -> ShareSession:
        """Takes a ShareFetch of any epoch but -1, and returns the session with the partitions to fetch.

        ``acknowledges``: the request carries acknowledgements, which epoch 0 forbids. ``owner`` identifies the
        connection whose end is the end of the session.

        Raises:
            ShareSessionError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH, SHARE_SESSION_LIMIT_REACHED or
                INVALID_REQUEST; the sessions are as before.
        """
        added = dict.fromkeys(added)
        if epoch == INITIAL_EPOCH:
            if acknowledges:
                raise ShareSessionError(ErrorCode.INVALID_REQUEST, "A request that opens a session cannot acknowledge.")
            previous = self._sessions.get(key)
            freed = 0 if previous is None else len(previous.partitions)
            if previous is None and len(self._sessions) >= self.sessions_max:
                raise ShareSessionError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, "The broker has no room for a session.")
            self._check_room(len(added) - freed)
            self.remove(key)
            session = self._sessions[key] = ShareSession(key, owner)
            self._by_group[key[0]] += 1
        else:
            session = self._current(key, epoch)
            self._check_room(sum(1 for each in added if each not in session.partitions))
            session.epoch = next_epoch(epoch)
            session.owner = owner
        for each in added:
            if each not in session.partitions:
                session.partitions[each] = None
                self._partition_count += 1
        for each in forgotten:
            if each in session.partitions:
                del session.partitions[each]
                self._partition_count -= 1
        return session

    def acknowledge(self, key: SessionKey, epoch: int) -> None:
        """Takes a ShareAcknowledge of any epoch but -1.

        Raises:
            ShareSessionError: SHARE_SESSION_NOT_FOUND or INVALID_SHARE_SESSION_EPOCH, which epoch 0 always is.
        """
        if epoch == INITIAL_EPOCH:
            raise ShareSessionError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, "An acknowledgement cannot open a share session."
            )
        self._current(key, epoch).epoch = next_epoch(epoch)

    def finish(self, key: SessionKey) -> ShareSession:
        """Takes a request of epoch -1: removes the session, and returns it.

        Raises:
            ShareSessionError: SHARE_SESSION_NOT_FOUND.
        """
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The member has no share session here.")
        self.remove(key)
        return session

    def remove(self, key: SessionKey) -> None:
        """Removes the session of a member, if it has one."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._partition_count -= len(session.partitions)
            self._by_group[key[0]] -= 1
            if not self._by_group[key[0]]:
                del self._by_group[key[0]]

    def has_any_of(self, group_id: str) -> bool:
        """Returns whether a member of the group has a session."""
        return group_id in self._by_group

    def owned_by(self, owner: Hashable) -> list[ShareSession]:
        """Returns the sessions that end with a connection."""
        return [session for session in self._sessions.values() if session.owner == owner]

    def _current(self, key: SessionKey, epoch: int) -> ShareSession:
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The member has no share session here.")
        if epoch != session.epoch:
            raise ShareSessionError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"The share session expects epoch {session.epoch}, not {epoch}."
            )
        return session

    def _check_room(self, count: int) -> None:
        if self._partition_count + count > self._partitions_max:
            raise ShareSessionError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, "The broker has no room for more partitions of share sessions."
            )
