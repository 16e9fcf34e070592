"""An object store in a directory: a local disk, or a file system that all brokers mount.

An object is a file below the root with the object's name as its path. It is written to a temporary name in its folder,
piece by piece and each piece synced, and then renamed: readers see a whole object or none, also after a loss of power.
Temporary names have a ``~``, which no object's name has; a put that fails removes its own, and a listing removes those
that a broker left behind when it ended.

The root must exist and is never made. A broker whose file system is not mounted finds no root and fails, instead of
finding an empty store and writing to the disk below it. Folders of objects are made and removed as needed.

A file system on the network may hang. Each call on it has a limit of time after which it fails, while its thread goes
on. Such threads are counted until they end, and there are never more than ``CALLS_MAX``.
"""

from __future__ import annotations

import errno
import posixpath
import re
from contextlib import suppress
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import trio

from moldau.runtime.ports.environment import OpenMode
from moldau.runtime.ports.object_names import check_folder, check_name, check_prefix, check_range, is_name
from moldau.runtime.ports.objects import LISTED_MAX, ObjectNotFoundError, ObjectStoreError, StoredObject
from moldau_broker.remote_log.storage.calls import BoundedCalls
from moldau_broker.remote_log.storage.contents import read_piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from moldau.runtime.ports.environment import Disk, Environment, File
    from moldau.runtime.ports.objects import Content

T = TypeVar("T")

PIECE_BYTES = 4 * 1024 * 1024
"""Bytes of a content that are read, and written, at a time."""
CALLS_MAX = 4
"""Threads that work for one store at the same time: half of those that the logs of the broker use, too."""
CALL_SECONDS = 30.0
"""Limit of each call on the file system; a put makes several, one for each piece."""
CLEANUP_SECONDS = 5.0
TEMPORARY_MS = 3_600_000
"""Age from which a temporary file belongs to no put: a put that makes progress writes to it all the time."""
DELETED_AT_ONCE = 100
MAKE_TRIES = 5

_MARK = "~"
_TEMPORARY = re.compile(rf"[A-Za-z0-9_.-]+{_MARK}[0-9a-f]{{16}}")


