"""Deltas between two metadata images, which brokers and controllers act on.

``delta_between`` skips the structure that both images share, so its cost grows with the differences. The result depends
only on the two images, not on the path between them (one command, many commands, a snapshot).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from moldau.values import BrokerId
from moldau_quorum.metadata.persistent_map import PersistentMap

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.metadata.image_parts import PartitionImage, QuotaEntity, ResourceKey, TopicImage


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDelta:
    """One changed partition."""

    topic_name: str
    topic_id: UUID
    partition_id: int
    before: PartitionImage | None
    """None if the partition is new."""
    after: PartitionImage | None
    """None if the partition was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDelta:
    """The differences between two images. Tuples are sorted."""

    previous: MetadataImage
    image: MetadataImage
    accepted: bool = True
    """False if the command came from a deposed controller and was ignored."""
    created_topics: tuple[TopicImage, ...] = ()
    """The new topics as they are in ``image``, by name."""
    deleted_topics: tuple[TopicImage, ...] = ()
    """The deleted topics as they were in ``previous``, by name. A topic that was deleted and created again under its
    name is in both tuples, with two ids."""
    changed_partitions: tuple[PartitionDelta, ...] = ()
    """Created, changed and removed partitions (those of deleted topics too), by topic id and number."""
    changed_brokers: tuple[BrokerId, ...] = ()
    """Ids of registered, changed and unregistered brokers."""
    changed_configs: tuple[ResourceKey, ...] = ()
    changed_quotas: tuple[QuotaEntity, ...] = ()
    changed_scram_credentials: tuple[tuple[str, int], ...] = ()
    features_changed: bool = False
    acls_changed: bool = False
    tokens_changed: bool = False
    controllers_changed: bool = False

    @property
    def empty(self) -> bool:
        """Whether only the offset changed."""
        return not (
            self.created_topics
            or self.deleted_topics
            or self.changed_partitions
            or self.changed_brokers
            or self.changed_configs
            or self.changed_quotas
            or self.changed_scram_credentials
            or self.features_changed
            or self.acls_changed
            or self.tokens_changed
            or self.controllers_changed
            or self.image.cluster_id != self.previous.cluster_id
            or self.image.controller_id != self.previous.controller_id
            or self.image.next_producer_id != self.previous.next_producer_id
        )


_K = TypeVar("_K", int, str)
_V = TypeVar("_V")


def quota_sort_key(entity: QuotaEntity) -> tuple[tuple[str, bool, str], ...]:
    """Returns a sort key of an entity; the default entity of a type sorts before the named ones."""
    return tuple((kind, name is not None, name or "") for kind, name in entity)


def _differing(before: Mapping[_K, _V], after: Mapping[_K, _V]) -> tuple[_K, ...]:
    if before is after:
        return ()
    return tuple(sorted(key for key in {**before, **after} if before.get(key) != after.get(key)))


def delta_between(previous: MetadataImage, image: MetadataImage, *, accepted: bool = True) -> MetadataDelta:
    """Returns the delta from ``previous`` to ``image``."""
    created: list[TopicImage] = []
    deleted: list[TopicImage] = []
    partitions: list[PartitionDelta] = []
    for topic_id in sorted(previous.topics_by_id.changed_keys(image.topics_by_id), key=lambda key: key.int):
        before, after = previous.topics_by_id.get(topic_id), image.topics_by_id.get(topic_id)
        if before is None and after is not None:
            created.append(after)
        if after is None and before is not None:
            deleted.append(before)
        partitions.extend(_partition_deltas(before, after))
    return MetadataDelta(
        previous=previous,
        image=image,
        accepted=accepted,
        created_topics=tuple(sorted(created, key=lambda topic: topic.name)),
        deleted_topics=tuple(sorted(deleted, key=lambda topic: topic.name)),
        changed_partitions=tuple(partitions),
        changed_brokers=tuple(map(BrokerId, _differing(previous.brokers, image.brokers))),
        changed_configs=tuple(sorted(previous.configs.changed_keys(image.configs))),
        changed_quotas=tuple(sorted(previous.quotas.changed_keys(image.quotas), key=quota_sort_key)),
        changed_scram_credentials=tuple(sorted(previous.scram_credentials.changed_keys(image.scram_credentials))),
        features_changed=dict(previous.features) != dict(image.features),
        acls_changed=bool(previous.acls.changed_keys(image.acls)),
        tokens_changed=bool(previous.delegation_tokens.changed_keys(image.delegation_tokens)),
        controllers_changed=bool(_differing(previous.controllers, image.controllers)),
    )


def _partition_deltas(before: TopicImage | None, after: TopicImage | None) -> Iterator[PartitionDelta]:
    topic = after or before
    assert topic is not None
    old: PersistentMap[int, PartitionImage] = PersistentMap() if before is None else before.partitions
    new: PersistentMap[int, PartitionImage] = PersistentMap() if after is None else after.partitions
    for partition_id in sorted(old.changed_keys(new)):
        yield PartitionDelta(
            topic_name=topic.name,
            topic_id=topic.topic_id,
            partition_id=partition_id,
            before=old.get(partition_id),
            after=new.get(partition_id),
        )
