"""The logs that the coordinators use: ``InternalLog`` of ``coordinator.runtime.ports`` over the replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import iterate_batches
from moldau.values import Offset
from moldau_broker.log.errors import LogStorageError, storage_failure
from moldau_broker.log.values import AppendOrigin

if TYPE_CHECKING:
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
