"""The ports through which Moldau uses the outside: clock, randomness, network and disk.

Every shell (broker, controller, client) receives one ``Environment`` and takes from it all that is not computation. Two
implementations obey the contracts below and pass one contract suite: ``moldau.runtime.ports.real`` maps them to the
operating system at no cost, and ``moldau_jepsen.simulation`` maps them to virtual time, a virtual network and a virtual
disk. There is no second code path: code that cannot run behind these ports does not belong in Moldau.

Waiting is trio's: ``trio.sleep``, ``trio.move_on_after`` and ``trio.fail_after`` follow the clock that ``trio.run`` was
given, which is the real one in production and an autojumping ``trio.testing.MockClock`` in simulation. Reading the time
and drawing a random number go through the ports, because clocks of simulated nodes drift and jump.

The shape of the ports follows the hot path (non-blocking calls first, waiting only when nothing is there), not the
convenience of the simulation.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from moldau.runtime.ports.objects import ObjectStore
    from moldau.values import Buffer

T = TypeVar("T")


class Clock(Protocol):
    """Time of one node."""

    def monotonic_ms(self) -> float:
        """Milliseconds since an arbitrary start; never goes back. For deadlines and durations."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may jump. For timestamps that users see."""
        ...

    def wall_ns(self) -> int:
        """Returns the time of ``wall_ms`` in nanoseconds, for hot loops."""
        ...


class Connection(Protocol):
    """A reliable ordered byte stream (TCP, or TLS on top of it).

    One task reads and one task writes at a time. Closing is synchronous and idempotent; any call after it, and any
    call after the peer reset the stream, raises an ``OSError`` (mostly ``ConnectionError``).
    """

    @property
    def peer_address(self) -> tuple[str, int]:
        """Host and port of the other end."""
        ...

    @property
    def local_address(self) -> tuple[str, int]:
        """Host and port of this end."""
        ...

    def receive_into_nowait(self, buffer: memoryview) -> int:
        """Fills the start of ``buffer`` with the bytes that have arrived.

        Returns the number of bytes, 0 at the end of the stream.

        Raises:
            BlockingIOError: nothing has arrived.
        """
        ...

    async def wait_readable(self) -> None:
        """Waits until ``receive_into_nowait`` would not raise ``BlockingIOError``. A checkpoint, always."""
        ...

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        """Hands the concatenation of ``buffers`` to the transport, as much as it takes now.

        Returns the number of bytes taken (at least 1).

        Raises:
            BlockingIOError: the transport takes nothing.
        """
        ...

    async def wait_writable(self) -> None:
        """Waits until ``send_nowait`` would take at least one byte. A checkpoint, always."""
        ...

    def send_file_nowait(self, file: File, position: int, count: int) -> int:
        """Sends up to ``count`` bytes of ``file`` from ``position``, without a copy in user space where possible.

        Returns the number of bytes taken (at least 1).

        Raises:
            BlockingIOError: the transport takes nothing.
            EOFError: the content of ``file`` ends at or before ``position``.
        """
        ...

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        """Sends all of ``buffers``. After cancellation an unknown part has been sent, and the stream must be closed.

        A checkpoint only when it has to wait, so endless loops need their own ``checkpoint()``.
        """
        ...

    def close(self) -> None:
        """Ends the stream; the peer sees the end of the stream, or a reset if unread bytes remain."""
        ...

    def abort(self) -> None:
        """Ends the stream and drops what the transport has not sent, or would have to send again; the peer is reset.

        After ``close`` the transport still delivers the bytes it took. After ``abort`` only bytes in flight may arrive.
        Has no effect on a closed connection.
        """
        ...


class Listener(Protocol):
    """A listening socket."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and the port that was bound (the real one, where 0 was asked for)."""
        ...

    async def accept(self) -> Connection:
        """Waits for the next connection. A passing shortage of descriptors is waited out, not raised."""
        ...

    def close(self) -> None:
        """Stops listening; accepted connections live on. A pending ``accept`` raises ``OSError``."""
        ...


