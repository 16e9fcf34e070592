"""Goal: if a file range cannot be sent, its owner gets a report exactly when the file is the cause.

Method: a connection whose sendfile fails in each way that it can, over a file that can or cannot be read afterwards.
"""

from __future__ import annotations

import errno
import math
import os
from types import SimpleNamespace

import pytest
import trio

from moldau.runtime.net.buffers import BufferPool
from moldau.runtime.net.serving.answers import CloseConnection, FileRange
from moldau.runtime.net.serving.server import ServerLimits
from moldau.runtime.net.serving.transmission import Transmission
from moldau.runtime.ports.real import real_environment

BYTES = 1 << 20


def failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class _Connection:
    """Takes no byte of a file."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def send_nowait(self, buffers) -> int:
        return sum(len(buffer) for buffer in buffers)

    def send_file_nowait(self, file, position, count) -> int:
        raise self.error


class _File:
    path = "/data/t-0/00000000000000000000.log"

    def __init__(self, error: OSError | None) -> None:
        self.error = error

    def read(self, position: int, count: int) -> bytes:
        if self.error is not None:
            raise self.error
        return bytes(count)


def sent(sendfile: OSError, read: OSError | None) -> tuple[list[OSError], BaseException]:
    """Returns the errors reported to the owner of the file, and the error that ends the connection."""
    reported: list[OSError] = []
    limits = ServerLimits()
    transmission = Transmission(_Connection(sendfile), BufferPool(1 << 16, 2), real_environment(1).clock, limits)
    part = FileRange(_File(read), 0, BYTES, lambda path, error: reported.append(error))
    with pytest.raises((OSError, CloseConnection)) as raised:
        trio.run(transmission.send, [b"head", part])
    return reported, raised.value


@pytest.mark.parametrize("read", [None, failure(errno.EIO)])
def test_failing_device_is_reported_even_if_a_retry_works(read: OSError | None) -> None:
    """Seed 205275: one read in a hundred failed, a check of the file did not, and the peer was blamed."""
    error = failure(errno.EIO)
    reported, ended = sent(error, read)
    assert reported == [error]
    assert isinstance(ended, CloseConnection)
    assert "cannot be read: Input/output error" in ended.reason


def test_unreadable_file_is_reported_whatever_sendfile_does() -> None:
    """A file that cannot be read is reported, whatever error sendfile raises."""
    unreadable = failure(errno.EIO)
    reported, ended = sent(failure(errno.EINVAL), unreadable)
    assert reported == [unreadable]
    assert isinstance(ended, CloseConnection)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH])
def test_a_connection_that_fails_is_not_held_against_the_file(number: int) -> None:
    error = failure(number)
    reported, ended = sent(error, None)
    assert reported == []
    assert ended is error


@pytest.mark.parametrize(("count", "is_read"), [(999, True), (1000, False), (1001, False)])
def test_only_small_ranges_are_read(count: int, is_read: bool) -> None:
    class Taking(_Connection):
        ranges = 0

        def send_file_nowait(self, file, position, count) -> int:
            self.ranges += 1
            return count

    class Readable(_File):
        reads = 0

        def read_into(self, buffers, position) -> int:
            self.reads += 1
            return sum(len(buffer) for buffer in buffers)

    connection, file = Taking(failure(errno.EIO)), Readable(None)
    limits = ServerLimits(sendfile_bytes_min=1000)
    transmission = Transmission(connection, BufferPool(1 << 16, 2), real_environment(1).clock, limits)
    assert transmission.send_now([b"head", FileRange(file, 0, count, lambda path, error: None)]) == ()
    assert (file.reads, connection.ranges) == ((1, 0) if is_read else (0, 1))


def test_only_what_is_under_way_has_a_deadline() -> None:
    """A peer that read slowly once must not lose its connection later, while nothing is sent."""
    seen: list[float] = []
    waits = [BlockingIOError(), BlockingIOError()]

    def send_nowait(buffers) -> int:
        if waits:
            raise waits.pop()
        return sum(len(buffer) for buffer in buffers)

    async def wait_writable() -> None:
        await trio.lowlevel.checkpoint()
        seen.append(transmission.deadline_ms)

    connection = SimpleNamespace(send_nowait=send_nowait, wait_writable=wait_writable)
    clock = SimpleNamespace(monotonic_ms=lambda: 500.0)
    transmission = Transmission(connection, BufferPool(1 << 16, 2), clock, ServerLimits(send_ms=1_000))
    trio.run(transmission.send, [b"answer"])
    assert (seen, transmission.deadline_ms) == ([1_500.0, 1_500.0], math.inf)
