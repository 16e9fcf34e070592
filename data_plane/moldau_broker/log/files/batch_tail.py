"""The newest batches of a segment, which are found without a read."""

from __future__ import annotations

from bisect import bisect_left

TAIL_BATCHES = 1024
"""Batches that stay known at least; up to twice as many are kept, so that dropping the oldest is rare."""


class BatchTail:
    """Last offset and position of each of the newest batches, oldest first. Invariant: both lists are equally long."""

    __slots__ = ("last_offsets", "positions")

    def __init__(self) -> None:
        self.last_offsets: list[int] = []
        self.positions: list[int] = []

    def shorten(self) -> None:
        """Drops the oldest batches; the owner calls it when there are ``2 * TAIL_BATCHES``."""
        del self.last_offsets[:TAIL_BATCHES]
        del self.positions[:TAIL_BATCHES]

    def clear(self) -> None:
        """Forgets all batches."""
        self.last_offsets.clear()
        self.positions.clear()

    def cut(self, position: int) -> None:
        """Forgets the batches at and behind a position."""
        while self.positions and self.positions[-1] >= position:
            self.positions.pop()
            self.last_offsets.pop()

    def position_of(self, offset: int) -> int | None:
        """Returns the position of the first batch that ends at or above ``offset``; None if it is not known."""
        tail = self.last_offsets
        # The first batch of the tail is found only if it is the segment's first: the one before it is not known.
        if not tail or offset > tail[-1] or (offset <= tail[0] and self.positions[0] > 0):
            return None
        return self.positions[bisect_left(tail, offset)]

    def size_at(self, position: int, end: int) -> int | None:
        """Returns the size of the batch at a position of a segment that ends at ``end``; None if it is not known."""
        positions = self.positions
        index = bisect_left(positions, position)
        if index == len(positions) or positions[index] != position:
            return None
        return (positions[index + 1] if index + 1 < len(positions) else end) - position