class Arrivals(Protocol):
    """Reports which of many connections have received something, so that one task can serve them all in one turn."""

    def watch(self, connection: Connection, owner: object) -> bool:
        """Reports ``owner`` from now on; returns False for a connection that this network did not make (TLS).

        A connection is reported after each arrival, not for as long as bytes are unread: what has arrived before this
        call need not be reported. The owner therefore receives until a receive leaves room in its buffer or raises
        ``BlockingIOError``. The end of the stream and an error are reported after the bytes before them, on their own.
        """
        ...

    def forget(self, connection: Connection) -> None:
        """Reports the connection no more. Called before it is closed."""
        ...

    async def wait(self) -> None:
        """Waits until ``take`` would return something. A checkpoint, always."""
        ...

    def take(self, count: int) -> list[object]:
        """Returns the owners of at most ``count`` connections that have received something, each once.

        Connections that are left over are reported before those that are reported again.
        """
        ...

    def close(self) -> None:
        """Ends the reports. No task waits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketBuffers:
    """Sizes of a connection's buffers in the kernel, in bytes; -1 leaves a size to the system, which adapts it."""

    send_bytes: int = -1
    receive_bytes: int = -1


SYSTEM_BUFFERS = SocketBuffers()


class Network(Protocol):
    """Where connections come from. TLS is a wrapper on top (``moldau.runtime.tls.connection``)."""

    async def listen(
        self, host: str, port: int, *, backlog: int = 1024, buffers: SocketBuffers = SYSTEM_BUFFERS
    ) -> Listener:
        """Binds and listens. Port 0 takes a free one.

        ``buffers`` are those of accepted connections; a transport without such buffers ignores them.

        Raises:
            OSError: EADDRINUSE when the port is taken.
        """
        ...

    def arrivals(self) -> Arrivals | None:
        """Returns a new watch over connections that this network accepts; None where the system offers none."""
        ...

    async def connect(self, host: str, port: int) -> Connection:
        """Opens a connection; it has no deadline: callers use ``trio.fail_after``.

        Raises:
            OSError: the connection was refused.
        """
        ...


class OpenMode(enum.Enum):
    """How ``Disk.open`` opens a file."""

    READ = "read"  # must exist; append, truncate, preallocate and sync raise io.UnsupportedOperation
    WRITE = "write"  # created if missing; existing bytes stay
    CREATE = "create"  # created; raises FileExistsError if it exists


class File(Protocol):
    """A file that is read at positions and written at its end.

    Calls block the thread (the page cache makes them short); run long ones and ``sync`` through ``Disk.offload``.
    All raise ``OSError`` (ENOSPC, EIO ...). Readers see appends and truncations at once; these are durable only after
    a ``sync`` that began later has returned.
    """

    @property
    def path(self) -> str:
        """Path as it was opened (renames are not followed)."""
        ...

    @property
    def size(self) -> int:
        """Number of bytes of content, without space that preallocation reserved."""
        ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Writes the concatenation of ``buffers`` at the end, all of it or it raises; returns the new size.

        After an ``OSError`` an unknown part has been written: truncate to the size before, or give the file up.
        """
        ...

    def write_at(self, position: int, buffer: Buffer) -> None:
        """Overwrites bytes at ``position`` (extends the file if the range ends beyond it). For fixed-place files."""
        ...

    def read_into(self, buffers: Sequence[memoryview], position: int) -> int:
        """Fills ``buffers`` in order from ``position``; returns the bytes read, fewer only at the content's end."""
        ...

    def read(self, position: int, count: int) -> bytes:
        """Returns up to ``count`` bytes from ``position``, fewer only at the end of the content."""
        ...

    def truncate(self, size: int) -> None:
        """Cuts the content to ``size`` bytes (at most the present size) and gives back preallocated space."""
        ...

    def preallocate(self, size: int) -> None:
        """Reserves space up to ``size`` bytes without changing ``size``; a hint, no more, where unsupported."""
        ...

    def sync(self) -> None:
        """Returns when content and size are durable (fdatasync). Blocks: call it through ``Disk.offload``."""
        ...

    def fileno(self) -> int:
        """Returns the descriptor, for sendfile.

        Raises:
            io.UnsupportedOperation: the file has none.
        """
        ...

    def close(self) -> None:
        """Closes without syncing; idempotent. Reads in progress in other threads must have ended."""
        ...


