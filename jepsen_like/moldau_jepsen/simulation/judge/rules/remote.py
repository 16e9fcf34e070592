"""Judges tiered partitions: what the object store must hold, and what brokers may drop from their disks.

======================= ==============================================================================================
remote-copy-committed   a segment in the store holds the committed batches of its range, without a gap, and no others
local-range-copied      a replica's log lacks on its disk only what the store has: finished segments with the committed
                        leader epoch at their last offsets, or what was deleted for good
remote-range-kept       the same of a leader when objects leave the store
remote-start-state      a log that begins at its end, because the records before it are in the store alone, knows the
                        leader epochs and the producers of these records
remote-orphan           when all has healed and the delay is over, the store holds no unfinished objects, nothing of
                        deleted topics, and no segment that a log does not need
======================= ==============================================================================================

Committed batches are those that the judge saw (``PartitionRecord``). Deleted for good is what lies below the highest
log start offset that any leader of the partition had: a leader moves it first, and deletes then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from moldau_jepsen.simulation.judge.invariants import BatchSeen


class SegmentSeen(NamedTuple):
    """A finished segment in the store, as its name says."""

    base_offset: int
    last_offset: int
    last_epoch: int

    def __str__(self) -> str:
        """For messages."""
        return f"segment {self.base_offset}..{self.last_offset} of epoch {self.last_epoch}"


class CommittedBatches:
    """Committed batches of one partition, which only grow, by offset."""

    def __init__(self, batches: Mapping[int, BatchSeen]) -> None:
        """``batches`` are by base offset, ascending; offsets between them may be unknown."""
        self._batches = batches
        self._bases: list[int] = []

    def at(self, offset: int) -> BatchSeen | None:
        """Returns the batch that holds an offset; None if it is unknown."""
        bases = self._all_bases()
        place = bisect_right(bases, offset) - 1
        found = self._batches[bases[place]] if place >= 0 else None
        return found if found is not None and found.last_offset >= offset else None

    def between(self, start: int, end: int) -> list[BatchSeen]:
        """Returns the known batches with a base offset from ``start`` on and below ``end``."""
        bases = self._all_bases()
        return [self._batches[base] for base in bases[bisect_left(bases, start) : bisect_left(bases, end)]]

    def _all_bases(self) -> list[int]:
        if len(self._bases) != len(self._batches):
            self._bases = list(self._batches)
        return self._bases

    def belongs(self, segment: SegmentSeen) -> bool:
        """Returns whether a segment is one of the committed log (Raft's log matching)."""
        batch = self.at(segment.last_offset)
        return batch is None or batch.leader_epoch == segment.last_epoch


def first_gap(segments: Iterable[SegmentSeen], start: int, end: int) -> int | None:
    """Returns the first offset from ``start`` on and below ``end`` that no segment holds; None if all are held."""
    position = start
    for segment in sorted(segments):
        if position >= end or segment.base_offset > position:
            break
        position = max(position, segment.last_offset + 1)
    return position if position < end else None


class RemoteRules:
    """Judges the tiered partitions of a run."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        """``violated`` is called with the rule and a text."""
        self._violated = violated

    def copied(
        self,
        key: Hashable,
        broker: str,
        segment: SegmentSeen,
        batches: Sequence[BatchSeen],
        committed: CommittedBatches,
        end: int,
    ) -> None:
        """A segment is finished now, and its file holds ``batches``; all below ``end`` is committed.

        A batch below ``end`` that the judge has not seen is passed over: a disk died before it could be read.
        """
        position = segment.base_offset
        for batch in batches:
            if batch.base_offset < position:
                self._wrong_copy(key, broker, segment, f"offset {batch.base_offset} follows {position - 1}")
                return
            known = committed.at(batch.base_offset)
            if known is None and batch.last_offset >= end:
                self._wrong_copy(key, broker, segment, f"offset {batch.last_offset} is not committed, {end} is the end")
                return
            if known is not None and known[:4] != batch[:4]:
                self._wrong_copy(key, broker, segment, f"committed is another batch at offset {batch.base_offset}")
                return
            missing = committed.between(position, batch.base_offset)
            if missing:
                self._wrong_copy(key, broker, segment, f"the batch at offset {missing[0].base_offset} is not in it")
                return
            position = batch.last_offset + 1
        last = batches[-1] if batches else None
        if last is None or (last.last_offset, last.leader_epoch) != segment[1:]:
            self._wrong_copy(key, broker, segment, "its last batch is another one")

    def _wrong_copy(self, key: Hashable, broker: str, segment: SegmentSeen, text: str) -> None:
        self._violated("remote-copy-committed", f"{key}: {segment}, copied by {broker}: {text}")

    def lacks_locally(
        self,
        key: Hashable,
        broker: int,
        needed_from: int,
        local_start: int,
        segments: Sequence[SegmentSeen],
        committed: CommittedBatches,
    ) -> None:
        """A replica's files begin at another offset than before, ``local_start``.

        Readers may ask for records from ``needed_from`` on; ``segments`` are the finished ones in the store now.
        """
        gap = first_gap(filter(committed.belongs, segments), needed_from, local_start)
        if gap is not None:
            self._violated("local-range-copied", _lost(key, broker, local_start, gap, segments))

    def left_store(
        self,
        key: Hashable,
        broker: int,
        needed_from: int,
        local_start: int,
        segments: Sequence[SegmentSeen],
        committed: CommittedBatches,
    ) -> None:
        """Segments have left the store, which has ``segments`` now; ``broker`` leads the partition."""
        gap = first_gap(filter(committed.belongs, segments), needed_from, local_start)
        if gap is not None:
            self._violated("remote-range-kept", _lost(key, broker, local_start, gap, segments))

    def log_start_moved(
        self, key: Hashable, broker: int, log_start: int, size_bytes: int, retention_bytes: int
    ) -> None:
        """The log of a leader begins at ``log_start`` now.

        It has ``size_bytes`` from there on, on its disk and in the store; ``retention_bytes`` is what retention must
        keep (-1: says nothing).
        """
        if size_bytes < retention_bytes:
            self._violated(
                "retention-keeps",
                f"{key}: broker {broker} and the store hold {size_bytes} bytes from {log_start} on after a deletion, "
                f"{retention_bytes} are to be kept",
            )

    def started(
        self,
        key: Hashable,
        broker: int,
        log_start: int,
        end: int,
        epochs: Sequence[tuple[int, int]],
        producers: Mapping[int, tuple[int, int]],
        committed: CommittedBatches,
    ) -> None:
        """A log has no records on its disk, and begins at ``end``; those from ``log_start`` on are in the store.

        ``epochs`` are (epoch, start offset), ``producers`` (epoch, last sequence number; negative for none) by id.
        """
        last: dict[int, tuple[int, int]] = {}
        for batch in committed.between(log_start, end):
            place = bisect_right([start for _, start in epochs], batch.base_offset) - 1
            found = epochs[place][0] if place >= 0 else None
            if found != batch.leader_epoch:
                self._violated(
                    "remote-start-state",
                    f"{key}: broker {broker} begins at {end} with epochs {list(epochs)}; offset "
                    f"{batch.base_offset} has epoch {batch.leader_epoch}",
                )
                return
            producer = batch.producer
            if producer.producer_id >= 0 and producer.base_sequence >= 0 and not producer.is_control:
                last[producer.producer_id] = (producer.producer_epoch, producer.last_sequence)
        for producer_id, (epoch, sequence) in last.items():
            known = producers.get(producer_id)
            if known is None or known[0] < epoch or (known[0] == epoch and known[1] != sequence):
                self._violated(
                    "remote-start-state",
                    f"{key}: broker {broker} begins at {end}, producer {producer_id} wrote in epoch {epoch} up to "
                    f"sequence number {sequence}, and the log knows {known}",
                )
                return


def _lost(key: Hashable, broker: int, local_start: int, gap: int, segments: Sequence[SegmentSeen]) -> str:
    return (
        f"{key}: the files of broker {broker} begin at {local_start}, and offset {gap} is not in the store, which has "
        f"{', '.join(map(str, segments)) or 'nothing'}"
    )


def unneeded(segments: Sequence[SegmentSeen], log_start: int, committed: CommittedBatches) -> list[str]:
    """Returns descriptions of the finished segments of a partition that its log does not need."""
    found = []
    for place, segment in enumerate(segments):
        if segment.last_offset < log_start:
            found.append(f"{segment} lies below the log start offset {log_start}")
        elif not committed.belongs(segment):
            found.append(f"{segment} is of another log")
        elif any(
            other.base_offset <= segment.base_offset
            and segment.last_offset <= other.last_offset
            and committed.belongs(other)
            and (other[:2] != segment[:2] or number < place)
            for number, other in enumerate(segments)
            if number != place
        ):
            found.append(f"{segment} is contained in another one")
    return found
