"""Splits a batch that the broker refuses as too large: ``batch.size`` may exceed a topic's ``max.message.bytes``. Pure.

As in Kafka's clients (KIP-126) a batch of several records is sent again in two parts, and these are split again if they
are refused. The parts have the sequences of their records, so the order stays and a repetition is recognised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.producer.core.batches import ProducerBatch
from moldau.protocol.errors import ErrorCode
from moldau.records import BatchBuilder, add_sequence, decode_records, parse_batch_header

if TYPE_CHECKING:
    from moldau.producer.core.accumulator import Limits

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


def can_split(batch: ProducerBatch, code: ErrorCode) -> bool:
    """Returns whether a refused batch may go out again in parts.

    A batch that arrived encoded stays whole, because its sender relies on its offsets. If an earlier attempt may have
    written the batch, parts of it could be written twice.
    """
    return code in TOO_LARGE and batch.builder.record_count > 1 and not batch.is_uncertain


def split(batch: ProducerBatch, limits: Limits, code: ErrorCode) -> tuple[ProducerBatch, ProducerBatch]:
    """Returns the two halves of a batch that ``can_split``; its deliveries have their outcomes from then on."""
    data = batch.close()
    records = decode_records(data, 0, parse_batch_header(data))
    middle = len(records) // 2
    whole = batch.delivered
    halves = []
    for start, end in ((0, middle), (middle, len(records))):
        builder = BatchBuilder(
            limits.batch_size,
            compression=limits.compression,
            compression_level=limits.compression_level,
            is_transactional=limits.is_transactional,
        )
        for record in records[start:end]:
            builder.append(record.timestamp, record.key, record.value, record.headers)
        reserved = batch.reserved_bytes // 2
        half = ProducerBatch(
            batch.partition, builder, batch.created_ms, reserved if start == 0 else batch.reserved_bytes - reserved
        )
        half.close()
        half.attempts, half.ordinal, half.last_code, half.whole = batch.attempts, batch.ordinal, code, whole
        half.first_index = batch.first_index + start
        if batch.has_sequence:
            half.set_sequence(
                batch.producer_id,
                batch.producer_epoch,
                add_sequence(batch.base_sequence, start),
                is_transactional=limits.is_transactional,
            )
        halves.append(half)
    parts = whole.parts or [batch]
    place = parts.index(batch)
    whole.parts = [*parts[:place], *halves, *parts[place + 1 :]]
    return halves[0], halves[1]
