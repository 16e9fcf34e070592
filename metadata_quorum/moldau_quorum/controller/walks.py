"""Decisions that walk all partitions: after brokers come and go, and when leaders are elected or balanced.

Such a decision takes time in proportion to the partitions, so it is made in slices (``Result``): a slice examines and
changes a bounded number of partitions. Each partition's record is right by itself, and a walk finds nothing to do for a
partition that is in order already. If a controller is deposed between two slices, the next one walks again and goes on
where the first one ended. For this, the record that ends the cause of a walk (a broker is fenced, registered again ...)
comes last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_quorum.controller.context import SLICE_PARTITIONS, SLICE_RECORDS, DecisionView
from moldau_quorum.controller.partition_change import Election, PartitionChange
from moldau_quorum.controller.partitions import begin_change
from moldau_quorum.metadata.records import NO_LEADER, MetadataRecord, PartitionChangeRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from moldau.values import BrokerId
    from moldau_quorum.metadata.image import MetadataImage, PartitionImage, TopicImage

    Slices = Generator[list[MetadataRecord], None, list[MetadataRecord]]
    """Yields the records of full slices and returns those of the last one, to which the caller may add."""
    Change = Callable[[TopicImage, int, PartitionImage], PartitionChange | None]
    """Begins the change of a partition; None where nothing is to be decided."""


def walk(
    view: DecisionView,
    change: Change,
    *,
    first: list[MetadataRecord] | None = None,
    wanted: Callable[[PartitionImage, PartitionChangeRecord], bool] = lambda partition, record: True,
    limit: int = 0,
) -> Slices:
    """Asks ``change`` about each partition, in an order that does not depend on history.

    Topics that are created during the walk are left out; those that are deleted are skipped. ``first`` are records
    that precede those of the walk in the first slice. Only ``wanted`` records are taken. The walk ends after ``limit``
    records of its own unless that is 0.
    """
    records = [] if first is None else first
    examined = decided = found = 0
    for name in sorted(view.image.topics_by_name):
        next_id = 0
        while next_id >= 0:
            topic = view.image.topics_by_name.get(name)
            start, next_id = next_id, -1
            for partition_id in range(start, 0 if topic is None else len(topic.partitions)):
                assert topic is not None
                partition = topic.partitions[partition_id]
                changing = change(topic, partition_id, partition)
                examined += 1
                if changing is not None:
                    decided += 1
                    record = changing.build()
                    if record is not None and wanted(partition, record):
                        records.append(record)
                        found += 1
                        if found == limit:
                            return records
                if decided >= SLICE_RECORDS or examined >= SLICE_PARTITIONS:
                    yield records
                    records, examined, decided = [], 0, 0
                    next_id = partition_id + 1
                    break
    return records


def with_last(slices: Slices) -> Iterator[list[MetadataRecord]]:
    """Yields the last slice too."""
    yield (yield from slices)


def brokers_gone(view: DecisionView, gone: dict[BrokerId, None], *, lost_state: bool = False) -> Slices:
    """Removes brokers from all ISRs and leaderships.

    The brokers are still registered and unfenced in ``view``. ``lost_state`` says that they stopped uncleanly and must
    leave the ELR too (KIP-966).
    """
    lost = frozenset(gone) if lost_state else frozenset()

    def change(topic: TopicImage, partition_id: int, partition: PartitionImage) -> PartitionChange | None:
        in_isr = any(replica in gone for replica in partition.isr)
        in_elr = lost_state and any(replica in gone for replica in partition.elr)
        if not in_isr and not in_elr and partition.leader not in gone:
            return None
        change = begin_change(view.image, view.context, topic, partition_id, partition)
        may_lead = change.acceptable
        change.acceptable = lambda replica: replica not in gone and may_lead(replica)
        change.isr = tuple(replica for replica in partition.isr if replica not in gone)
        change.lost_state = lost
        return change

    return walk(view, change)


def broker_unfenced(view: DecisionView, broker_id: BrokerId, first: list[MetadataRecord]) -> Slices:
    """Elects leaders for leaderless partitions that have a replica on the broker that ``first`` unfences."""

    def change(topic: TopicImage, partition_id: int, partition: PartitionImage) -> PartitionChange | None:
        if partition.leader != NO_LEADER or broker_id not in partition.replicas:
            return None
        return begin_change(view.image, view.context, topic, partition_id, partition, unfencing=broker_id)

    return walk(view, change, first=first)


def elect_leaderless(view: DecisionView) -> Slices:
    """Elects a leader for each leaderless partition that can have one.

    A new controller calls it, and so does a decision that allows unclean elections.
    """

    def change(topic: TopicImage, partition_id: int, partition: PartitionImage) -> PartitionChange | None:
        if partition.leader != NO_LEADER:
            return None
        return begin_change(view.image, view.context, topic, partition_id, partition)

    return walk(view, change)


def balance_leaders(view: DecisionView, *, limit: int) -> Slices:
    """Moves leadership back to preferred replicas, for at most ``limit`` partitions.

    A broker's partitions are moved when more than ``leader.imbalance.per.broker.percentage`` of the partitions that
    prefer it have another leader.
    """
    preferred: dict[int, int] = {}
    lost: dict[int, int] = {}

    def count(topic: TopicImage, partition_id: int, partition: PartitionImage) -> None:
        broker = partition.preferred_leader
        preferred[broker] = preferred.get(broker, 0) + 1
        if partition.leader != broker:
            lost[broker] = lost.get(broker, 0) + 1

    yield from walk(view, count)
    threshold = view.context.settings.leader_imbalance_per_broker_percentage
    imbalanced = {broker for broker, number in lost.items() if number * 100 > threshold * preferred[broker]}
    if not imbalanced:
        return []

    def change(topic: TopicImage, partition_id: int, partition: PartitionImage) -> PartitionChange | None:
        if partition.leader == partition.preferred_leader or partition.preferred_leader not in imbalanced:
            return None
        change = begin_change(view.image, view.context, topic, partition_id, partition)
        change.election = Election.PREFERRED
        return change

    def moves_back(partition: PartitionImage, record: PartitionChangeRecord) -> bool:
        return record.leader == partition.preferred_leader

    return (yield from walk(view, change, wanted=moves_back, limit=limit))


def leads_any(image: MetadataImage, broker_id: BrokerId) -> bool:
    """Returns whether a broker leads any partition."""
    return any(
        partition.leader == broker_id
        for topic in image.topics_by_id.unordered_values()
        for partition in topic.partitions.unordered_values()
    )
