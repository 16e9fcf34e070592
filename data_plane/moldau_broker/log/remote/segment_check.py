"""Checks the batches of a closed segment before it is copied: the copy may soon be the only one.

The check reads as log recovery does (``BatchReader``, ``batch_problem``), whole batches and no records, and cuts its
work into steps. A check that has failed begins again at the damaged batch, so its repetition costs one read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import BatchReader, batch_problem

if TYPE_CHECKING:
    from moldau.records import BatchHeader
    from moldau_broker.log.remote.segments_to_copy import SegmentToCopy

STEP_BYTES: Final = 4 << 20
"""Bytes of one step, if no batch is larger."""


class SegmentCheck:
    """The check of one segment.

    Invariant: all batches before ``position`` are sound, and the last of them ends at ``next_offset``.
    """

    __slots__ = ("_epoch", "end_offset", "next_offset", "position", "size_bytes")

    def __init__(self, found: SegmentToCopy) -> None:
        """Begins before the first batch."""
        self.next_offset = found.base_offset
        """The damaged batch holds this offset, if there is one."""
        self.position = 0
        self.end_offset = found.end_offset
        self.size_bytes = found.size_bytes
        self._epoch = -1

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
        file, begun_at = found.content.file, self.position
        reader = BatchReader(file, begun_at, self.size_bytes)
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
