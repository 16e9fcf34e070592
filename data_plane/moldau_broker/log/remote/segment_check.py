"""Checks the batches of a closed segment before it is copied: the copy may soon be the only one.

The check looks at whole batches and no records, and cuts its work into steps. It takes runs of sound batches from a
short loop (``sound_run``). Where that stops, it reads as log recovery does (``BatchReader``, ``batch_problem``), which
takes batches that are larger than a piece, and says what is wrong with one. A check that has failed begins again at the
damaged batch, so its repetition costs one read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import BatchReader, SoundRun, batch_problem, sound_run

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau_broker.log.remote.segments_to_copy import SegmentToCopy

STEP_BYTES: Final = 4 << 20
"""Bytes of one step, if no batch is larger."""
PIECE_BYTES: Final = 1 << 20
"""Bytes of one read."""


class SegmentCheck:
    """The check of one segment.

    Invariant: all batches before ``position`` are sound, and the last of them ends at ``next_offset``.
    """

    __slots__ = ("_buffer", "_epoch", "end_offset", "next_offset", "position", "size_bytes")

    def __init__(self, found: SegmentToCopy) -> None:
        """Begins before the first batch."""
        self.next_offset = found.base_offset
        """The damaged batch holds this offset, if there is one."""
        self.position = 0
        self.end_offset = found.end_offset
        self.size_bytes = found.size_bytes
        self._epoch = -1
        self._buffer: bytearray | None = None
        """Kept between two steps: in a thread, new memory of this size costs more than the check of its batches."""

    @property
    def is_complete(self) -> bool:
        """Whether all batches are sound."""
        return self.position >= self.size_bytes

    def step(self, found: SegmentToCopy) -> None:
        """Checks the next ``STEP_BYTES``; blocks, and may be called in any thread, once at a time.

        Raises:
            CorruptLogFileError: The batch at ``position`` is damaged.
            OSError: The file could not be read, or was truncated meanwhile.
        """
        begun_at = self.position
        buffer, self._buffer = self._buffer or bytearray(PIECE_BYTES), None
        while self.position - begun_at < STEP_BYTES and not self.is_complete:
            with memoryview(buffer)[: min(PIECE_BYTES, self.size_bytes - self.position)] as piece:
                count = found.content.file.read_into([piece], self.position)
            run = sound_run(buffer, count, self._end_of_run(), found.last_offset, found.last_epoch)
            if run.size_bytes == 0:
                self._step_by_batches(found, begun_at)
                break
            self.position += run.size_bytes
            self.next_offset, self._epoch = run.next_offset, run.leader_epoch
        if not self.is_complete:
            self._buffer = buffer

    def _end_of_run(self) -> SoundRun:
        return SoundRun(0, self.next_offset, self._epoch)

    def _step_by_batches(self, found: SegmentToCopy, begun_at: int) -> None:
        file = found.content.file
        reader = BatchReader(file, self.position, self.size_bytes)
        for batch in reader:
            problem = batch_problem(batch.header, batch.data) or self._misfit(batch.header, found)
            if problem is not None:
                raise CorruptLogFileError(file.path, self.position, problem)
            self.position += batch.header.size_bytes
            self.next_offset, self._epoch = batch.header.next_offset, batch.header.partition_leader_epoch
            if self.position - begun_at >= STEP_BYTES:
                return
        if reader.problem is not None:
            found.content.read(self.size_bytes - 1, 1)  # raises if the file was truncated
            raise CorruptLogFileError(file.path, self.position, reader.problem)

    def _misfit(self, header: BatchHeader, found: SegmentToCopy) -> str | None:
        """Returns why a sound batch cannot be at this place: the checksum covers neither base offset nor epoch."""
        if not self.next_offset <= header.base_offset <= header.last_offset <= found.last_offset:
            place = f"{self.next_offset} to {found.last_offset}"
            return f"offsets {header.base_offset} to {header.last_offset}, only {place} are left"
        if not self._epoch <= header.partition_leader_epoch <= found.last_epoch:
            return f"leader epoch {header.partition_leader_epoch} after {self._epoch}, the last is {found.last_epoch}"
        return None
