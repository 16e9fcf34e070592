"""Bugs in what consumers are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer.core.chunk import FetchedChunk
from moldau_broker.log.partition.partition_log import PartitionLog

if TYPE_CHECKING:
    from moldau.records import Record
    from moldau_jepsen.planted_bug import Patch


def reads_beyond_watermark() -> list[Patch]:
    return [(PartitionLog, "last_stable_offset", property(lambda self: self.log_end_offset))]


def consumer_skips() -> list[Patch]:
    original = FetchedChunk.take
    calls = [0]

    def take(self: FetchedChunk, limit: int) -> list[Record]:
        records = original(self, limit)
        calls[0] += 1
        return records[1:] if calls[0] % 10 == 0 else records

    return [(FetchedChunk, "take", take)]