class DirectoryStore:
    """The ``ObjectStore`` port over the ``Disk`` port."""

    def __init__(self, environment: Environment, root: str, *, piece_bytes: int = PIECE_BYTES) -> None:
        """``root`` is the absolute path of a directory that exists whenever a call is made."""
        self._disk: Disk = environment.disk
        self._clock = environment.clock
        self._random = environment.random
        self._root = posixpath.normpath(root)
        self._piece_bytes = piece_bytes
        self._calls = BoundedCalls(self._root, partial(self._disk.offload, abandons=True), CALLS_MAX)

    # --- the port

    async def put(self, name: str, content: Content) -> None:
        """See ``ObjectStore.put``."""
        path = self._path(check_name(name))
        temporary = f"{path}{_MARK}{self._random.getrandbits(64):016x}"
        size = content.size_bytes
        try:
            position = 0
            while True:
                count = min(self._piece_bytes, size - position)
                piece = await read_piece(self._disk, name, content, position, count)
                await self._call(partial(self._write, temporary, position, piece))
                position += count
                if position == size:
                    break
            await self._call(partial(self._finish, temporary, path, size))
        except BaseException:
            await self._drop(temporary)
            raise

    async def read(self, name: str, position: int, count: int) -> bytes:
        """See ``ObjectStore.read``."""
        check_range(position, count)
        return await self._call(partial(self._read, check_name(name), position, count))

    async def list(self, prefix: str, *, after: str = "") -> Sequence[StoredObject]:
        """See ``ObjectStore.list``. Removes temporary files that are older than an hour where it passes."""
        return await self._call(partial(self._list, check_prefix(prefix), check_prefix(after)))

    async def list_folders(self, prefix: str) -> Sequence[str]:
        """See ``ObjectStore.list_folders``."""
        return await self._call(partial(self._list_folders, check_folder(prefix)))

    async def delete(self, names: Sequence[str]) -> None:
        """See ``ObjectStore.delete``. Removes folders that are empty then."""
        paths = [self._path(check_name(name)) for name in names]
        for start in range(0, len(paths), DELETED_AT_ONCE):
            await self._call(partial(self._delete, paths[start : start + DELETED_AT_ONCE]))

    def close(self) -> None:
        """See ``ObjectStore.close``; there is nothing to give back."""

    # --- calls with limits

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await self._calls.run(work, CALL_SECONDS)
        except OSError as error:
            raise ObjectStoreError(f"{self._root}: {error}") from error

    async def _drop(self, temporary: str) -> None:
        """Removes the file of a put that failed. Where that is not possible, a listing will do it."""
        with trio.move_on_after(CLEANUP_SECONDS, shield=True), suppress(ObjectStoreError):
            await self._call(partial(self._remove_if_there, temporary))

    # --- work in threads

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def _check_root(self) -> None:
        if not self._disk.is_directory(self._root):
            raise OSError(errno.ENOENT, "the directory of the object store is missing: is it mounted?", self._root)

    def _ancestors(self, path: str) -> Iterator[str]:
        """Yields the folders that hold ``path``, the root last."""
        while path != self._root:
            path = posixpath.dirname(path)
            yield path

    def _write(self, temporary: str, position: int, piece: bytes) -> None:
        """Writes and syncs one piece; the first one makes the file.

        Each piece is synced by the handle that wrote it, because an error of a write in the background is certain to be
        reported to that handle only.
        """
        file = self._make(temporary) if position == 0 else self._disk.open(temporary, OpenMode.WRITE)
        try:
            if file.size != position:
                raise OSError(errno.EIO, f"has {file.size} bytes instead of {position}", temporary)
            file.append([piece])
            file.sync()
        finally:
            file.close()

    def _make(self, temporary: str) -> File:
        """Makes a file and its folders, which another broker may be removing because they were empty.

        The folders are made one by one. The root may go away meanwhile, and none of them must take its place.
        """
        folders = [folder for folder in self._ancestors(temporary) if folder != self._root]
        for _ in range(MAKE_TRIES):
            with suppress(FileNotFoundError):
                for folder in reversed(folders):
                    self._disk.make_directory(folder)
                return self._disk.open(temporary, OpenMode.CREATE)
            self._check_root()
        raise OSError(errno.ENOENT, "its folders were removed again and again", temporary)

    def _finish(self, temporary: str, path: str, size: int) -> None:
        if self._disk.file_size(temporary) != size:
            raise OSError(errno.EIO, f"has not {size} bytes", temporary)
        self._disk.rename(temporary, path)
        for folder in self._ancestors(path):  # Each may be new, made by this put or by one that did not get so far.
            self._disk.sync_directory(folder)

    def _remove_if_there(self, path: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            self._disk.remove(path)

    def _read(self, name: str, position: int, count: int) -> bytes:
        try:
            file = self._disk.open(self._path(name), OpenMode.READ)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._check_root()  # A store that is away has lost nothing.
            raise ObjectNotFoundError(f"{self._root} has no object {name}") from None
        try:
            return file.read(position, count)
        finally:
            file.close()

    def _list(self, prefix: str, after: str) -> Sequence[StoredObject]:
        self._check_root()
        names = self._names(prefix.rpartition("/")[0], prefix, after)
        page = tuple(islice(self._stored(names), LISTED_MAX))
        self._check_root()  # A file system that went away in between would look like one without objects.
        return page

    def _stored(self, names: Iterator[str]) -> Iterator[StoredObject]:
        for name in names:
            path = self._path(name)
            with suppress(FileNotFoundError):  # It was deleted meanwhile.
                yield StoredObject(name, self._disk.file_size(path), self._disk.modified_ms(path))

    def _names(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        """Yields the names of the objects below a folder in order, without folders that have none to yield.

        Whether a name is that of a folder is asked only for those that the page may hold or pass.
        """

        def may_count(name: str) -> bool:
            below = f"{name}/"
            is_before = after > below and not after.startswith(below)
            return not is_before and (below.startswith(prefix) or prefix.startswith(below))

        waiting = [name for name in self._entries(folder) if may_count(name)]
        heapify(waiting)
        while waiting:
            name = heappop(waiting)
            if name.endswith("/"):
                yield from self._names(name[:-1], prefix, after)
            elif self._disk.is_directory(self._path(name)):
                heappush(waiting, f"{name}/")  # Its objects follow those whose names go on with less than a slash.
            elif name > after and name.startswith(prefix):
                yield name

    def _entries(self, folder: str) -> Sequence[str]:
        """Returns the names of objects and folders in a folder."""
        try:
            found = self._disk.list_directory(self._path(folder) if folder else self._root)
        except (FileNotFoundError, NotADirectoryError):
            return []
        entries: list[str] = []
        for entry in found:
            name = posixpath.join(folder, entry)
            if _TEMPORARY.fullmatch(entry):
                self._clean(self._path(name))
            elif is_name(name):
                entries.append(name)
        return entries

    def _clean(self, temporary: str) -> None:
        """Removes a temporary file that is old. Where that is not possible, the next listing tries again."""
        with suppress(OSError):
            if self._disk.modified_ms(temporary) < self._clock.wall_ms() - TEMPORARY_MS:
                self._disk.remove(temporary)

    def _list_folders(self, prefix: str) -> Sequence[str]:
        self._check_root()
        found = [
            posixpath.basename(name)
            for name in self._entries(prefix[:-1])
            if self._disk.is_directory(self._path(name)) and next(self._names(name, "", ""), None) is not None
        ]
        self._check_root()
        return sorted(found)

    def _delete(self, paths: Sequence[str]) -> None:
        self._check_root()
        changed: dict[str, None] = {}
        for path in paths:
            with suppress(FileNotFoundError, NotADirectoryError):
                if not self._disk.is_directory(path):
                    self._disk.remove(path)
            changed.update(dict.fromkeys(self._ancestors(path)))
        # Also folders in which nothing was removed now: another broker may have ended before its removal was durable.
        for folder in sorted(changed, key=len, reverse=True):
            if folder != self._root and self._remove_folder(folder):
                continue
            with suppress(FileNotFoundError, NotADirectoryError):
                self._disk.sync_directory(folder)
        self._check_root()

    def _remove_folder(self, folder: str) -> bool:
        """Removes a folder if it is empty; returns whether it is gone."""
        try:
            self._disk.remove_directory(folder)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True
