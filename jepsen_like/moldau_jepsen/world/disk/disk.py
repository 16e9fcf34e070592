"""Implements the ``Disk`` port of a simulated machine, with crash points and injected faults.

``NodeDisk`` is the port of one process of a node: once it is frozen all its calls raise, so that code that is being
cancelled cannot write any more. ``virtual_disk`` holds the files and names, ``disk_profile`` the model of faults.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.runtime.ports.environment import OpenMode
from moldau_jepsen.world.disk.disk_profile import DiskFaultKind
from moldau_jepsen.world.disk.virtual_disk import Directory, Inode, VirtualDisk, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.values import Buffer

T = TypeVar("T")

CRASHED_TEXT = "has crashed"
"""A part of the text of every error that a dead process gets."""
HANG_LOOK_SECONDS = 0.05
"""Time after which work on a hanging disk looks whether the fault has ended."""


class VirtualFile:
    """The ``File`` port."""

    __slots__ = ("_closed", "_disk", "_inode", "_path", "_writable")

    def __init__(self, disk: NodeDisk, path: str, inode: Inode, *, writable: bool) -> None:
        """Is called by ``NodeDisk.open`` only."""
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable
        self._closed = False
        disk.open_files += 1

    @property
    def path(self) -> str:
        """Returns the path that was opened."""
        return self._path

    @property
    def size(self) -> int:
        """Returns the size of the content in bytes."""
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
            self._put_what_fits(position, data[: disk.random.randint(0, len(data))])
            raise disk.error(DiskFaultKind.WRITE, self._path, "write")
        growth = position + len(data) - self.size
        if growth > 0 and growth > self._disk.room(self._path):
            self._put_what_fits(position, data)
            raise disk.error(DiskFaultKind.FULL, self._path)
        self._put(position, data)
        self._disk.trace_write("write", self._path, position, len(data))
        return self.size

    def _put_what_fits(self, position: int, data: bytes) -> None:
        self._put(position, data[: max(0, self.size + self._disk.room(self._path) - position)])

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
        self._disk.grown(inode, len(inode.content) - before)

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
        if disk.profile.read_error_probability and disk.read_fails(self._path):
            raise disk.error(DiskFaultKind.READ, self._path, "read")
        if self._inode.rotten and disk.is_watched():
            raise OSError(errno.EIO, "an observer does not judge what has rotted", self._path)

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        self._check(write=True)
        self._disk.may_change("truncate", self._path)
        before = self.size
        if not 0 <= size <= before:
            raise ValueError(f"{self._path}: cannot truncate to {size}, the content has {before} bytes")
        self._inode.cut(size)
        self._inode.modified_ms = self._disk.now_ms()
        self._disk.grown(self._inode, size - before)
        self._disk.trace_write("truncate", self._path, size, before)

    def preallocate(self, size: int) -> None:
        """See ``File.preallocate``: space is checked, nothing is reserved."""
        disk = self._check(write=True)
        if size > self.size:
            self._disk.may_change("preallocate", self._path)
            if size - self.size > self._disk.room(self._path):
                raise disk.error(DiskFaultKind.FULL, self._path)

    def sync(self) -> None:
        """See ``File.sync``."""
        disk = self._check(write=True)
        if disk.random.random() < disk.profile.sync_error_probability:
            self._inode.fail_sync(disk.apart)
            raise disk.error(DiskFaultKind.SYNC, self._path, "sync")
        self._inode.sync()
        self._disk.trace_write("sync", self._path, self.size, 0)
        _note_hang(self._disk, disk, self._path)

    def fileno(self) -> int:
        """Refuses, because a virtual file has no descriptor.

        Raises:
            io.UnsupportedOperation: Always.
        """
        raise io.UnsupportedOperation("a virtual file has no descriptor")

    def close(self) -> None:
        """See ``File.close``."""
        if not self._closed:
            self._closed = True
            self._disk.open_files -= 1


class VirtualLock:
    """The ``Lock`` port."""

    __slots__ = ("_disk", "_held", "_owner", "_path")

    def __init__(self, disk: VirtualDisk, path: str, owner: NodeDisk) -> None:
        """Takes over a lock that ``owner`` holds."""
        self._disk = disk
        self._path = path
        self._owner = owner
        self._held = True

    def release(self) -> None:
        """See ``Lock.release``."""
        if self._held:
            self._held = False
            self._disk.give_lock_back(self._path, self._owner)


class NodeDisk:
    """The ``Disk`` port of one incarnation of a node."""

    __slots__ = (
        "_crash_after",
        "_crash_after_truncation",
        "_disk",
        "_offloads",
        "_on_crash_point",
        "_used",
        "frozen",
        "has_spare",
        "hung_path",
        "open_files",
    )

    def __init__(self, disk: VirtualDisk) -> None:
        """Makes the port of a new process."""
        self._disk = disk
        self.frozen = False
        self.open_files = 0
        self.has_spare = False  # a descriptor for lists and syncs of directories, kept from the first one on
        self.hung_path = ""
        self._offloads: dict[int, trio.CancelScope] = {}
        self._used = disk.used_bytes()
        self._crash_after = 0
        self._crash_after_truncation: int | None = None
        self._on_crash_point: Callable[[], None] | None = None

    def freeze(self) -> None:
        """Makes every later call raise, and drops offloaded work that has not been done: the process is dead."""
        self.frozen = True
        self._disk.release_locks(self)
        for scope in self._offloads.values():
            scope.cancel()

    def crash_after_writes(self, count: int, crash: Callable[[], None]) -> None:
        """Calls ``crash()`` just after the ``count``-th write, truncate, rename, remove or sync from now."""
        assert count >= 1, "the first write to come is number 1"
        self._crash_after = count
        self._crash_after_truncation = None
        self._on_crash_point = crash

    def crash_after_truncation(self, count: int, crash: Callable[[], None]) -> None:
        """Calls ``crash()`` just after ``count`` changes that follow the next truncation which shortens a file."""
        self._crash_after = 0
        self._crash_after_truncation = count
        self._on_crash_point = crash

    def forget_crash_point(self) -> None:
        """Cancels every crash point unless the crash has happened."""
        self._crash_after = 0
        self._crash_after_truncation = None
        self._on_crash_point = None

    def check(self, path: str) -> VirtualDisk:
        """Returns the disk for a call on a path.

        Raises:
            OSError: the process is dead, or the device of the path fails.
        """
        if self.frozen:
            raise OSError(errno.EIO, f"{self._disk.name} {CRASHED_TEXT}", path)
        profile = self._disk.profile
        if profile.failing_paths and profile.is_failing(path):
            raise self._disk.error(DiskFaultKind.DEVICE, path, "device")
        return self._disk

    def may_change(self, what: str, path: str) -> None:
        """Fails a change of names or sizes with EIO if a fault demands it, before anything has changed."""
        disk = self._disk
        probability = disk.profile.write_error_probability
        if probability and disk.apart.random() < probability:
            raise disk.error(DiskFaultKind.WRITE, path, what)

    def _may_add(self, what: str, path: str) -> None:
        """Checks like ``may_change`` for a new name, which also needs some space."""
        self.may_change(what, path)
        if self.room(path) <= 0:
            raise self._disk.error(DiskFaultKind.FULL, path)

    def room(self, path: str) -> int:
        """Returns the number of bytes that can still be written to ``path``."""
        profile = self._disk.profile
        return 0 if profile.full_paths and profile.is_full(path) else self.free_bytes("/")

    def now_ms(self) -> int:
        """Returns the wall-clock time of the machine."""
        return self._disk.now_ms()

    def grown(self, inode: Inode, count: int) -> None:
        """Counts ``count`` bytes by which a file has grown; its removal has freed all space of a removed one."""
        if not inode.removed:
            self._used += count

    def trace_write(self, kind: str, path: str, position: int, count: int) -> None:
        """Adds a write to the trace."""
        self._disk.trace.event(kind, self._disk.name, path, position, count)
        if self._crash_after_truncation is not None and kind == "truncate" and position < count:
            self._crash_after, self._crash_after_truncation = 1 + self._crash_after_truncation, None
        self._count_write()

    def _count_write(self) -> None:
        if self._crash_after:
            self._crash_after -= 1
            if self._crash_after == 0 and self._on_crash_point is not None:
                self._on_crash_point()

    def open(self, path: str, mode: OpenMode) -> VirtualFile:
        """See ``Disk.open``."""
        disk = self.check(path)
        _need_descriptor(self, disk, "open", path)
        parent = disk.directory(posixpath.dirname(path))
        name = posixpath.basename(path)
        found = parent.names.get(name)
        if isinstance(found, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if found is None:
            if mode is OpenMode.READ:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self._may_add("create", path)
            found = Inode(modified_ms=disk.now_ms())
            parent.change({name: found})
            self.trace_write("create", path, 0, 0)
        elif mode is OpenMode.CREATE:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return VirtualFile(self, path, found, writable=mode is not OpenMode.READ)

    def exists(self, path: str) -> bool:
        """See ``Disk.exists``; as on a real disk, it finds nothing on a failed device."""
        if not self.frozen and self._disk.profile.is_failing(path):
            self._disk.report(DiskFaultKind.DEVICE, path)
            return False
        disk = self.check(path)
        try:
            disk.lookup(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_directory(self, path: str) -> bool:
        """See ``Disk.is_directory``."""
        return self.exists(path) and isinstance(self.check(path).lookup(path), Directory)

    def file_size(self, path: str) -> int:
        """See ``Disk.file_size``."""
        found = self.check(path).lookup(path)
        return len(found.content) if isinstance(found, Inode) else 0

    def modified_ms(self, path: str) -> int:
        """See ``Disk.modified_ms``."""
        return self.check(path).lookup(path).modified_ms

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        """See ``Disk.set_modified_ms``."""
        self.check(path).lookup(path).modified_ms = wall_ms

    def list_directory(self, path: str) -> list[str]:
        """See ``Disk.list_directory``."""
        disk = self.check(path)
        directory = disk.directory(path)
        _need_spare(self, disk, "list", path)
        return sorted(directory.names)

    def make_directories(self, path: str) -> None:
        """See ``Disk.make_directories``."""
        disk = self.check(path)
        current = "/"
        for part in parts_of(path):
            parent = disk.directory(current)
            current = posixpath.join(current, part)
            found = parent.names.get(part)
            if found is None:
                self._may_add("mkdir", current)
                parent.change({part: Directory()})
                self.trace_write("mkdir", current, 0, 0)
            elif not isinstance(found, Directory):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), current)

    def make_directory(self, path: str) -> None:
        """See ``Disk.make_directory``."""
        self.check(path).directory(posixpath.dirname(path))
        self.make_directories(path)

    def rename(self, source: str, target: str) -> None:
        """See ``Disk.rename``. Between directories it is two changes, each durable with its own directory."""
        disk = self.check(source)
        source_parent = disk.directory(posixpath.dirname(source))
        target_parent = disk.directory(posixpath.dirname(target))
        source_name, target_name = posixpath.basename(source), posixpath.basename(target)
        moved = source_parent.names.get(source_name)
        if moved is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        replaced = target_parent.names.get(target_name)
        if moved is replaced:
            return
        number = _rename_refusal(source, moved, target, replaced)
        if number:
            raise OSError(number, os.strerror(number), source, None, target)
        self.may_change("rename", source)
        if isinstance(replaced, Inode):
            self._free(replaced)
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
        if isinstance(found, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self._unlink(disk.directory(posixpath.dirname(path)), path)

    def _unlink(self, parent: Directory, path: str) -> None:
        self.may_change("remove", path)
        name = posixpath.basename(path)
        found = parent.names[name]
        parent.change({name: None})
        if isinstance(found, Inode):
            self._free(found)
        self.trace_write("remove", path, 0, 0)

    def _free(self, inode: Inode) -> None:
        self._used -= len(inode.content)
        inode.removed = True

    def remove_directory(self, path: str) -> None:
        """See ``Disk.remove_directory``."""
        disk = self.check(path)
        found = disk.directory(path)
        if found.names:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        self._unlink(disk.directory(posixpath.dirname(path)), path)

    def remove_tree(self, path: str) -> None:
        """See ``Disk.remove_tree``; entries are removed one by one, leaves first, so a crash or error leaves some.

        Each directory is open while its entries are removed, and to list them takes one more descriptor.
        """
        disk = self.check(path)
        if not self.exists(path):
            return
        found = disk.directory(path)
        _need_descriptor(self, disk, "remove", path)
        self.open_files += 1
        try:
            _need_descriptor(self, disk, "list", path)
            for name, child in sorted(found.names.items()):
                below = posixpath.join(path, name)
                if isinstance(child, Directory):
                    self.remove_tree(below)
                else:
                    self.remove(below)
        finally:
            self.open_files -= 1
        self.check(path)
        self._unlink(disk.directory(posixpath.dirname(path)), path)

    def sync_directory(self, path: str) -> None:
        """See ``Disk.sync_directory``."""
        disk = self.check(path)
        directory = disk.directory(path)
        _need_spare(self, disk, "sync-names", path)
        probability = disk.profile.sync_error_probability
        if probability and disk.apart.random() < probability:
            raise disk.error(DiskFaultKind.SYNC, path, "sync-names")
        directory.sync()
        self.trace_write("sync-names", path, 0, 0)
        _note_hang(self, disk, path)

    def free_bytes(self, path: str) -> int:
        """See ``Disk.free_bytes``."""
        return max(0, self.check(path).profile.capacity_bytes - self._used)

    def total_bytes(self, path: str) -> int:
        """See ``Disk.total_bytes``."""
        return self.check(path).profile.capacity_bytes

    def open_files_max(self) -> int:
        """See ``Disk.open_files_max``; connections are not counted here."""
        return self._disk.profile.open_files_max

    def lock(self, path: str) -> VirtualLock:
        """See ``Disk.lock``."""
        disk = self.check(path)
        self.open(path, OpenMode.WRITE).close()
        disk.take_lock(path, self)
        return VirtualLock(disk, path, self)

    async def offload(self, work: Callable[[], T], *, abandons: bool = False) -> T:
        """See ``Disk.offload``; the work is done at one instant of a drawn delay: its beginning, its end or between.

        So syncs of the work do not cover writes after that instant, although the call has not returned yet, and a
        process may be killed when the work is done and the call has not returned. Where the disk hangs, the call of
        work that syncs does not return before the fault ends, although the medium has everything.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        disk = self.check("/")
        profile = disk.profile
        delay = profile.offload_delay_min + disk.random.expovariate(1.0) * profile.offload_delay_jitter
        if disk.random.random() < profile.stall_probability:
            delay += disk.random.uniform(0.0, profile.stall_max)
        if profile.troubles:
            disk.report(DiskFaultKind.SLOWED, "/")
        before = delay * min(1.0, max(0.0, disk.apart.uniform(-1.0, 2.0)))
        await self._pass_time(before)
        self.check("/")
        self.hung_path = ""
        try:
            return work()
        finally:
            hung_path = self.hung_path
            if not self.frozen:
                await self._pass_time(delay - before)
            while hung_path and not self.frozen and profile.is_hanging(hung_path):
                await self._pass_time(HANG_LOOK_SECONDS, shield=not abandons)
            self.check("/")  # A dead process must not receive the result.

    async def _pass_time(self, seconds: float, *, shield: bool = True) -> None:
        if seconds <= 0.0:
            return
        with trio.CancelScope(shield=shield, relative_deadline=seconds) as scope:
            self._offloads[id(scope)] = scope
            try:
                await trio.sleep_forever()
            finally:
                del self._offloads[id(scope)]


