"""Batches that have their offsets but are not written yet.

Staged batches become part of the log with one gathered write, or are all dropped if that fails. So many pipelined
requests cost one system call per log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.log.errors import LogStorageError

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau.values import Buffer
    from moldau_broker.log.partition.segmented_log import SegmentedLog
    from moldau_broker.log.partition.watermarks import Watermarks
    from moldau_broker.log.producers.producer_state import EndMarker
    from moldau_broker.log.values import StagedBatch

_BUFFERS_MAX = 1024
"""The number of buffers that one writev takes; batches beyond it are written first."""


class StagedWrites:
    """The staged batches of one log. Invariant: ``log_end_offset <= end_offset``, equal if nothing is staged."""

    def __init__(self, storage: SegmentedLog, watermarks: Watermarks) -> None:
        self._storage = storage
        self._watermarks = watermarks
        self._buffers: list[Buffer] = []
        self._batches: list[StagedBatch] = []
        self.size_bytes = 0
        self.is_full = False
        """Whether ``flush`` must run before another batch is added."""
        self.end_offset = storage.log_end_offset

    def __bool__(self) -> bool:
        """Returns whether there are staged batches."""
        return bool(self._batches)

    def add(self, buffer: Buffer, batch: StagedBatch) -> None:
        """Stages a batch behind the others; ``buffer`` must not change until ``flush`` has returned."""
        self._buffers.append(buffer)
        batches = self._batches
        batches.append(batch)
        _, last_offset, size, _ = batch
        self.size_bytes += size
        self.end_offset = last_offset + 1
        self.is_full = len(batches) >= _BUFFERS_MAX

    def restart(self) -> None:
        """Continues at the log end offset after the log was truncated; nothing is staged then."""
        assert not self._batches
        self.end_offset = self._storage.log_end_offset

    def flush(self) -> None:
        """Writes the staged batches with one gathered write.

        The write moves the log end offset, sequence numbers and transactions. Records below ``settled_end_offset`` may
        be acknowledged then.

        Raises:
            LogStorageError: The write failed. No staged batch counts, all ``AppendInfo`` since the last flush are void
                (also those of duplicates), and the log accepts no more batches.
        """
        batches = self._batches
        if not batches:
            return
        buffers, self._buffers, self._batches, self.size_bytes, self.is_full = self._buffers, [], [], 0, False
        storage = self._storage
        try:
            storage.append(buffers, batches, self.end_offset)
        except LogStorageError:
            self.end_offset = storage.log_end_offset
            storage.producer_state.discard_staged()
            raise
        storage.producer_state.commit_staged(self.end_offset)
        self._watermarks.appended()

    def must_roll(self, size: int, max_timestamp: int, last_offset: int, now_ms: int) -> bool:
        """Returns whether the staged batches and ``size`` more bytes require a new segment.

        Raises:
            LogStorageError: See ``SegmentedLog.must_roll``.
        """
        return self._storage.must_roll(self.size_bytes + size, max_timestamp, last_offset, now_ms)

    def end_transaction(self, header: BatchHeader, marker: EndMarker | None) -> None:
        """Writes the staged batches, the last of which is the control batch ``header``, and applies its marker.

        A marker changes the last stable offset, so it ends the transaction only after it is written.

        Raises:
            LogStorageError: A write failed.
        """
        self.flush()
        if marker is not None:
            self._storage.end_transaction(header, marker)
        else:
            self._storage.producer_state.apply(header)
