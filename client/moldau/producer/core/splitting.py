"""Splits a batch that is too large for its topic: ``batch.size`` may exceed the topic's ``max.message.bytes``. Pure.

As in Kafka's clients (KIP-126) a batch of several records is sent again in parts, and these are split again if they are
refused. The parts have the sequences of their records, so the order stays and a repetition is recognised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.producer.core.batches import ProducerBatch
from moldau.protocol.errors import ErrorCode
from moldau.records import BatchBuilder, add_sequence, decode_records, parse_batch_header

if TYPE_CHECKING:
    from moldau.producer.core.limits import Limits
    from moldau.records import Record

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def can_split(batch: ProducerBatch, code: ErrorCode) -> bool:
    """Returns whether a refused batch may go out again in parts.

    A batch that arrived encoded stays whole, because its sender relies on its offsets. If an earlier attempt may have
    written the batch, parts of it could be written twice.
    """
    return code in TOO_LARGE and batch.builder.record_count > 1 and not batch.is_uncertain


def split(batch: ProducerBatch, limits: Limits, size_limit: int, code: ErrorCode) -> list[ProducerBatch]:
    """Returns the parts of a batch of several records: at least two, each of at most half of the records.

    A part has at most ``size_limit`` bytes before compression, except for a larger record by itself. The batch's
    deliveries have their outcomes from the parts from then on. ``code`` is the last refusal, NONE before the first.
    """
    data = batch.close()
    records = decode_records(data, 0, parse_batch_header(data))
    half = len(records) // 2
    builders = [_builder(limits, size_limit)]
    for number, record in enumerate(records):
        if number == half or not _append(builders[-1], record):
            builders.append(_builder(limits, size_limit))
            _append(builders[-1], record)
    whole = batch.delivered
    parts: list[ProducerBatch] = []
    reserved = start = 0
    for number, builder in enumerate(builders, 1):
        share = batch.reserved_bytes * number // len(builders) - reserved
        reserved += share
        part = ProducerBatch(batch.partition, builder, batch.created_ms, share)
        part.close()
        part.attempts, part.ordinal, part.last_code, part.whole = batch.attempts, batch.ordinal, code, whole
        part.first_index = batch.first_index + start
        if batch.has_sequence:
            part.set_sequence(
                batch.producer_id,
                batch.producer_epoch,
                add_sequence(batch.base_sequence, start),
                is_transactional=limits.is_transactional,
            )
        parts.append(part)
        start += builder.record_count
    present = whole.parts or [batch]
    place = present.index(batch)
    whole.parts = [*present[:place], *parts, *present[place + 1 :]]
    return parts


def _builder(limits: Limits, size_limit: int) -> BatchBuilder:
    return BatchBuilder(
        size_limit,
        compression=limits.compression,
        compression_level=limits.compression_level,
        is_transactional=limits.is_transactional,
    )


def _append(builder: BatchBuilder, record: Record) -> bool:
    return builder.append(record.timestamp, record.key, record.value, record.headers) is not None
