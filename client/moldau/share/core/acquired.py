"""The records in a ShareFetch answer: those that are acquired, and the acquired offsets without a record. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.records import CorruptRecordError, check_batch_crc, decode_records, iterate_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.protocol.messages.share_fetch import PartitionData
    from moldau.records import Record


@dataclass(frozen=True, slots=True)
class AcquiredRecords:
    """The content of a partition's part of an answer."""

    records: list[tuple[Record, int]] = field(default_factory=list)
    """The acquired records in order, with their delivery counts."""
    gaps: list[int] = field(default_factory=list)
    """Acquired offsets without a record: compacted, markers of transactions."""
    corrupt: list[int] = field(default_factory=list)
    """Acquired offsets of damaged batches."""
    error: CorruptRecordError | None = None


OFFSETS_MAX = 100_000
"""Bound of the offsets that one partition's part of an answer acquires; brokers allow 10,000 records in flight."""


def acquired_records(data: PartitionData, *, check_crcs: bool) -> AcquiredRecords:
    """Decodes the batches of a partition, and keeps the acquired records.

    Raises:
        CorruptRecordError: the answer acquires an impossible number of offsets.
    """
    if sum(max(0, each.last_offset - each.first_offset + 1) for each in data.acquired_records) > OFFSETS_MAX:
        raise CorruptRecordError(f"a broker claims that more than {OFFSETS_MAX} offsets are acquired")
    counts: dict[int, int] = {
        offset: each.delivery_count
        for each in data.acquired_records
        for offset in range(each.first_offset, each.last_offset + 1)
    }
    found = AcquiredRecords()
    error: CorruptRecordError | None = None
    view = memoryview(data.records)
    try:
        for position, header in iterate_batches(view):
            if header.is_control:
                continue
            try:
                if check_crcs:
                    check_batch_crc(view, position, header)
                records: Sequence[Record] = decode_records(view, position, header)
            except CorruptRecordError as raised:
                error = raised
                # The claimed range of a damaged header may have two billion offsets.
                damaged = [offset for offset in counts if header.base_offset <= offset < header.next_offset]
                for offset in damaged:
                    del counts[offset]
                found.corrupt.extend(damaged)
                continue
            for record in records:
                count = counts.pop(record.offset, None)
                if count is not None:
                    found.records.append((record, count))
    except CorruptRecordError as raised:  # the header of a batch: what follows it cannot be found
        error = raised
        found.corrupt.extend(counts)
        counts = {}
    found.gaps.extend(counts)
    return AcquiredRecords(found.records, found.gaps, found.corrupt, error)
