"""One replica of a tiered partition: what is known of its remote segments, and the task of its present role."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.remote_log.core.remote_log import RemoteLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.ports.environment import Clock
    from moldau.runtime.ports.objects import StoredObject
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.remote_log.core.names import DeletionProof, Listing, RemoteSegment
    from moldau_broker.server.replicas.partition import Partition


class RemoteRole(enum.Enum):
    """The work of a replica for its remote log."""

    LEADER = "leader"
    FOLLOWER = "follower"
    PURGER = "purger"
    """Leader of a topic that is not tiered any more, and whose remote segments are not wanted any more (KIP-950)."""
    ONLOOKER = "onlooker"
    """Follower of such a topic, or a replica whose topic keeps the remote segments; it does nothing."""


class Sized(Protocol):
    """A segment, here or in the store."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its ``.log``."""
        ...


class Lag(NamedTuple):
    """Segments that wait to be copied or deleted, and the bytes of their files."""

    segments: int
    size_bytes: int

    @classmethod
    def of(cls, waiting: Sequence[Sized]) -> Lag:
        """Counts segments."""
        return cls(len(waiting), sum(each.size_bytes for each in waiting))

    def without(self, done: Sequence[Sized]) -> Lag:
        """Returns the rest after some are done."""
        return Lag(self.segments - len(done), self.size_bytes - sum(each.size_bytes for each in done))


NO_LAG: Final = Lag(0, 0)


class RemoteStatistics(NamedTuple):
    """The remote logs of some partitions that this broker leads."""

    copy_lag_segments: int
    copy_lag_bytes: int
    delete_lag_segments: int
    delete_lag_bytes: int
    segments: int
    """Segments of these logs in the store."""
    size_bytes: int
    """Bytes of their records; each record counts once."""
    damaged: int
    """Partitions some of whose records neither the store nor this disk has undamaged."""

    def plus(self, other: RemoteStatistics) -> RemoteStatistics:
        """Returns the sums."""
        return RemoteStatistics(*map(sum, zip(self, other, strict=True)))


NO_STATISTICS: Final = RemoteStatistics(0, 0, 0, 0, 0, 0, 0)


class PartitionListing:
    """One listing of a partition's folder, for which several tasks may wait."""

    __slots__ = ("begun_ms", "begun_wall_ms", "done", "error")

    def __init__(self, begun_ms: float, begun_wall_ms: int) -> None:
        """The time is given on the monotonic and on the wall clock."""
        self.begun_ms = begun_ms
        self.begun_wall_ms = begun_wall_ms
        self.done = trio.Event()
        self.error: ObjectStoreError | None = None
        """Why it failed; set before ``done``."""


