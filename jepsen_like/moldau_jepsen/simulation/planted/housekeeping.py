"""Bugs in cleaning and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.log.cleaner import LogCleaning
from moldau_broker.log.watermarked_log import WatermarkedLog

if TYPE_CHECKING:
    from moldau.records import Record
    from moldau_jepsen.simulation.planted import Patch


def cleaner_drops_last_value() -> list[Patch]:
    """A record goes if its key is known at its own offset, not only at a later one."""
    original = LogCleaning._stays

    def stays(self: LogCleaning, record: Record, horizon: int | None) -> bool:
        if record.key is not None and record.offset <= self._map.latest_offset:
            return self._map.get(record.key) != record.offset and original(self, record, horizon)
        return original(self, record, horizon)

    return [(LogCleaning, "_stays", stays)]


def retention_deletes_active_segment() -> list[Patch]:
    """Where anything is to go, the segment that is written goes too."""
    original = WatermarkedLog._expired_count

    def expired_count(self: WatermarkedLog, now_ms: int) -> int:
        return len(self._segments) if original(self, now_ms) and not self._staged_batches else 0

    return [(WatermarkedLog, "_expired_count", expired_count)]