class Disk(Protocol):
    """A tree of directories and files. Paths are strings with ``/``; relative ones are refused.

    A created, renamed or removed name is durable only after ``sync_directory`` of its parent.
    """

    def open(self, path: str, mode: OpenMode) -> File:
        """Opens a file.

        Raises:
            FileNotFoundError: the path does not exist.
            FileExistsError: the path exists.
            IsADirectoryError: the path is a directory.
            OSError: the operating system reports an error.
        """
        ...

    def exists(self, path: str) -> bool:
        """Returns whether a file or directory of that name exists."""
        ...

    def is_directory(self, path: str) -> bool:
        """Returns whether the name is a directory."""
        ...

    def file_size(self, path: str) -> int:
        """Returns the size of the content, in bytes.

        Raises:
            FileNotFoundError: the path does not exist.
        """
        ...

    def modified_ms(self, path: str) -> int:
        """Returns the wall-clock milliseconds of the last write.

        Raises:
            FileNotFoundError: the path does not exist.
        """
        ...

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        """Sets the time of a file's last write, until the next one.

        Raises:
            FileNotFoundError: the path does not exist.
        """
        ...

    def list_directory(self, path: str) -> list[str]:
        """Returns the names in the directory, sorted.

        Raises:
            FileNotFoundError: the path does not exist.
            NotADirectoryError: the path is not a directory.
        """
        ...

    def make_directories(self, path: str) -> None:
        """Creates the directory and its parents where missing."""
        ...

    def make_directory(self, path: str) -> None:
        """Creates the directory where missing.

        Raises:
            FileNotFoundError: its parent does not exist.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Renames atomically, replacing a file ``target``; open files stay usable."""
        ...

    def remove(self, path: str) -> None:
        """Removes a file; readers that have it open can go on reading.

        Raises:
            FileNotFoundError: there is no such file.
        """
        ...

    def remove_directory(self, path: str) -> None:
        """Removes a directory that is empty.

        Raises:
            FileNotFoundError: there is no such directory.
            NotADirectoryError: the path is not a directory.
            OSError: ENOTEMPTY (EEXIST on some systems) when something is in it.
        """
        ...

    def remove_tree(self, path: str) -> None:
        """Removes a directory and all below it; missing is no error."""
        ...

    def sync_directory(self, path: str) -> None:
        """Returns when the names in the directory are durable. Blocks: call it through ``offload`` on a hot path."""
        ...

    def free_bytes(self, path: str) -> int:
        """Returns the bytes that can still be written below ``path``."""
        ...

    def total_bytes(self, path: str) -> int:
        """Returns the bytes of the disk that holds ``path``, used ones included."""
        ...

    def open_files_max(self) -> int:
        """Returns how many descriptors the process may have, connections included; ``open`` beyond it raises EMFILE."""
        ...

    def lock(self, path: str) -> Lock:
        """Takes the exclusive lock file ``path`` (created if missing).

        Raises:
            BlockingIOError: the lock is held.
        """
        ...

    def offload(self, work: Callable[[], T], *, abandons: bool = False) -> Awaitable[T]:
        """Runs blocking disk work outside the event loop and returns its result or raises its exception.

        In production a thread of a bounded pool; in simulation the work runs at one instant after a drawn delay. The
        work must not touch state that the event loop changes meanwhile. Not cancellable once begun: the result of a
        cancelled call is dropped after the work has ended. With ``abandons`` a cancelled call returns at once, while
        the work may go on or hang for ever; its thread does not count towards the bound any more.
        """
        ...


class Lock(Protocol):
    """A held lock file."""

    def release(self) -> None:
        """Gives the lock back; idempotent. The operating system does it when the process dies."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """All that a node needs from the world."""

    clock: Clock
    random: random.Random
    network: Network
    disk: Disk
    open_objects: Callable[[str], ObjectStore] | None = None
    """Opens the object store of a URL in the place of the production ones; None: those open it."""
