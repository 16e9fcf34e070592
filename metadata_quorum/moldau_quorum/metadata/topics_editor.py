"""The topics of an image while records are replayed on it; ``image`` says what replaying means."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from moldau_quorum.metadata import records as r
from moldau_quorum.metadata.image_parts import (
    PartitionImage,
    TopicImage,
    changed_partition,
    check_directories,
    partition_image,
)
from moldau_quorum.metadata.persistent_map import MapEditor, PersistentMap

if TYPE_CHECKING:
    from uuid import UUID


class TopicsEditor:
    """Topics by id and by name, with their partitions. All methods but ``finish`` replay a record.

    Raises:
        MetadataCorruptError: a record does not fit.
    """

    __slots__ = ("_by_id", "_by_name", "_open_topics")

    def __init__(self, by_id: PersistentMap[UUID, TopicImage], by_name: PersistentMap[str, TopicImage]) -> None:
        """Starts from the topics of an image."""
        self._by_id: MapEditor[UUID, TopicImage] = by_id.edit()
        self._by_name: MapEditor[str, TopicImage] = by_name.edit()
        self._open_topics: dict[UUID, MapEditor[int, PartitionImage]] = {}
        """Partitions of changed topics, by topic id; ``finish`` puts them back into the maps."""

    def add(self, record: r.TopicRecord) -> None:
        """Adds a topic without partitions."""
        if record.topic_id in self._by_id or record.name in self._by_name:
            raise r.MetadataCorruptError(f"topic {record.name} with id {record.topic_id} exists already")
        topic = TopicImage(name=record.name, topic_id=record.topic_id, partitions=PersistentMap())
        self._by_id.set(record.topic_id, topic)
        self._by_name.set(record.name, topic)

    def remove(self, record: r.RemoveTopicRecord) -> str:
        """Removes a topic with its partitions, and returns its name."""
        topic = self._by_id.get(record.topic_id)
        if topic is None:
            raise r.MetadataCorruptError(f"topic id {record.topic_id} cannot be removed: it does not exist")
        self._open_topics.pop(record.topic_id, None)
        self._by_id.remove(record.topic_id)
        self._by_name.remove(topic.name)
        return topic.name

    def set_partition(self, record: r.PartitionRecord) -> None:
        """Adds a partition, or replaces it."""
        check_directories(record.directories, record.replicas)
        self._partitions(record.topic_id).set(record.partition_id, partition_image(record))

    def change_partition(self, record: r.PartitionChangeRecord) -> None:
        """Changes the fields of a partition that the record names."""
        partitions = self._partitions(record.topic_id)
        before = partitions.get(record.partition_id)
        if before is None or before.partition_epoch + 1 != record.partition_epoch:
            known = "no such partition" if before is None else f"it has epoch {before.partition_epoch}"
            raise r.MetadataCorruptError(
                f"partition {record.partition_id} of {record.topic_id} cannot go to epoch "
                f"{record.partition_epoch}: {known}"
            )
        after = changed_partition(before, record)
        check_directories(after.directories, after.replicas)
        partitions.set(record.partition_id, after)

    def forget_directories(self) -> None:
        """Deletes the directories, which a lower level cannot represent, on every node at the same offset."""
        by_id = self._by_id.finish()
        for topic_id in by_id:
            partitions = self._partitions(topic_id)
            for partition_id in range(len(partitions)):
                partition = partitions.get(partition_id)
                if partition is not None and partition.directories:
                    partitions.set(partition_id, replace(partition, directories=()))

    def finish(self) -> tuple[PersistentMap[UUID, TopicImage], PersistentMap[str, TopicImage]]:
        """Returns the topics by id and by name."""
        for topic_id, partitions in self._open_topics.items():
            topic = self._by_id.get(topic_id)
            assert topic is not None
            topic = replace(topic, partitions=partitions.finish())
            self._by_id.set(topic_id, topic)
            self._by_name.set(topic.name, topic)
        self._open_topics = {}
        return self._by_id.finish(), self._by_name.finish()

    def _partitions(self, topic_id: UUID) -> MapEditor[int, PartitionImage]:
        partitions = self._open_topics.get(topic_id)
        if partitions is None:
            topic = self._by_id.get(topic_id)
            if topic is None:
                raise r.MetadataCorruptError(f"a record names topic id {topic_id}, which does not exist")
            partitions = self._open_topics[topic_id] = topic.partitions.edit()
        return partitions
