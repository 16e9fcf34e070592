"""How far each partition of a source is mirrored: polled, sent, and acknowledged by the target. Pure.

``position`` is where mirroring continues after a crash: it moves past a batch only when the target has acknowledged
this batch and all before it. If a batch fails, everything not acknowledged is sent again from ``position``, so a record
may be written twice, and none is left out. Outcomes of batches that were sent before such a return are ignored.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.mirror.core.formats import Position
from moldau.values import ZERO_UUID

if TYPE_CHECKING:
    from uuid import UUID

    from moldau.cluster.metadata import TopicPartition
    from moldau.mirror.core.batches import Run


@dataclass(slots=True, eq=False)
class Span:
    """A part of a partition on its way to the target; without ``runs`` it holds nothing to copy."""

    partition: TopicPartition
    generation: int
    runs: tuple[Run, ...]
    after: Position
    """The position behind the span."""
    is_settled: bool = False


@dataclass(slots=True)
class PartitionProgress:
    """One partition. Invariant: ``position.offset`` <= ``sent_offset``, and ``spans`` lie between them, in order."""

    position: Position
    sent_offset: int
    generation: int = 0
    spans: deque[Span] = field(default_factory=deque)
    records: int = 0
    """Records acknowledged by the target."""


class Progress:
    """All partitions of one source."""

    def __init__(self) -> None:
        """Mirrors no partition."""
        self.by_partition: dict[TopicPartition, PartitionProgress] = {}
        self._moved: dict[TopicPartition, None] = {}
        self._begun = 0

    def begin(self, partition: TopicPartition, position: Position, *, is_news: bool = False) -> None:
        """Begins to mirror a partition, or begins again elsewhere; outcomes of earlier spans no longer count.

        ``is_news`` means that the position is not stored yet.
        """
        before = self.by_partition.get(partition)
        records = 0 if before is None else before.records
        # One count for all partitions: a partition that ended and begins again must not meet its former generation.
        self._begun += 1
        self.by_partition[partition] = PartitionProgress(position, position.offset, self._begun, records=records)
        self._moved.pop(partition, None)
        if is_news:
            self._moved[partition] = None

    def end(self, partition: TopicPartition) -> None:
        """Stops mirroring a partition."""
        self.by_partition.pop(partition, None)
        self._moved.pop(partition, None)

    def generation(self, partition: TopicPartition) -> int | None:
        """Returns a number that changes whenever the partition begins again; None if it is not mirrored."""
        found = self.by_partition.get(partition)
        return None if found is None else found.generation

    @property
    def has_moved(self) -> bool:
        """Whether ``take_moved`` has a position to store."""
        return bool(self._moved)

    def sent(
        self,
        partition: TopicPartition,
        generation: int | None,
        runs: tuple[Run, ...],
        next_offset: int,
        *,
        topic_id: UUID,
        leader_epoch: int,
    ) -> Span | None:
        """Notes that the source's records below ``next_offset`` are on their way.

        Returns None, and notes nothing, if the partition has begun again since ``generation``: records that were read
        before would leave a gap behind the position.
        """
        found = self.by_partition.get(partition)
        if found is None or found.generation != generation:
            return None
        assert next_offset >= found.sent_offset, "a partition is read in order"
        found.sent_offset = next_offset
        span = Span(partition, found.generation, runs, Position(next_offset, topic_id, leader_epoch))
        found.spans.append(span)
        return span

    def acknowledged(self, span: Span) -> bool:
        """Takes the acknowledgement of a span; returns whether it still counts."""
        found = self.by_partition.get(span.partition)
        if found is None or found.generation != span.generation:
            return False
        span.is_settled = True
        while found.spans and found.spans[0].is_settled:
            first = found.spans.popleft()
            found.records += sum(run.count for run in first.runs)
            found.position = first.after
            self._moved[first.partition] = None
        return True

    def pending(self) -> int:
        """Returns how many spans have no outcome yet."""
        return sum(len(each.spans) for each in self.by_partition.values())

    def take_moved(self) -> dict[TopicPartition, Position]:
        """Returns the positions that moved since the last call, to be stored.

        The start of an empty partition is one of them: with ``latest`` a restart would else begin at its new end.
        """
        moved = {partition: self.by_partition[partition].position for partition in self._moved}
        self._moved.clear()
        return moved

    def keep_moved(self, positions: dict[TopicPartition, Position]) -> None:
        """Puts back positions that could not be stored; newer ones replace them."""
        for partition in positions:
            if partition in self.by_partition:
                self._moved[partition] = None


def stored_start(stored: Position | None, topic_id: UUID) -> Position | None:
    """Returns where to continue a partition of the topic with this id; None if it has no position in that topic.

    A position without a topic id, as MirrorMaker stores it, counts.
    """
    if stored is None or stored.topic_id not in (ZERO_UUID, topic_id):
        return None
    return Position(stored.offset, topic_id, stored.leader_epoch)
