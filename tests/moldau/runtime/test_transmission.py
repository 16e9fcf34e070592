"""Goal: where a file range cannot be sent, the owner of the file hears of it if it was the file, and only then.

Method: a connection whose sendfile fails in each way that it can, over a file that can or cannot be read afterwards.
"""

from __future__ import annotations

import errno
import os

import pytest
import trio

from moldau.runtime.answers import CloseConnection, FileRange
from moldau.runtime.buffers import BufferPool
from moldau.runtime.real import real_environment
from moldau.runtime.server import ServerLimits
from moldau.runtime.transmission import Transmission

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
    """What the owner of the file was told, and what the connection ends with."""
    told: list[OSError] = []
    limits = ServerLimits()
    transmission = Transmission(_Connection(sendfile), BufferPool(1 << 16, 2), real_environment(1).clock, limits)
    part = FileRange(_File(read), 0, BYTES, lambda path, error: told.append(error))
    with pytest.raises((OSError, CloseConnection)) as raised:
        trio.run(transmission.send, [b"head", part])
    return told, raised.value


@pytest.mark.parametrize("read", [None, failure(errno.EIO)])
def test_a_device_that_goes_bad_is_told_though_it_may_be_read_the_next_time(read: OSError | None) -> None:
    """Seed 205275: one read in a hundred failed, the look at the file did not, and the peer was held to be to blame."""
    error = failure(errno.EIO)
    told, ended = sent(error, read)
    assert told == [error]
    assert isinstance(ended, CloseConnection)
    assert "cannot be read: Input/output error" in ended.reason


def test_a_file_that_cannot_be_read_is_told_whatever_sendfile_says() -> None:
    unreadable = failure(errno.EIO)
    told, ended = sent(failure(errno.EINVAL), unreadable)
    assert told == [unreadable]
    assert isinstance(ended, CloseConnection)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ECONNRESET, errno.ETIMEDOUT, errno.EHOSTUNREACH])
def test_a_connection_that_fails_is_not_held_against_the_file(number: int) -> None:
    error = failure(number)
    told, ended = sent(error, None)
    assert told == []
    assert ended is error
