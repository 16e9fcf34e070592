"""The metadata image: the state that the committed metadata log describes, and its changes.

An image is immutable and shares structure with its predecessor, so that a reader may keep an image for any time, and an
update costs about as much as the part that it changes. ``ImageEditor`` is the only mutator: it replays records
deterministically, and ``finish`` returns the new image together with a ``MetadataDelta`` that names the differences.
Every node replays the same log, so all images converge to the committed prefix.

A record must fit the image that it is replayed on: the controller decided it against that image, and ``apply_command``
refuses the commands of a deposed controller. A record that does not fit means that the log is damaged or that nodes
disagree, and raises ``MetadataCorruptError``.

The parts of an image are in ``image_parts``, the delta is in ``delta``; other packages import all of them from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from moldau_quorum.metadata import directory_ids
from moldau_quorum.metadata import records as r
from moldau_quorum.metadata.delta import MetadataDelta, PartitionDelta, delta_between, quota_sort_key
from moldau_quorum.metadata.image_parts import (
    RESOURCE_BROKER,
    RESOURCE_BROKER_LOGGER,
    RESOURCE_CLIENT_METRICS,
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    BrokerImage,
    ControllerImage,
    PartitionImage,
    QuotaEntity,
    ResourceKey,
    TopicImage,
    changed_partition,
)
from moldau_quorum.metadata.persistent_map import PersistentMap
from moldau_quorum.metadata.topics_editor import TopicsEditor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from moldau.values import BrokerId

__all__ = [
    "RESOURCE_BROKER",
    "RESOURCE_BROKER_LOGGER",
    "RESOURCE_CLIENT_METRICS",
    "RESOURCE_GROUP",
    "RESOURCE_TOPIC",
    "BrokerImage",
    "ControllerImage",
    "ImageEditor",
    "MetadataDelta",
    "MetadataImage",
    "PartitionDelta",
    "PartitionImage",
    "QuotaEntity",
    "ResourceKey",
    "TopicImage",
    "changed_partition",
    "delta_between",
    "quota_sort_key",
]

_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
_NO_QUOTAS: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """All metadata as of one offset of the log. An image is never changed; ``apply`` returns the next one."""

    offset: int = -1
    """The last applied log offset; -1 before the first."""
    epoch: int = 0
    """The Raft epoch of the entry at ``offset``."""
    controller_id: int = -1
    """The active controller as of ``offset``; -1 before the first."""
    controller_epoch: int = 0
    controller_sequence: int = -1
    """The sequence of the last accepted command of this controller epoch."""
    cluster_id: str = ""
    """Empty until the first controller has named the cluster."""
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics_by_id: PersistentMap[UUID, TopicImage] = field(default_factory=PersistentMap)
    topics_by_name: PersistentMap[str, TopicImage] = field(default_factory=PersistentMap)
    configs: PersistentMap[ResourceKey, Mapping[str, str]] = field(default_factory=PersistentMap)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    quotas: PersistentMap[QuotaEntity, Mapping[str, float]] = field(default_factory=PersistentMap)
    scram_credentials: PersistentMap[tuple[str, int], r.UserScramCredentialRecord] = field(
        default_factory=PersistentMap
    )
    acls: PersistentMap[UUID, r.AccessControlEntryRecord] = field(default_factory=PersistentMap)
    delegation_tokens: PersistentMap[str, r.DelegationTokenRecord] = field(default_factory=PersistentMap)
    """By token id; a token stays for a while after its expiry."""

    @property
    def metadata_level(self) -> int:
        """The level of ``metadata.version``; the first level until one is set."""
        return self.features.get(r.METADATA_VERSION, r.METADATA_LEVEL_FIRST)

    @property
    def records_directories(self) -> bool:
        """Whether partition records name the log directories of their replicas."""
        return self.metadata_level >= r.METADATA_LEVEL_DIRECTORIES

    @property
    def records_cordons(self) -> bool:
        """Whether registrations of brokers name their cordoned log directories."""
        return self.metadata_level >= r.METADATA_LEVEL_CORDONS

    def replica_online(self, partition: PartitionImage, broker_id: BrokerId) -> bool:
        """Returns whether the log directory of a replica works, as far as is known.

        The broker itself may be fenced all the same.
        """
        broker = self.brokers.get(broker_id)
        return broker is not None and directory_ids.is_online(partition.directory(broker_id), broker.log_dirs)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Returns the values set for a resource itself, without defaults; empty if none is set.

        The cluster-wide defaults of brokers are ``config(RESOURCE_BROKER, "")``.
        """
        return self.configs.get((resource_type, name), _EMPTY)

    def dynamic_layers(self, node_id: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Returns the dynamic values of a node: the defaults of all nodes, then its own, which override them."""
        return self.config(RESOURCE_BROKER, ""), self.config(RESOURCE_BROKER, str(node_id))

    def topic_config(self, topic_name: str) -> Mapping[str, str]:
        """Returns the overrides set for a topic."""
        return self.config(RESOURCE_TOPIC, topic_name)

    def quota(self, entity: QuotaEntity) -> Mapping[str, float]:
        """Returns the quotas set for an entity itself."""
        return self.quotas.get(entity, _NO_QUOTAS)

    def partition(self, topic_id: UUID, partition_id: int) -> PartitionImage | None:
        """Returns a partition, or None."""
        topic = self.topics_by_id.get(topic_id)
        return None if topic is None else topic.partitions.get(partition_id)

    def partition_count(self) -> int:
        """Returns the number of partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics_by_id.values())

    def edit(self) -> ImageEditor:
        """Returns an editor that starts from this image."""
        return ImageEditor(self)

    def apply(self, records: Iterable[r.MetadataRecord], *, offset: int, epoch: int) -> MetadataDelta:
        """Replays records as if they were one accepted command.

        Raises:
            MetadataCorruptError: a record does not fit.
        """
        editor = self.edit()
        editor.replay_all(records)
        return editor.finish(offset=offset, epoch=epoch)

    def apply_command(self, command: r.Command, *, offset: int, epoch: int) -> MetadataDelta:
        """Replays one entry of the log unless it is fenced; see ``ImageEditor.replay_command``."""
        editor = self.edit()
        editor.replay_command(command)
        return editor.finish(offset=offset, epoch=epoch)


