"""Bugs in cleaning and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.log.cleaner.offset_map import OffsetMap
from moldau_broker.log.partition.watermarked_log import WatermarkedLog

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.log.cleaner.offset_map import Selection
    from moldau_jepsen.simulation.mutants.planted import Patch


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
    original = WatermarkedLog._expired_count

    def expired_count(self: WatermarkedLog, now_ms: int) -> int:
        return len(self._segments) if original(self, now_ms) and not self._staged_batches else 0

    return [(WatermarkedLog, "_expired_count", expired_count)]
