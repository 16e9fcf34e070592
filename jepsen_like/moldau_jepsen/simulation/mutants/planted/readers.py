"""Bugs in what consumers are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.consumer.core.chunk import FetchedChunk
from moldau.consumer.fetcher import Fetcher
from moldau_broker.log.partition.partition_log import PartitionLog

if TYPE_CHECKING:
    from moldau.consumer.core.positions import PartitionPosition
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


class _AnyGeneration(int):
    """A generation of a position that counts as the present one."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def answers_of_former_seeks() -> list[Patch]:
    """The answer of ListOffsets is applied although the consumer has sought again since the question."""
    original = Fetcher._list_offsets

    async def list_offsets(self: Fetcher, node_id: int, asked: list[tuple[PartitionPosition, int]]) -> None:
        await original(self, node_id, [(position, _AnyGeneration(generation)) for position, generation in asked])

    return [(Fetcher, "_list_offsets", list_offsets)]
