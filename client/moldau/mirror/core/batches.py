"""Record batches of the source as batches of the target. Pure.

A batch passes as it is where a producer may send it: with its compression, and without being decoded. It is encoded
again, with the same compression, if a part of it is not to be copied, if compaction has left gaps between its offsets,
if its timestamps are the broker's, or if its records get the header of their provenance.

Small batches in a row are joined: each batch of a partition costs a Produce request, so a source whose producers wrote
single records would be copied at a small fraction of the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from moldau.mirror.core.provenance import has_visited, with_visit
from moldau.records import BatchBuilder, TimestampType, decode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from moldau.consumer.core.values import EncodedBatch
    from moldau.records import Record
    from moldau.values import Buffer

_BATCH_BYTES_MAX = 2**31 - 1
SMALL_RECORDS: Final = 16
"""Batches of at most so many records are joined; with more, encoding them again costs more than a request."""
JOINED_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` records with consecutive offsets from ``upstream`` on, from record ``index`` of the target's batch."""

    upstream: int
    index: int
    count: int


class TargetBatch(NamedTuple):
    """A batch to produce, the place of its records in the source, and the source's offset after its last record."""

    data: Buffer
    runs: tuple[Run, ...]
    next_offset: int


class Provenance(NamedTuple):
    """The ids of both clusters, for records that must show where they have been."""

    source_id: str
    target_id: str


def groups(batches: Iterable[EncodedBatch], *, bytes_max: int = JOINED_BYTES_MAX) -> Iterator[list[EncodedBatch]]:
    """Divides batches of a partition, in order, into those to encode as one: a large batch, or small ones in a row.

    Joined batches have one compression and one leader epoch, and together at most ``bytes_max`` as stored.
    """
    group: list[EncodedBatch] = []
    size = 0
    for batch in batches:
        size += batch.header.size_bytes
        if group and (size > bytes_max or not _joins(group[-1], batch)):
            yield group
            group, size = [], batch.header.size_bytes
        group.append(batch)
    if group:
        yield group


def _joins(before: EncodedBatch, batch: EncodedBatch) -> bool:
    first, second = before.header, batch.header
    return (
        max(first.record_count, second.record_count) <= SMALL_RECORDS
        and first.compression is second.compression
        and first.partition_leader_epoch == second.partition_leader_epoch
    )


def target_batches(
    batch: EncodedBatch,
    provenance: Provenance | None = None,
    *,
    bytes_max: int = _BATCH_BYTES_MAX,
    following: Sequence[EncodedBatch] = (),
) -> list[TargetBatch]:
    """Returns a batch of the source, joined with those ``following``, as batches of the target.

    These have at most ``bytes_max`` (uncompressed), or one record. With ``provenance``, records that have been in the
    target are left out, and the others get a header.

    Raises:
        CorruptRecordError: the records are damaged.
    """
    header = batch.header
    if provenance is None and not following and _passes_whole(batch) and header.size_bytes <= bytes_max:
        runs = (Run(header.base_offset, 0, header.record_count),)
        return [TargetBatch(batch.data, runs, header.next_offset)]
    records = [
        record
        for each in (batch, *following)
        for record in decode_records(each.data, 0, each.header, first_offset=each.first_offset)
    ]
    if provenance is not None:
        records = [each for each in records if not has_visited(each.headers, provenance.target_id)]
    built = [_encoded(part, batch, provenance) for part in _parts(records, bytes_max)]
    if built:
        built[-1] = built[-1]._replace(next_offset=(following or (batch,))[-1].header.next_offset)
    return built


def _passes_whole(batch: EncodedBatch) -> bool:
    header = batch.header
    return (
        batch.first_offset <= header.base_offset
        and header.record_count == header.last_offset_delta + 1
        and header.timestamp_type is TimestampType.CREATE_TIME
        and header.delete_horizon_ms is None
    )


def _parts(records: Sequence[Record], bytes_max: int) -> Iterator[list[Record]]:
    """Divides records into runs whose keys, values and headers have at most ``bytes_max``, or that are one record."""
    part: list[Record] = []
    size = 0
    for record in records:
        length = _size(record)
        if part and size + length > bytes_max:
            yield part
            part, size = [], 0
        part.append(record)
        size += length
    if part:
        yield part


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers


def _encoded(records: list[Record], batch: EncodedBatch, provenance: Provenance | None) -> TargetBatch:
    builder = BatchBuilder(_BATCH_BYTES_MAX, compression=batch.header.compression)
    runs: list[Run] = []
    for index, record in enumerate(records):
        headers = record.headers if provenance is None else with_visit(record.headers, provenance.source_id)
        taken = builder.append(record.timestamp, record.key, record.value, headers)
        assert taken == index, "the builder has no limit that a fetched batch could reach"
        if runs and runs[-1].upstream + runs[-1].count == record.offset:
            runs[-1] = Run(runs[-1].upstream, runs[-1].index, runs[-1].count + 1)
        else:
            runs.append(Run(record.offset, index, 1))
    return TargetBatch(builder.build(), tuple(runs), records[-1].offset + 1)
