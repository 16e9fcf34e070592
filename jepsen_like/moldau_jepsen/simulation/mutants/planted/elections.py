"""Bugs in elections of leaders and in changes of the ISR, as the controller decides them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from moldau_quorum.controller import partitions, walks
from moldau_quorum.controller.cluster import brokers
from moldau_quorum.controller.partition_change import Election, PartitionChange
from moldau_quorum.metadata import image, topics_editor

if TYPE_CHECKING:
    from moldau.values import BrokerId
    from moldau_jepsen.planted_bug import Patch
    from moldau_quorum.controller.context import DecisionView
    from moldau_quorum.metadata.image import PartitionImage, TopicImage
    from moldau_quorum.metadata.records import MetadataRecord, PartitionChangeRecord


def unclean_election() -> list[Patch]:
    original = PartitionChange.build

    def build(self: PartitionChange) -> object:
        self.election = Election.UNCLEAN
        return original(self)

    return [(PartitionChange, "build", build)]


def elects_any_replica() -> list[Patch]:
    original = PartitionChange._elect

    def elect(self: PartitionChange, replicas: tuple[BrokerId, ...], isr: tuple[BrokerId, ...]) -> object:
        elected = original(self, replicas, isr)
        if elected.leader == self.partition.leader:
            return elected
        for replica in replicas:
            if self.acceptable(replica) and replica != self.partition.leader:
                return dataclasses.replace(elected, leader=replica)
        return elected

    return [(PartitionChange, "_elect", elect)]


def stale_isr_change() -> list[Patch]:
    return [(partitions, "_check_epochs", lambda broker_id, partition, data: None)]


def empty_elr_taken_for_unchanged() -> list[Patch]:
    """An ELR that becomes empty is taken for one of which the record says nothing."""
    original = image.changed_partition

    def changed_partition(before: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
        return original(before, record if record.elr else dataclasses.replace(record, elr=None))

    return [(owner, "changed_partition", changed_partition) for owner in (topics_editor, partitions)]


def epoch_kept_in_handover() -> list[Patch]:
    """The leader epoch rises only where a leader is lost, not where it hands over to another replica in sync."""
    original = image.changed_partition

    def changed_partition(before: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
        after = original(before, record)
        if before.leader >= 0 and before.leader in after.isr and after.leader != before.leader:
            return dataclasses.replace(after, leader_epoch=before.leader_epoch)
        return after

    return [(owner, "changed_partition", changed_partition) for owner in (topics_editor, partitions)]


def unfenced_is_in_sync() -> list[Patch]:
    """A broker whose fence is lifted is back in every ISR at once, whatever it has missed."""

    def broker_unfenced(view: DecisionView, broker_id: BrokerId, first: list[MetadataRecord]) -> walks.Slices:
        def change(topic: TopicImage, partition_id: int, partition: PartitionImage) -> PartitionChange | None:
            if broker_id not in partition.replicas or (partition.leader >= 0 and broker_id in partition.isr):
                return None
            change = partitions.begin_change(
                view.image, view.context, topic, partition_id, partition, unfencing=broker_id
            )
            if partition.leader >= 0:
                change.isr = (*partition.isr, broker_id)
            return change

        return walks.walk(view, change, first=first)

    return [(brokers, "broker_unfenced", broker_unfenced)]
