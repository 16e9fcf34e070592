"""Which log directory holds a replica: where a new one goes, and what the controller has yet to be told (KIP-858).

The controller records a directory for each replica; the broker is the one who knows. So the broker compares what it
has with what is recorded, and sends the differences (AssignReplicasToDirs), bounded in size, one request at a time,
again and again until they are taken.

A replica that is recorded in a directory which does not work must not begin anew, empty, in another one: it may be the
only one that holds what was acknowledged. ``place_replica`` is that rule, for a replica without a log.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau_quorum.directory_ids import LOST, MIGRATING, UNASSIGNED

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Mapping

    from moldau_quorum.image import PartitionImage

AssignmentKey = tuple["uuid.UUID", int]
"""Topic id and number of a partition."""

ASSIGNMENTS_MAX: Final = 2_250
"""Partitions in one request; what the controller takes."""

_FINAL: Final = (
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
"""Answers after which nothing is left to tell: taken, or no such replica."""


class Placement(enum.Enum):
    """Where a replica without a log begins."""

    ASSIGNED = "assigned"  # in the directory that is recorded
    ANY = "any"  # in any directory that works
    COPY = "copy"  # with the copy of a move that was under way: what was copied from is gone
    OFFLINE = "offline"  # nowhere: its log may be in a directory that does not work


def may_be_needed(partition: PartitionImage, broker_id: int) -> bool:
    """Whether a replica may be the one that holds what was acknowledged: it may lead now or one day.

    A replica that is in none of these sets comes into them only by following a leader, with a log.
    """
    return (
        broker_id == partition.leader
        or broker_id in partition.isr
        or broker_id in partition.elr
        or broker_id in partition.last_known_elr
    )


def place_replica(
    assigned: uuid.UUID,
    *,
    online: Collection[uuid.UUID],
    any_offline: bool,
    is_new: bool,
    needed: bool,
    copied: uuid.UUID | None = None,
) -> Placement:
    """Where a replica that has no log in any working directory begins.

    ``online`` are the directories of this broker that work; ``any_offline``: others of ``log.dirs`` do not. ``is_new``:
    the replica was created or added while this process ran. ``needed``: ``may_be_needed``. ``copied``: the directory
    in which a move has left a copy of the replica's log (a future log); None if there is none.
    """
    if copied is not None and not any_offline and assigned in (copied, LOST):
        # The controller was told of the copy's directory only when it had all; its source was removed or replaced.
        return Placement.COPY
    if assigned in (UNASSIGNED, MIGRATING) or assigned in online:
        if any_offline and needed and not is_new:
            return Placement.OFFLINE  # chosen or moved shortly before a crash: the log may be where we cannot look
        return Placement.ASSIGNED if assigned in online else Placement.ANY
    if any_offline or (needed and assigned != LOST):
        return Placement.OFFLINE
    # Its directory was removed or replaced, and nothing depends on what it held; or nobody knew its place (LOST), and
    # the directory that could not be looked into works again: there never was a log.
    return Placement.ANY


def place_of_lost(assigned: uuid.UUID, online: Collection[uuid.UUID]) -> uuid.UUID | None:
    """What to tell of a replica whose log is in some directory that does not work; None if that is recorded already."""
    return LOST if assigned in (UNASSIGNED, MIGRATING) or assigned in online else None


class AssignmentQueue:
    """What the controller has yet to be told.

    Invariant: at most one request is in flight; it holds at most ``ASSIGNMENTS_MAX`` partitions.
    """

    __slots__ = ("_backoff_ms", "_in_flight", "_not_before_ms", "_waiting")

    def __init__(self, *, backoff_ms: float) -> None:
        self._waiting: dict[AssignmentKey, uuid.UUID] = {}
        self._in_flight: dict[AssignmentKey, uuid.UUID] = {}
        self._backoff_ms = backoff_ms
        self._not_before_ms = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def submit(self, key: AssignmentKey, directory: uuid.UUID) -> None:
        """A replica is in another directory than recorded; replaces what waits for the same replica."""
        if self._in_flight.get(key) == directory:
            self._waiting.pop(key, None)
        else:
            self._waiting[key] = directory

    def withdraw(self, key: AssignmentKey) -> None:
        """What is recorded is right, or the replica is gone."""
        self._waiting.pop(key, None)

    def next_request(self, now_ms: float) -> dict[AssignmentKey, uuid.UUID]:
        """What to send now;

        empty if there is nothing, a request is in flight, or the back-off lasts. Takes it in flight.
        """
        if self._in_flight or not self._waiting or now_ms < self._not_before_ms:
            return {}
        for key in list(self._waiting)[:ASSIGNMENTS_MAX]:
            self._in_flight[key] = self._waiting.pop(key)
        return dict(self._in_flight)

    def answered(self, errors: Mapping[AssignmentKey, ErrorCode], now_ms: float) -> None:
        """The request in flight was answered; what was refused for the moment, or not mentioned, waits again."""
        sent, self._in_flight = self._in_flight, {}
        again = {key: directory for key, directory in sent.items() if errors.get(key) not in _FINAL}
        for key, directory in again.items():
            self._waiting.setdefault(key, directory)
        if again:
            self._not_before_ms = now_ms + self._backoff_ms

    def failed(self, now_ms: float) -> None:
        """The request in flight got no usable answer: all of it waits again, unless something newer does."""
        self.answered({}, now_ms)

    def next_deadline_ms(self) -> float | None:
        """When ``next_request`` will have something; None while nothing waits or a request is in flight."""
        return self._not_before_ms if self._waiting and not self._in_flight else None
