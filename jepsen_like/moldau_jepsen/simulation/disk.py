"""A virtual disk of one machine: what was written, what is durable, and what a power loss makes of the difference.

A file has its content as readers see it and its content on the platters; pages written since the last ``sync`` are
pending. Directories have the names as they are now and as they are on the platters; changes of names are pending, in
order, until ``sync_directory``. ``lose_power`` decides by seed, page by page, whether a pending page arrived, did not,
or was torn, and for each directory how many of its pending changes (from the oldest) arrived. Renames are atomic.

A process that is killed loses nothing that it wrote: its writes are in the page cache. It loses only its handles.

``NodeDisk`` is the ``Disk`` port of one incarnation of a node: once frozen all its calls raise, so that code that is
being cancelled cannot write any more.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.runtime.environment import Buffer, OpenMode

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau_jepsen.simulation.clocks import NodeClock
    from moldau_jepsen.simulation.trace import Trace

T = TypeVar("T")

PAGE_BYTES = 4096
SECTOR_BYTES = 512
CRASHED_TEXT = "has crashed"
"""In the text of every error that a dead process gets."""


@dataclass(slots=True, kw_only=True)
class DiskProfile:
    """How a disk behaves; faults change it while the world runs. Times in seconds."""

    capacity_bytes: int = 1 << 32
    offload_delay_min: float = 0.000_05
    offload_delay_jitter: float = 0.000_5  # mean of an exponential distribution on top
    stall_probability: float = 0.001
    stall_max: float = 0.05
    write_error_probability: float = 0.0  # EIO
    read_error_probability: float = 0.0  # EIO
    sync_error_probability: float = 0.0  # EIO; the pages count as not written
    failing_paths: tuple[str, ...] = ()  # directories on a device that is gone: EIO for all they hold
    full_paths: tuple[str, ...] = ()  # directories on a device without space: ENOSPC where a file grows

    def is_failing(self, path: str) -> bool:
        """Whether ``path`` is on a device that is gone."""
        return _is_below(path, self.failing_paths)

    def is_full(self, path: str) -> bool:
        """Whether ``path`` is on a device without space."""
        return _is_below(path, self.full_paths)


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)


@dataclass(slots=True)
class _Inode:
    """A file. Invariant: pages not in ``pending`` are equal in ``content`` and ``durable``."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: dict[int, None] = field(default_factory=dict)  # numbers of pages written since the last sync
    modified_ms: int = 0

    def touch(self, start: int, end: int) -> None:
        for page in range(start // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES):
            self.pending[page] = None

    def sync(self) -> None:
        for page in sorted(self.pending):
            start = page * PAGE_BYTES
            self.durable[start : start + PAGE_BYTES] = self.content[start : start + PAGE_BYTES]
        del self.durable[len(self.content) :]
        self.pending.clear()
        assert len(self.durable) == len(self.content), "a synced file has one size"

    def lose_power(self, random: random.Random) -> int:
        """Decides what is on the platters; returns the number of pages that did not arrive whole."""
        if not self.pending and len(self.content) == len(self.durable):
            return 0
        sizes = (len(self.durable), len(self.content))
        size = random.choice((*sizes, random.randint(min(sizes), max(sizes))))
        found = bytearray(self.durable[:size])
        found.extend(bytes(size - len(found)))  # blocks that were never written read as zeros
        lost = 0
        for page in sorted(self.pending):
            start = page * PAGE_BYTES
            written = self.content[start : min(start + PAGE_BYTES, size)]
            fate = random.random()
            if fate < 0.4:
                lost += 1
                continue
            if fate < 0.6:
                lost += 1
                written = written[: random.randrange(0, PAGE_BYTES, SECTOR_BYTES)]
            found[start : start + len(written)] = written
        self.content = found
        self.durable = bytearray(found)
        self.pending.clear()
        return lost


class _Directory:
    """Names and what they stand for. ``changes`` lead from ``durable`` to ``names``."""

    __slots__ = ("changes", "durable", "modified_ms", "names")

    def __init__(self) -> None:
        self.names: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}
        self.changes: list[dict[str, _Inode | _Directory | None]] = []  # name to its new meaning, None: removed
        self.modified_ms = 0

    def change(self, change: dict[str, _Inode | _Directory | None]) -> None:
        """Applies a change now; all its names together become durable or none does."""
        _apply(self.names, change)
        self.changes.append(change)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def lose_power(self, random: random.Random) -> int:
        arrived = random.randint(0, len(self.changes))
        lost = len(self.changes) - arrived
        for change in self.changes[:arrived]:
            _apply(self.durable, change)
        self.names = dict(self.durable)
        self.changes.clear()
        return lost


