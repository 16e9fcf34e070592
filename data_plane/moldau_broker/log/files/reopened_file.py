"""A file of a segment that is opened at its first use, and again after it was closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moldau_broker.log.files.handle import SharedFile
    from moldau_broker.log.files.open_files import OpenFiles


class ReopenedFile:
    """A file that can be closed at any time, also by another thread.

    Invariant: ``_changed`` is true if the file was written and not synced since, whether it is open or not. It is set
    after a write and cleared before a sync, which may run in another thread.
    """

    __slots__ = ("_changed", "_file", "_files", "_path")

    def __init__(self, path: str, files: OpenFiles) -> None:
        self._files = files
        self._path = path
        self._file: SharedFile | None = None
        self._changed = False

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
        """Makes the written bytes durable; opens the file if it was closed after a write; blocks.

        Raises:
            OSError: The file could not be opened, or the sync failed.
        """
        file = self._file  # held here: another thread may close it meanwhile
        if file is None:
            if not self._changed:
                return
            file = self._open()  # its first sync calls the disk
        self._changed = False
        try:
            file.sync()
        except BaseException:
            self._changed = True
            raise

    def close(self) -> None:
        """Closes the file; it is opened again when it is needed."""
        self._file = None
