"""The open files of all logs of a broker, with a bound on the descriptors that can be given back.

A segment has up to four files. The log file of the active segment stays open, and that of a closed one until it is
synced: closing a file that is not durable could hide a failed write from the sync. After that a segment is *settled*:
its log file and its index of aborted transactions can be closed at any time and are opened again when they are read.
The most recently read segments keep theirs open.

Offset and time indexes can be closed at any time, also those of an active segment: no answer depends on them, because
callers compare an entry with its batch. So a log without aborted transactions needs one descriptor, whether it is new,
busy, or loaded by a start. A broker can therefore open all logs again that it could create.

Closing means dropping the reference: a descriptor closes when its last reader is done (``SharedFile``). Segments are
read in the event loop and in threads, so all changes here are single operations on a dict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.runtime.ports.descriptors import DescriptorBudget
from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.files.handle import SharedFile

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Disk

FILES_PER_SEGMENT = 4
_FILES_PER_CLOSABLE = 2
_CLOSABLE_MIN = 4


class Closable(Protocol):
    """A sparse index, or a settled segment's log file and index of aborted transactions."""

    @property
    def open_count(self) -> int:
        """How many of its files are open."""
        ...

    def close_files(self) -> None:
        """Closes its files; they are opened again when they are needed."""
        ...


class OpenFiles:
    """Opens the files of logs, and closes the least recently used of those that can be closed."""

    __slots__ = ("_closable", "_closable_max", "_disk", "descriptors")

    def __init__(self, disk: Disk, descriptors: DescriptorBudget | None = None) -> None:
        """Starts without open files; ``descriptors`` limits how many may be open."""
        self._disk = disk
        self._closable: dict[Closable, None] = {}
        self.descriptors = descriptors or DescriptorBudget()
        self._closable_max = max(_CLOSABLE_MIN, self.descriptors.cached_max // _FILES_PER_CLOSABLE)

    def open(self, path: str, mode: OpenMode = OpenMode.WRITE) -> SharedFile:
        """See ``Disk.open``."""
        is_new = not self._disk.exists(path)
        return SharedFile(self._disk.open(path, mode), self.descriptors, is_new=is_new)

    def used(self, files: Closable) -> None:
        """Notes a use of files that can be closed; closes the least recently used ones beyond the limit."""
        closable = self._closable
        closable.pop(files, None)
        closable[files] = None  # at the end: the oldest come first
        surplus = len(closable) - self._closable_max
        if surplus > 0:
            for oldest in list(closable)[:surplus]:
                self.forget(oldest)
                oldest.close_files()

    def forget(self, files: Closable) -> None:
        """Removes files that are closed, or must stay open from now on."""
        self._closable.pop(files, None)

    @property
    def kept(self) -> int:
        """Open files that cannot be closed now."""
        return self.descriptors.files - sum(files.open_count for files in list(self._closable))

    def has_room(self, count: int) -> bool:
        """Returns whether ``count`` more files may be opened that must stay open."""
        files_max = self.descriptors.files_max
        return self.descriptors.files + count <= files_max or self.kept + count <= files_max
