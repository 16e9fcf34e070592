"""The handle of a segment's ``.log`` file that readers and the log share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.ports.descriptors import DescriptorBudget
    from moldau.runtime.ports.environment import File
    from moldau.values import Buffer


class SharedFile:
    """A ``File`` that closes itself when its last reference is dropped.

    A fetch may be sending bytes of a segment that retention or the cleaner removes meanwhile. So the file of a removed
    segment is not closed explicitly: the log drops its reference, and the descriptor closes when the last reader has
    dropped its own. Only ``close``, used when the whole log is closed, closes it at once.

    ``sync`` calls the disk only if something was written since the last one: a stop syncs thousands of files, and most
    of them have not changed.
    """

    __slots__ = ("_descriptors", "_file", "_unsynced")

    def __init__(self, file: File, descriptors: DescriptorBudget, *, is_new: bool = False) -> None:
        """``is_new``: the opening created the file; a former process may not have synced any other file.

        Invariant: ``_unsynced`` is true unless all content is durable. It is set after a write and cleared before a
        sync, which may run in another thread, so that a write during a sync requires the next one.
        """
        self._file = file
        self._unsynced = not is_new
        self._descriptors: DescriptorBudget | None = descriptors
        descriptors.file_opened()

    def __del__(self) -> None:
        self.close()

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
        try:
            return self._file.append(buffers)
        finally:
            self._unsynced = True

    def write_at(self, position: int, buffer: Buffer) -> None:
        """See ``File.write_at``."""
        try:
            self._file.write_at(position, buffer)
        finally:
            self._unsynced = True

    def read_into(self, buffers: Sequence[memoryview], position: int) -> int:
        """See ``File.read_into``."""
        return self._file.read_into(buffers, position)

    def read(self, position: int, count: int) -> bytes:
        """See ``File.read``."""
        return self._file.read(position, count)

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        try:
            self._file.truncate(size)
        finally:
            self._unsynced = True

    def preallocate(self, size: int) -> None:
        """See ``File.preallocate``."""
        self._file.preallocate(size)

    def sync(self) -> None:
        """See ``File.sync``."""
        if not self._unsynced:
            return
        self._unsynced = False
        try:
            self._file.sync()
        except BaseException:
            self._unsynced = True
            raise

    def fileno(self) -> int:
        """See ``File.fileno``."""
        return self._file.fileno()

    def close(self) -> None:
        """See ``File.close``."""
        self._file.close()
        descriptors, self._descriptors = self._descriptors, None
        if descriptors is not None:
            descriptors.file_closed()
