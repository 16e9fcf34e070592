"""Models the current and the durable content of a machine's disk, and the effect of a power loss.

A file has its current content, which readers see, and its durable content; pages written since the last ``sync`` are
pending. A directory has its current and its durable names; changes of names are pending, in order, until
``sync_directory``. ``lose_power`` decides by seed for each pending page whether it is durable, lost, or torn, and for
each directory how many of its pending changes (from the oldest) are durable. Renames are atomic.

After a failed ``sync`` its pages count as clean, as on Linux, although some are not durable. They can be read, no later
sync writes them, and a loss of power removes them unless they are written again. Names whose sync fails stay pending: a
later sync may make them durable.

A killed process loses no write, because its writes are in the page cache. It loses only its handles.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from moldau_jepsen.world.disk.disk_profile import DiskFaultKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_jepsen.world.disk.disk import NodeDisk
    from moldau_jepsen.world.disk.disk_profile import DiskProfile
    from moldau_jepsen.world.time.clocks import NodeClock
    from moldau_jepsen.world.trace import Trace

PAGE_BYTES = 4096
SECTOR_BYTES = 512
ARRIVED_SHARE = 0.3
"""Share of the pages of a failed sync that are durable nevertheless."""


@dataclass(slots=True)
class Inode:
    """A file. Invariant: pages neither in ``pending`` nor in ``unwritten`` are equal in ``content`` and ``durable``."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: dict[int, None] = field(default_factory=dict)  # numbers of pages written since the last sync
    unwritten: dict[int, None] = field(default_factory=dict)  # pages that a failed sync took from the pending ones
    size_min: int | None = None  # the smallest size since the last sync; None: never smaller than it was or is
    modified_ms: int = 0
    rotten: bool = False  # damaged by bit rot
    removed: bool = False  # no name leads to it: only handles that are open

    def touch(self, start: int, end: int) -> None:
        for page in range(start // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES):
            self.pending[page] = None
            if self.unwritten:
                self.unwritten.pop(page, None)

    def cut(self, size: int) -> None:
        """Cuts the content to ``size`` bytes."""
        before = len(self.content)
        del self.content[size:]
        self.touch(size, before)
        self.size_min = size if self.size_min is None else min(size, self.size_min)

    def sync(self) -> None:
        for page in sorted(self.pending):
            self._arrive(page)
        del self.durable[len(self.content) :]
        self.durable.extend(bytes(len(self.content) - len(self.durable)))  # zeros below pages that no later sync writes
        self.pending.clear()
        self.size_min = None

    def _arrive(self, page: int) -> None:
        start = page * PAGE_BYTES
        if start > len(self.durable):
            self.durable.extend(bytes(start - len(self.durable)))  # blocks that were never written read as zeros
        self.durable[start : start + PAGE_BYTES] = self.content[start : start + PAGE_BYTES]

    def fail_sync(self, random: random.Random) -> None:
        """Fails to write some of the pending pages, at least one; afterwards none is pending."""
        pages = sorted(self.pending)
        refused = random.choice(pages) if pages else -1
        for page in pages:
            if page != refused and random.random() < ARRIVED_SHARE:
                self._arrive(page)
            else:
                self.unwritten[page] = None
        self.pending.clear()

    def lose_power(self, random: random.Random) -> int:
        """Decides which pages of a file with a name are durable; returns the number of pages that are lost or torn."""
        self.removed = False
        if not self.pending and not self.unwritten and len(self.content) == len(self.durable):
            return 0
        sizes = [len(self.durable), len(self.content)]
        if self.size_min is not None and self.size_min < min(sizes):
            sizes.append(self.size_min)
        size = random.choice((*sizes, random.randint(min(sizes), max(sizes))))
        found = bytearray(self.durable[:size])
        found.extend(bytes(size - len(found)))
        lost = len(self.unwritten)
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
        self.unwritten.clear()
        self.size_min = None
        return lost


class Directory:
    """The entries of a directory by name. Invariant: ``changes`` lead from ``durable`` to ``names``."""

    __slots__ = ("changes", "durable", "modified_ms", "names")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.changes: list[dict[str, Inode | Directory | None]] = []  # name to its new meaning, None: removed
        self.modified_ms = 0

    def change(self, change: dict[str, Inode | Directory | None]) -> None:
        """Applies a change; its names become durable all together."""
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


def _apply(names: dict[str, Inode | Directory], change: dict[str, Inode | Directory | None]) -> None:
    for name, meaning in change.items():
        if meaning is None:
            names.pop(name, None)
        else:
            names[name] = meaning


def _never() -> bool:
    return False


def _stream_beside(stream: random.Random) -> random.Random:
    """Returns another stream of the same seed; takes no draw from the given one."""
    copied = random.Random()
    copied.setstate(stream.getstate())
    return random.Random(copied.getrandbits(128))


_ERRNOS = {DiskFaultKind.FULL: errno.ENOSPC, DiskFaultKind.DESCRIPTORS: errno.EMFILE}


class VirtualDisk:
    """The durable state and the page cache of one machine; outlives the processes on it."""

    __slots__ = ("_locks", "_root", "apart", "clock", "is_watched", "name", "profile", "random", "trace")

    def __init__(self, name: str, random: random.Random, trace: Trace, profile: DiskProfile) -> None:
        """Makes an empty disk."""
        self.name = name
        self.random = random
        self.apart = _stream_beside(random)
        """Stream for rare draws and for draws that were added later, which must not change the draws of ``random``."""
        self.trace = trace
        self.profile = profile
        self.clock: NodeClock | None = None
        self.is_watched: Callable[[], bool] = _never
        """Whether an observer reads now: its reads neither fail nor draw random numbers."""
        self._root = Directory()
        self._locks: dict[str, NodeDisk] = {}

    def now_ms(self) -> int:
        """Returns the wall-clock time of the machine, for modification times."""
        return self.clock.wall_ms() if self.clock is not None else 0

    def report(self, hit: DiskFaultKind, path: str) -> None:
        """Reports a failed or delayed operation of the machine's process."""
        if not self.is_watched():
            self.profile.report(hit, path)

    def error(self, hit: DiskFaultKind, path: str, *what: str) -> OSError:
        """Reports an operation that fails; returns the error to raise."""
        self.report(hit, path)
        number = _ERRNOS.get(hit, errno.EIO)
        self.trace.note("disk-full" if hit is DiskFaultKind.FULL else "disk-error", self.name, *what, path)
        return OSError(number, os.strerror(number), path)

    def read_fails(self, path: str) -> bool:
        """Draws whether a read of ``path`` fails now."""
        if self.is_watched():
            return False
        probability = self.profile.read_error_of(path)
        return probability > 0.0 and self.random.random() < probability

    def lose_power(self) -> None:
        """Decides by seed which pending writes are durable; removes the others."""
        pages, names = self._lose_power_below(self._root)
        self._locks.clear()
        self.trace.event("power-loss", self.name, pages, names)

    def _lose_power_below(self, directory: Directory) -> tuple[int, int]:
        names = directory.lose_power(self.random)
        pages = 0
        for name in sorted(directory.names):
            child = directory.names[name]
            if isinstance(child, Directory):
                below = self._lose_power_below(child)
                pages, names = pages + below[0], names + below[1]
            else:
                pages += child.lose_power(self.random)
        return pages, names

    def release_locks(self, owner: NodeDisk) -> None:
        """Releases the locks of a process that has ended."""
        for path in [path for path, holder in self._locks.items() if holder is owner]:
            del self._locks[path]

    def take_lock(self, path: str, owner: NodeDisk) -> None:
        """Takes a lock.

        Raises:
            BlockingIOError: Another process holds the lock.
        """
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "the lock is held", path)
        self._locks[path] = owner

    def give_lock_back(self, path: str, owner: NodeDisk) -> None:
        """Releases a lock, unless its process has ended: another one may hold it since."""
        if self._locks.get(path) is owner:
            del self._locks[path]

    def used_bytes(self) -> int:
        """Returns the total size of all files in bytes."""
        return used_below(self._root)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Flips one bit of the current and of the durable content (bit rot)."""
        inode = self._file(path)
        inode.content[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit
        inode.rotten = True
        self.trace.note("bit-rot", self.name, path, f"bit {bit} of byte {position} flipped")

    def cut_short(self, path: str, size: int) -> None:
        """Cuts the end off the current and the durable content of a file."""
        inode = self._file(path)
        assert 0 <= size < len(inode.content), "something is cut"
        del inode.content[size:]
        del inode.durable[size:]
        inode.rotten = True
        self.trace.note("bit-rot", self.name, path, f"cut to {size} bytes")

    def forget(self, path: str) -> None:
        """Removes a file or directory from the current and the durable names."""
        self.lookup(path)
        parent, name = self.directory(posixpath.dirname(path)), posixpath.basename(path)
        parent.names.pop(name)
        parent.durable.pop(name, None)
        for change in parent.changes:
            change.pop(name, None)
        self.trace.note("bit-rot", self.name, path, "gone")

    def replace(self, paths: Sequence[str]) -> None:
        """Replaces the devices of these directories by empty ones. No process may use them."""
        for path in paths:
            directory = self.directory(path)
            directory.names.clear()
            directory.sync()
        self.trace.note("new-disk", self.name, *paths)

    def _file(self, path: str) -> Inode:
        inode = self.lookup(path)
        if not isinstance(inode, Inode):
            raise IsADirectoryError(errno.EISDIR, "is a directory", path)
        return inode

    def size(self, path: str) -> int:
        """Returns the size of a file in bytes; errors are those of ``lookup``."""
        return len(self._file(path).content)

    def files(self, path: str = "/") -> list[str]:
        """Returns the paths of all files below a directory, sorted."""
        directory = self.lookup(path)
        assert isinstance(directory, Directory), f"{path} is no directory"
        found: list[str] = []
        for name in sorted(directory.names):
            below = posixpath.join(path, name)
            if isinstance(directory.names[name], Directory):
                found.extend(self.files(below))
            else:
                found.append(below)
        return found

    # --- the tree

    def lookup(self, path: str) -> Inode | Directory:
        """Returns the file or directory at a path.

        Raises:
            FileNotFoundError: There is no such name.
            NotADirectoryError: A part of the path is not a directory.
        """
        found: Inode | Directory = self._root
        for part in parts_of(path):
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            below = found.names.get(part)
            if below is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            found = below
        return found

    def directory(self, path: str) -> Directory:
        """Returns the directory at a path; errors are those of ``lookup``."""
        found = self.lookup(path)
        if not isinstance(found, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return found


@lru_cache(4096)  # the same few paths are looked up all the time
def parts_of(path: str) -> tuple[str, ...]:
    if not path.startswith("/"):
        raise ValueError(f"path {path!r} is relative: the Disk port takes absolute paths only")
    return tuple(part for part in posixpath.normpath(path).split("/") if part)


def used_below(directory: Directory) -> int:
    total = 0
    for child in directory.names.values():
        total += used_below(child) if isinstance(child, Directory) else len(child.content)
    return total