class ImageEditor:
    """Replays records on top of an image. An editor is used once; after ``finish``, edit the new image."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._accepted = True
        self._controller = (image.controller_id, image.controller_epoch, image.controller_sequence)
        self._cluster_id = image.cluster_id
        self._next_producer_id = image.next_producer_id
        self._controllers = dict(image.controllers)
        self._brokers = dict(image.brokers)
        self._features = dict(image.features)
        self._topics = TopicsEditor(image.topics_by_id, image.topics_by_name)
        self._configs = image.configs.edit()
        self._quotas = image.quotas.edit()
        self._scram = image.scram_credentials.edit()
        self._acls = image.acls.edit()
        self._tokens = image.delegation_tokens.edit()

    def replay_command(self, command: r.Command) -> bool:
        """Replays an entry of the log if it is the active controller's next command.

        A command whose first record is a ``ControllerChangeRecord`` of a higher epoch begins a controller epoch.
        Returns False and changes nothing for any other command that is not the next one of the controller epoch.
        """
        _, epoch, sequence = self._controller
        first = command.records[0] if command.records else None
        if isinstance(first, r.ControllerChangeRecord):
            accepted = first.epoch == command.controller_epoch > epoch and command.sequence == 0
        else:
            accepted = 0 < epoch == command.controller_epoch and command.sequence == sequence + 1
        if not accepted:
            self._accepted = False
            return False
        controller_id = first.controller_id if isinstance(first, r.ControllerChangeRecord) else self._controller[0]
        self._controller = (controller_id, command.controller_epoch, command.sequence)
        self.replay_all(command.records)
        return True

    def replay_all(self, records: Iterable[r.MetadataRecord]) -> None:
        """Replays records in order.

        Raises:
            MetadataCorruptError: a record does not fit.
        """
        for record in records:
            _REPLAY[type(record)](self, record)

    def finish(self, *, offset: int, epoch: int) -> MetadataDelta:
        """Returns the delta to the new image at ``offset``."""
        return delta_between(self._image, self.finish_image(offset=offset, epoch=epoch), accepted=self._accepted)

    def finish_image(self, *, offset: int, epoch: int) -> MetadataImage:
        """Returns the new image at ``offset`` without the cost of a delta."""
        topics_by_id, topics_by_name = self._topics.finish()
        controller_id, controller_epoch, controller_sequence = self._controller
        return MetadataImage(
            offset=offset,
            epoch=epoch,
            controller_id=controller_id,
            controller_epoch=controller_epoch,
            controller_sequence=controller_sequence,
            cluster_id=self._cluster_id,
            controllers=self._controllers,
            brokers=self._brokers,
            topics_by_id=topics_by_id,
            topics_by_name=topics_by_name,
            configs=self._configs.finish(),
            features=self._features,
            next_producer_id=self._next_producer_id,
            quotas=self._quotas.finish(),
            scram_credentials=self._scram.finish(),
            acls=self._acls.finish(),
            delegation_tokens=self._tokens.finish(),
        )

    def restore_position(self, header: r.SnapshotHeaderRecord) -> None:
        """Restores controller id, controller epoch and sequence from the header of a snapshot."""
        self._controller = (header.controller_id, header.controller_epoch, header.controller_sequence)

    def _replay_controller_change(self, record: r.ControllerChangeRecord) -> None:
        pass  # replay_command has read the header of the command

    def _replay_cluster(self, record: r.ClusterRecord) -> None:
        if self._cluster_id not in ("", record.cluster_id):
            raise r.MetadataCorruptError(f"cluster {self._cluster_id} cannot become {record.cluster_id}")
        self._cluster_id = record.cluster_id

    def _replay_register_controller(self, record: r.RegisterControllerRecord) -> None:
        self._controllers[record.controller_id] = ControllerImage(
            controller_id=record.controller_id, incarnation_id=record.incarnation_id, endpoints=record.endpoints
        )

    def _replay_register_broker(self, record: r.RegisterBrokerRecord) -> None:
        self._brokers[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=record.endpoints,
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            features=record.features,
            log_dirs=record.log_dirs,
            cordoned_log_dirs=record.cordoned_log_dirs,
        )

    def _broker(self, broker_id: BrokerId, broker_epoch: int) -> BrokerImage:
        broker = self._brokers.get(broker_id)
        if broker is None or broker.broker_epoch != broker_epoch:
            known = "none" if broker is None else str(broker.broker_epoch)
            raise r.MetadataCorruptError(f"a record names epoch {broker_epoch} of broker {broker_id}, known: {known}")
        return broker

    def _replay_unregister_broker(self, record: r.UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        del self._brokers[record.broker_id]

    def _replay_broker_change(self, record: r.BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        self._brokers[record.broker_id] = replace(
            broker,
            fenced=broker.fenced if record.fenced is None else record.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown
            if record.in_controlled_shutdown is None
            else record.in_controlled_shutdown,
            log_dirs=broker.log_dirs if record.log_dirs is None else record.log_dirs,
            cordoned_log_dirs=broker.cordoned_log_dirs
            if record.cordoned_log_dirs is None
            else record.cordoned_log_dirs,
        )

    def _replay_topic(self, record: r.TopicRecord) -> None:
        self._topics.add(record)

    def _replay_remove_topic(self, record: r.RemoveTopicRecord) -> None:
        name = self._topics.remove(record)
        if (RESOURCE_TOPIC, name) in self._configs:
            self._configs.remove((RESOURCE_TOPIC, name))

    def _replay_partition(self, record: r.PartitionRecord) -> None:
        self._topics.set_partition(record)

    def _replay_partition_change(self, record: r.PartitionChangeRecord) -> None:
        self._topics.change_partition(record)

    def _replay_config(self, record: r.ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        values = dict(self._configs.get(key) or {})
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value
        if values:
            self._configs.set(key, values)
        elif key in self._configs:
            self._configs.remove(key)

    def _replay_feature(self, record: r.FeatureLevelRecord) -> None:
        if record.level:
            self._features[record.name] = record.level
        else:
            self._features.pop(record.name, None)
        if record.name == r.METADATA_VERSION and record.level < r.METADATA_LEVEL_DIRECTORIES:
            self._topics.forget_directories()
        if record.name == r.METADATA_VERSION and record.level < r.METADATA_LEVEL_TOKENS:
            for token_id in list(self._tokens.finish()):
                self._tokens.remove(token_id)
        if record.name == r.METADATA_VERSION and record.level < r.METADATA_LEVEL_CORDONS:
            for broker_id, broker in self._brokers.items():
                if broker.cordoned_log_dirs:
                    self._brokers[broker_id] = replace(broker, cordoned_log_dirs=())

    def _replay_producer_ids(self, record: r.ProducerIdsRecord) -> None:
        if record.next_producer_id < self._next_producer_id:
            raise r.MetadataCorruptError(f"producer ids cannot go back to {record.next_producer_id}")
        self._next_producer_id = record.next_producer_id

    def _replay_quota(self, record: r.ClientQuotaRecord) -> None:
        values = dict(self._quotas.get(record.entity) or {})
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = float(record.value)
        if values:
            self._quotas.set(record.entity, values)
        elif record.entity in self._quotas:
            self._quotas.remove(record.entity)

    def _replay_scram(self, record: r.UserScramCredentialRecord) -> None:
        self._scram.set((record.user, record.mechanism), record)

    def _replay_remove_scram(self, record: r.RemoveUserScramCredentialRecord) -> None:
        if (record.user, record.mechanism) in self._scram:
            self._scram.remove((record.user, record.mechanism))

    def _replay_acl(self, record: r.AccessControlEntryRecord) -> None:
        self._acls.set(record.acl_id, record)

    def _replay_remove_acl(self, record: r.RemoveAccessControlEntryRecord) -> None:
        if record.acl_id in self._acls:
            self._acls.remove(record.acl_id)

    def _replay_token(self, record: r.DelegationTokenRecord) -> None:
        self._tokens.set(record.token_id, record)

    def _replay_remove_token(self, record: r.RemoveDelegationTokenRecord) -> None:
        if record.token_id in self._tokens:
            self._tokens.remove(record.token_id)

    def _replay_frame(self, record: r.MetadataRecord) -> None:
        raise r.MetadataCorruptError(f"{type(record).__name__} is only allowed at the start or end of a snapshot")


_REPLAY: Final[Mapping[type[r.MetadataRecord], Callable[[ImageEditor, Any], None]]] = {
    r.ControllerChangeRecord: ImageEditor._replay_controller_change,
    r.ClusterRecord: ImageEditor._replay_cluster,
    r.RegisterControllerRecord: ImageEditor._replay_register_controller,
    r.RegisterBrokerRecord: ImageEditor._replay_register_broker,
    r.UnregisterBrokerRecord: ImageEditor._replay_unregister_broker,
    r.BrokerRegistrationChangeRecord: ImageEditor._replay_broker_change,
    r.TopicRecord: ImageEditor._replay_topic,
    r.RemoveTopicRecord: ImageEditor._replay_remove_topic,
    r.PartitionRecord: ImageEditor._replay_partition,
    r.PartitionChangeRecord: ImageEditor._replay_partition_change,
    r.ConfigRecord: ImageEditor._replay_config,
    r.FeatureLevelRecord: ImageEditor._replay_feature,
    r.ProducerIdsRecord: ImageEditor._replay_producer_ids,
    r.ClientQuotaRecord: ImageEditor._replay_quota,
    r.UserScramCredentialRecord: ImageEditor._replay_scram,
    r.RemoveUserScramCredentialRecord: ImageEditor._replay_remove_scram,
    r.AccessControlEntryRecord: ImageEditor._replay_acl,
    r.RemoveAccessControlEntryRecord: ImageEditor._replay_remove_acl,
    r.DelegationTokenRecord: ImageEditor._replay_token,
    r.RemoveDelegationTokenRecord: ImageEditor._replay_remove_token,
    r.SnapshotHeaderRecord: ImageEditor._replay_frame,
    r.SnapshotFooterRecord: ImageEditor._replay_frame,
}
