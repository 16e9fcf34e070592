"""State batches: ranges of offsets with the same delivery state, and how newer ones join older ones. Pure.

Where batches overlap, the one with the higher delivery count wins, and at equal counts the higher delivery state, as in
Kafka: a record's count never decreases, and of the states of one delivery the terminal ones have the higher numbers.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

UNCHANGED_OFFSET = -1
"""The start offset of a write that leaves the start offset as it is."""
FIRST_OFFSET = 0
"""The start offset of a state that begins with the first record of its partition, wherever the log begins."""
AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED = 0, 2, 3, 4
"""Delivery states in records and requests."""


class StateBatch(NamedTuple):
    """The offsets from ``first_offset`` to ``last_offset``, both inclusive."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


def combine(batches: Iterable[StateBatch], start_offset: int) -> tuple[StateBatch, ...]:
    """Returns disjoint batches in the order of their offsets, without neighbours of the same state.

    Offsets below ``start_offset`` are dropped, unless it is -1.
    """
    ordered = sorted(
        batch._replace(first_offset=max(batch.first_offset, start_offset))
        for batch in batches
        if batch.last_offset >= start_offset
    )
    found: list[StateBatch] = []
    open_batches: list[tuple[int, int, int]] = []  # a heap: negative count, negative state, last offset
    index, offset = 0, 0
    while index < len(ordered) or open_batches:
        if not open_batches:
            offset = ordered[index].first_offset
        while index < len(ordered) and ordered[index].first_offset <= offset:
            batch = ordered[index]
            heapq.heappush(open_batches, (-batch.delivery_count, -batch.delivery_state, batch.last_offset))
            index += 1
        while open_batches and open_batches[0][2] < offset:
            heapq.heappop(open_batches)
        if not open_batches:
            continue
        count, state, last_offset = open_batches[0]
        if index < len(ordered):
            last_offset = min(last_offset, ordered[index].first_offset - 1)
        _extend(found, StateBatch(offset, last_offset, -state, -count))
        offset = last_offset + 1
    return tuple(found)


def _extend(found: list[StateBatch], batch: StateBatch) -> None:
    """Adds a batch behind the others, or joins it to the last one if the two differ in offsets only."""
    if found and found[-1].last_offset + 1 == batch.first_offset and found[-1][2:] == batch[2:]:
        found[-1] = found[-1]._replace(last_offset=batch.last_offset)
    else:
        found.append(batch)
