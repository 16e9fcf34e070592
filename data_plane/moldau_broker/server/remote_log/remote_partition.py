"""One replica of a tiered partition: what is known of its remote segments, and the task of its present role."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import trio

from moldau.runtime.ports.objects import ObjectStoreError
from moldau_broker.remote_log.core.remote_log import RemoteLog

if TYPE_CHECKING:
    from moldau_broker.remote_log.core.names import Listing, RemoteSegment
    from moldau_broker.server.replicas.partition import Partition


class RemoteRole(enum.Enum):
    """The work of a replica for its remote log."""

    LEADER = "leader"
    FOLLOWER = "follower"


class PartitionListing:
    """One listing of a partition's folder, for which several tasks may wait."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: ObjectStoreError | None = None
        """Why it failed; set before ``done``."""


class RemotePartition:
    """A replica in one role; another role or leader epoch has another object.

    A new leader epoch begins without knowledge, because the log may be another one now: an unclean election has changed
    which segments belong to it.
    """

    __slots__ = ("_changes", "folder", "leader_epoch", "listing", "log", "partition", "role", "scope")

    def __init__(self, partition: Partition, folder: str, role: RemoteRole) -> None:
        """``folder`` is the prefix of its objects."""
        self.partition = partition
        self.folder = folder
        self.role = role
        self.leader_epoch = partition.replica.state.leader_epoch
        self.log: RemoteLog | None = None
        """The segments by the last listing, changed by the copies and deletions since; None before the first."""
        self.listing: PartitionListing | None = None
        """The listing in progress."""
        self.scope = trio.CancelScope()
        """Cancelled when the role ends."""
        self._changes: dict[RemoteSegment, bool] = {}
        """Segments that were copied (True) and deleted (False) during the listing in progress."""

    @property
    def has_ended(self) -> bool:
        """Whether the replica has another role now, or none."""
        return self.scope.cancel_called

    def is_still(self, role: RemoteRole) -> bool:
        """Returns whether it has this role in the present leader epoch."""
        return self.role is role and self.leader_epoch == self.partition.replica.state.leader_epoch

    def begin_listing(self) -> PartitionListing:
        """Returns a new listing."""
        assert self.listing is None, "one listing at a time"
        self._changes.clear()
        self.listing = PartitionListing()
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
            self.log = RemoteLog(found, self.partition.log.epochs.epoch_for_offset)
            known = set(found.segments)
            for segment, is_copied in self._changes.items():
                if is_copied and segment not in known:
                    self.log.copied(segment)
                elif not is_copied and segment in known:
                    self.log.deleted(segment)
        self.listing = None
        listing.done.set()

    def copied(self, segment: RemoteSegment) -> None:
        """Adds a segment whose two objects are durable."""
        assert self.log is not None
        if self.listing is not None:
            self._changes[segment] = True
        self.log.copied(segment)

    def deleted(self, segment: RemoteSegment) -> None:
        """Forgets a segment; called before its deletion begins."""
        assert self.log is not None
        if self.listing is not None:
            self._changes[segment] = False
        self.log.deleted(segment)