def _need_descriptor(port: NodeDisk, disk: VirtualDisk, what: str, path: str) -> None:
    if port.open_files >= disk.profile.open_files_max:
        raise disk.error(DiskFaultKind.DESCRIPTORS, path, what)


def _need_spare(port: NodeDisk, disk: VirtualDisk, what: str, path: str) -> None:
    if not port.has_spare:
        _need_descriptor(port, disk, what, path)
        port.has_spare = True


def _rename_refusal(source: str, moved: Inode | Directory, target: str, replaced: Inode | Directory | None) -> int:
    """Returns the error number with which rename(2) refuses; 0 if it does not."""
    if isinstance(moved, Inode):
        return errno.EISDIR if isinstance(replaced, Directory) else 0
    if parts_of(target)[: len(parts_of(source))] == parts_of(source):
        return errno.EINVAL  # into itself
    if isinstance(replaced, Inode):
        return errno.ENOTDIR
    return errno.ENOTEMPTY if replaced is not None and replaced.names else 0


def _note_hang(port: NodeDisk, disk: VirtualDisk, path: str) -> None:
    """Keeps the offloaded work that syncs ``path`` from returning while the disk below it hangs."""
    if disk.profile.is_hanging(path):
        port.hung_path = path
        disk.report(DiskFaultKind.HANG, path)
