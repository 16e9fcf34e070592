"""Goal: the replacement of a missing system call works like the call. Method: the tests hide the call and run the
contract of the real disk again; errors are those of the kernel.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile

import pytest

from moldau.runtime.ports import system_calls
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.real import RealDisk

HIDDEN = ("_fdatasync", "_preadv", "_pwritev", "_memfd_create")


@pytest.fixture(autouse=True)
def _without_them(monkeypatch):
    for name in HIDDEN:
        monkeypatch.setattr(system_calls, name, None)


def test_a_file_is_written_synced_and_read(tmp_path):
    file = RealDisk().open(str(tmp_path / "f"), OpenMode.WRITE)
    try:
        assert file.append([b"", b"abc", memoryview(b"defg"), b""]) == 7
        assert file.append([]) == 7
        file.sync()
        first, second = bytearray(2), bytearray(9)
        assert file.read_into([memoryview(first), memoryview(b"").cast("B"), memoryview(second)], 1) == 6
        assert (bytes(first), bytes(second[:4])) == (b"bc", b"defg")
        assert file.read_into([memoryview(first)], 7) == 0
    finally:
        file.close()
    RealDisk().sync_directory(str(tmp_path))


def synced(monkeypatch, error_number):
    """The calls that a sync makes where ``F_FULLFSYNC`` is there and fails with an error, or does not (0)."""
    calls = []

    def control(descriptor, request):
        calls.append(request)
        if error_number:
            raise OSError(error_number, os.strerror(error_number))

    monkeypatch.setattr(system_calls, "_full_sync", 51)
    monkeypatch.setattr(fcntl, "fcntl", control)
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    system_calls.sync_content(5)
    return calls


def test_a_write_that_fails_halfway_leaves_the_size_of_its_bytes(tmp_path, monkeypatch):
    """They are in the file: the owner cuts them off, or goes on behind them."""
    file = RealDisk().open(str(tmp_path / "f"), OpenMode.WRITE)
    write, calls = system_calls.write_gathered, []

    def full(descriptor, buffers, position):
        calls.append(position)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, buffers, position)

    try:
        monkeypatch.setattr(system_calls, "write_gathered", full)
        with pytest.raises(OSError, match="No space"):
            file.append([b"ab", b"cd", b"ef"])
        assert (file.size, os.stat(file.path).st_size) == (4, 4)
        monkeypatch.undo()
        file.truncate(2)
        assert (file.append([b"xy"]), file.read(0, 9)) == (4, b"abxy")
    finally:
        file.close()


def test_a_full_sync_reaches_the_medium(monkeypatch):
    assert synced(monkeypatch, 0) == [51]


def test_a_file_system_without_full_syncs_is_synced_as_it_can(monkeypatch):
    assert synced(monkeypatch, errno.ENOTSUP) == [51, "fsync"]


def test_a_sync_that_failed_is_not_tried_another_way(monkeypatch):
    """The second way would succeed though the pages are lost."""
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        synced(monkeypatch, errno.EIO)


def test_a_private_file_is_gone_after_its_use(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with system_calls.private_file("secret") as path:
        status = os.stat(path)
        assert stat.S_IMODE(status.st_mode) == 0o600
        with open(path, encoding="utf-8") as file:
            assert file.read() == "secret"
        assert os.listdir(tmp_path) == [os.path.basename(path)]
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="bad"), system_calls.private_file("secret"):
        raise ValueError("bad")
    assert os.listdir(tmp_path) == []
