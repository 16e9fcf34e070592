"""Files of the operating system.

Files keep their size in memory, so that an append is one ``pwritev`` at a known position, and preallocated space beyond
the content is never mistaken for content. Blocking disk work leaves the event loop through ``RealDisk.offload`` alone,
which bounds the number of threads.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import fcntl
import io
import os
import resource
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.runtime.net.buffers import byte_count, drop_filled, drop_sent
from moldau.runtime.ports import system_calls
from moldau.runtime.ports.descriptors import UNLIMITED, is_shortage
from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.system_calls import BUFFERS_PER_CALL_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.values import Buffer

T = TypeVar("T")

OFFLOAD_THREADS = 8

_FALLOC_FL_KEEP_SIZE = 1


def _load_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Returns fallocate(2), which ``os`` lacks: ``os.posix_fallocate`` would change the size that readers see."""
    try:
        function = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True).fallocate
    except (OSError, AttributeError, TypeError):
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    function.restype = ctypes.c_int

    def fallocate(descriptor: int, mode: int, offset: int, count: int) -> int:
        return 0 if function(descriptor, mode, offset, count) == 0 else ctypes.get_errno()

    return fallocate


_fallocate = _load_fallocate()


class RealFile:
    """A descriptor with the size of its content. Invariant: no byte at or beyond ``size`` was ever content."""

    __slots__ = ("_descriptor", "_path", "_size", "_writable")

    def __init__(self, path: str, descriptor: int, *, writable: bool) -> None:
        """Takes over ``descriptor``; the size is that of the file system now."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._path = path
        self._descriptor = descriptor
        self._writable = writable
        self._size = status.st_size

    @property
    def path(self) -> str:
        """Path as it was opened."""
        return self._path

    @property
    def size(self) -> int:
        """Bytes of content. A read-only handle looks at the file system, because another handle may append."""
        if self._writable:
            return self._size
        return os.fstat(self._descriptor).st_size

    def _require_writable(self) -> None:
        if not self._writable:
            raise io.UnsupportedOperation(f"{self._path} is open for reading only")

    def append(self, buffers: Sequence[Buffer]) -> int:
        """See ``File.append``; one pwritev as a rule."""
        if not self._writable:
            self._require_writable()
        position = self._size
        if len(buffers) == 1:  # as a rule
            written = system_calls.write_gathered(self._descriptor, buffers, position)
            position = self._size = position + written
            if written == byte_count(buffers[0]):
                return position
            buffers = drop_sent(buffers, written)
        pending: Sequence[Buffer] = buffers
        while pending:
            written = system_calls.write_gathered(self._descriptor, pending[:BUFFERS_PER_CALL_MAX], position)
            position += written
            pending = drop_sent(pending, written)
            self._size = position
        return position

    def write_at(self, position: int, buffer: Buffer) -> None:
        """See ``File.write_at``."""
        self._require_writable()
        view = memoryview(buffer).cast("B")
        while view:
            written = os.pwrite(self._descriptor, view, position)
            position += written
            view = view[written:]
        self._size = max(self._size, position)

    def read_into(self, buffers: Sequence[memoryview], position: int) -> int:
        """See ``File.read_into``; one preadv as a rule."""
        total = 0
        pending: list[memoryview] = list(buffers)
        while pending:
            count = system_calls.read_gathered(self._descriptor, pending[:BUFFERS_PER_CALL_MAX], position + total)
            if count == 0:
                break
            total += count
            pending = drop_filled(pending, count)
        return total

    def read(self, position: int, count: int) -> bytes:
        """See ``File.read``."""
        found = os.pread(self._descriptor, count, position)
        if len(found) in (0, count):
            return found
        pieces = [found]
        total = len(found)
        while total < count:
            found = os.pread(self._descriptor, count - total, position + total)
            if not found:
                break
            pieces.append(found)
            total += len(found)
        return b"".join(pieces)

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        self._require_writable()
        if not 0 <= size <= self._size:
            raise ValueError(f"{self._path}: cannot truncate to {size}, the content has {self._size} bytes")
        os.ftruncate(self._descriptor, size)
        self._size = size

    def preallocate(self, size: int) -> None:
        """See ``File.preallocate``; fallocate(KEEP_SIZE).

        Raises:
            OSError: ENOSPC when the space is not available.
        """
        self._require_writable()
        if _fallocate is None or size <= self._size:
            return
        # The content is left out: tmpfs would look at each of its pages again.
        code = _fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, self._size, size - self._size)
        if code not in (0, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR):
            raise OSError(code, os.strerror(code), self._path)

    def sync(self) -> None:
        """See ``File.sync``; fdatasync(2) where the system has it."""
        self._require_writable()
        system_calls.sync_content(self._descriptor)

    def fileno(self) -> int:
        """Returns the descriptor of the file."""
        return self._descriptor

    def close(self) -> None:
        """See ``File.close``."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class RealLock:
    """An flock(2) on a lock file."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        """Takes over ``descriptor``, which is locked."""
        self._descriptor = descriptor

    def release(self) -> None:
        """See ``Lock.release``."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