class RemotePartition:
    """A replica in one role; another role or leader epoch has another object.

    A new leader epoch begins without knowledge, because the log may be another one now: an unclean election may have
    changed which segments belong to it. For the same reason a truncation ends the knowledge.
    """

    __slots__ = (
        "_basis",
        "_changes",
        "_known",
        "_listed_ms",
        "copy_lag",
        "damaged_offset",
        "delete_lag",
        "failures",
        "folder",
        "leader_epoch",
        "listing",
        "partition",
        "role",
        "scope",
        "settles_at_ms",
        "unfinished_since",
    )

    def __init__(self, partition: Partition, folder: str, role: RemoteRole) -> None:
        """``folder`` is the prefix of its objects."""
        self.partition = partition
        self.folder = folder
        self.role = role
        self.leader_epoch = partition.replica.state.leader_epoch
        self._known: RemoteLog | None = None
        self._basis = self._present_basis()
        """The local log, and its truncations, by which ``_known`` tells own segments from foreign ones."""
        self._listed_ms: float | None = None
        self.unfinished_since: dict[str, float] = {}
        """Unfinished objects of the last listing: when a listing of this broker, in this role, showed them first."""
        self.copy_lag = self.delete_lag = NO_LAG
        """Segments of a leader that wait to be copied and to be deleted."""
        self.damaged_offset: int | None = None
        """Where a closed segment of a leader is damaged, which is therefore not copied."""
        self.failures: dict[str, str] = {}
        """Why the store has failed the last round of a task, by the name of the task."""
        self.listing: PartitionListing | None = None
        """The listing in progress."""
        self.settles_at_ms = 0.0
        """Monotonic time at which the work may begin."""
        self.scope = trio.CancelScope()
        """Cancelled when the role ends."""
        self._changes: dict[RemoteSegment, bool] = {}
        """Segments that were copied (True) and deleted (False) during the listing in progress."""

    @property
    def has_ended(self) -> bool:
        """Whether the replica has another role now, or none."""
        return self.scope.cancel_called

    @property
    def log(self) -> RemoteLog | None:
        """The segments by the last listing, changed by the copies and deletions since; None before the first."""
        return self._known if self._basis == self._present_basis() else None

    @property
    def listed_ms(self) -> float | None:
        """Monotonic time at which the last listing began; None if another one is needed."""
        return None if self.log is None else self._listed_ms

    def distrust(self) -> None:
        """Lets the next round of a leader list again, because it is unknown whether a deletion was done."""
        self._listed_ms = None

    def _present_basis(self) -> tuple[PartitionLog, int]:
        log = self.partition.log
        return log, log.storage.segments.generation

    def statistics(self) -> RemoteStatistics:
        """Returns the present state."""
        remote = self.log
        if remote is None:
            return NO_STATISTICS
        return RemoteStatistics(
            *self.copy_lag,
            *self.delete_lag,
            segments=len(remote.segments) + len(remote.contained),
            size_bytes=remote.size_bytes,
            damaged=int(self.damaged_offset is not None or not self._covers_deleted(remote)),
        )

    def _covers_deleted(self, remote: RemoteLog) -> bool:
        """Returns whether the store has all records that the disk has deleted."""
        log = self.partition.log
        return remote.covers(log.log_start_offset, log.local_log_start_offset)

    def is_still(self, role: RemoteRole) -> bool:
        """Returns whether it has this role in the present leader epoch."""
        return self.role is role and self.leader_epoch == self.partition.replica.state.leader_epoch

    def begin_listing(self, clock: Clock) -> PartitionListing:
        """Returns a new listing, which begins now."""
        assert self.listing is None, "one listing at a time"
        self._changes.clear()
        self.listing = PartitionListing(clock.monotonic_ms(), clock.wall_ms())
        return self.listing

    def end_listing(self, found: Listing | ObjectStoreError) -> None:
        """Takes the outcome of the listing in progress.

        A page of it may be older than a copy or a deletion meanwhile, so those are applied again.
        """
        listing = self.listing
        assert listing is not None
        if isinstance(found, ObjectStoreError):
            listing.error = found
        else:
            self._take(found, listing)
        self.listing = None
        listing.done.set()

    def _take(self, found: Listing, listing: PartitionListing) -> None:
        self._basis = self._present_basis()
        self._known = known = RemoteLog(found, self._epoch_for_offset, listing.begun_wall_ms)
        self._listed_ms = listing.begun_ms
        since = self.unfinished_since
        self.unfinished_since = {item.name: since.get(item.name, listing.begun_ms) for item in found.unfinished}
        for segment, is_copied in self._changes.items():
            if is_copied:
                _add(known, segment)
            else:
                _drop(known, segment)

    def _epoch_for_offset(self, offset: int) -> int:
        """Returns the leader epoch of the log at an offset; -1 at its end and above.

        A follower does not know which epoch its next record has. After an unclean election, segments above its end may
        hold other records than its leader.
        """
        log = self.partition.log
        return log.epochs.epoch_for_offset(offset) if offset < log.log_end_offset else -1

    def copied(self, segment: RemoteSegment) -> None:
        """Adds a segment whose two objects are durable."""
        if self.listing is not None:
            self._changes[segment] = True
        if self.log is not None:
            _add(self.log, segment)

    def deleted(self, segment: RemoteSegment) -> None:
        """Forgets a segment; called before its deletion begins."""
        if self.listing is not None:
            self._changes[segment] = False
        if self.log is not None:
            _drop(self.log, segment)

    def proved(self, proof: DeletionProof) -> None:
        """Adds a proof that is durable. A listing in progress may miss it; then the next deletion writes it again."""
        if self.log is not None:
            self.log.proved(proof)

    def superseded(self, proof: DeletionProof) -> None:
        """Forgets a proof; called before its deletion begins."""
        if self.log is not None and proof in self.log.proofs:
            self.log.superseded(proof)

    def removed(self, item: StoredObject) -> None:
        """Forgets an unfinished object; called before its deletion begins."""
        if self.log is not None and item in self.log.unfinished:
            self.log.removed(item)


def _knows(log: RemoteLog, segment: RemoteSegment) -> bool:
    return any(segment in known for known in (log.segments, log.contained, log.foreign))


def _add(log: RemoteLog, segment: RemoteSegment) -> None:
    """Adds a copied segment. The last listing may have shown it already, or one of its objects as unfinished."""
    if not _knows(log, segment):
        log.copied(segment)
    for item in [item for item in log.unfinished if segment.name in item.name]:
        log.removed(item)


def _drop(log: RemoteLog, segment: RemoteSegment) -> None:
    """Forgets a deleted segment. The last listing may not have shown it any more."""
    if _knows(log, segment):
        log.deleted(segment)
