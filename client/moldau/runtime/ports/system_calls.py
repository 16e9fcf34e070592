"""System calls that some systems lack, each with a substitute.

Linux has them all. macOS has no fdatasync(2), no memfd_create(2) and no ``errno.ENONET``, and only its newer releases
have preadv(2) and pwritev(2); its fsync(2) does not reach the medium, ``F_FULLFSYNC`` does. The module looks up the
calls of the present system once, when it is imported.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from moldau.values import Buffer

_fdatasync: Callable[[int], None] | None = getattr(os, "fdatasync", None)
_full_sync: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_preadv: Callable[[int, Sequence[memoryview], int], int] | None = getattr(os, "preadv", None)
_pwritev: Callable[[int, Sequence[Buffer], int], int] | None = getattr(os, "pwritev", None)
_memfd_create: Callable[[str, int], int] | None = getattr(os, "memfd_create", None)
_memfd_flags: int = getattr(os, "MFD_CLOEXEC", 0)

BUFFERS_PER_CALL_MAX: int = os.sysconf("SC_IOV_MAX")
"""Most buffers the kernel takes in one gathered call (IOV_MAX)."""

OPEN_FILES = "/proc/self/fd"
"""Where Linux shows the descriptors of a process as files; each opening of one begins at its start."""

NETWORK_ERRNOS: tuple[int, ...] = tuple(
    number for name in ("ENONET",) if (number := getattr(errno, name, None)) is not None
)
"""Network errors that this system has, of those that not every system has."""


def sync_content(descriptor: int) -> None:
    """Makes content and size of a file durable. Blocks.

    Raises:
        OSError: the operating system reports an error.
    """
    if _fdatasync is not None:
        _fdatasync(descriptor)
    else:
        sync_all(descriptor)


def sync_all(descriptor: int) -> None:
    """Makes all of a file or directory durable. Blocks.

    Raises:
        OSError: the operating system reports an error.
    """
    if _full_sync is not None:
        try:
            fcntl.fcntl(descriptor, _full_sync)
        except OSError as error:
            # Some file systems, of a network as a rule, do not know the request; a failed write must not pass for that.
            if error.errno not in (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL, errno.ENODEV):
                raise
        else:
            return
    os.fsync(descriptor)


def read_gathered(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
    """Fills ``buffers`` from a position, at once where the system can; returns how many bytes came, 0 at the end."""
    if _preadv is not None:
        return _preadv(descriptor, buffers, position)
    buffer = next((candidate for candidate in buffers if len(candidate)), None)
    if buffer is None:
        return 0
    found = os.pread(descriptor, len(buffer), position)
    buffer[: len(found)] = found
    return len(found)


def write_gathered(descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
    """Writes ``buffers`` at a position, in one call where the system can; returns how many bytes went."""
    if _pwritev is not None:
        return _pwritev(descriptor, buffers, position)
    buffer = next((candidate for candidate in buffers if len(candidate)), b"")
    return os.pwrite(descriptor, buffer, position)


@contextlib.contextmanager
def private_file(text: str) -> Iterator[str]:
    """Yields a path under which this process can open ``text``; gone at the end of the block.

    An anonymous file where the system has one. Otherwise a temporary file that only this user may read, for as long as
    the block takes: libraries that read a secret from a path leave no other way.
    """
    content = text.encode("utf-8")
    if _memfd_create is not None and os.path.isdir(OPEN_FILES):
        descriptor = _memfd_create("moldau-private", _memfd_flags)
        try:
            _write_all(descriptor, content)
            yield f"{OPEN_FILES}/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp(prefix="moldau-private-")  # mode 0600
    try:
        try:
            _write_all(descriptor, content)
        finally:
            os.close(descriptor)
        yield path
    finally:
        os.unlink(path)


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
