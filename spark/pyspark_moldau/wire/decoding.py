"""Turns the batches of a Fetch response into columns, without an object per record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.records import (
    BatchHeader,
    ColumnBuilder,
    Columns,
    ControlRecordType,
    check_batch_crc,
    control_record_type,
    decode_columns,
    decode_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moldau.protocol.messages.fetch import AbortedTransaction, PartitionData

CHUNK_ROWS: Final = 65_536
CHUNK_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Decoded records of one partition, all of one timestamp type (0 create time, 1 log append time)."""

    columns: Columns
    timestamp_type: int


def decode(
    data: PartitionData,
    batches: Sequence[tuple[int, BatchHeader]],
    first: int,
    end: int,
    *,
    read_committed: bool,
    check_crcs: bool = True,
) -> Iterator[Chunk]:
    """Decodes batches into as few chunks as the limits allow, without transaction markers and aborted records."""
    assert data.records is not None or not batches, "batches come from records"
    aborted = _AbortedFilter(data.aborted_transactions or () if read_committed else ())
    builder = ColumnBuilder()
    timestamp_type = 0
    for position, header in batches:
        if header.next_offset <= first or header.base_offset >= end:
            continue
        assert data.records is not None, "batches come from records"
        if check_crcs:
            check_batch_crc(data.records, position, header)
        if aborted.hides(data.records, position, header):
            continue
        full = builder.length >= CHUNK_ROWS or builder.size_bytes >= CHUNK_BYTES
        if builder.length and (full or header.timestamp_type != timestamp_type):
            yield Chunk(columns=builder.finish(), timestamp_type=timestamp_type)
        timestamp_type = int(header.timestamp_type)
        decode_columns(builder, data.records, position, header, first_offset=first, end_offset=end)
    if builder.length:
        yield Chunk(columns=builder.finish(), timestamp_type=timestamp_type)


class _AbortedFilter:
    """Decides which batches a read_committed reader must skip (KIP-98). It skips control batches always."""

    def __init__(self, transactions: Sequence[AbortedTransaction]) -> None:
        self._coming = sorted(transactions, key=lambda one: one.first_offset, reverse=True)
        self._open: dict[int, int] = {}

    def hides(self, records: bytes | bytearray | memoryview, position: int, header: BatchHeader) -> bool:
        while self._coming and self._coming[-1].first_offset <= header.last_offset:
            transaction = self._coming.pop()
            self._open[transaction.producer_id] = transaction.first_offset
        if header.is_control:
            if header.producer_id in self._open:
                markers = decode_records(records, position, header)
                if any(control_record_type(marker) is ControlRecordType.ABORT for marker in markers):
                    del self._open[header.producer_id]
            return True
        return header.is_transactional and header.producer_id in self._open
