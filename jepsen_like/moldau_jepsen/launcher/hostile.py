"""Wraps the disk and the clock of a node, so that its machine can fail.

The node runs the production server with other ports. Its disk keeps an undo journal of unsynced changes (``undo``), so
that a kill can become a loss of power. The control file (``control``) makes the disk full, failing or slow, and sets
rate and offset of the clock.
"""

from __future__ import annotations

import errno
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from moldau.runtime.ports.environment import Disk, Environment, File, Lock, OpenMode
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.launcher.control import CONTROL, ControlReader
from moldau_jepsen.launcher.undo import UndoJournal, compact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.values import Buffer
    from moldau_jepsen.launcher.control import Control

T = TypeVar("T")


def hostile_environment(directory: Path) -> Environment:
    """Compacts the journal in ``directory`` and returns the environment of the node to which it belongs.

    Raises:
        OSError: The harness has made no control file in ``directory``.
    """
    reader = ControlReader(directory / CONTROL)
    compact(directory)
    real = real_environment()
    disk = HostileDisk(real.disk, UndoJournal(directory), reader, random.Random())
    return replace(real, clock=SkewedClock(reader), disk=disk)


class SkewedClock:
    """The ``Clock`` port of a machine whose clocks are wrong."""

    __slots__ = ("_latest_ms", "_reader")

    def __init__(self, reader: ControlReader) -> None:
        """Follows the control file of ``reader``."""
        self._reader = reader
        self._latest_ms = float("-inf")

    def monotonic_ms(self) -> float:
        """See ``Clock.monotonic_ms``."""
        now = self._reader.read().monotonic_ms(time.monotonic() * 1000.0)
        self._latest_ms = max(self._latest_ms, now)
        return self._latest_ms

    def wall_ms(self) -> int:
        """See ``Clock.wall_ms``."""
        control = self._reader.read()
        real_ms = time.monotonic() * 1000.0
        drift_ms = control.monotonic_ms(real_ms) - real_ms
        return int(time.time_ns() // 1_000_000 + drift_ms + control.wall_offset_ms)

    def wall_ns(self) -> int:
        """See ``Clock.wall_ns``."""
        return self.wall_ms() * 1_000_000


class HostileFile:
    """The ``File`` port for writers; readers get the real file."""

    __slots__ = ("_disk", "_file", "_inode")

    def __init__(self, disk: HostileDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self._inode = os.fstat(file.fileno()).st_ino

    @property
    def path(self) -> str:
        """See ``File.path``."""
        return self._file.path

    @property
    def size(self) -> int:
        """See ``File.size``."""
        return self._file.size

    def append(self, buffers: Sequence[Buffer]) -> int:
        """See ``File.append``."""
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        self._disk.may_write(self.path)
        journal = self._disk.journal
        with journal.lock:
            size = self._file.size
            journal.add("w", self._inode, size, length, size, b"")
            return self._file.append(buffers)

    def write_at(self, position: int, buffer: Buffer) -> None:
        """See ``File.write_at``."""
        self._disk.may_write(self.path)
        journal = self._disk.journal
        with journal.lock:
            length = memoryview(buffer).nbytes
            before = self._file.read(position, length)
            journal.add("w", self._inode, position, length, self._file.size, before)
            self._file.write_at(position, buffer)

    def read_into(self, buffers: Sequence[memoryview], position: int) -> int:
        """See ``File.read_into``."""
        return self._file.read_into(buffers, position)

    def read(self, position: int, count: int) -> bytes:
        """See ``File.read``."""
        return self._file.read(position, count)

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        self._disk.may_change(self.path)
        journal = self._disk.journal
        with journal.lock:
            before = self._file.size
            if 0 <= size < before:
                journal.add("t", self._inode, size, before, self._file.read(size, before - size))
            self._file.truncate(size)

    def preallocate(self, size: int) -> None:
        """See ``File.preallocate``."""
        if size > self._file.size:
            self._disk.may_write(self.path)
        self._file.preallocate(size)

    def sync(self) -> None:
        """See ``File.sync``."""
        journal = self._disk.journal
        with journal.lock:
            at = journal.position
        try:
            self._disk.may_sync(self.path)
            self._file.sync()
        except OSError:
            with journal.lock:
                journal.add("f", self._inode, at)
            raise
        with journal.lock:
            journal.add("s", self._inode, at)

    def fileno(self) -> int:
        """See ``File.fileno``."""
        return self._file.fileno()

    def close(self) -> None:
        """See ``File.close``."""
        self._file.close()


class HostileDisk:
    """The ``Disk`` port: the real disk with an undo journal and injected errors."""

    __slots__ = ("_disk", "_draw", "_reader", "_removed", "journal")

    def __init__(self, disk: Disk, journal: UndoJournal, reader: ControlReader, draw: random.Random) -> None:
        """``draw`` decides which writes and syncs fail."""
        self._disk = disk
        self._reader = reader
        self._draw = draw
        self._removed: dict[int, list[tuple[int, Path]]] = {}  # per directory: position in the journal, path in trash
        self.journal = journal

    # -- injected errors -----------------------------------------------------------------------------------------------

    def may_write(self, path: str) -> None:
        """Blocks, and fails a write with the error, as the control file demands."""
        control = self._reader.read()
        if control.write_delay_ms > 0:
            time.sleep(control.write_delay_ms / 1000)
        if control.disk_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._fail(control.write_error_share, path)

    def may_change(self, path: str) -> None:
        """Fails a change that needs no space (a name, a smaller size) with the error that the control file demands."""
        self._fail(self._reader.read().write_error_share, path)

    def may_sync(self, path: str) -> None:
        """Waits, and raises the error, as the control file demands for a sync."""
        control: Control = self._reader.read()
        if control.sync_delay_ms > 0:
            time.sleep(control.sync_delay_ms / 1000)
        self._fail(control.sync_error_share, path)

    def _fail(self, share: float, path: str) -> None:
        if share > 0 and self._draw.random() < share:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    # -- files ---------------------------------------------------------------------------------------------------------

    def open(self, path: str, mode: OpenMode) -> File:
        """See ``Disk.open``."""
        if mode is OpenMode.READ:
            return self._disk.open(path, mode)
        if not self._disk.exists(path):
            self.may_write(path)
        with self.journal.lock:
            existed = self._disk.exists(path)
            file = self._disk.open(path, mode)
            if not existed:
                # The entry follows the action. A crash in between leaves an empty file, which a real crash may leave
                # too.
                inode = os.fstat(file.fileno()).st_ino
                self.journal.add("n", _parent(path), _name(path), 0, inode)
            return HostileFile(self, file)

    def open_files_max(self) -> int:
        """See ``Disk.open_files_max``."""
        return self._disk.open_files_max()

    def exists(self, path: str) -> bool:
        """See ``Disk.exists``."""
        return self._disk.exists(path)

    def is_directory(self, path: str) -> bool:
        """See ``Disk.is_directory``."""
        return self._disk.is_directory(path)

    def file_size(self, path: str) -> int:
        """See ``Disk.file_size``."""
        return self._disk.file_size(path)

    def modified_ms(self, path: str) -> int:
        """See ``Disk.modified_ms``."""
        return self._disk.modified_ms(path)

    def set_modified_ms(self, path: str, wall_ms: int) -> None:
        """See ``Disk.set_modified_ms``."""
        self._disk.set_modified_ms(path, wall_ms)

    def list_directory(self, path: str) -> list[str]:
        """See ``Disk.list_directory``."""
        return self._disk.list_directory(path)

    # -- names ---------------------------------------------------------------------------------------------------------

    def make_directories(self, path: str) -> None:
        """See ``Disk.make_directories``."""
        if not self._disk.exists(path):
            self.may_write(path)
        with self.journal.lock:
            missing = []  # only now: another thread may have made them meanwhile, and synced them
            current = path
            while not self._disk.exists(current):
                missing.append(current)
                current = str(Path(current).parent)
            for each in reversed(missing):
                self._disk.make_directories(each)
                self.journal.add("n", _parent(each), _name(each), 0, os.lstat(each).st_ino)
            self._disk.make_directories(path)

    def make_directory(self, path: str) -> None:
        """See ``Disk.make_directory``."""
        if self._disk.exists(path) or not self._disk.exists(str(Path(path).parent)):
            self._disk.make_directory(path)  # Changes nothing, or raises the error of the port's contract.
        else:
            self.make_directories(path)

    def rename(self, source: str, target: str) -> None:
        """See ``Disk.rename``."""
        self.may_change(source)
        with self.journal.lock:
            inode = os.lstat(source).st_ino
            replaced = self._keep(target)
            self.journal.add("r", _parent(source), _name(source), _parent(target), _name(target), inode, replaced)
            self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        """See ``Disk.remove``."""
        if self._disk.is_directory(path):
            self._disk.remove(path)  # Raises the error of the port's contract.
        self.may_change(path)
        with self.journal.lock:
            inode = self._keep(path)
            self.journal.add("n", _parent(path), _name(path), inode, 0)
            self._disk.remove(path)

    def remove_directory(self, path: str) -> None:
        """See ``Disk.remove_directory``."""
        if self._disk.list_directory(path):
            self._disk.remove_directory(path)  # Raises the error of the port's contract.
        self.remove_tree(path)

    def remove_tree(self, path: str) -> None:
        """See ``Disk.remove_tree``; the tree stays in the trash until its removal is durable."""
        if not self._disk.exists(path):
            return
        self.may_change(path)
        with self.journal.lock:
            inode = os.lstat(path).st_ino
            kept = self.journal.trash / str(inode)
            self._removed.setdefault(_parent(path), []).append((self.journal.position, kept))
            self.journal.add("n", _parent(path), _name(path), inode, 0)
            os.replace(path, kept)

    def _keep(self, path: str) -> int:
        """Moves the file of that name to the trash; returns its inode, 0 if there is no file."""
        if not self._disk.exists(path) or self._disk.is_directory(path):
            return 0
        inode = os.lstat(path).st_ino
        kept = self.journal.trash / str(inode)
        if not kept.exists():
            os.link(path, kept)
            self._removed.setdefault(_parent(path), []).append((self.journal.position, kept))
        return inode

    def sync_directory(self, path: str) -> None:
        """See ``Disk.sync_directory``."""
        inode = os.stat(path).st_ino
        with self.journal.lock:
            at = self.journal.position
        self.may_sync(path)
        self._disk.sync_directory(path)
        with self.journal.lock:
            self.journal.add("d", inode, at)
            waiting = self._removed.pop(inode, [])
            self._removed[inode] = [entry for entry in waiting if entry[0] >= at]
        for position, kept in waiting:
            if position < at:
                self._empty(kept)

    def _empty(self, kept: Path) -> None:
        if self._disk.is_directory(str(kept)):
            self._disk.remove_tree(str(kept))
        elif self._disk.exists(str(kept)):
            self._disk.remove(str(kept))

    def free_bytes(self, path: str) -> int:
        """See ``Disk.free_bytes``."""
        return 0 if self._reader.read().disk_full else self._disk.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        """See ``Disk.total_bytes``."""
        return self._disk.total_bytes(path)

    def lock(self, path: str) -> Lock:
        """See ``Disk.lock``; the lock file is not in the journal, because its loss would have no effect."""
        return self._disk.lock(path)

    async def offload(self, work: Callable[[], T], *, abandons: bool = False) -> T:
        """See ``Disk.offload``."""
        return await self._disk.offload(work, abandons=abandons)


def _parent(path: str) -> int:
    return os.stat(os.path.dirname(path)).st_ino


def _name(path: str) -> str:
    return os.path.basename(path)
