"""The responses in the bytes that a client receives on one connection. Pure.

Small frames are copied out of one receive buffer. A frame that does not fit into half of it gets memory of its own, and
the transport fills that directly. Every frame has memory of its own in the end, so that messages may keep views of it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from moldau.runtime.tls.errors import looks_like_tls

if TYPE_CHECKING:
    from collections.abc import Iterator

RECEIVE_BYTES: Final = 16 * 1024
_SIZE = struct.Struct(">i")
_FRAME_BYTES_MIN: Final = 4
"""A response begins with its correlation id."""


class BadFrameError(Exception):
    """Reports bytes that are no response."""

    def __init__(self, text: str, received: bytes) -> None:
        """``received`` is what stands in the place of the response."""
        super().__init__(text)
        self.received = received


def reason_of_end(*, is_first: bool, serves_sasl: bool) -> str:
    """Returns why the peer may have closed the connection; ``is_first``: it has answered no request but ApiVersions."""
    if not is_first or not serves_sasl:
        return "the peer closed the connection"
    return (
        "the peer closed the connection at the first request; if its listener uses SASL, set security.protocol="
        "SASL_PLAINTEXT or SASL_SSL"
    )


def reason_of_bad_frame(error: BadFrameError) -> str:
    """Returns what the peer seems to be that sent such bytes, and what would be right."""
    if looks_like_tls(error.received):
        return "this listener speaks TLS: set security.protocol=SSL, or SASL_SSL if it demands a login"
    if error.received.startswith(b"HTTP"):
        return "this is an HTTP server, not a broker"
    return str(error)


class ResponseFrames:
    """Splits the received bytes of one connection into responses without their size prefix."""

    __slots__ = ("_buffer", "_bytes_max", "_end", "_large", "_large_filled", "_start")

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max`` is the size of the largest response."""
        self._bytes_max = bytes_max
        self._buffer = bytearray(RECEIVE_BYTES)
        self._start = self._end = 0  # received bytes in the buffer that belong to no frame yet
        self._large: bytearray | None = None  # a frame larger than the buffer, filled up to ``_large_filled``
        self._large_filled = 0

    def room(self) -> memoryview:
        """Returns the memory for the next received bytes; it is never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._large_filled :]
        return memoryview(self._buffer)[self._end :]

    def take(self, count: int) -> Iterator[memoryview]:
        """Takes ``count`` bytes that were received into ``room``, and yields each complete response.

        Exhaust the iterator before the next call, unless the connection ends.

        Raises:
            BadFrameError: the next bytes are no response; the responses before them have been returned.
        """
        if self._large is not None:
            self._large_filled += count
            if self._large_filled == len(self._large):
                frame, self._large = self._large, None
                yield memoryview(frame)
            return
        self._end += count
        buffer = self._buffer
        while self._end - self._start >= _SIZE.size:
            (size,) = _SIZE.unpack_from(buffer, self._start)
            self._check_size(size)
            begin = self._start + _SIZE.size
            available = min(self._end - begin, size)
            if available < size and size <= len(buffer) // 2:
                break
            frame = bytearray(size)
            frame[:available] = memoryview(buffer)[begin : begin + available]
            self._start = begin + available
            if available < size:
                self._large, self._large_filled = frame, available
            else:
                yield memoryview(frame)
        remaining = self._end - self._start
        if self._start:
            buffer[:remaining] = buffer[self._start : self._end]
            self._start, self._end = 0, remaining

    def _check_size(self, size: int) -> None:
        if _FRAME_BYTES_MIN <= size <= self._bytes_max:
            return
        raise BadFrameError(
            f"answer of {size} bytes is outside {_FRAME_BYTES_MIN}..{self._bytes_max}",
            bytes(self._buffer[self._start : self._end]),
        )
