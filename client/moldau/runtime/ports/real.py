"""The production ``Environment``: raw non-blocking sockets, files and clocks of the operating system.

Nothing here buffers or copies more than the contract asks for. Sockets are plain ``socket.socket`` objects in
non-blocking mode; trio is only asked to wait after the kernel said ``EAGAIN``, because a wait costs several times more
than a receive. Files keep their size in memory, so that an append is one ``pwritev`` at a known position, and
preallocated space beyond the content is never mistaken for content. Blocking disk work leaves the event loop through
``RealDisk.offload`` alone, which bounds the number of threads.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import fcntl
import io
import os
import random
import resource
import shutil
import socket
import stat
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.runtime.net.buffers import byte_count, drop_filled, drop_sent
from moldau.runtime.ports import system_calls
from moldau.runtime.ports.descriptors import SHORTAGE_ERRNOS, UNLIMITED, is_shortage
from moldau.runtime.ports.environment import SYSTEM_BUFFERS, Environment, File, OpenMode, SocketBuffers
from moldau.runtime.ports.real_arrivals import real_arrivals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import Arrivals, Connection
    from moldau.values import Buffer

T = TypeVar("T")

BUFFERS_PER_CALL_MAX: int = os.sysconf("SC_IOV_MAX")
"""Most buffers the kernel takes in one gathered call (IOV_MAX)."""

SENDFILE_BYTES_MAX = 0x7FFFF000
"""Most bytes Linux moves in one ``sendfile``."""

ACCEPT_SHORTAGE_ERRNOS = (*SHORTAGE_ERRNOS, errno.ENOBUFS, errno.ENOMEM)
"""``accept`` errors that pass when other connections close."""

ABORTED_ERRNOS = (
    errno.ECONNABORTED,
    errno.EPROTO,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
    *system_calls.NETWORK_ERRNOS,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENOPROTOOPT,
    errno.EPERM,
)
"""``accept`` errors that belong to the one connection that was to be accepted (accept(2), "Error handling")."""

OPEN_FILES_WANTED = 1 << 20

SHORTAGE_WAIT_SECONDS = 0.1
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


class RealClock:
    """The clocks of the machine."""

    __slots__ = ()

    def monotonic_ms(self) -> float:
        """Milliseconds of CLOCK_MONOTONIC."""
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    wall_ns = staticmethod(time.time_ns)


def _host_and_port(name: object) -> tuple[str, int]:
    """Takes host and port out of a socket name, which has two or four members."""
    assert isinstance(name, tuple)
    return str(name[0]), int(name[1])


_NO_LINGER = struct.pack("ii", 1, 0)


class RealConnection:
    """One TCP socket (or one end of a socket pair) in non-blocking mode."""

    __slots__ = ("_local", "_peer", "_socket")

    def __init__(self, connected: socket.socket, peer: tuple[str, int] | None = None) -> None:
        """Takes over ``connected``; sends small answers at once (TCP_NODELAY)."""
        connected.setblocking(False)
        if connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        self._peer = peer if peer is not None else _host_and_port(connected.getpeername())
        self._local = _host_and_port(connected.getsockname())

    @property
    def peer_address(self) -> tuple[str, int]:
        """Host and port of the other end."""
        return self._peer

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port of this end."""
        return self._local

    def receive_into_nowait(self, buffer: memoryview) -> int:
        """See ``Connection.receive_into_nowait``."""
        return self._socket.recv_into(buffer)

    async def wait_readable(self) -> None:
        """See ``Connection.wait_readable``."""
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise _closed_error() from error

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """See ``Connection.send_nowait``."""
        if len(buffers) == 1:
            return self._socket.send(buffers[0])
        return self._socket.sendmsg(buffers[:BUFFERS_PER_CALL_MAX])

    async def wait_writable(self) -> None:
        """See ``Connection.wait_writable``."""
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise _closed_error() from error

    def send_file_nowait(self, file: File, position: int, count: int) -> int:
        """See ``Connection.send_file_nowait``; sendfile(2)."""
        count = min(count, file.size - position, SENDFILE_BYTES_MAX)
        if count <= 0:
            raise EOFError(f"{file.path}: no content at position {position} to send (size {file.size})")
        sent = os.sendfile(self._socket.fileno(), file.fileno(), position, count)
        if sent == 0:
            raise EOFError(f"{file.path}: the file ends before position {position}")
        return sent

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """See ``Connection.send_all``. A checkpoint only when it has to wait."""
        pending: Sequence[Buffer] = buffers
        while pending:
            try:
                sent = self.send_nowait(pending)
            except BlockingIOError:
                await self.wait_writable()
                continue
            pending = drop_sent(pending, sent)

    def fileno(self) -> int:
        """Descriptor of the socket; -1 once it is closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """See ``Connection.close``."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def abort(self) -> None:
        """See ``Connection.abort``: a socket that does not linger is reset when it is closed (socket(7), SO_LINGER)."""
        if self._socket.fileno() >= 0:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.close()


def _closed_error() -> ConnectionAbortedError:
    return ConnectionAbortedError(errno.ECONNABORTED, "this end of the connection was closed")


