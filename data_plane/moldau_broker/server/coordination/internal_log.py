"""The logs and topic names that the coordinators use.

Implements ``moldau_broker.coordinator.runtime.ports`` over the replicas and the metadata image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import iterate_batches
from moldau.values import Offset
from moldau_broker.log.errors import LogStorageError, storage_failure
from moldau_broker.log.values import AppendOrigin
from moldau_quorum.metadata.image import RESOURCE_BROKER, RESOURCE_GROUP

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.values import Buffer, LeaderEpoch
    from moldau_broker.server.cluster_metadata.cache import MetadataCache
    from moldau_broker.server.replicas.partition import Partition
    from moldau_broker.server.replicas.replica_manager import ReplicaManager


class InternalTopicLog:
    """The partitions of one internal topic that this broker leads."""

    def __init__(self, topic: str, replicas: ReplicaManager, metadata: MetadataCache) -> None:
        self._topic = topic
        self._replicas = replicas
        self._metadata = metadata

    def _led(self, partition: int, leader_epoch: LeaderEpoch) -> Partition:
        found = self._replicas.partitions.get((self._topic, partition))
        if found is None or not found.is_leader or found.replica.state.leader_epoch != leader_epoch:
            raise self._not_led(partition, leader_epoch)
        return found

    def _not_led(self, partition: int, leader_epoch: LeaderEpoch) -> KafkaError:
        text = f"{self._topic}-{partition} is not led here in leader epoch {leader_epoch}"
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)

    def append(self, partition: int, leader_epoch: LeaderEpoch, batch: Buffer) -> Offset:
        """Appends with acks=all, without waiting; returns the log end offset after the batch."""
        found = self._led(partition, leader_epoch)
        newest = self._metadata.partition(self._topic, partition)
        if newest is None or newest.leader_epoch != leader_epoch:
            raise self._not_led(
                partition, leader_epoch
            )  # another leader is elected, and the replica has yet to apply that
        info = self._replicas.append_now(found, batch, acks=-1, origin=AppendOrigin.COORDINATOR)
        return Offset(info.next_offset)

    async def wait_committed(self, partition: int, leader_epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Waits until the high watermark is at least ``end_offset``.

        Raises:
            KafkaError: leadership ended first.
        """
        await self._replicas.waits.wait_committed(self._led(partition, leader_epoch), leader_epoch, end_offset)

    def delete_records(self, partition: int, leader_epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Moves the log start offset up; followers take it over with their next fetch."""
        led = self._led(partition, leader_epoch)
        try:
            led.log.delete_records(end_offset)
        except LogStorageError as error:
            self._replicas.directory_failed(error)
            raise
        self._replicas.waits.note_change(led)  # the followers must hear of the new log start

    def log_start_offset(self, partition: int, leader_epoch: LeaderEpoch) -> Offset:
        """Returns the log start offset."""
        return self._led(partition, leader_epoch).log.log_start_offset

    def log_end_offset(self, partition: int, leader_epoch: LeaderEpoch) -> Offset:
        """Returns the offset after the last record."""
        return self._led(partition, leader_epoch).log.log_end_offset

    async def read(self, partition: int, leader_epoch: LeaderEpoch, offset: Offset, max_bytes: int) -> Buffer:
        """Returns whole batches from ``offset`` up to the high watermark."""
        found = self._led(partition, leader_epoch)
        upper = found.replica.high_watermark
        if offset >= upper:
            return b""
        try:
            result = found.log.read(offset, max_bytes=max_bytes, upper_bound_offset=upper, min_one_batch=True)
            data = b"".join(part.file.read(part.position, part.count) for part in result.ranges)
        except LogStorageError as error:
            self._replicas.directory_failed(error)
            raise
        except OSError as error:
            failure = storage_failure(found.log.parent_directory, f"reading {found.key}", error)
            self._replicas.directory_failed(failure)
            raise failure from error
        end = 0
        for position, header in iterate_batches(data):
            end = position + header.size_bytes
        return data[:end]


_DYNAMIC_DEFAULTS: Final = frozenset(f"{kind}.assignment.interval.ms" for kind in ("consumer", "share", "streams"))
"""Keys of groups whose default, the key ``group.`` of all brokers, can be changed while brokers run."""


class ImageCatalogue:
    """The topics in the newest image, and the settings of groups."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata
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
        """Returns a value of the dynamic configuration of a group, else of all brokers; None if there is none."""
        image = self._metadata.image
        value = image.config(RESOURCE_GROUP, group_id).get(key)
        if value is None and key in _DYNAMIC_DEFAULTS:
            value = image.config(RESOURCE_BROKER, "").get(f"group.{key}")
        return None if value is None else int(value)

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
