"""Taking of prefetched records or columns, partition by partition, with the positions moved behind them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer.core.values import ConsumedBatch, ConsumedColumns, EncodedBatch, EncodedBatches, PartitionError
from moldau.protocol.errors import ErrorCode
from moldau.records import ColumnBuilder, CorruptRecordError, Record

if TYPE_CHECKING:
    from moldau.consumer.core.positions import PartitionPosition, Positions


def take_records(positions: Positions, limit: int, partitions_max: int = 2**31) -> list[ConsumedBatch]:
    """Takes up to ``limit`` records; partitions that were served go last next time.

    Raises:
        KafkaError: CORRUPT_MESSAGE, when the first records to return are damaged.
    """
    batches: list[ConsumedBatch] = []
    left = limit
    for partition, position in list(positions.by_partition.items()):
        if left <= 0 or len(batches) >= partitions_max:
            break
        if not position.chunks or position.is_paused or not position.has_position:
            continue
        records: list[Record] = []
        while left > 0 and position.chunks:
            chunk = position.chunks[0]
            try:
                part = chunk.take(left)
            except CorruptRecordError as error:
                if records or batches:
                    break
                raise _corrupt(position, error) from error
            records += part
            left -= len(part)
            position.advance(chunk.offset, chunk.epoch)
            if chunk.offset >= chunk.end_offset:
                positions.chunk_ended(position)
        if records:
            batches.append(
                ConsumedBatch(
                    topic=partition.topic,
                    partition=partition.partition,
                    records=records,
                    next_offset=position.offset,
                    leader_epoch=position.offset_epoch,
                    high_watermark=position.high_watermark,
                    cluster=positions.clusters_left,
                )
            )
            positions.rotate(partition)
    return batches


def take_columns(positions: Positions, max_bytes: int) -> list[ConsumedColumns]:
    """Takes whole batches as columns until they hold about ``max_bytes``; otherwise as ``take_records``."""
    taken: list[ConsumedColumns] = []
    left = max_bytes
    for partition, position in list(positions.by_partition.items()):
        if left <= 0:
            break
        if position.is_paused or not position.has_position or not position.chunks:
            continue
        builder = ColumnBuilder()
        while builder.size_bytes < left and position.chunks:
            chunk = position.chunks[0]
            try:
                chunk.take_columns(builder, left)
            except CorruptRecordError as error:
                if builder.length or taken:
                    break
                raise _corrupt(position, error) from error
            position.advance(chunk.offset, chunk.epoch)
            if chunk.offset >= chunk.end_offset:
                positions.chunk_ended(position)
        if builder.length:
            left -= builder.size_bytes
            taken.append(
                ConsumedColumns(
                    topic=partition.topic,
                    partition=partition.partition,
                    columns=builder.finish(),
                    next_offset=position.offset,
                    high_watermark=position.high_watermark,
                    cluster=positions.clusters_left,
                )
            )
            positions.rotate(partition)
    return taken


def take_encoded(positions: Positions, max_bytes: int) -> list[EncodedBatches]:
    """Takes whole batches as they were fetched, until they hold about ``max_bytes``; otherwise as ``take_records``.

    Batches of one result come from one fetch. A partition whose position moved without records has a result too.
    """
    taken: list[EncodedBatches] = []
    left = max_bytes
    for partition, position in list(positions.by_partition.items()):
        if left <= 0:
            break
        if position.is_paused or not position.has_position or not position.chunks:
            continue
        chunk = position.chunks[0]
        batches: list[EncodedBatch] = []
        try:
            left -= chunk.take_encoded(batches, left)
        except CorruptRecordError as error:
            if taken:
                break
            raise _corrupt(position, error) from error
        position.advance(chunk.offset, chunk.epoch)
        if chunk.offset >= chunk.end_offset:
            positions.chunk_ended(position)
        taken.append(
            EncodedBatches(
                topic=partition.topic,
                partition=partition.partition,
                topic_id=chunk.topic_id,
                batches=batches,
                next_offset=position.offset,
                leader_epoch=position.offset_epoch,
                high_watermark=position.high_watermark,
                end_offset=position.end_offset,
            )
        )
        positions.rotate(partition)
    return taken


def _corrupt(position: PartitionPosition, error: CorruptRecordError) -> PartitionError:
    # The same bytes would fail again, so they are dropped, and the next poll fetches them again.
    offset = position.offset
    position.seek(offset, position.offset_epoch)
    text = f"{position.partition} at offset {offset}: {error}"
    return PartitionError(ErrorCode.CORRUPT_MESSAGE, position.partition, text)
