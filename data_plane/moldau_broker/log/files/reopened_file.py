"""A file of a segment that is opened at its first use, and again after it was closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_broker.log.files.handle import SharedFile
    from moldau_broker.log.files.open_files import OpenFiles


class ReopenedFile:
    """A file that can be closed at any time, also by another thread."""

    __slots__ = ("_file", "_files", "_path")

    def __init__(self, path: str, files: OpenFiles) -> None:
        self._files = files
        self._path = path
        self._file: SharedFile | None = None

    @property
    def path(self) -> str:
        """Path of the file, which may not exist."""
        return self._path

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._file is not None

    def _open(self) -> SharedFile:
        file = self._file  # held here: another thread may close it meanwhile
        if file is None:
            file = self._file = self._files.open(self._path)
        return file

    def renamed(self, path: str) -> None:
        """Takes note of the file's new name; an open descriptor stays good."""
        self._path = path

    def sync(self) -> None:
        """Makes the written bytes durable, if the file is open; blocks.

        Raises:
            OSError: The sync failed.
        """
        file = self._file  # held here: another thread may close it meanwhile
        if file is not None:
            file.sync()

    def close(self) -> None:
        """Closes the file; it is opened again when it is needed."""
        self._file = None
