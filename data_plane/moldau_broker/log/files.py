"""The handle of a segment's ``.log`` file that readers and the log share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.environment import Buffer, File


class SharedFile:
    """A ``File`` that closes itself when the last holder lets go of it.

    A fetch may be sending bytes of a segment that retention or the cleaner removes meanwhile. So nobody closes the
    file of a removed segment: the log drops its reference, and the descriptor closes when the last reader has dropped
    its own. Only ``close`` (the log as a whole is closed) ends it at once.
    """

    __slots__ = ("_file",)

    def __init__(self, file: File) -> None:
        self._file = file

    def __del__(self) -> None:
        self._file.close()

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
        return self._file.append(buffers)

    def write_at(self, position: int, buffer: Buffer) -> None:
        """See ``File.write_at``."""
        self._file.write_at(position, buffer)

    def read_into(self, buffers: Sequence[memoryview], position: int) -> int:
        """See ``File.read_into``."""
        return self._file.read_into(buffers, position)

    def read(self, position: int, count: int) -> bytes:
        """See ``File.read``."""
        return self._file.read(position, count)

    def truncate(self, size: int) -> None:
        """See ``File.truncate``."""
        self._file.truncate(size)

    def preallocate(self, size: int) -> None:
        """See ``File.preallocate``."""
        self._file.preallocate(size)

    def sync(self) -> None:
        """See ``File.sync``."""
        self._file.sync()

    def fileno(self) -> int:
        """See ``File.fileno``."""
        return self._file.fileno()

    def close(self) -> None:
        """See ``File.close``."""
        self._file.close()
