"""The open files of all logs of a broker, with a bound on the descriptors of closed segments.

A segment has up to four files. Those of the active segment stay open, and those of a closed one until they are synced:
closing a file that is not durable could hide a failed write from the sync. After that a segment is *settled*: its files
can be closed at any time and are opened again when they are read. The most recently read segments keep theirs open.

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
_SETTLED_MIN = 4


class SettledSegment(Protocol):
    """A closed segment that is durable."""

    @property
    def open_count(self) -> int:
        """How many of its files are open."""
        ...

    def close_files(self) -> None:
        """Closes its files; they are opened again when they are needed."""
        ...


class OpenFiles:
    """Opens the files of logs, and closes those of the least recently used settled segments."""

    __slots__ = ("_disk", "_settled", "_settled_max", "descriptors")

    def __init__(self, disk: Disk, descriptors: DescriptorBudget | None = None) -> None:
        """Starts without open files; ``descriptors`` limits how many may be open."""
        self._disk = disk
        self._settled: dict[SettledSegment, None] = {}
        self.descriptors = descriptors or DescriptorBudget()
        self._settled_max = max(_SETTLED_MIN, self.descriptors.cached_max // FILES_PER_SEGMENT)

    def open(self, path: str, mode: OpenMode = OpenMode.WRITE) -> SharedFile:
        """See ``Disk.open``."""
        is_new = not self._disk.exists(path)
        return SharedFile(self._disk.open(path, mode), self.descriptors, is_new=is_new)

    def used(self, segment: SettledSegment) -> None:
        """Notes a read of a settled segment; closes the files of the least recently read ones beyond the limit."""
        settled = self._settled
        settled.pop(segment, None)
        settled[segment] = None  # at the end: the oldest come first
        surplus = len(settled) - self._settled_max
        if surplus > 0:
            for oldest in list(settled)[:surplus]:
                self.forget(oldest)
                oldest.close_files()

    def forget(self, segment: SettledSegment) -> None:
        """Removes a segment that is no longer settled."""
        self._settled.pop(segment, None)

    @property
    def kept(self) -> int:
        """Open files that cannot be closed now."""
        return self.descriptors.files - sum(segment.open_count for segment in list(self._settled))

    def has_room(self, count: int) -> bool:
        """Returns whether ``count`` more files may be opened that must stay open."""
        files_max = self.descriptors.files_max
        return self.descriptors.files + count <= files_max or self.kept + count <= files_max
