"""The change of one partition: ISR, ELR, leader election, reassignment (KIP-497, KIP-966, KIP-455).

``PartitionChange`` collects the requested changes of a partition (a new ISR, new replicas ...) and ``build`` derives
the record: it completes a reassignment whose target is in sync, elects a leader, and updates the eligible leader
replicas.

Election order: the present leader if it may stay; then, in the order of the replicas, a live member of the ISR; then a
live member of the ELR; then, when ISR and ELR are empty, the last known leader (the one element of ``last_known_elr``,
which is kept while the partition has no leader), which may have lost its unsynced tail; and only where
``unclean.leader.election.enable`` is set, any live replica, those that a move is adding last, because they may be
empty. The last two mark the partition as recovering. A preferred election moves the leadership to a member of the ISR
only, or of the ELR while the ISR is empty.

Invariants of the ELR (KIP-966): it is empty while the ISR has ``min.insync.replicas`` members; its members left the
ISR when the ISR was already too small for the high watermark to advance, so each holds every acknowledged record; a
broker that restarts after an unclean stop leaves it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau_quorum.metadata.directory_ids import MIGRATING
from moldau_quorum.metadata.image_parts import changes_anything
from moldau_quorum.metadata.records import NO_LEADER, NO_LEADER_CHANGE, PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from moldau.values import BrokerId
    from moldau_quorum.metadata.image import PartitionImage

RECOVERED = 0
RECOVERING = 1


class Election(enum.Enum):
    """The kind of an election."""

    ONLINE = "online"  # keep the leader if it may stay, else a clean one
    PREFERRED = "preferred"  # the first replica if it may lead, else as ONLINE
    UNCLEAN = "unclean"  # as ONLINE, but any live replica rather than none


@dataclass(frozen=True, slots=True, kw_only=True)
class Elected:
    """The outcome of an election."""

    leader: BrokerId
    unclean: bool = False
    """The leader was neither in the ISR nor in the ELR: acknowledged records may be lost."""


@dataclass(slots=True, kw_only=True)
class PartitionChange:
    """A change under construction. ``None`` leaves the field of the partition as it is."""

    topic_id: UUID
    partition_id: int
    partition: PartitionImage
    acceptable: Callable[[BrokerId], bool]
    """Whether a broker may lead: registered, not fenced, not shutting down, and the replica's directory works."""
    min_isr: int
    elr_enabled: bool = True
    election: Election = Election.ONLINE
    isr: tuple[BrokerId, ...] | None = None
    replicas: tuple[BrokerId, ...] | None = None
    adding: tuple[BrokerId, ...] | None = None
    removing: tuple[BrokerId, ...] | None = None
    recovery_state: int | None = None
    lost_state: frozenset[BrokerId] = frozenset()
    """Brokers that stopped uncleanly: they leave the ELR."""
    new_directory: Callable[[BrokerId], UUID] | None = None
    """The directory of a new replica on a broker; None where directories are not recorded."""
    assigned: dict[BrokerId, UUID] = field(default_factory=dict)
    """Directories of replicas as their brokers reported them, by broker id."""

    def directory(self, broker_id: BrokerId) -> UUID:
        """Returns the directory of a replica after the change."""
        if broker_id in self.assigned:
            return self.assigned[broker_id]
        if broker_id in self.partition.replicas or self.new_directory is None:
            return self.partition.directory(broker_id)
        return self.new_directory(broker_id)

    def build(self) -> PartitionChangeRecord | None:
        """Builds the record; returns None if nothing changes."""
        before = self.partition
        replicas, adding, removing, isr = self._after_reassignment()
        elected = self._elect(replicas, isr)
        recovery = before.leader_recovery_state if self.recovery_state is None else self.recovery_state
        if elected.leader == NO_LEADER:
            if not isr and not self.elr_enabled:
                isr = before.isr  # without an ELR the last member must stay, or no replica could ever be elected
        elif elected.leader not in isr:
            isr = (elected.leader,)
        elr: tuple[BrokerId, ...] = ()
        if elected.unclean:
            recovery = RECOVERING
        else:
            elr = self._eligible(replicas, isr)
        last_known: tuple[BrokerId, ...] = ()
        if not isr and self.elr_enabled:
            last_known = before.last_known_elr if before.leader == NO_LEADER else (before.leader,)
        leader_changed = elected.leader != before.leader
        if not leader_changed and elected.leader != NO_LEADER and not set(before.replicas) <= set(replicas):
            leader_changed = True  # a new leader epoch must fence the removed replica
        record = PartitionChangeRecord(
            topic_id=self.topic_id,
            partition_id=self.partition_id,
            partition_epoch=before.partition_epoch + 1,
            leader=elected.leader if leader_changed else NO_LEADER_CHANGE,
            isr=_if_changed(before.isr, isr),
            replicas=_if_changed(before.replicas, replicas),
            adding_replicas=_if_changed(before.adding_replicas, adding),
            removing_replicas=_if_changed(before.removing_replicas, removing),
            elr=_if_changed(before.elr, elr),
            last_known_elr=_if_changed(before.last_known_elr, last_known),
            leader_recovery_state=None if recovery == before.leader_recovery_state else recovery,
            directories=self._directories(replicas),
        )
        return record if changes_anything(record) else None

    def _directories(self, replicas: tuple[BrokerId, ...]) -> tuple[UUID, ...] | None:
        """Returns the directories of the new replicas; None if they do not change or are not recorded."""
        if self.new_directory is None:
            return None
        before = self.partition.directories
        after = tuple(self.directory(replica) for replica in replicas)
        unknown = not before and all(directory == MIGRATING for directory in after)
        return None if unknown or after == before else after

    def _after_reassignment(
        self,
    ) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...], tuple[BrokerId, ...], tuple[BrokerId, ...]]:
        """Returns replicas, adding, removing and ISR; completes a reassignment whose target is in sync."""
        before = self.partition
        replicas = before.replicas if self.replicas is None else self.replicas
        adding = before.adding_replicas if self.adding is None else self.adding
        removing = before.removing_replicas if self.removing is None else self.removing
        isr = before.isr if self.isr is None else self.isr
        isr = tuple(replica for replica in isr if replica in replicas)
        if not adding and not removing:
            return replicas, adding, removing, isr
        target = tuple(replica for replica in replicas if replica not in removing)
        # The whole target must be in sync, not only the added replicas, or the removed ones could hold the last copies.
        if target and all(replica in isr for replica in target):
            return target, (), (), tuple(replica for replica in isr if replica in target)
        return replicas, adding, removing, isr

    def _elect(self, replicas: tuple[BrokerId, ...], isr: tuple[BrokerId, ...]) -> Elected:
        before = self.partition
        elr = tuple(r for r in before.elr if r not in self.lost_state and r in replicas)

        def eligible(replica: BrokerId) -> bool:
            clean = replica in isr or (self.elr_enabled and replica in elr)
            return clean and replica in replicas and self.acceptable(replica)

        if self.election is Election.PREFERRED and eligible(replicas[0]) and (replicas[0] in isr or not isr):
            return Elected(leader=replicas[0])  # an eligible one lacks what a live leader has not acknowledged
        if eligible(before.leader):
            return Elected(leader=before.leader)
        for group in (isr, elr):
            for replica in replicas:
                if replica in group and eligible(replica):
                    return Elected(leader=replica)
        last_known = before.last_known_elr
        only_last_known = self.elr_enabled and not isr and not elr and len(last_known) == 1
        if only_last_known and last_known[0] in replicas and self.acceptable(last_known[0]):
            return Elected(leader=last_known[0], unclean=True)
        if self.election is Election.UNCLEAN:
            adding = before.adding_replicas if self.adding is None else self.adding
            for replica in sorted(replicas, key=lambda replica: replica in adding):
                if self.acceptable(replica):
                    return Elected(leader=replica, unclean=True)
        return Elected(leader=NO_LEADER)

    def _eligible(self, replicas: tuple[BrokerId, ...], isr: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
        """Returns the ELR that goes with the new ISR."""
        before = self.partition
        if not self.elr_enabled or len(isr) >= min(self.min_isr, len(replicas)):
            return ()
        return tuple(
            replica
            for replica in replicas
            if (replica in before.elr or replica in before.isr)
            and replica not in isr
            and replica not in self.lost_state
        )


def _if_changed(before: tuple[BrokerId, ...], after: tuple[BrokerId, ...]) -> tuple[BrokerId, ...] | None:
    return None if before == after else after
