"""The topics and group settings that the coordinators use, read off the metadata image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.values import BrokerId
    from moldau_broker.server.cluster_metadata.cache import MetadataCache

_DYNAMIC_DEFAULTS: Final = frozenset(f"{kind}.assignment.interval.ms" for kind in ("consumer", "share", "streams"))
"""Keys of groups whose default, the key ``group.`` of brokers, can be changed while brokers run."""


class ImageCatalogue:
    """The topics in the newest image, and the settings of groups on one broker."""

    def __init__(self, metadata: MetadataCache, broker_id: BrokerId) -> None:
        self._metadata = metadata
        self._brokers = (str(broker_id), "")  # resources of metadata, the one in force first
        self._seen: tuple[object, object] = None, None
        """The topics and the ACLs of the last look."""
        self._version = -1
        self._names: tuple[str, ...] = ()

    def _look(self) -> None:
        image = self._metadata.image
        if image.topics_by_name is self._seen[0] and image.acls is self._seen[1]:
            return
        self._seen = image.topics_by_name, image.acls
        self._version = image.offset
        names = tuple(sorted(image.topics_by_name))
        if names != self._names:
            self._names = names

    def version(self) -> int:
        """Returns the offset of the metadata in which topics or ACLs were last seen to differ."""
        self._look()
        return self._version

    def names(self) -> tuple[str, ...]:
        """Returns the names of all topics, sorted; the same object while none is created or deleted."""
        self._look()
        return self._names

    def partition_count(self, name: str) -> int:
        """Returns the number of partitions of a topic; 0 if there is no such topic."""
        topic = self._metadata.image.topics_by_name.get(name)
        return 0 if topic is None else len(topic.partitions)

    def group_setting(self, group_id: str, key: str) -> int | None:
        """Returns a value of the dynamic configuration of a group, else of this broker, else of all brokers.

        None if there is none.
        """
        image = self._metadata.image
        layers = [image.config(RESOURCE_GROUP, group_id).get(key)]
        if key in _DYNAMIC_DEFAULTS:
            layers += [image.config(RESOURCE_BROKER, broker).get(f"group.{key}") for broker in self._brokers]
        return next((int(value) for value in layers if value is not None), None)

    def topic_name(self, topic_id: UUID) -> str | None:
        """Returns the name of a topic id; None if the id is unknown."""
        topic = self._metadata.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> UUID | None:
        """Returns the id of a topic; None if the topic is unknown."""
        topic = self._metadata.image.topics_by_name.get(name)
        return None if topic is None else topic.topic_id

    def has_partition(self, name: str, partition: int) -> bool:
        """Returns whether the partition exists."""
        return self._metadata.partition(name, partition) is not None
