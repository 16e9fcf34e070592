"""The remote segments of one partition, as one broker knows them.

A listing of the partition's folder gives all segments; those whose last leader epoch is the log's own at their last
offset hold the log's records, by Raft's log matching. Others are foreign: an unclean election dropped their records, or
they lie below the log start offset, or a newer leader than this broker knows of has copied them.

The log's own segments may overlap. Brokers close their segments at different offsets, so a new leader copies a segment
that begins inside the last one of the former leader; and two leaders may copy the same range. All their bytes are
copies of the same batches. A segment that lies within one other segment is not needed. It is important that one other
segment has all of it, and which of two equal ones stays is the same for all brokers: a former leader that still deletes
may know other segments than its successor, but each deletion leaves a segment that holds the range, so a range never
gets lost between the two. Segments that are held only by two others together stay.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.objects import StoredObject
    from moldau_broker.remote_log.core.names import DeletionProof, Listing, RemoteSegment


def _order(segment: RemoteSegment) -> tuple[int, int, int]:
    """Sorts segments so that one that lies within another stands behind it; of equal ones, the lowest id is first."""
    return segment.base_offset, -segment.last_offset, segment.segment_id.int


class RemoteLog:
    """The remote segments of one partition, as of the last listing and this broker's changes since then.

    Invariant: base offsets and end offsets of ``segments`` both rise strictly.
    """

    __slots__ = (
        "_all",
        "_bases",
        "_contained",
        "_foreign",
        "_proofs",
        "_segments",
        "_stored_ms",
        "_unfinished",
        "deleted_end",
        "listed_ms",
    )

    def __init__(self, listing: Listing, epoch_for_offset: Callable[[int], int], listed_ms: int) -> None:
        """``epoch_for_offset`` is that of the log's epoch cache: -1 below the first offset that the log knows.

        ``listed_ms`` is the time of the first request of the listing. The caller repeats its
        copies and deletions that lie between the begin and the end of the listing.
        """
        self.listed_ms = listed_ms
        """When the listing began, by the wall clock."""
        self._all: list[RemoteSegment] = []
        self._foreign: list[RemoteSegment] = []
        for segment in listing.segments:
            is_own = epoch_for_offset(segment.last_offset) == segment.last_epoch
            (self._all if is_own else self._foreign).append(segment)
        self._all.sort(key=_order)
        self._unfinished = list(listing.unfinished)
        self._stored_ms = listing.stored_ms
        self._proofs = list(listing.proofs)
        own = (each.end_offset for each in self._proofs if epoch_for_offset(each.end_offset - 1) == each.last_epoch)
        self.deleted_end = max(own, default=0)
        """Offset (exclusive) up to which the last listing proves that leaders of this log have deleted all records.

        0 if no proof is known to be of this log: also if its log start offset has passed them all."""
        self._bases: list[int] = []
        self._segments: list[RemoteSegment] = []
        self._contained: list[RemoteSegment] = []
        self._sort_out()

    def _sort_out(self) -> None:
        self._segments, self._contained = [], []
        for segment in self._all:
            if self._segments and segment.last_offset <= self._segments[-1].last_offset:
                self._contained.append(segment)
            else:
                self._segments.append(segment)
        self._bases = [segment.base_offset for segment in self._segments]

    # Queries ---------------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> Sequence[RemoteSegment]:
        """The log's own segments without the contained ones, in order; neighbours may overlap."""
        return self._segments

    @property
    def contained(self) -> Sequence[RemoteSegment]:
        """The log's own segments that lie within one other, and are not needed."""
        return self._contained

    @property
    def foreign(self) -> Sequence[RemoteSegment]:
        """Segments that are not known to hold records of this log."""
        return self._foreign

    @property
    def unfinished(self) -> Sequence[StoredObject]:
        """Objects of the last listing whose segment lacks the other object."""
        return self._unfinished

    @property
    def proofs(self) -> Sequence[DeletionProof]:
        """Proofs of deletions, also those of other lineages."""
        return self._proofs

    @property
    def first_offset(self) -> int | None:
        """Base offset of the oldest segment; None if there is none."""
        return self._bases[0] if self._bases else None

    def segment_at(self, offset: int) -> RemoteSegment | None:
        """Returns a segment whose range holds ``offset``, the one that reaches furthest; None if there is none."""
        index = bisect_right(self._bases, offset) - 1
        return self._segments[index] if index >= 0 and offset <= self._segments[index].last_offset else None

    def segments_from(self, offset: int) -> Sequence[RemoteSegment]:
        """Returns the segments from the one of ``segment_at`` on, or from the first one after ``offset`` on."""
        index = bisect_right(self._bases, offset) - 1
        return self._segments[index if self.segment_at(offset) is not None else index + 1 :]

    def copied_end(self, from_offset: int) -> int:
        """Returns the offset (exclusive) up to which segments hold all offsets from ``from_offset`` on.

        It is ``from_offset`` if no segment holds that. A broker asks from its local log start offset on: a hole below
        it cannot be filled any more, and must not keep local segments for ever.
        """
        end = from_offset
        for segment in self.segments_from(from_offset):
            if segment.base_offset > end:
                break
            end = segment.end_offset
        return end

    def covers(self, start_offset: int, end_offset: int) -> bool:
        """Returns whether segments hold all offsets from ``start_offset`` up to ``end_offset`` (exclusive)."""
        return self.copied_end(start_offset) >= end_offset

    def holes(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Returns the ranges from ``start_offset`` up to ``end_offset`` that no segment holds; ends are exclusive."""
        found: list[tuple[int, int]] = []
        for segment in self.segments_from(start_offset):
            if start_offset >= end_offset:
                return found
            if segment.base_offset > start_offset:
                found.append((start_offset, min(segment.base_offset, end_offset)))
            start_offset = segment.end_offset
        if start_offset < end_offset:
            found.append((start_offset, end_offset))
        return found

    def sizes(self) -> list[int]:
        """Returns the bytes of each of ``segments``, without what the one before it holds too.

        The bytes of an overlap are not known, so its share of the segment's offsets is taken.
        """
        sizes: list[int] = []
        end = 0
        for segment in self._segments:
            offsets = segment.end_offset - segment.base_offset
            sizes.append(segment.size_bytes * min(offsets, segment.end_offset - end) // offsets)
            end = segment.end_offset
        return sizes

    def written_ms(self, segment: RemoteSegment) -> int:
        """Returns the largest timestamp of a segment; without one, when the store got it, -1 before a listing."""
        largest = segment.max_timestamp_ms
        return largest if largest >= 0 else self._stored_ms.get(segment.segment_id, -1)

    @property
    def size_bytes(self) -> int:
        """Bytes of the log's records in the store, each range of offsets counted once."""
        return sum(self.sizes())

    # Changes ---------------------------------------------------------------------------------------------------------

    def copied(self, segment: RemoteSegment) -> None:
        """Adds a segment of this log that this broker has copied: both of its objects are durable."""
        assert segment not in self._all, f"{segment.name} was copied before"
        insort(self._all, segment, key=_order)
        self._sort_out()

    def deleted(self, segment: RemoteSegment) -> None:
        """Forgets a segment. Call it before its ``.log`` is deleted: from then on it may not exist."""
        known = self._foreign if segment in self._foreign else self._all
        known.remove(segment)
        self._sort_out()

    def removed(self, unfinished: StoredObject) -> None:
        """Forgets an unfinished object."""
        self._unfinished.remove(unfinished)

    def proved(self, proof: DeletionProof) -> None:
        """Adds a proof that this broker has written: it is durable."""
        if proof not in self._proofs:
            insort(self._proofs, proof)

    def superseded(self, proof: DeletionProof) -> None:
        """Forgets a proof. Call it before it is deleted."""
        self._proofs.remove(proof)
