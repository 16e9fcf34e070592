"""What is on the disk of one machine: what was written, what is durable, and what a power loss makes of the difference.

A file has its content as readers see it and its content on the platters; pages written since the last ``sync`` are
pending. Directories have the names as they are now and as they are on the platters; changes of names are pending, in
order, until ``sync_directory``. ``lose_power`` decides by seed, page by page, whether a pending page arrived, did not,
or was torn, and for each directory how many of its pending changes (from the oldest) arrived. Renames are atomic.

A ``sync`` that fails is the last word on the pages it was to write: as Linux does, they count as written from then on,
though some are not on the platters. They can be read, no later sync writes them, and a loss of power takes them, unless
they have been written again. Names whose sync fails stay pending: a later sync may make them durable.

A process that is killed loses nothing that it wrote: its writes are in the page cache. It loses only its handles.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau_jepsen.simulation.disk_profile import Hit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau_jepsen.simulation.clocks import NodeClock
    from moldau_jepsen.simulation.disk import NodeDisk
    from moldau_jepsen.simulation.disk_profile import DiskProfile
    from moldau_jepsen.simulation.trace import Trace

PAGE_BYTES = 4096
SECTOR_BYTES = 512
ARRIVED_SHARE = 0.3
"""Share of the pages of a sync that fails which are on the platters all the same."""


@dataclass(slots=True)
class Inode:
    """A file. Invariant: pages neither in ``pending`` nor in ``unwritten`` are equal in ``content`` and ``durable``."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: dict[int, None] = field(default_factory=dict)  # numbers of pages written since the last sync
    unwritten: dict[int, None] = field(default_factory=dict)  # pages that a failed sync took from the pending ones
    size_min: int | None = None  # the smallest size since the last sync; None: never smaller than it was or is
    modified_ms: int = 0
    rotten: bool = False  # damaged unnoticed

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
        self.durable.extend(bytes(len(self.content) - len(self.durable)))  # under what no sync writes any more
        self.pending.clear()
        self.size_min = None

    def _arrive(self, page: int) -> None:
        start = page * PAGE_BYTES
        if start > len(self.durable):
            self.durable.extend(bytes(start - len(self.durable)))  # blocks that were never written read as zeros
        self.durable[start : start + PAGE_BYTES] = self.content[start : start + PAGE_BYTES]

    def fail_sync(self, random: random.Random) -> None:
        """The device refuses some of the pending pages, at least one of those there are; none is pending any more."""
        pages = sorted(self.pending)
        refused = random.choice(pages) if pages else -1
        for page in pages:
            if page != refused and random.random() < ARRIVED_SHARE:
                self._arrive(page)
            else:
                self.unwritten[page] = None
        self.pending.clear()

    def lose_power(self, random: random.Random) -> int:
        """Decides what is on the platters; returns the number of pages that did not arrive whole."""
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
    """Names and what they stand for. ``changes`` lead from ``durable`` to ``names``."""

    __slots__ = ("changes", "durable", "modified_ms", "names")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.durable: dict[str, Inode | Directory] = {}
        self.changes: list[dict[str, Inode | Directory | None]] = []  # name to its new meaning, None: removed
        self.modified_ms = 0

    def change(self, change: dict[str, Inode | Directory | None]) -> None:
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


class VirtualDisk:
    """The platters and the page cache of one machine; outlives the processes on it."""

    __slots__ = ("_locks", "_root", "apart", "clock", "is_watched", "name", "profile", "random", "trace")

    def __init__(self, name: str, random: random.Random, trace: Trace, profile: DiskProfile) -> None:
        """Empty."""
        self.name = name
        self.random = random
        self.apart = _stream_beside(random)
        """For what is drawn only now and then, or was added late: it shifts no draw of ``random``."""
        self.trace = trace
        self.profile = profile
        self.clock: NodeClock | None = None
        self.is_watched: Callable[[], bool] = _never
        """Whether it is an observer that reads now: it has no part in the faults, nor in what is drawn for them."""
        self._root = Directory()
        self._locks: dict[str, NodeDisk] = {}

    def now_ms(self) -> int:
        """Wall-clock time of the machine, for modification times."""
        return self.clock.wall_ms() if self.clock is not None else 0

    def tell(self, hit: Hit, path: str) -> None:
        """An operation of the machine's own process has failed, or been slowed."""
        if not self.is_watched():
            self.profile.tell(hit, path)

    def error(self, hit: Hit, path: str, *what: str) -> OSError:
        """Tells of an operation that fails; returns what it raises."""
        self.tell(hit, path)
        number = errno.ENOSPC if hit is Hit.FULL else errno.EIO
        self.trace.note("disk-full" if hit is Hit.FULL else "disk-error", self.name, *what, path)
        return OSError(number, os.strerror(number), path)

    def read_fails(self, path: str) -> bool:
        """Draws whether a read of ``path`` fails now."""
        if self.is_watched():
            return False
        probability = self.profile.read_error_of(path)
        return probability > 0.0 and self.random.random() < probability

    def lose_power(self) -> None:
        """Decides by seed what of the pending writes is on the platters; everything else is gone."""
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
        return used_below(self._root)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Bit rot: changes one bit in the content and on the platters, unnoticed."""
        inode = self._file(path)
        inode.content[position] ^= 1 << bit
        if position < len(inode.durable):
            inode.durable[position] ^= 1 << bit
        inode.rotten = True
        self.trace.note("bit-rot", self.name, path, f"bit {bit} of byte {position} flipped")

    def cut_short(self, path: str, size: int) -> None:
        """The end of a file is gone, unnoticed, in the content and on the platters."""
        inode = self._file(path)
        assert 0 <= size < len(inode.content), "something is cut"
        del inode.content[size:]
        del inode.durable[size:]
        inode.rotten = True
        self.trace.note("bit-rot", self.name, path, f"cut to {size} bytes")

    def forget(self, path: str) -> None:
        """A file or directory is gone, unnoticed, also on the platters."""
        self.lookup(path)
        parent, name = self.directory(posixpath.dirname(path)), posixpath.basename(path)
        parent.names.pop(name)
        parent.durable.pop(name, None)
        for change in parent.changes:
            change.pop(name, None)
        self.trace.note("bit-rot", self.name, path, "gone")

    def replace(self, paths: Sequence[str]) -> None:
        """Empty devices take the place of those that hold these directories. No process may use them."""
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
        """Bytes of content of a file. Raises as ``lookup``."""
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
        """Raises ``FileNotFoundError``, ``NotADirectoryError``."""
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
        """Raises as ``lookup``."""
        found = self.lookup(path)
        if not isinstance(found, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return found


def parts_of(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"path {path!r} is relative: the Disk port takes absolute paths only")
    return [part for part in posixpath.normpath(path).split("/") if part]


def used_below(directory: Directory) -> int:
    total = 0
    for child in directory.names.values():
        total += used_below(child) if isinstance(child, Directory) else len(child.content)
    return total
