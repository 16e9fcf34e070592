"""Bugs in cleaning and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.log.cleaner.cleaned_transactions import CleanedTransactions
from moldau_broker.log.cleaner.cleaner import LogCleaning
from moldau_broker.log.cleaner.offset_map import OffsetMap
from moldau_broker.log.partition import retention

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.log.cleaner.offset_map import Selection
    from moldau_broker.log.files.batches import Batch
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_jepsen.planted_bug import Patch


def cleaner_drops_last_value() -> list[Patch]:
    """A record goes if its key is known at its own offset, not only at a later one."""
    original = OffsetMap.select

    def select(
        self: OffsetMap, data: Buffer, start: int, end: int, header: BatchHeader, *, keeps_tombstones: bool
    ) -> Selection:
        earlier = header._replace(base_offset=header.base_offset - 1)
        return original(self, data, start, end, earlier, keeps_tombstones=keeps_tombstones)

    return [(OffsetMap, "select", select)]


def tombstones_dropped_at_once() -> list[Patch]:
    """The cleaner does not wait for the delete horizon of a tombstone."""
    original = OffsetMap.select

    def select(
        self: OffsetMap, data: Buffer, start: int, end: int, header: BatchHeader, *, keeps_tombstones: bool
    ) -> Selection:
        return original(self, data, start, end, header, keeps_tombstones=False)

    return [(OffsetMap, "select", select)]


def first_segment_not_cleaned() -> list[Patch]:
    """The oldest segment is never cleaned, so older values of deleted keys stay there."""
    original = LogCleaning._groups

    def groups(self: LogCleaning, segments: Sequence[tuple[LogSegment, int]]) -> Iterator[list[tuple[LogSegment, int]]]:
        return original(self, segments[1:])

    return [(LogCleaning, "_groups", groups)]


def aborted_values_supersede() -> list[Patch]:
    """Values of aborted transactions supersede committed values of their keys."""

    def map_batch(self: LogCleaning, batch: Batch, transactions: CleanedTransactions) -> bool:
        header = batch.header
        if header.is_control or header.record_count == 0:
            return True
        return self._map.add(*self._unpacked(batch), header, self.plan.first_dirty_offset)

    return [(LogCleaning, "_map_batch", map_batch)]


def aborted_values_kept() -> list[Patch]:
    """The cleaner keeps values of aborted transactions, but not the entries that hide them from readers."""

    def is_aborted_data(self: CleanedTransactions, header: BatchHeader) -> bool:
        return False

    return [(CleanedTransactions, "is_aborted_data", is_aborted_data)]


def retention_deletes_active_segment() -> list[Patch]:
    """Where anything is to go, the segment that is written goes too."""
    original = retention.expired_count

    def expired_count(log: SegmentedLog, high_watermark: int, now_ms: int, *, has_staged: bool) -> int:
        expired = original(log, high_watermark, now_ms, has_staged=has_staged)
        return log.segments.count if expired and not has_staged else 0

    return [(retention, "expired_count", expired_count)]