class RealListener:
    """A listening TCP socket."""

    __slots__ = ("_address", "_socket")

    def __init__(self, listening: socket.socket) -> None:
        """Takes over ``listening``, which listens already."""
        self._socket = listening
        self._address = _host_and_port(listening.getsockname())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that were bound."""
        return self._address

    async def accept(self) -> RealConnection:
        """See ``Listener.accept``; waits ``SHORTAGE_WAIT_SECONDS`` and tries again while descriptors are short."""
        while True:
            try:
                accepted, name = self._socket.accept()
            except BlockingIOError:
                await self._wait_acceptable()
                continue
            except OSError as error:
                if error.errno in ACCEPT_SHORTAGE_ERRNOS:
                    await trio.sleep(SHORTAGE_WAIT_SECONDS)
                    continue
                if error.errno in ABORTED_ERRNOS:
                    await trio.lowlevel.checkpoint()
                    continue
                raise
            try:
                return RealConnection(accepted, _host_and_port(name))
            except OSError:
                accepted.close()  # the peer was gone before its options could be set: not the listener's trouble

    async def _wait_acceptable(self) -> None:
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except (trio.ClosedResourceError, ValueError) as error:
            raise OSError(errno.EBADF, "the listener was closed") from error

    def close(self) -> None:
        """See ``Listener.close``."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def _descriptor_of(connection: Connection) -> int:
    return connection.fileno() if isinstance(connection, RealConnection) else -1


class RealNetwork:
    """TCP of the machine, IPv4 and IPv6."""

    __slots__ = ()

    async def listen(
        self, host: str, port: int, *, backlog: int = 1024, buffers: SocketBuffers = SYSTEM_BUFFERS
    ) -> RealListener:
        """See ``Network.listen``; SO_REUSEADDR is set, so that a restart need not wait for TIME_WAIT."""
        found = await trio.socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, name = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setblocking(False)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit the sizes, which must be known before a peer is offered a window.
            for option, size in ((socket.SO_SNDBUF, buffers.send_bytes), (socket.SO_RCVBUF, buffers.receive_bytes)):
                if size >= 0:
                    listening.setsockopt(socket.SOL_SOCKET, option, size)
            listening.bind(name)
            listening.listen(backlog)
            return RealListener(listening)
        except BaseException:
            listening.close()
            raise

    def arrivals(self) -> Arrivals | None:
        """See ``Network.arrivals``."""
        return real_arrivals(_descriptor_of)

    async def connect(self, host: str, port: int) -> RealConnection:
        """See ``Network.connect``; tries the addresses of ``host`` in the order of the resolver."""
        try:
            found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise ConnectionError(errno.EHOSTUNREACH, f"host name {host!r} cannot be resolved: {error}") from error
        failures: list[str] = []
        for family, kind, protocol, _, name in found:
            try:
                return await self._connect_one(family, kind, protocol, name)
            except OSError as error:
                failures.append(f"{name[0]}: {error.strerror or error}")
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"no connection to {host}:{port} ({'; '.join(failures)})")

    async def _connect_one(self, family: int, kind: int, protocol: int, name: object) -> RealConnection:
        connecting = socket.socket(family, kind, protocol)
        try:
            connecting.setblocking(False)
            assert isinstance(name, tuple)
            code = connecting.connect_ex(name)
            if code == errno.EINPROGRESS:
                await trio.lowlevel.wait_writable(connecting)
                code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            else:
                await trio.lowlevel.checkpoint()
            if code != 0:
                raise OSError(code, os.strerror(code))
            return RealConnection(connecting)
        except BaseException:
            connecting.close()
            raise


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
        code = _fallocate(self._descriptor, _FALLOC_FL_KEEP_SIZE, 0, size)
        if code not in (0, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINTR):
            raise OSError(code, os.strerror(code), self._path)

    def sync(self) -> None:
        """See ``File.sync``; fdatasync(2) where the system has it."""
        self._require_writable()
        system_calls.sync_content(self._descriptor)

    def fileno(self) -> int:
        """Descriptor of the file."""
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
        """Does what needs a directory's descriptor for a moment.

        A change of several names that has begun must not end half-way because connections have taken all descriptors:
        one is kept for each thread from the first use on, and makes way.
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

    def list_directory(self, path: str) -> list[str]:
        """See ``Disk.list_directory``."""
        return self._finish(lambda: sorted(os.listdir(_absolute(path))))

    def make_directories(self, path: str) -> None:
        """See ``Disk.make_directories``."""
        os.makedirs(_absolute(path), exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """See ``Disk.rename``."""
        os.replace(_absolute(source), _absolute(target))

    def remove(self, path: str) -> None:
        """See ``Disk.remove``."""
        os.unlink(_absolute(path))

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


def raise_open_files_limit() -> int:
    """Increases the process's limit of open files up to ``OPEN_FILES_WANTED``; returns the new limit.

    Most shells start with 1,024, for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems have a lower bound that getrlimit does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def real_environment(seed: int | None = None) -> Environment:
    """Returns the environment of the operating system.

    Random numbers come from the system and cannot be predicted; ``seed`` fixes them.
    """
    numbers = random.SystemRandom() if seed is None else random.Random(seed)
    return Environment(clock=RealClock(), random=numbers, network=RealNetwork(), disk=RealDisk())
