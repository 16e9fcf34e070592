"""Bugs in cleaning and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.log.cleaner.offset_map import OffsetMap
from moldau_broker.log.partition import retention

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.log.cleaner.offset_map import Selection
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


def retention_deletes_active_segment() -> list[Patch]:
    """Where anything is to go, the segment that is written goes too."""
    original = retention.expired_count

    def expired_count(log: SegmentedLog, high_watermark: int, now_ms: int, *, has_staged: bool) -> int:
        expired = original(log, high_watermark, now_ms, has_staged=has_staged)
        return log.segments.count if expired and not has_staged else 0

    return [(retention, "expired_count", expired_count)]
