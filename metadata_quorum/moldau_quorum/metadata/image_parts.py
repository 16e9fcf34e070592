"""The parts of a metadata image: controllers, brokers, topics and partitions.

All are immutable values. ``moldau_quorum.metadata.image`` composes and re-exports them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from moldau.values import LeaderEpoch
from moldau_quorum.metadata import directory_ids
from moldau_quorum.metadata import records as r

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.values import BrokerId
    from moldau_quorum.metadata.persistent_map import PersistentMap

RESOURCE_TOPIC: Final = 2
RESOURCE_BROKER: Final = 4
RESOURCE_BROKER_LOGGER: Final = 8
RESOURCE_CLIENT_METRICS: Final = 16
RESOURCE_GROUP: Final = 32
"""Kafka's numbers of the resource types that have a configuration."""

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Pairs of entity type and name (None: the default entity), sorted by type."""
ResourceKey = tuple[int, str]
"""Kafka's number of the resource type, and the resource's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerImage:
    """A registered controller."""

    controller_id: int
    incarnation_id: UUID
    endpoints: tuple[r.Endpoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """A registered broker."""

    broker_id: BrokerId
    broker_epoch: int
    incarnation_id: UUID
    endpoints: tuple[r.Endpoint, ...]
    rack: str | None = None
    fenced: bool = True
    """A fenced broker leads no partition, is in no ISR except as its last member, and is hidden from clients."""
    in_controlled_shutdown: bool = False
    features: tuple[tuple[str, int, int], ...] = ()
    log_dirs: tuple[UUID, ...] = ()
    """Ids of the working log directories; empty if the broker reported none."""
    cordoned_log_dirs: tuple[UUID, ...] = ()
    """Ids of the log directories that take no new replicas (KIP-1066), working or not."""

    @property
    def active(self) -> bool:
        """Whether the broker may become leader or join an ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def takes_replicas(self) -> bool:
        """Whether the broker may get new replicas: one of its directories is not cordoned, or it reported none."""
        return not self.log_dirs or any(directory not in self.cordoned_log_dirs for directory in self.log_dirs)

    @property
    def machine(self) -> str | None:
        """The host of the first endpoint, by which brokers of one machine know each other; None without endpoints."""
        return self.endpoints[0].host if self.endpoints else None

    def endpoint(self, listener_name: str) -> r.Endpoint | None:
        """Returns the endpoint of a listener, or None."""
        for endpoint in self.endpoints:
            if endpoint.name == listener_name:
                return endpoint
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """The state of one partition.

    Invariants: ``isr`` and ``elr`` are disjoint parts of ``replicas``; ``leader`` is in ``isr`` or ``r.NO_LEADER``;
    ``directories`` is empty or as long as ``replicas``.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch = LeaderEpoch(0)
    partition_epoch: int = 0
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    leader_recovery_state: int = 0
    directories: tuple[UUID, ...] = ()

    def directory(self, broker_id: BrokerId) -> UUID:
        """Returns the log directory of a replica, as far as is known (``directory_ids``)."""
        if not self.directories or broker_id not in self.replicas:
            return directory_ids.MIGRATING
        return self.directories[self.replicas.index(broker_id)]

    @property
    def preferred_leader(self) -> int:
        """The first replica."""
        return self.replicas[0]

    @property
    def reassigning(self) -> bool:
        """Whether replicas are being added or removed."""
        return bool(self.adding_replicas or self.removing_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic and its partitions."""

    name: str
    topic_id: UUID
    partitions: PersistentMap[int, PartitionImage]
    """Partitions by number, 0 to n-1; iterate with ``range(len(partitions))`` where order matters."""


_STATE: Final = tuple(field.name for field in fields(PartitionImage))
"""The fields that a partition's record and image have in common, by name: all of the image."""
_CHANGEABLE: Final = tuple(
    field.name for field in fields(r.PartitionChangeRecord) if field.name in _STATE and field.default is None
)
"""The fields that a change may leave as they were."""


def partition_image(record: r.PartitionRecord) -> PartitionImage:
    """Returns the partition that a record describes."""
    return PartitionImage(**{name: getattr(record, name) for name in _STATE})


def partition_record(topic_id: UUID, partition_id: int, image: PartitionImage) -> r.PartitionRecord:
    """Returns the record that describes a partition."""
    state = {name: getattr(image, name) for name in _STATE}
    return r.PartitionRecord(topic_id=topic_id, partition_id=partition_id, **state)


def changed_partition(before: PartitionImage, record: r.PartitionChangeRecord) -> PartitionImage:
    """Returns the partition after a change."""
    new_leader = record.leader != r.NO_LEADER_CHANGE
    return replace(
        before,
        leader=record.leader if new_leader else before.leader,
        leader_epoch=LeaderEpoch(before.leader_epoch + new_leader),
        partition_epoch=record.partition_epoch,
        **{name: value for name in _CHANGEABLE if (value := getattr(record, name)) is not None},
    )


def changes_anything(record: r.PartitionChangeRecord) -> bool:
    """Returns whether a change does more than count the partition epoch."""
    return record.leader != r.NO_LEADER_CHANGE or any(getattr(record, name) is not None for name in _CHANGEABLE)


def check_directories(directories: tuple[UUID, ...], replicas: tuple[BrokerId, ...]) -> None:
    """Checks that each replica has a directory, or none has.

    Raises:
        MetadataCorruptError: the lengths differ.
    """
    if directories and len(directories) != len(replicas):
        raise r.MetadataCorruptError(f"{len(directories)} directories do not fit the replicas {replicas}")
