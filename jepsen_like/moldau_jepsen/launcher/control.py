"""Controls the disk and the clocks of a running node through a small file that harness and node both map.

Layout, little endian: a sequence number (uint64), the ``Control`` fields as doubles in their order, the sequence
number again. The writer writes the second number first and the first number last; a reader that finds them unequal
reads again. So a change takes effect at once, without a message that a stalled node would have to receive.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CONTROL = "control"
READ_TRIES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The behaviour of a node's disk and clocks; the defaults are those of a healthy machine. Times in milliseconds."""

    disk_full: float = 0.0
    """1: nothing more can be written (ENOSPC)."""
    write_error_share: float = 0.0
    """Share of writes that fail with EIO, 0 to 1."""
    sync_error_share: float = 0.0
    """Share of syncs that fail with EIO and make nothing durable."""
    sync_delay_ms: float = 0.0
    """Delay added to every sync."""
    write_delay_ms: float = 0.0
    """Time for which every write blocks its caller, as the kernel does when a disk takes nothing any more."""
    wall_offset_ms: float = 0.0
    """Offset added to the wall clock."""
    rate: float = 1.0
    """Speed of the monotonic clock (and, through it, of the wall clock), above 0."""
    rate_since_ms: float = 0.0
    """Value of CLOCK_MONOTONIC at which ``rate`` took effect."""
    rate_base_ms: float = 0.0
    """Value of the node's monotonic clock at that moment."""

    def monotonic_ms(self, real_ms: float) -> float:
        """Returns the node's monotonic time when CLOCK_MONOTONIC shows ``real_ms``."""
        return self.rate_base_ms + (real_ms - self.rate_since_ms) * self.rate


HEALTHY = Control()
_FIELDS = struct.Struct(f"<Q{len(fields(Control))}dQ")
_NUMBER = struct.Struct("<Q")


class ControlWriter:
    """Writes the control file; belongs to the harness."""

    def __init__(self, path: Path) -> None:
        """Makes the file, with the control of a healthy machine, if it is missing."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fresh = os.fstat(descriptor).st_size < _FIELDS.size
            if fresh:
                os.pwrite(descriptor, _FIELDS.pack(0, *astuple(HEALTHY), 0), 0)
            self._map = mmap.mmap(descriptor, _FIELDS.size)
        finally:
            os.close(descriptor)

    def read(self) -> Control:
        """Reads the current faults."""
        return _read(self._map)

    def write(self, control: Control) -> None:
        """Replaces the current control."""
        packed = _pack(self._map, control, step=1)
        end = _FIELDS.size - _NUMBER.size
        self._map[end:] = packed[end:]
        self._map[_NUMBER.size : end] = packed[_NUMBER.size : end]
        self._map[: _NUMBER.size] = packed[: _NUMBER.size]

    def close(self) -> None:
        """Releases the mapping; the file stays."""
        self._map.close()


class ControlReader:
    """Reads the control file; belongs to the node."""

    def __init__(self, path: Path) -> None:
        """Maps the file.

        Raises:
            OSError: The harness has made no file.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(descriptor, _FIELDS.size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._bytes = b""
        self._control = HEALTHY

    def read(self) -> Control:
        """Reads the current faults."""
        if self._map[:] != self._bytes:  # Decodes changes only: clocks are read far more often than the file changes.
            control = _read(self._map)
            self._bytes, self._control = _pack(self._map, control), control
        return self._control


def _pack(mapped: mmap.mmap, control: Control, step: int = 0) -> bytes:
    (number,) = _NUMBER.unpack_from(mapped, 0)
    return _FIELDS.pack(number + step, *astuple(control), number + step)


def _read(mapped: mmap.mmap) -> Control:
    for _ in range(READ_TRIES):
        first, *values, last = _FIELDS.unpack(mapped[: _FIELDS.size])
        if first == last:
            return Control(**dict(zip((field.name for field in fields(Control)), values, strict=True)))
    raise OSError("the control file is always being written; did its writer die in the middle?")
