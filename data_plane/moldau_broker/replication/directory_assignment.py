"""Places replicas in log directories, and reports their directories to the controller (KIP-858).

The controller records the directory of each replica. The broker compares the directories of its replicas with the
recorded ones, and sends the differences (AssignReplicasToDirs), bounded in size, one request at a time, until the
controller accepts them.

A replica that is recorded in a failed directory must not start over, empty, in another one: it may be the only replica
with the acknowledged records. ``place_replica`` decides this for a replica without a log.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode
from moldau_quorum.metadata.directory_ids import LOST, MIGRATING, UNASSIGNED

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Mapping

    from moldau.values import BrokerId
    from moldau_quorum.metadata.image import PartitionImage

AssignmentKey = tuple["uuid.UUID", int]
"""Topic id and partition number."""

ASSIGNMENTS_MAX: Final = 2_250
"""The maximum of partitions that the controller accepts in one request."""

_FINAL: Final = (
    ErrorCode.NONE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
)
"""Answers that end an assignment: it is accepted, or the replica does not exist."""


class Placement(enum.Enum):
    """Where a replica without a log starts."""

    ASSIGNED = "assigned"  # in the recorded directory
    ANY = "any"  # in any working directory
    COPY = "copy"  # with the copy of an unfinished move, whose source is lost
    OFFLINE = "offline"  # nowhere: its log may be in a failed directory


def may_be_needed(partition: PartitionImage, broker_id: BrokerId) -> bool:
    """Returns whether a replica may be the only one with acknowledged records: it leads or may be elected.

    A replica outside these sets enters them only by following a leader, with a log.
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
    """Returns where a replica that has no log in any working directory starts.

    Args:
        assigned: the recorded directory.
        online: the working directories of this broker.
        any_offline: whether other directories of ``log.dirs`` have failed.
        is_new: whether the replica was created or added while this process ran.
        needed: the result of ``may_be_needed``.
        copied: the directory in which a move has left a copy of the replica's log (a future log); None without one.
    """
    if copied is not None and not any_offline and assigned in (copied, LOST):
        # The controller records the copy's directory once the copy is complete; its source was removed or replaced.
        return Placement.COPY
    if assigned in (UNASSIGNED, MIGRATING) or assigned in online:
        if any_offline and needed and not is_new:
            return Placement.OFFLINE  # placed or moved shortly before a crash: the log may be in a failed directory
        return Placement.ASSIGNED if assigned in online else Placement.ANY
    if any_offline or (needed and assigned != LOST):
        return Placement.OFFLINE
    # The directory was removed or replaced, and its records are not needed; or the directory was unknown (LOST) and the
    # failed directory works again, so there never was a log.
    return Placement.ANY


def place_of_lost(assigned: uuid.UUID, online: Collection[uuid.UUID]) -> uuid.UUID | None:
    """Returns the directory to report for a replica whose log is in a failed directory; None if recorded already."""
    return LOST if assigned in (UNASSIGNED, MIGRATING) or assigned in online else None


class AssignmentQueue:
    """Assignments that the controller has not accepted yet.

    Invariant: at most one request is in flight; it holds at most ``ASSIGNMENTS_MAX`` partitions. Of those, None stands
    for a withdrawn assignment, which is not repeated.
    """

    __slots__ = ("_backoff_ms", "_in_flight", "_not_before_ms", "_waiting")

    def __init__(self, *, backoff_ms: float) -> None:
        self._waiting: dict[AssignmentKey, uuid.UUID] = {}
        self._in_flight: dict[AssignmentKey, uuid.UUID | None] = {}
        self._backoff_ms = backoff_ms
        self._not_before_ms = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def submit(self, key: AssignmentKey, directory: uuid.UUID) -> None:
        """Adds a replica that is not in its recorded directory; replaces a waiting assignment of the same replica."""
        if self._in_flight.get(key) == directory:
            self._waiting.pop(key, None)
        else:
            self._waiting[key] = directory

    def withdraw(self, key: AssignmentKey) -> None:
        """Removes an assignment, because the recorded one is right or the replica is deleted.

        One that is in flight may still be recorded, which the metadata then show.
        """
        self._waiting.pop(key, None)
        if key in self._in_flight:
            self._in_flight[key] = None

    def next_request(self, now_ms: float) -> dict[AssignmentKey, uuid.UUID]:
        """Returns the assignments to send now, and counts them as in flight.

        Empty if none waits, while a request is in flight, and during the back-off.
        """
        if self._in_flight or not self._waiting or now_ms < self._not_before_ms:
            return {}
        request = {key: self._waiting.pop(key) for key in list(self._waiting)[:ASSIGNMENTS_MAX]}
        self._in_flight.update(request)
        return request

    def answered(self, errors: Mapping[AssignmentKey, ErrorCode], now_ms: float) -> None:
        """Ends the request in flight; assignments with a retriable error or without an answer wait again."""
        sent, self._in_flight = self._in_flight, {}
        again = {key: directory for key, directory in sent.items() if errors.get(key) not in _FINAL}
        for key, directory in again.items():
            if directory is not None:
                self._waiting.setdefault(key, directory)
        if again:
            self._not_before_ms = now_ms + self._backoff_ms

    def failed(self, now_ms: float) -> None:
        """Queues all assignments of a failed request again, unless newer ones wait."""
        self.answered({}, now_ms)

    def next_deadline_ms(self) -> float | None:
        """Returns when ``next_request`` has assignments; None while none waits or a request is in flight."""
        return self._not_before_ms if self._waiting and not self._in_flight else None