_OPEN_FLAGS = {
    OpenMode.READ: os.O_RDONLY,
    OpenMode.WRITE: os.O_RDWR | os.O_CREAT,
    OpenMode.CREATE: os.O_RDWR | os.O_CREAT | os.O_EXCL,
}


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"path {path!r} is relative: the Disk port takes absolute paths only")
    return path


def _sync_directory(path: str) -> None:
    descriptor = os.open(_absolute(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        system_calls.sync_all(descriptor)
    finally:
        os.close(descriptor)


class RealDisk:
    """The file systems of the machine."""

    __slots__ = ("_spares", "_threads", "_threads_max")

    def __init__(self, threads_max: int = OFFLOAD_THREADS) -> None:
        """``threads_max`` bounds how many offloaded calls run at once; the others wait in line."""
        self._threads_max = threads_max
        self._threads: trio.CapacityLimiter | None = None
        self._spares: list[int] = []

    def __del__(self) -> None:
        for descriptor in self._spares:
            os.close(descriptor)

    def _finish(self, change: Callable[[], T]) -> T:
        """Runs a change that needs a directory's descriptor for a moment.

        A change of several names must not end half-way because connections have taken all descriptors. From the first
        use on, one spare descriptor is kept for each thread; it is closed when the change finds none.
        """
        try:
            return change()
        except OSError as error:
            spare = self._take_spare() if is_shortage(error) else None
            if spare is None:
                raise
            os.close(spare)
            return change()
        finally:
            with suppress(OSError):  # the next one tries again
                while len(self._spares) <= self._threads_max:
                    self._spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _take_spare(self) -> int | None:
        try:
            return self._spares.pop()
        except IndexError:  # another thread has taken the last one
            return None

    def open(self, path: str, mode: OpenMode) -> RealFile:
        """See ``Disk.open``."""
        descriptor = os.open(_absolute(path), _OPEN_FLAGS[mode] | os.O_CLOEXEC, 0o644)
        try:
            return RealFile(path, descriptor, writable=mode is not OpenMode.READ)
        except BaseException:
            os.close(descriptor)
            raise

    def exists(self, path: str) -> bool:
        """See ``Disk.exists``."""
        return os.path.lexists(_absolute(path))

    def is_directory(self, path: str) -> bool:
        """See ``Disk.is_directory``."""
        return os.path.isdir(_absolute(path))

    def file_size(self, path: str) -> int:
        """See ``Disk.file_size``."""
        return os.stat(_absolute(path)).st_size

    def modified_ms(self, path: str) -> int:
        """See ``Disk.modified_ms``."""
        return os.stat(_absolute(path)).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        """See ``Disk.set_modified_ms``; utimensat(2)."""
        os.utime(_absolute(path), ns=(wall_ms * 1_000_000, wall_ms * 1_000_000))

    def list_directory(self, path: str) -> list[str]:
        """See ``Disk.list_directory``."""
        return self._finish(lambda: sorted(os.listdir(_absolute(path))))

    def make_directories(self, path: str) -> None:
        """See ``Disk.make_directories``."""
        os.makedirs(_absolute(path), exist_ok=True)

    def make_directory(self, path: str) -> None:
        """See ``Disk.make_directory``; mkdir(2)."""
        try:
            os.mkdir(_absolute(path))
        except FileExistsError:
            if not self.is_directory(path):
                raise

    def rename(self, source: str, target: str) -> None:
        """See ``Disk.rename``."""
        os.replace(_absolute(source), _absolute(target))

    def remove(self, path: str) -> None:
        """See ``Disk.remove``."""
        os.unlink(_absolute(path))

    def remove_directory(self, path: str) -> None:
        """See ``Disk.remove_directory``; rmdir(2)."""
        os.rmdir(_absolute(path))

    def remove_tree(self, path: str) -> None:
        """See ``Disk.remove_tree``."""
        try:
            shutil.rmtree(_absolute(path))
        except FileNotFoundError:
            return

    def sync_directory(self, path: str) -> None:
        """See ``Disk.sync_directory``; fsync of the directory."""
        self._finish(lambda: _sync_directory(path))

    def free_bytes(self, path: str) -> int:
        """See ``Disk.free_bytes``; what an unprivileged writer may still use."""
        status = os.statvfs(_absolute(path))
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        """See ``Disk.total_bytes``."""
        status = os.statvfs(_absolute(path))
        return status.f_blocks * status.f_frsize

    def open_files_max(self) -> int:
        """See ``Disk.open_files_max``; RLIMIT_NOFILE."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return UNLIMITED if soft == resource.RLIM_INFINITY else soft

    def lock(self, path: str) -> RealLock:
        """See ``Disk.lock``; flock(2), which dies with the process."""
        descriptor = os.open(_absolute(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return RealLock(descriptor)

    async def offload(self, work: Callable[[], T], *, abandons: bool = False) -> T:
        """See ``Disk.offload``."""
        if self._threads is None:
            self._threads = trio.CapacityLimiter(self._threads_max)
        is_running = False

        def run() -> T:
            nonlocal is_running
            is_running = True
            try:
                return work()
            finally:
                is_running = False

        try:
            return await trio.to_thread.run_sync(run, limiter=self._threads, abandon_on_cancel=abandons)
        except trio.Cancelled:
            if abandons and is_running:
                self._threads.total_tokens += 1  # in place of the thread that may hang
            raise
