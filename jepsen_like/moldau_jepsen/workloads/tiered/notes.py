"""The memory of the tiered workload: what its clients wrote, read and asked to delete, in the order of ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_jepsen.checkers.log.compacted import NEVER, Fate
from moldau_jepsen.checkers.log.reach import end_of
from moldau_jepsen.checkers.log.tiered import Place, TieredRead, TieredSearch, TieredStory, TieredWrite

if TYPE_CHECKING:
    from collections.abc import Iterable

    from moldau.producer import Delivery


class TieredNotes:
    """The observations of all clients of a run."""

    def __init__(self, trims: dict[Place, int | None]) -> None:
        """``trims`` as in ``TieredStory``; DeleteRecords raises its numbers."""
        self._ticks = 0
        self._producers = 0
        self.writes: list[TieredWrite] = []
        self.reads: list[TieredRead] = []
        self.searches: list[TieredSearch] = []
        self.trims = trims

    @property
    def story(self) -> TieredStory:
        """All of it, for the checker."""
        return TieredStory(writes=self.writes, reads=self.reads, searches=self.searches, trims=self.trims)

    def tick(self) -> int:
        """Returns the next moment."""
        self._ticks += 1
        return self._ticks

    def new_producer(self) -> int:
        """Returns the number of another life of a producer."""
        self._producers += 1
        return self._producers

    def new_write(self, place: Place, producer: int, timestamp_ms: int, padding_bytes: int) -> TieredWrite:
        """Adds a write that is about to be handed over."""
        number = len(self.writes)
        value = b"%d of %d " % (number, producer) + b"." * padding_bytes
        write = TieredWrite(place=place, producer=producer, value=value, timestamp_ms=timestamp_ms)
        self.writes.append(write)
        return write

    def acknowledged(self, write: TieredWrite, delivery: Delivery) -> None:
        """Takes a delivery that has succeeded."""
        offset = delivery.result().offset
        if offset >= 0 and write.offset == NEVER:
            write.offset, write.acknowledged_at = offset, self.tick()

    def committed(self, writes: Iterable[TieredWrite]) -> None:
        """Records that writes were acknowledged outside of a transaction, or that theirs is committed."""
        now = self.tick()
        for write in writes:
            write.fate, write.committed_at = Fate.COMMITTED, now

    def known_offsets(self, place: Place) -> list[int]:
        """Returns the offsets of committed writes to a partition, as far as clients know them."""
        return [
            write.offset
            for write in self.writes
            if write.place == place and write.fate is Fate.COMMITTED and write.offset != NEVER
        ]

    def seen_end(self, place: Place, *, is_committed: bool) -> int:
        """Returns the offset behind all that a pass of the isolation level must reach."""
        reads = [read for read in self.reads if read.place == place and (read.is_committed or not is_committed)]
        found = self.known_offsets(place)
        found += [read.records[-1].offset for read in reads if read.records]
        if not is_committed:
            found += [write.offset for write in self.writes if write.place == place and write.offset != NEVER]
        return end_of(found)

    def times(self, place: Place) -> list[int]:
        """Returns the timestamps of writes to a partition that clients know to be committed."""
        return [write.timestamp_ms for write in self.writes if write.place == place and write.fate is Fate.COMMITTED]
