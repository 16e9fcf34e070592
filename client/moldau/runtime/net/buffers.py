"""Arithmetic on lists of borrowed buffers, and a pool of large ones. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.values import Buffer


def byte_count(buffer: Buffer) -> int:
    """Returns the size of ``buffer`` in bytes, for a view of any item size."""
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def drop_sent(buffers: Sequence[Buffer], sent: int) -> Sequence[Buffer]:
    """Returns ``buffers`` without the first ``sent`` bytes and without empty buffers; copies nothing."""
    for index, buffer in enumerate(buffers):
        size = buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)  # a call for each would cost more
        if sent < size:
            if sent == 0:
                return buffers[index:] if index else buffers
            return [memoryview(buffer).cast("B")[sent:], *buffers[index + 1 :]]
        sent -= size
    assert sent == 0, "more bytes reported as sent than were handed over"
    return ()


def drop_filled(buffers: Sequence[memoryview], filled: int) -> list[memoryview]:
    """Returns the part of ``buffers`` that is still to be filled after the first ``filled`` bytes."""
    for index, buffer in enumerate(buffers):
        if filled < len(buffer):
            return [buffer[filled:], *buffers[index + 1 :]]
        filled -= len(buffer)
    assert filled == 0, "more bytes reported as read than there was room for"
    return []


class BufferPool:
    """Keeps up to ``kept_max`` buffers of ``size`` bytes for reuse, so that large answers need no fresh pages.

    Buffers beyond ``kept_max`` are created on demand and dropped on return: the pool bounds the kept buffers, the
    callers bound the used ones.
    """

    __slots__ = ("_free", "_kept_max", "size")

    def __init__(self, size: int, kept_max: int) -> None:
        """``size`` in bytes; ``take`` allocates."""
        self.size = size
        self._kept_max = kept_max
        self._free: list[bytearray] = []

    def take(self) -> bytearray:
        """Returns a buffer with arbitrary content."""
        return self._free.pop() if self._free else bytearray(self.size)

    def give_back(self, buffer: bytearray) -> None:
        """Takes back a buffer that is no longer in use."""
        assert len(buffer) == self.size, "this buffer is not from this pool"
        if len(self._free) < self._kept_max:
            self._free.append(buffer)
