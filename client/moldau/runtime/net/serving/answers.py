"""The answers of a server's handlers: parts that are ready, ranges of files, and deferred answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard, runtime_checkable

from moldau.runtime.net.buffers import byte_count
from moldau.runtime.ports.environment import Connection, File
from moldau.runtime.tasks.sync import OneShot
from moldau.values import Buffer


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file that are part of an answer. The file must stay open until the answer is sent or cancelled."""

    file: File
    position: int
    count: int
    on_error: Callable[[str, OSError], None] | None = None
    """Called with the path of an unreadable file and the error; the connection ends in any case."""


ResponsePart = Buffer | FileRange


class FileRecords:
    """The records of a partition in a response, which stay in their files until the answer is sent.

    They stand in a field of a response message in the place of bytes. ``gathered`` makes parts of what the encoder
    returns. Records that are in no file are buffers among the ranges.
    """

    __slots__ = ("_count", "ranges")

    def __init__(self, ranges: Sequence[ResponsePart]) -> None:
        self.ranges = ranges
        self._count = sum(each.count if isinstance(each, FileRange) else byte_count(each) for each in ranges)

    def __len__(self) -> int:
        """Counts the bytes, from which the encoder writes the length of the field."""
        return self._count


def gathered(encoded: Iterable[Buffer | FileRecords]) -> list[ResponsePart]:
    """Returns the parts of an encoded answer."""
    parts: list[ResponsePart] = []
    for each in encoded:
        if isinstance(each, FileRecords):
            parts += each.ranges
        else:
            parts.append(each)
    return parts


class Deferred(Protocol):
    """An answer that is not ready yet.

    It is assumed to keep as many bytes of memory as its request has; an attribute ``held_bytes``, which must not
    change, overrides that. ``EarlyAnswer`` is for answers that may be shortened instead of waiting.
    """

    async def wait(self) -> Sequence[ResponsePart]:
        """Returns the answer. Must end by a deadline of its own; is cancelled when the connection dies.

        An empty sequence means that no answer is sent.
        """
        ...


class WaitingAnswer(OneShot):
    """A ``Deferred`` that needs no task while it waits, because something else finishes it."""

    __slots__ = ()

    @abstractmethod
    def answer_now(self) -> Sequence[ResponsePart]:
        """Returns the answer; called once, after the end of the wait."""

    async def wait(self) -> Sequence[ResponsePart]:
        """See ``Deferred``."""
        await self.wait_finished()
        return self.answer_now()


@runtime_checkable
class EarlyAnswer(Protocol):
    """A ``Deferred`` that may be answered early, because a shorter answer is valid too."""

    def answer_early(self) -> list[ResponsePart] | None:
        """Returns the answer as of now and ends the wait; None if the request must wait all the same.

        Called right after the request was handled, when there is no memory to keep it.
        """
        ...

    def end_wait(self) -> None:
        """Lets ``wait`` return soon, because other requests need the memory of this one or of those behind it."""
        ...


class Preparation(ABC):
    """A request that needs a long computation before it can be handled; ``handle`` may return one."""

    __slots__ = ()

    @abstractmethod
    async def prepare(self) -> None:
        """Computes in slices of about a millisecond, each in a turn of its own, or in a thread.

        The connection is not read meanwhile: its requests keep their order, and the frame stays where it is. Cancelled
        when the connection dies.
        """

    @abstractmethod
    def handle(self) -> Answer:
        """Handles the request, once, after ``prepare``; see ``ConnectionHandler.handle``."""


Answer = list[ResponsePart] | tuple[ResponsePart, ...] | Deferred | None
"""The result of ``ConnectionHandler.handle``; a list or tuple of parts is an answer that is ready."""


class ConnectionHandler(Protocol):
    """Serves one connection. Its methods are called from one task, never concurrently."""

    def handle(self, frame: memoryview) -> Answer | Preparation:
        """Handles one request; ``frame`` has no size prefix and is borrowed until the call returns.

        If it returns a ``Preparation``, the frame is borrowed until that has been handled; ``flush`` is called before
        and after. The parts of an answer include the size prefix. None means that there is no answer (acks=0).

        Raises:
            CloseConnection: the connection must be closed.
        """
        ...

    def flush(self) -> None:
        """Called once per drain: after all buffered requests were handled, before any of their answers is sent.

        Raises:
            CloseConnection: the promise of the answers could not be kept. None of this drain's answers is sent. The
                connection closes after those of earlier drains, and the client asks again.
        """
        ...

    def closed(self) -> None:
        """Called once when the connection has ended."""
        ...


class Gate(Protocol):
    """A ``ConnectionHandler`` that demands an authentication; it bounds what it hears before that more tightly."""

    @property
    def deadline_ms(self) -> float:
        """When the peer must have authenticated, on the monotonic clock; infinite once it has."""
        ...

    def frame_bounds(self, least: int, largest: int) -> tuple[int, int]:
        """Returns the bounds of the next frame's size; ``least`` and ``largest`` are those of ordinary requests."""
        ...


def is_gate(handler: ConnectionHandler) -> TypeGuard[Gate]:
    """Returns whether a handler is a ``Gate``; ``isinstance`` would look for each attribute, for each connection."""
    return hasattr(handler, "frame_bounds")


HandlerFactory = Callable[[Connection], ConnectionHandler]


class CloseConnection(Exception):
    """Raised by ``ConnectionHandler.handle``: answers of earlier requests are sent, then ``answer``, then it closes.

    From ``ConnectionHandler.flush`` it drops the answers of the requests that were to be flushed.
    """

    def __init__(self, reason: str, answer: Sequence[ResponsePart] = (), *, is_logged: bool = False) -> None:
        """``reason`` goes to the log, unless it ``is_logged`` already."""
        super().__init__(reason)
        self.is_logged = is_logged
        self.reason = reason
        self.answer = answer


def range_failed(part: FileRange, error: OSError) -> CloseConnection:
    """Reports an unreadable file to the range's owner; returns the exception that closes the connection."""
    if part.on_error is not None:
        part.on_error(part.file.path, error)
    return CloseConnection(f"{part.file.path} cannot be read: {error.strerror or error}")


def drop_parts(parts: Sequence[ResponsePart], sent: int) -> list[ResponsePart]:
    """Returns what remains of ``parts`` after the first ``sent`` bytes."""
    remaining: list[ResponsePart] = []
    for part in parts:
        size = part.count if isinstance(part, FileRange) else byte_count(part)
        if sent >= size:
            sent -= size
        elif sent == 0:
            remaining.append(part)
        elif isinstance(part, FileRange):
            remaining.append(FileRange(part.file, part.position + sent, part.count - sent, part.on_error))
            sent = 0
        else:
            remaining.append(memoryview(part).cast("B")[sent:])
            sent = 0
    return remaining
