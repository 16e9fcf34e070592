"""Up to which offsets a log may be read and acknowledged.

A topic's ``flush.messages`` bounds how many acknowledged records may be not durable. So a written record may have to
wait: ``settled_end_offset`` is the offset up to which the log may be acknowledged, or reported to a leader, now. With
the default it is always the log end. With ``flush.messages=M`` it stops once M records are not durable, and moves again
when a sync has ended. That sync covers all records written before it began, so appends that arrive meanwhile share the
next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.log.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from moldau_broker.log.partition.segmented_log import SegmentedLog


class Watermarks:
    """High watermark, last stable offset and settled end offset of one log.

    Invariants: ``log_start_offset <= high_watermark <= log_end_offset``; the high watermark is not below the first
    segment either, because all remote records are committed; ``last_stable_offset <= high_watermark``;
    ``settled_end_offset <= log_end_offset``, both are ends of batches; ``settled_end_offset`` falls only by truncation.
    """

    def __init__(self, storage: SegmentedLog, high_watermark: int) -> None:
        """Starts at a checkpointed high watermark, clamped to the log."""
        self._storage = storage
        # Records of a former process may be in the page cache only.
        self.settled_end_offset = storage.recovery_point
        self.settle()
        self.high_watermark = -1
        self.update(high_watermark)

    def update(self, offset: int) -> int:
        """Sets the high watermark, clamped to the log, and returns it.

        The caller ensures that it rises within a leader epoch.
        """
        storage = self._storage
        start, end = storage.log_start_offset, storage.log_end_offset
        first_on_disk = storage.segments.first_base_offset
        if offset > end:
            offset = end
        elif offset < start or offset < first_on_disk:
            offset = max(start, first_on_disk)
        if offset != self.high_watermark:
            storage.touched[storage] = None
        self.high_watermark = offset
        storage.producer_state.high_watermark_moved(offset)
        return offset

    @property
    def last_stable_offset(self) -> int:
        """First offset that a ``read_committed`` consumer may not see yet.

        It is the start of the oldest open transaction, or the high watermark.
        """
        unstable = self._storage.producer_state.first_unstable_offset()
        if unstable is None or unstable >= self.high_watermark:
            return self.high_watermark
        return max(unstable, self._storage.log_start_offset)

    def increment_log_start_offset(self, offset: int) -> bool:
        """Moves the log start offset up; returns whether it moved.

        The next retention deletes the segments below it. The next checkpoint of log start offsets makes it durable.

        Raises:
            OffsetOutOfRangeError: The offset is above the high watermark.
        """
        storage = self._storage
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(offset, storage.log_start_offset, self.high_watermark)
        if offset <= storage.log_start_offset:
            return False
        storage.log_start_offset = offset
        storage.touched[storage] = None
        storage.epochs.truncate_from_start(offset)
        return True

    # Settled end offset ----------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether all of the log may be acknowledged now; if not, a sync must be requested."""
        return self.settled_end_offset == self._storage.log_end_offset

    def unsettle(self) -> None:
        """Counts records that are not durable as not settled, until ``settle``."""
        self.settled_end_offset = self._storage.recovery_point

    def settle(self) -> None:
        """Recomputes ``settled_end_offset`` after a sync, or when the topic's settings have changed."""
        storage = self._storage
        if storage.log_end_offset - storage.recovery_point < storage.config.flush_messages:
            self.settled_end_offset = storage.log_end_offset
        else:
            self.settled_end_offset = max(self.settled_end_offset, storage.recovery_point)

    def appended(self) -> None:
        """Moves ``settled_end_offset`` to the log end after an append, if few enough records are not durable."""
        storage = self._storage
        if storage.log_end_offset - storage.recovery.offset < storage.config.flush_messages:
            self.settled_end_offset = storage.log_end_offset

    def truncated(self) -> None:
        """Lowers all watermarks to the end of a truncated log."""
        self.settled_end_offset = min(self.settled_end_offset, self._storage.log_end_offset)
        self.settle()
        self.update(self.high_watermark)

    def restarted(self, offset: int) -> None:
        """Sets all watermarks to ``offset``, where an emptied log starts over."""
        self.settled_end_offset = self.high_watermark = offset