def _apply(names: dict[str, _Inode | _Directory], change: dict[str, _Inode | _Directory | None]) -> None:
    for name, meaning in change.items():
        if meaning is None:
            names.pop(name, None)
        else:
            names[name] = meaning


class VirtualDisk:
    """The platters and the page cache of one machine; outlives the processes on it."""

    __slots__ = ("_locks", "_root", "clock", "name", "profile", "random", "trace")

    def __init__(self, name: str, random: random.Random, trace: Trace, profile: DiskProfile) -> None:
        """Empty."""
        self.name = name
        self.random = random
        self.trace = trace
        self.profile = profile
        self.clock: NodeClock | None = None
        self._root = _Directory()
        self._locks: dict[str, NodeDisk] = {}

    def now_ms(self) -> int:
        """Wall-clock time of the machine, for modification times."""
        return self.clock.wall_ms() if self.clock is not None else 0

    def lose_power(self) -> None:
        """Decides by seed what of the pending writes is on the platters; everything else is gone."""
        pages, names = self._lose_power_below(self._root)
        self._locks.clear()
        self.trace.event("power-loss", self.name, pages, names)

    def _lose_power_below(self, directory: _Directory) -> tuple[int, int]:
        names = directory.lose_power(self.random)
        pages = 0
        for name in sorted(directory.names):
            child = directory.names[name]
            if isinstance(child, _Directory):
                below = self._lose_power_below(child)
                pages, names = pages + below[0], names + below[1]
            else:
                pages += child.lose_power(self.random)
        return pages, names

    def release_locks(self, owner: NodeDisk) -> None:
        """The process that held them has ended."""
        for path in [path for path, holder in self._locks.items() if holder is owner]:
            del self._locks[path]

    def take_lock(self, path: str, owner: NodeDisk) -> None:
        """Raises ``BlockingIOError`` when the lock is held."""
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "the lock is held", path)
        self._locks[path] = owner

    def give_lock_back(self, path: str) -> None:
        """The holder gives it back."""
        self._locks.pop(path, None)

    def used_bytes(self) -> int:
        """Bytes of content of all files."""
        return _used_below(self._root)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Bit rot: changes one bit in the content and on the platters, unnoticed."""
        inode = self.lookup(path)
        if not isinstance(inode, _Inode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        inode.content[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit
        self.trace.note("bit-rot", self.name, path, position, bit)

    def files(self, path: str = "/") -> list[str]:
        """Returns the paths of all files below a directory, sorted."""
        directory = self.lookup(path)
        assert isinstance(directory, _Directory), f"{path} is no directory"
        found: list[str] = []
        for name in sorted(directory.names):
            below = posixpath.join(path, name)
            if isinstance(directory.names[name], _Directory):
                found.extend(self.files(below))
            else:
                found.append(below)
        return found

    # --- the tree

    def lookup(self, path: str) -> _Inode | _Directory:
        """Raises ``FileNotFoundError``, ``NotADirectoryError``."""
        found: _Inode | _Directory = self._root
        for part in _parts(path):
            if not isinstance(found, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            below = found.names.get(part)
            if below is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            found = below
        return found

    def directory(self, path: str) -> _Directory:
        """Raises as ``lookup``."""
        found = self.lookup(path)
        if not isinstance(found, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return found


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"path {path!r} is relative: the Disk port takes absolute paths only")
    return [part for part in posixpath.normpath(path).split("/") if part]


def _used_below(directory: _Directory) -> int:
    total = 0
    for child in directory.names.values():
        total += _used_below(child) if isinstance(child, _Directory) else len(child.content)
    return total


class VirtualFile:
    """The ``File`` port."""

    __slots__ = ("_closed", "_disk", "_inode", "_path", "_writable")

    def __init__(self, disk: NodeDisk, path: str, inode: _Inode, *, writable: bool) -> None:
        """Made by ``NodeDisk.open``."""
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._closed = False

    @property
    def path(self) -> str:
        """Path as it was opened."""
        return self._path

    @property
    def size(self) -> int:
        """Bytes of content."""
        return len(self._inode.content)

    def _check(self, *, write: bool = False) -> VirtualDisk:
        if self._closed:
            raise OSError(errno.EBADF, "the file was closed", self._path)
        if write and not self._writable:
            raise io.UnsupportedOperation(f"{self._path} is open for reading only")
        return self._disk.check(self._path)

    def append(self, buffers: Sequence[Buffer]) -> int:
        """See ``File.append``."""
        return self._write(self.size, b"".join(buffers))

    def write_at(self, position: int, buffer: Buffer) -> None:
        """See ``File.write_at``."""
        self._write(position, bytes(buffer))

    def _write(self, position: int, data: bytes) -> int:
        disk = self._check(write=True)
        if disk.random.random() < disk.profile.write_error_probability:
            self._put(position, data[: disk.random.randint(0, len(data))])
            disk.trace.note("disk-error", disk.name, "write", self._path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        growth = position + len(data) - self.size
        if growth > 0:
            free = 0 if disk.profile.full_paths and disk.profile.is_full(self._path) else self._disk.free_bytes("/")
            if growth > free:
                self._put(position, data[: max(0, self.size - position) + free])
                disk.trace.note("disk-full", disk.name, self._path)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        self._put(position, data)
        self._disk.trace_write("write", self._path, position, len(data))
        return self.size

    def _put(self, position: int, data: bytes) -> None:
        if not data:
            return
        inode = self._inode
        before = len(inode.content)
        if position > before:
            inode.content.extend(bytes(position - before))
        inode.content[position : position + len(data)] = data
        inode.touch(min(position, before), position + len(data))
        inode.modified_ms = self._disk.now_ms()
        self._disk.grown(len(inode.content) - before)

    def read_into(self, buffers: Sequence[memoryview], position: int) -> int:
        """See ``File.read_into``."""
        self._check_read()
        content = self._inode.content
        total = 0
        for buffer in buffers:
            chunk = content[position + total : position + total + len(buffer)]
            buffer[: len(chunk)] = chunk
            total += len(chunk)
            if len(chunk) < len(buffer):
                break
        return total

    def read(self, position: int, count: int) -> bytes:
        """See ``File.read``."""
        self._check_read()
        return bytes(memoryview(self._inode.content)[position : position + count])

    def _check_read(self) -> None:
        disk = self._check()
        if disk.profile.read_error_probability and disk.random.random() < disk.profile.read_error_probability:
            disk.trace.note("disk-error", disk.name, "read", self._path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        self._check(write=True)
        before = self.size
        if not 0 <= size <= before:
            raise ValueError(f"{self._path}: cannot truncate to {size}, the content has {before} bytes")
        del self._inode.content[size:]
        self._inode.touch(size, before)
        self._inode.modified_ms = self._disk.now_ms()
        self._disk.grown(size - before)
        self._disk.trace_write("truncate", self._path, size, before)

    def preallocate(self, size: int) -> None:
        """See ``File.preallocate``: space is checked, nothing is reserved."""
        self._check(write=True)
        if size - self.size > self._disk.free_bytes("/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    def sync(self) -> None:
        """See ``File.sync``."""
        disk = self._check(write=True)
        if disk.random.random() < disk.profile.sync_error_probability:
            disk.trace.note("disk-error", disk.name, "sync", self._path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)
        self._inode.sync()
        self._disk.trace_write("sync", self._path, self.size, 0)

    def fileno(self) -> int:
        """There is none."""
        raise io.UnsupportedOperation("a virtual file has no descriptor")

    def close(self) -> None:
        """See ``File.close``."""
        self._closed = True


class VirtualLock:
    """The ``Lock`` port."""

    __slots__ = ("_disk", "_held", "_path")

    def __init__(self, disk: VirtualDisk, path: str) -> None:
        """Held."""
        self._disk = disk
        self._path = path
        self._held = True

    def release(self) -> None:
        """See ``Lock.release``."""
        if self._held:
            self._held = False
            self._disk.give_lock_back(self._path)


class NodeDisk:
    """The ``Disk`` port of one incarnation of a node."""

    __slots__ = ("_crash_after", "_disk", "_offloads", "_on_crash_point", "_used", "frozen")

    def __init__(self, disk: VirtualDisk) -> None:
        """Lives until it is frozen."""
        self._disk = disk
        self.frozen = False
        self._offloads: dict[int, trio.CancelScope] = {}
        self._used = disk.used_bytes()
        self._crash_after = 0
        self._on_crash_point: Callable[[], None] | None = None

    def freeze(self) -> None:
        """The process is dead: every call from now on raises, offloaded work that has not been done never is."""
        self.frozen = True
        self._disk.release_locks(self)
        for scope in self._offloads.values():
            scope.cancel()

    def crash_after_writes(self, count: int, crash: Callable[[], None]) -> None:
        """Calls ``crash()`` just after the ``count``-th write, truncate, rename, remove or sync from now."""
        assert count >= 1, "the first write to come is number 1"
        self._crash_after = count
        self._on_crash_point = crash

    def forget_crash_point(self) -> None:
        """Undoes ``crash_after_writes`` if the write has not come."""
        self._crash_after = 0
        self._on_crash_point = None

    def check(self, path: str) -> VirtualDisk:
        """Raises when the process is dead."""
        if self.frozen:
            raise OSError(errno.EIO, f"{self._disk.name} {CRASHED_TEXT}", path)
        profile = self._disk.profile
        if profile.failing_paths and profile.is_failing(path):
            self._disk.trace.note("disk-error", self._disk.name, "device", path)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return self._disk

    def now_ms(self) -> int:
        """Wall-clock time of the machine."""
        return self._disk.now_ms()

    def grown(self, count: int) -> None:
        """Files have grown by ``count`` bytes."""
        self._used += count

    def trace_write(self, kind: str, path: str, position: int, count: int) -> None:
        """Puts a write into the trace."""
        self._disk.trace.event(kind, self._disk.name, path, position, count)
        self._count_write()

    def _count_write(self) -> None:
        if self._crash_after:
            self._crash_after -= 1
            if self._crash_after == 0 and self._on_crash_point is not None:
                self._on_crash_point()

    def open(self, path: str, mode: OpenMode) -> VirtualFile:
        """See ``Disk.open``."""
        disk = self.check(path)
        parent = disk.directory(posixpath.dirname(path))
        name = posixpath.basename(path)
        found = parent.names.get(name)
        if isinstance(found, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if found is None:
            if mode is OpenMode.READ:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            found = _Inode(modified_ms=disk.now_ms())
            parent.change({name: found})
            self.trace_write("create", path, 0, 0)
        elif mode is OpenMode.CREATE:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return VirtualFile(self, path, found, writable=mode is not OpenMode.READ)

    def exists(self, path: str) -> bool:
        """See ``Disk.exists``; as the real one, it finds nothing on a device that is gone."""
        if not self.frozen and self._disk.profile.is_failing(path):
            return False
        disk = self.check(path)
        try:
            disk.lookup(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_directory(self, path: str) -> bool:
        """See ``Disk.is_directory``."""
        return self.exists(path) and isinstance(self.check(path).lookup(path), _Directory)

    def file_size(self, path: str) -> int:
        """See ``Disk.file_size``."""
        found = self.check(path).lookup(path)
        return len(found.content) if isinstance(found, _Inode) else 0

    def modified_ms(self, path: str) -> int:
        """See ``Disk.modified_ms``."""
        return self.check(path).lookup(path).modified_ms

    def list_directory(self, path: str) -> list[str]:
        """See ``Disk.list_directory``."""
        return sorted(self.check(path).directory(path).names)

    def make_directories(self, path: str) -> None:
        """See ``Disk.make_directories``."""
        disk = self.check(path)
        current = "/"
        for part in _parts(path):
            parent = disk.directory(current)
            current = posixpath.join(current, part)
            found = parent.names.get(part)
            if found is None:
                parent.change({part: _Directory()})
                self.trace_write("mkdir", current, 0, 0)
            elif not isinstance(found, _Directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), current)

    def rename(self, source: str, target: str) -> None:
        """See ``Disk.rename``. Across directories it is two changes, each durable with its own directory."""
        disk = self.check(source)
        source_parent = disk.directory(posixpath.dirname(source))
        target_parent = disk.directory(posixpath.dirname(target))
        source_name, target_name = posixpath.basename(source), posixpath.basename(target)
        moved = source_parent.names.get(source_name)
        if moved is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        replaced = target_parent.names.get(target_name)
        if isinstance(replaced, _Directory) and replaced.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        if moved is replaced:
            return
        if isinstance(replaced, _Inode):
            self._used -= len(replaced.content)
        if source_parent is target_parent:
            source_parent.change({source_name: None, target_name: moved})
        else:
            target_parent.change({target_name: moved})
            source_parent.change({source_name: None})
        self.trace_write("rename", f"{source} {target}", 0, 0)

    def remove(self, path: str) -> None:
        """See ``Disk.remove``."""
        disk = self.check(path)
        found = disk.lookup(path)
        if isinstance(found, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        disk.directory(posixpath.dirname(path)).change({posixpath.basename(path): None})
        self._used -= len(found.content)
        self.trace_write("remove", path, 0, 0)

    def remove_tree(self, path: str) -> None:
        """See ``Disk.remove_tree``."""
        disk = self.check(path)
        if not self.exists(path):
            return
        found = disk.lookup(path)
        self._used -= _used_below(found) if isinstance(found, _Directory) else len(found.content)
        disk.directory(posixpath.dirname(path)).change({posixpath.basename(path): None})
        self.trace_write("remove", path, 0, 0)

    def sync_directory(self, path: str) -> None:
        """See ``Disk.sync_directory``."""
        self.check(path).directory(path).sync()
        self.trace_write("sync-names", path, 0, 0)

    def free_bytes(self, path: str) -> int:
        """See ``Disk.free_bytes``."""
        return max(0, self.check(path).profile.capacity_bytes - self._used)

    def lock(self, path: str) -> VirtualLock:
        """See ``Disk.lock``."""
        disk = self.check(path)
        self.open(path, OpenMode.WRITE).close()
        disk.take_lock(path, self)
        return VirtualLock(disk, path)

    async def offload(self, work: Callable[[], T]) -> T:
        """See ``Disk.offload``: the work is done at one instant after a drawn delay."""
        await trio.lowlevel.checkpoint_if_cancelled()
        disk = self.check("/")
        profile = disk.profile
        delay = profile.offload_delay_min + disk.random.expovariate(1.0) * profile.offload_delay_jitter
        if disk.random.random() < profile.stall_probability:
            delay += disk.random.uniform(0.0, profile.stall_max)
        with trio.CancelScope(shield=True, relative_deadline=delay) as scope:
            self._offloads[id(scope)] = scope
            try:
                await trio.sleep_forever()
            finally:
                del self._offloads[id(scope)]
        self.check("/")
        return work()
