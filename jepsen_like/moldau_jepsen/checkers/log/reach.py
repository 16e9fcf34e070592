"""Tells the offsets that a partition can have from those that it cannot have.

A log numbers its records one after the other, so an offset is never far above all that the history has shown before it.
No checksum covers the base offset of a batch: if it is damaged on a disk, a reader may be given any number. Such an
offset is a finding, not a place: checkers keep arrays by offset, which must not grow to it, and a position behind it
says nothing about the records before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

P = TypeVar("P")

OFFSET_END = 1 << 63
"""Exclusive bound of the offsets that the protocol can carry."""

GAP_MAX = 1 << 24
"""How far an offset may be above all offsets that were known before it, in a topic whose log begins at 0. Clients have
far fewer records in flight, and an array by offset grows by 64 MB at most for a wrong one."""


class Reach:
    """The offsets of one partition that a history has shown so far."""

    __slots__ = ("_gap", "end")

    def __init__(self, gap: int = GAP_MAX) -> None:
        """Knows no offset. ``gap`` is how far the next one may be above the known ones."""
        self._gap = gap
        self.end = 0
        """Exclusive bound of the offsets that were admitted."""

    def admits(self, offset: int) -> bool:
        """Returns whether the partition can have an offset; if so, the offset is known from now on."""
        if offset < self.end:
            return offset >= 0
        if offset >= self.end + self._gap or offset >= OFFSET_END:
            return False
        self.end = offset + 1
        return True

    def __contains__(self, offset: int) -> bool:
        """Returns whether an offset lies within the admitted ones."""
        return 0 <= offset < self.end

    def may_admit(self, offset: int) -> bool:
        """Returns what ``admits`` would, and changes nothing."""
        return 0 <= offset < min(self.end + self._gap, OFFSET_END)

    def refusal(self, offset: int) -> str:
        """Returns why an offset was not admitted, as the end of a sentence."""
        if offset < 0:
            return "which is negative"
        if offset >= OFFSET_END:
            return "which no request can name"
        known = f"{self.end - 1}, the highest one known" if self.end else "0, where the log begins"
        return f"far above {known}"


class Reaches(Generic[P]):
    """The offsets of several partitions that a history has shown so far."""

    __slots__ = ("_gap", "_of")

    def __init__(self, gap: int = GAP_MAX) -> None:
        """Knows no offset; ``gap`` as of ``Reach``."""
        self._gap = gap
        self._of: dict[P, Reach] = {}

    def refusal(self, partition: P, offset: int) -> str:
        """Returns why a partition cannot have an offset; empty if it can, and the offset is known from now on."""
        reach = self._of.setdefault(partition, Reach(self._gap))
        return "" if reach.admits(offset) else reach.refusal(offset)


def end_of(offsets: Iterable[int]) -> int:
    """Returns the exclusive bound of offsets of a partition; impossible ones do not count."""
    reach = Reach()
    for offset in offsets:
        reach.admits(offset)
    return reach.end


def has_reached(position: int | None, end: int) -> bool:
    """Returns whether a reader's position is at an end offset or behind it.

    A position that is far behind is not: the reader was given an impossible offset, is about to be sent back, and has
    not read what comes before the end.
    """
    return position is not None and end <= position < end + GAP_MAX
