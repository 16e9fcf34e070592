"""Deserializes the records of a poll, and sets positions back to what did not reach the application.

A record that cannot be deserialized ends its partition's part of the poll: the records before it are returned first,
and the next poll raises the error. The position is then the record's offset, so the application can ``seek`` past it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from moldau.consumer.core.positions import Unseen
from moldau.consumer.core.values import DeserializedRecord
from moldau.serialization.core.records import RecordDecoder, unreadable
from moldau.serialization.core.values import RecordDeserializationError, RegistryError, SchemaNeeded
from moldau.serialization.lookups import SchemaLookups

if TYPE_CHECKING:
    from moldau.cluster.metadata import TopicPartition
    from moldau.consumer.core.positions import PartitionPosition, Positions
    from moldau.consumer.core.values import ConsumedBatch
    from moldau.records import Record


class Decoding:
    """The deserializers of one consumer, and the errors that its next polls raise."""

    def __init__(self, positions: Positions, decoder: RecordDecoder, lookups: SchemaLookups) -> None:
        self._positions = positions
        self._decoder = decoder
        self._lookups = lookups
        self._pending: deque[RecordDeserializationError] = deque()  # each with the cluster of its record

    @staticmethod
    def of(positions: Positions, key: object, value: object, limit_ms: float) -> Decoding | None:
        """Returns the decoding of a consumer's deserializers, None if there are none.

        Raises:
            TypeError: one of them is no deserializer and no function.
        """
        decoder = RecordDecoder.of(key, value)
        if decoder is None:
            return None
        return Decoding(positions, decoder, SchemaLookups("default.api.timeout.ms", limit_ms))

    def raise_pending(self) -> None:
        """Reports a record at which a partition still stands, unless it is paused: after its end it is met again.

        Raises:
            RecordDeserializationError: an earlier poll met the record.
        """
        while self._pending:
            error = self._pending.popleft()
            position = self._position_in(error.cluster, error.topic_partition)
            if position is None or position.is_paused:
                continue
            if position.has_position and position.offset == error.offset:
                raise error

    async def decode(self, taken: list[ConsumedBatch]) -> list[ConsumedBatch[Any, Any]]:
        """Returns the batches with deserialized keys and values.

        A cancellation or an error of the registry sets all positions back, except those that the application has set
        while a schema was looked up.

        Raises:
            RecordDeserializationError: the first record of all cannot be deserialized.
            RegistryError: the schema registry does not answer.
        """
        decoded: list[ConsumedBatch[Any, Any]] = []
        self._positions.not_handed_over = self._unseen(taken)
        try:
            for batch in taken:
                records = await self._decode_batch(batch)
                if len(records) < len(batch.records):
                    batch = replace(batch, next_offset=batch.records[len(records)].offset)
                    self._set_back(batch.topic_partition, batch.next_offset, batch.leader_epoch)
                if records:
                    decoded.append(replace(batch, records=cast("list[Record]", records)))
        except BaseException:
            for partition, unseen in list(self._positions.not_handed_over.items()):
                self._set_back(partition, unseen.offset, unseen.leader_epoch)
            raise
        finally:
            self._positions.not_handed_over = {}
        if not decoded:
            self.raise_pending()
        return decoded

    async def _decode_batch(self, batch: ConsumedBatch) -> list[DeserializedRecord]:
        """Returns the records before the first one that cannot be deserialized, whose error it notes."""
        decode = self._decoder.decode
        partition = batch.topic_partition
        records: list[DeserializedRecord] = []
        for record in batch.records:
            try:
                try:
                    key, value = decode(partition, record)
                except SchemaNeeded as needed:
                    key, value = await self._decode_with_registry(partition, record, needed)
            except RecordDeserializationError as error:
                error.cluster = batch.cluster
                self._pending.append(error)
                break
            records.append(DeserializedRecord(record.offset, record.timestamp, key, value, record.headers))
        return records

    async def _decode_with_registry(
        self, partition: TopicPartition, record: Record, needed: SchemaNeeded
    ) -> tuple[object, object]:
        while True:
            try:
                await self._lookups.resolve(needed)
            except RegistryError as error:
                if error.is_about_schema:
                    raise unreadable(partition, record, needed, error) from error
                raise
            try:
                return self._decoder.decode(partition, record)
            except SchemaNeeded as further:
                needed = further

    def _unseen(self, taken: list[ConsumedBatch]) -> dict[TopicPartition, Unseen]:
        found: dict[TopicPartition, Unseen] = {}
        for batch in taken:
            position = self._position_in(batch.cluster, batch.topic_partition)
            if position is not None and batch.records and batch.topic_partition not in found:
                found[batch.topic_partition] = Unseen(
                    position, position.times_set, batch.records[0].offset, batch.leader_epoch
                )
        return found

    def _set_back(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Sets the position of a partition to a record that was taken, if the offset still means this record.

        The application may have set the position meanwhile, or given the partition up: that holds.
        """
        unseen = self._positions.unseen(partition)
        if unseen is not None:
            unseen.position.seek(offset, leader_epoch)
            kept = unseen._replace(times_set=unseen.position.times_set)
            self._positions.not_handed_over[partition] = kept

    def _position_in(self, cluster: int, partition: TopicPartition) -> PartitionPosition | None:
        """Returns the position of a partition that is assigned, unless the consumer has left the cluster meanwhile."""
        return self._positions.by_partition.get(partition) if cluster == self._positions.clusters_left else None
