"""How the bytes of answers leave a connection: memory gathered into one call, file ranges read ahead or by sendfile."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol, cast

from moldau.runtime.net.buffers import drop_sent
from moldau.runtime.net.serving.answers import FileRange, ResponsePart, drop_parts, range_failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.net.buffers import BufferPool
    from moldau.runtime.ports.environment import Clock, Connection
    from moldau.values import Buffer

NEVER_MS = float("inf")


class SendLimits(Protocol):
    """The limits of a server that concern answers on their way; ``ServerLimits`` documents them."""

    @property
    def send_ms(self) -> float:
        """Time in which the peer must take a byte."""

    @property
    def sendfile_bytes_min(self) -> int:
        """Smallest range of a file that is never read."""


class Transmission:
    """The sending side of one connection. Used by one task at a time."""

    __slots__ = ("_clock", "_limits", "_pool", "connection", "deadline_ms")

    def __init__(self, connection: Connection, pool: BufferPool, clock: Clock, limits: SendLimits) -> None:
        """Nothing is under way. ``connection`` may be replaced before the first answer (TLS)."""
        self.connection = connection
        self.deadline_ms = NEVER_MS
        """By when the peer must have read something, on the monotonic clock; the owner looks at it now and then."""
        self._pool = pool
        self._clock = clock
        self._limits = limits

    async def send(self, parts: Sequence[ResponsePart]) -> None:
        """Sends an answer; the transport has taken all of it on return. The errors are those of ``send_now``."""
        await self.send_rest(self.send_now(parts))

    async def send_rest(self, parts: Sequence[ResponsePart]) -> None:
        """Sends what ``send_now`` left, when the transport takes it; reads no range of a file into memory."""
        while parts:
            self.deadline_ms = self._clock.monotonic_ms() + self._limits.send_ms
            await self.connection.wait_writable()
            self.deadline_ms = NEVER_MS
            parts = self._send_each(parts)

    def send_now(self, parts: Sequence[ResponsePart]) -> Sequence[ResponsePart]:
        """Sends as much of an answer as the transport takes; returns the rest.

        Raises:
            OSError: the connection failed.
            EOFError: a file ended before its range.
            Exception: the exception that ``range_failed`` makes of an unreadable file.
        """
        if len(parts) == 1 and type(only := parts[0]) is bytes:  # as a rule
            try:
                sent = self.connection.send_nowait((only,))
            except BlockingIOError:
                return parts
            return () if sent == len(only) else self._send_buffers((memoryview(only)[sent:],))
        for part in parts:
            if isinstance(part, FileRange):
                return self._send_with_files(parts)
        return self._send_buffers(cast("Sequence[Buffer]", parts))

    def _send_buffers(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        connection = self.connection
        while buffers:
            try:
                sent = connection.send_nowait(buffers)
            except BlockingIOError:
                return buffers
            buffers = drop_sent(buffers, sent)
        return buffers

    def _send_with_files(self, parts: Sequence[ResponsePart]) -> Sequence[ResponsePart]:
        """Reads small file ranges at the head into a pooled buffer and sends them in one call; the rest by sendfile.

        The pooled buffer is never held over a wait, so a peer that reads slowly costs no memory. A large range is never
        read here: records for a consumer that catches up go from the page cache to the socket.
        """
        return self._send_each(drop_parts(parts, self._send_gathered(parts)))

    def _send_each(self, parts: Sequence[ResponsePart]) -> Sequence[ResponsePart]:
        for index, part in enumerate(parts):
            rest = self._send_range(part) if isinstance(part, FileRange) else self._send_buffers((part,))
            if rest:
                return [*rest, *parts[index + 1 :]]
        return ()

    def _send_range(self, part: FileRange) -> Sequence[ResponsePart]:
        position, count = part.position, part.count
        while count:
            try:
                sent = self.connection.send_file_nowait(part.file, position, count)
            except BlockingIOError:
                return (FileRange(part.file, position, count, part.on_error),)
            except OSError as error:
                if (unreadable := _file_error(part, position, error)) is not None:
                    raise range_failed(part, unreadable) from error
                raise
            position += sent
            count -= sent
        return ()

    def _send_gathered(self, parts: Sequence[ResponsePart]) -> int:
        """Sends as much of the head of ``parts`` as fits a pooled buffer and the transport; returns the bytes taken."""
        pool = self._pool
        storage = pool.take()
        try:
            view = memoryview(storage)
            used = 0
            buffers: list[Buffer] = []
            for part in parts:
                if not isinstance(part, FileRange):
                    buffers.append(part)
                    continue
                if part.count >= self._limits.sendfile_bytes_min:
                    break
                count = min(part.count, len(view) - used)
                if count < part.count and used + count < len(view):
                    raise AssertionError("a gathered range ends early only where the buffer ends")
                target = view[used : used + count]
                try:
                    found = part.file.read_into([target], part.position)
                except OSError as error:
                    raise range_failed(part, error) from error
                if found != count:
                    raise EOFError(f"{part.file.path}: content ends before {part.position + count}")
                buffers.append(target)
                used += count
                if count < part.count:
                    break
            return self.connection.send_nowait(buffers)
        except BlockingIOError:
            return 0
        finally:
            pool.give_back(storage)


def _file_error(part: FileRange, position: int, error: OSError) -> OSError | None:
    """Returns the error of the file that sendfile could not read; None if the connection failed."""
    if error.errno == errno.EIO:
        return error  # no socket raises EIO, and the next read of a failing device may succeed
    try:
        part.file.read(position, 1)
    except OSError as unreadable:
        return unreadable
    return None
