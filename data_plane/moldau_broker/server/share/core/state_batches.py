"""Batches of states on their way to the share coordinator: the later ones hold. Pure."""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_broker.server.share.core.values import StateBatch


def overlay(batches: list[StateBatch], start_offset: int) -> Iterator[StateBatch]:
    """Yields ascending batches from ``start_offset`` on; of batches that overlap, the later one holds."""
    order = sorted(range(len(batches)), key=lambda number: batches[number].first)
    ordered = [batches[number] for number in order]
    if any(left.last >= right.first for left, right in pairwise(ordered)):
        bounds = sorted({batch.first for batch in batches} | {batch.last + 1 for batch in batches})
        begun, ordered = 0, []
        covering: list[int] = []  # a heap of negative numbers: the latest batch first
        for first, end in pairwise(bounds):
            while begun < len(order) and batches[order[begun]].first <= first:
                heappush(covering, -order[begun])
                begun += 1
            while covering and batches[-covering[0]].last < first:
                heappop(covering)
            if covering:
                latest = batches[-covering[0]]
                ordered.append(replace(latest, first=first, last=end - 1))
    for batch in ordered:
        if batch.last >= start_offset:
            yield replace(batch, first=max(batch.first, start_offset))
