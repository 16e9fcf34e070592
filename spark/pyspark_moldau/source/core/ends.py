"""The ends of partitions that this process has seen, with the leader epochs in which leaders named them. Pure.

A leader that was replaced and does not know it yet may lack records that its successor has. Its leader epoch tells: it
is lower than that of the leader that named an end. A leader of that epoch or a later one has all records below the end,
and names no end before it knows them (KIP-207). So if it names a lower end, the records between the two are gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pyspark_moldau.source.core.offsets import Partition


@dataclass(frozen=True, slots=True)
class _Seen:
    topic_id: Hashable
    leader_epoch: int
    end: int


class SeenEnds:
    """The highest end of the last leader epoch that was seen, for each partition."""

    def __init__(self) -> None:
        self._seen: dict[Partition, _Seen] = {}

    def note(self, partition: Partition, topic_id: Hashable, leader_epoch: int, end: int) -> None:
        """Takes an end that a leader has named; one of an earlier leader epoch changes nothing."""
        known = self._seen.get(partition)
        if known is not None and known.topic_id == topic_id:
            if leader_epoch < known.leader_epoch:
                return
            if leader_epoch == known.leader_epoch:
                end = max(end, known.end)
        self._seen[partition] = _Seen(topic_id, leader_epoch, end)

    def epoch_of(self, partition: Partition, topic_id: Hashable, end: int) -> int | None:
        """Returns the leader epoch in which the log reached ``end``; None if no end as high was seen."""
        known = self._seen.get(partition)
        if known is None or known.topic_id != topic_id or known.end < end:
            return None
        return known.leader_epoch
