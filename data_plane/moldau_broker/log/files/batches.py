"""Batches in files: walks over headers, and checks of whole batches, over the ``File`` port.

The broker reads the 61 bytes of a batch's header (``moldau.records.batch`` has the layout); it reads records only for
compaction and validation.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from moldau.records import BATCH_HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, BatchHeader
from moldau.records.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau.runtime.ports.environment import File
    from moldau.values import Buffer

CRC_START = 21
COMPRESSION_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

unpack_header = struct.Struct(">qiibIhiqqqhiI").unpack_from
"""The 13 fields of ``BatchHeader`` from a buffer and a position, unchecked."""

_unpack_head = struct.Struct(">qiibIHi").unpack_from
"""The fields of a header up to ``last_offset_delta``."""
_SCAN_CHUNK = 64 * 1024
_READ_CHUNK = 1024 * 1024


class Batch(NamedTuple):
    """A whole batch in a file. ``data`` is borrowed until the next batch is asked for."""

    position: int
    header: BatchHeader
    data: memoryview


def parse(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Returns the unchecked header at ``position``; the caller ensures that the buffer holds its 61 bytes."""
    return BatchHeader._make(unpack_header(buffer, position))


def plausible(header: BatchHeader) -> bool:
    """Returns whether the header's fields can be those of a batch; its bytes may still be damaged."""
    return (
        header.magic == MAGIC
        and header.batch_length >= BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
        and header.last_offset_delta >= 0
        and header.base_offset >= 0
    )


def read_header(file: File, position: int) -> BatchHeader | None:
    """Returns the header of the batch at ``position`` of a file; None if the file has fewer than 61 bytes there."""
    data = file.read(position, BATCH_HEADER_BYTES)
    return parse(data) if len(data) == BATCH_HEADER_BYTES else None


def scan_headers(
    file: File, position: int, end: int, chunk_bytes: int = _SCAN_CHUNK
) -> Iterator[tuple[int, BatchHeader]]:
    """Yields position and header of the batches in ``[position, end)``, and skips records of large batches.

    Stops before the first header that is not plausible or whose batch does not end within ``end``. Small batches are
    read together in chunks; only the header of a large one is read.
    """
    chunk = b""
    chunk_start = position
    while position + BATCH_HEADER_BYTES <= end:
        relative = position - chunk_start
        if relative + BATCH_HEADER_BYTES > len(chunk):
            # A jump past the chunk means large batches: only their headers are read.
            jumped = relative > len(chunk) + chunk_bytes // 4
            chunk = file.read(position, min(BATCH_HEADER_BYTES if jumped else chunk_bytes, end - position))
            chunk_start, relative = position, 0
            if len(chunk) < BATCH_HEADER_BYTES:
                return
        header = parse(chunk, relative)
        if not plausible(header) or position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


def rising_end(file: File, offset: int, end: int) -> tuple[int, int]:
    """Returns offset and position behind the batches before ``end`` that begin at or above ``offset``, each in order.

    Ends before the first batch that begins below the one before it: no checksum covers base offsets.
    """
    behind = 0
    for position, header in scan_headers(file, 0, end):
        if header.base_offset < offset:
            break
        offset, behind = header.next_offset, position + header.size_bytes
    return offset, behind


class SoundRun(NamedTuple):
    """Batches that are sound and fit behind each other, without a gap between their bytes."""

    size_bytes: int
    """Where the last of them ends, from the first byte."""
    next_offset: int
    """Offset behind the last of them."""
    leader_epoch: int
    """That of the last of them."""


def sound_run(data: Buffer, end: int, before: SoundRun, last_offset: int, last_epoch: int) -> SoundRun:
    """Returns the sound batches at the begin of ``data``: header, checksum, offsets and epochs that do not fall.

    ``end`` bytes of ``data`` count. ``before`` is the end of the batches before it, with 0 bytes. Offsets and epochs go
    up to ``last_offset`` and ``last_epoch``. The result says nothing about the bytes behind it: a batch may be cut
    there, or damaged. A batch costs about a microsecond, a tenth of what ``BatchReader`` and ``batch_problem`` take.
    """
    position, next_offset, epoch = before
    last_header = end - BATCH_HEADER_BYTES
    with memoryview(data) as view:
        while position <= last_header:
            base_offset, length, batch_epoch, magic, crc, _, delta = _unpack_head(data, position)
            following, last = position + LOG_OVERHEAD_BYTES + length, base_offset + delta
            if not (
                magic == MAGIC
                and length >= BATCH_HEADER_BYTES - LOG_OVERHEAD_BYTES
                and following <= end
                and next_offset <= base_offset <= last <= last_offset
                and epoch <= batch_epoch <= last_epoch
            ):
                break
            with view[position + CRC_START : following] as covered:
                if crc32c(covered) != crc:
                    break
            position, next_offset, epoch = following, last + 1, batch_epoch
    return SoundRun(position, next_offset, epoch)


class BatchReader:
    """Reads whole batches of a file in order, through one buffer that is reused.

    Memory: one buffer of ``chunk_bytes``, or of the largest batch if that is larger; a batch length from a damaged
    header is limited to the bytes of the file. Ends at ``end`` or before the first batch that is cut or
    implausible; ``position`` is then where the valid part ends and ``problem`` says why (None at a clean end).
    """

    def __init__(self, file: File, position: int, end: int, chunk_bytes: int = _READ_CHUNK) -> None:
        self._file = file
        self._end = end
        self._buffer = bytearray(chunk_bytes)
        self.position = position
        self.problem: str | None = None
        self.bytes_read = 0

    def __iter__(self) -> Iterator[Batch]:
        """Yields the batches."""
        start = filled = 0  # the buffer holds file bytes [position, position + filled - start) at start
        while self.position < self._end:
            left = self._end - self.position
            if left < BATCH_HEADER_BYTES:
                self.problem = f"{left} bytes at the end are no batch header"
                return
            if filled - start < BATCH_HEADER_BYTES:
                start, filled = 0, self._refill(start, filled, BATCH_HEADER_BYTES)
                if filled < BATCH_HEADER_BYTES:
                    self.problem = "the file ends inside a batch header"
                    return
            header = parse(self._buffer, start)
            size = header.size_bytes
            if not plausible(header):
                self.problem = f"no batch header: {header}"
                return
            if size > left:
                self.problem = f"the batch has {size} bytes, only {left} are left"
                return
            if filled - start < size:
                start, filled = 0, self._refill(start, filled, size)
                if filled < size:
                    self.problem = "the file ends inside a batch"
                    return
            with memoryview(self._buffer) as view, view[start : start + size] as data:
                yield Batch(self.position, header, data)
            start += size
            self.position += size

    def _refill(self, start: int, filled: int, needed: int) -> int:
        """Moves unread bytes to the front and fills the buffer up; returns how many bytes it holds."""
        kept = self._buffer[start:filled]
        if needed > len(self._buffer):
            self._buffer = bytearray(needed)
        self._buffer[: len(kept)] = kept
        room = min(len(self._buffer) - len(kept), self._end - self.position - len(kept))
        with memoryview(self._buffer) as view, view[len(kept) : len(kept) + room] as target:
            count = self._file.read_into([target], self.position + len(kept))
        self.bytes_read += count
        return len(kept) + count


def batch_problem(header: BatchHeader, data: Buffer) -> str | None:
    """Returns why the bytes of a whole batch (header first) are damaged, or None."""
    with memoryview(data) as view, view[CRC_START : header.size_bytes] as covered:
        actual = crc32c(covered)
    if actual != header.crc:
        return f"CRC-32C {actual:#010x}, header says {header.crc:#010x}"
    return None
