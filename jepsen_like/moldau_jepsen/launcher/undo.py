"""Emulates the loss of power: a journal of a node's unsynced changes, and the function that undoes them.

SIGKILL leaves the page cache intact, so a killed process loses no write. To emulate a loss of power, the node writes an
undo entry before each change of a file or a name (``UndoJournal``, beside the data; the page cache keeps the journal).
``lose_power`` then decides by seed which changes are durable, as the simulated disk does: for each unsynced page
whether it was written, not written, or torn; for each directory how many of its unsynced changes of names are durable,
from the oldest.

The journal is a sequence of msgpack arrays. Files and directories are named by their inode numbers, which renames do
not change. ``at`` is a position in the journal: a sync covers the entries before ``at``.

    ["w", inode, position, length, size before, bytes that are overwritten]
    ["t", inode, size after, size before, bytes that are cut off]
    ["s", inode, at]                                      the file was synced
    ["f", inode, at]                                      a sync of the file failed
    ["n", directory, name, inode before or 0, inode after or 0]
    ["r", directory, name, other directory, other name, inode, inode that is replaced or 0]
    ["d", directory, at]                                  the names of the directory were synced

A failed sync drops its pages, as on Linux: they count as clean, no later sync writes them, and they are lost unless
they are written again.

An inode that loses its last name is kept in the trash directory under its number until the loss of the name is
durable. ``compact`` removes durable changes from the journal when a node is launched.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

JOURNAL = "journal"
TRASH = "trash"
PAGE_BYTES = 4096
SECTOR_BYTES = 512
LOST_SHARE = 0.4
TORN_SHARE = 0.2

Entry = tuple[object, ...]


class UndoJournal:
    """Writes the journal. The node holds ``lock`` from the entry until the change itself is done."""

    def __init__(self, directory: Path) -> None:
        """Appends to the journal of the node's earlier processes; makes the directory if it is missing."""
        self.trash = directory / TRASH
        self.trash.mkdir(parents=True, exist_ok=True)
        self.lock = threading.Lock()
        self._descriptor = os.open(directory / JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.position = os.fstat(self._descriptor).st_size
        """End position of the journal; read it under the lock, just before a sync begins."""

    def add(self, *entry: object) -> None:
        """Writes one entry; the lock must be held."""
        assert self.lock.locked(), "entries are written under the lock"
        packed: bytes = msgpack.packb(entry)
        view = memoryview(packed)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self.position += len(packed)


@dataclass(slots=True)
class _File:
    """The changes of one file that are not durable, and the state of its pages, by page number."""

    changes: list[tuple[int, Entry]] = field(default_factory=list)
    dirty: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Positions of the first and the last change of each page that the next sync writes."""
    unwritten: dict[int, None] = field(default_factory=dict)
    """Pages that a failed sync dropped and that were not written since."""
    durable_to: dict[int, int] = field(default_factory=dict)
    """Position in the journal whose content of the page is durable; 0 for pages not in this mapping."""
    size_durable_to: int = 0
    """Position in the journal whose size of the file is durable."""

    def changed(self, position: int, entry: Entry) -> None:
        self.changes.append((position, entry))
        for page in _pages(entry):
            self.dirty[page] = (self.dirty.get(page, (position, 0))[0], position)
            self.unwritten.pop(page, None)

    def synced(self, at: int) -> None:
        for page, (first, last) in list(self.dirty.items()):
            if first < at:
                self.durable_to[page] = at
                self._clean(page, last, at)
        self.size_durable_to = at
        self.changes = [
            (position, entry)
            for position, entry in self.changes
            if position >= at or any(self.durable_to.get(page, 0) <= position for page in _pages(entry))
        ]

    def sync_failed(self, at: int) -> None:
        for page, (first, last) in list(self.dirty.items()):
            if first < at:
                if last < at:
                    self.unwritten[page] = None
                self._clean(page, last, at)

    def _clean(self, page: int, last: int, at: int) -> None:
        if last < at:
            del self.dirty[page]
        else:
            self.dirty[page] = (at, last)  # The page was written again during the sync.


def _pages(entry: Entry) -> range:
    """Returns the numbers of the pages that a change of a file touches."""
    if entry[0] == "w":
        _, _, position, length, size_before, _ = cast("tuple[str, int, int, int, int, bytes]", entry)
        start, end = min(position, size_before), position + length
    else:
        _, _, start, end, _ = cast("tuple[str, int, int, int, bytes]", entry)
    return range(start // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLoss:
    """Counts of the data that a loss of power removed."""

    pages: int
    """Pages that were not written, or torn."""
    names: int
    """Changes of names that were not durable."""
    files: int
    """Files that had unsynced content."""


def read_journal(path: Path) -> list[tuple[int, Entry]]:
    """Returns position and content of each entry, without a truncated last entry (its change was never made)."""
    unpacker = msgpack.Unpacker(strict_map_key=False, use_list=False, max_buffer_size=0)
    with path.open("rb") as stream:
        unpacker.feed(stream.read())
    found: list[tuple[int, Entry]] = []
    position = 0
    for entry in cast("Iterator[Entry]", unpacker):
        found.append((position, entry))
        position = unpacker.tell()
    return found


def lose_power(roots: Sequence[Path], directory: Path, seed: int) -> PowerLoss:
    """Undoes unsynced changes of a node that does not run, and empties the journal; the durable state remains.

    Args:
        roots: Directories of everything that the node writes; they themselves are durable.
        directory: Directory of the journal.
        seed: Decides which unsynced changes are durable.
    """
    journal = directory / JOURNAL
    if not journal.exists():
        return PowerLoss(pages=0, names=0, files=0)
    draw = random.Random(seed)
    entries = read_journal(journal)
    files = _unsynced_files(entries)
    paths = _paths_by_inode([*roots, directory / TRASH])
    pages = 0
    for inode, file in files.items():
        path = paths.get(inode)
        if path is not None and path.is_file():
            pages += _forget_pages(path, file, draw)
    undone = _undone_names(entries, draw)
    for entry in reversed(undone):
        _undo_name(entry, roots, directory / TRASH)
    forget(directory)
    return PowerLoss(pages=pages, names=len(undone), files=len(files))


def forget(directory: Path) -> None:
    """Empties journal and trash: the disk's content is durable now, or the disk was replaced."""
    if not (directory / JOURNAL).exists():
        return
    for left in (directory / TRASH).iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    os.truncate(directory / JOURNAL, 0)


# -- contents ---------------------------------------------------------------------------------------------------------


def _unsynced_files(entries: Sequence[tuple[int, Entry]]) -> dict[int, _File]:
    files: dict[int, _File] = {}
    for position, entry in entries:
        match entry:
            case ("w" | "t", int(inode), *_):
                files.setdefault(inode, _File()).changed(position, entry)
            case ("s", int(inode), int(at)) if inode in files:
                files[inode].synced(at)
                if not files[inode].changes:
                    del files[inode]
            case ("f", int(inode), int(at)) if inode in files:
                files[inode].sync_failed(at)
            case ("n", _, _, 0, int(inode)):
                files.pop(inode, None)  # A new file has the inode number of a removed one.
            case _:
                continue
    return files


def _forget_pages(path: Path, file: _File, draw: random.Random) -> int:
    """Reduces the file to its durable state; returns the number of pages that differ from what was written."""
    written = path.read_bytes()
    durable = bytearray(written)
    later = [(position, entry) for position, entry in file.changes if position >= file.size_durable_to]
    for _, entry in reversed(later):
        if entry[0] == "w":
            _, _, position, _, size_before, before = cast("tuple[str, int, int, int, int, bytes]", entry)
            durable[position : position + len(before)] = before
        else:
            _, _, size_after, size_before, before = cast("tuple[str, int, int, int, bytes]", entry)
            durable[size_after:] = before
        _resize(durable, size_before)
    for position, entry in reversed(file.changes[: len(file.changes) - len(later)]):
        for page in _pages(entry):
            if file.durable_to.get(page, 0) <= position:
                _undo_page(durable, page, entry)
    sizes = [len(durable), len(written)]
    size_min = min((_size_after(entry) for _, entry in later), default=len(durable))
    if size_min < min(sizes):
        sizes.append(size_min)
    size = draw.choice((*sizes, draw.randint(min(sizes), max(sizes))))
    found = durable[:size]
    _resize(found, size)  # Blocks that were never written read as zeros.
    lost = len(file.unwritten)
    for page in sorted(file.dirty):
        start = page * PAGE_BYTES
        content = written[start : min(start + PAGE_BYTES, size)]
        fate = draw.random()
        if fate < LOST_SHARE:
            lost += 1
            continue
        if fate < LOST_SHARE + TORN_SHARE:
            lost += 1
            content = content[: draw.randrange(0, PAGE_BYTES, SECTOR_BYTES)]
        found[start : start + len(content)] = content
    path.write_bytes(found)
    return lost


def _undo_page(content: bytearray, page: int, entry: Entry) -> None:
    """Undoes a change within one page of the content; bytes beyond the former end read as zeros."""
    if entry[0] == "w":
        _, _, start, length, _, before = cast("tuple[str, int, int, int, int, bytes]", entry)
        end = start + length
    else:
        _, _, start, end, before = cast("tuple[str, int, int, int, bytes]", entry)
    first = max(start, page * PAGE_BYTES)
    last = min(end, (page + 1) * PAGE_BYTES, len(content))
    if first < last:
        content[first:last] = before[first - start : last - start].ljust(last - first, b"\0")


def _size_after(entry: Entry) -> int:
    if entry[0] == "w":
        _, _, position, length, size_before, _ = cast("tuple[str, int, int, int, int, bytes]", entry)
        return max(size_before, position + length)
    _, _, size_after, _, _ = cast("tuple[str, int, int, int, bytes]", entry)
    return size_after


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


# -- compaction --------------------------------------------------------------------------------------------------------


def compact(directory: Path) -> None:
    """Removes durable changes from journal and trash.

    No process may use them meanwhile. A crash during the compaction leaves a valid journal.
    """
    journal = directory / JOURNAL
    if not journal.exists():
        return
    entries = read_journal(journal)
    files = _unsynced_files(entries)
    names = _pending_names(entries)
    kept = {position for position, _ in names}
    # All entries of a file from there on are kept, because the state of its pages follows from all of them together.
    begin = {inode: file.changes[0][0] for inode, file in files.items()}
    moved: list[tuple[int, int]] = []  # Old and new positions of the entries that are kept.
    packed = bytearray()
    for position, entry in entries:
        match entry:
            case ("s" | "f" as kind, int(inode), int(at)) if inode in begin and begin[inode] < at:
                found = bisect_left(moved, (at, 0))
                entry = (kind, inode, moved[found][1] if found < len(moved) else len(packed))
            case ("w" | "t", int(inode), *_) if inode in begin and begin[inode] <= position:
                pass
            case _ if position not in kept:
                continue
        moved.append((position, len(packed)))
        packed += msgpack.packb(entry)
    written = journal.with_suffix(".compact")
    written.write_bytes(packed)
    os.replace(written, journal)
    needed = {str(inode) for _, entry in names for inode in _inodes_before(entry)}
    for left in (directory / TRASH).iterdir():
        if left.name not in needed:
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def _inodes_before(entry: Entry) -> Sequence[int]:
    """Returns the inodes that lost their name in a change."""
    match entry:
        case ("r", _, _, _, _, _, int(replaced)):
            return (replaced,)
        case (_, _, _, int(before), _):
            return (before,)
        case _:
            return ()


# -- names ------------------------------------------------------------------------------------------------------------


def _directories(entry: Entry) -> tuple[int, ...]:
    match entry:
        case ("n", int(directory), *_):
            return (directory,)
        case ("r", int(directory), _, int(other), *_):
            return (directory, other)
        case _:
            return ()


def _pending_names(entries: Sequence[tuple[int, Entry]]) -> list[tuple[int, Entry]]:
    """Returns the changes of names that no sync of their directories covers, with their positions, in order."""
    durable_to: dict[int, int] = {}
    for _, entry in entries:
        match entry:
            case ("d", int(directory), int(at)):
                durable_to[directory] = max(at, durable_to.get(directory, 0))
            case _:
                continue
    pending: list[tuple[int, Entry]] = []
    for position, entry in reversed(entries):
        directories = _directories(entry)
        if not directories:
            continue
        if any(position < durable_to.get(directory, 0) for directory in directories):
            for directory in directories:  # A rename is durable as a whole, together with all changes before it.
                durable_to[directory] = max(position, durable_to.get(directory, 0))
        else:
            pending.append((position, entry))
    pending.reverse()
    return pending


def _undone_names(entries: Sequence[tuple[int, Entry]], draw: random.Random) -> list[Entry]:
    """Returns the lost changes of names, in order. After a lost change all later ones of its directory are lost."""
    pending = [entry for _, entry in _pending_names(entries)]
    count: dict[int, int] = {}
    for entry in pending:
        for directory in _directories(entry):
            count[directory] = count.get(directory, 0) + 1
    arrived = {directory: draw.randint(0, number) for directory, number in count.items()}
    undone = []
    for entry in pending:
        directories = _directories(entry)
        if all(arrived[directory] > 0 for directory in directories):
            for directory in directories:
                arrived[directory] -= 1
        else:
            for directory in directories:
                arrived[directory] = 0
            undone.append(entry)
    return undone


def _paths_by_inode(roots: Sequence[Path]) -> dict[int, Path]:
    """Returns the path of each inode; for an inode that is also in the trash, the path outside of it."""
    found: dict[int, Path] = {}
    for root in roots:
        if not root.is_dir():
            continue
        found.setdefault(root.stat().st_ino, root)
        for parent, directories, files in os.walk(root):
            for name in sorted((*directories, *files)):
                path = Path(parent, name)
                found.setdefault(path.lstat().st_ino, path)
    return found


def _undo_name(entry: Entry, roots: Sequence[Path], trash: Path) -> None:
    """Undoes one change of a name; does nothing if the change has an entry but was never made."""
    paths = _paths_by_inode([*roots, trash])
    if entry[0] == "r":
        _, directory, name, other, other_name, inode, replaced = cast("tuple[str, int, str, int, str, int, int]", entry)
        source, target = paths.get(directory), paths.get(other)
        if source is None or target is None:
            return
        if _inode(target / other_name) == inode:
            os.rename(target / other_name, source / name)
            _bring_back(replaced, target / other_name, trash)
        return
    _, directory, name, before, after = cast("tuple[str, int, str, int, int]", entry)
    parent = paths.get(directory)
    if parent is None:
        return
    path = parent / name
    if after and _inode(path) == after:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _bring_back(before, path, trash)


def _bring_back(inode: int, path: Path, trash: Path) -> None:
    kept = trash / str(inode)
    if not inode or not kept.exists() or path.exists():
        return
    if kept.is_dir():
        os.rename(kept, path)
    else:
        os.link(kept, path)


def _inode(path: Path) -> int:
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.lstat().st_ino
    return 0
