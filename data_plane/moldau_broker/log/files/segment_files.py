"""The files of one segment: the log file, its three indexes, their names, and when they are open.

A segment that is closed and durable is *settled*: ``OpenFiles`` may close its files at any time, and they are opened
again when they are read.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.files.found_batches import FoundBytes
from moldau_broker.log.files.index import OffsetIndex, TimeIndex
from moldau_broker.log.files.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file,
)
from moldau_broker.log.files.open_files import OpenFiles
from moldau_broker.log.files.transaction_index import TransactionIndex

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.files.handle import SharedFile


class SegmentFiles:
    """Opens, renames, syncs and closes the files of one segment.

    Invariant: a settled segment is durable, and only read.
    """

    __slots__ = (
        "_base_offset",
        "_disk",
        "_log",
        "_offset_index",
        "_open_files",
        "_released",
        "_settled",
        "_time_index",
        "_transaction_index",
        "directory",
        "found",
        "suffix",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        index_bytes_max: int,
        suffix: str = "",
        open_files: OpenFiles | None = None,
    ) -> None:
        """Creates the log file if it is missing; the others are opened when they are needed.

        Raises:
            OSError: The log file could not be created.
        """
        self._disk = disk
        self._open_files = files = open_files if open_files is not None else OpenFiles(disk)
        self._base_offset = base_offset
        self._released = False
        self._settled = False
        self.directory = directory
        self.suffix = suffix
        path = self.path(LOG_SUFFIX)
        self._log: SharedFile | None = None if disk.exists(path) else files.open(path)
        self.found = FoundBytes(disk.file_size(path))
        """Which bytes of the log file this process did not write, and has checked."""
        self._offset_index = OffsetIndex(disk, self.path(INDEX_SUFFIX), base_offset, index_bytes_max, files)
        self._time_index = TimeIndex(disk, self.path(TIME_INDEX_SUFFIX), base_offset, index_bytes_max, files)
        self._transaction_index = TransactionIndex(disk, self.path(TRANSACTION_INDEX_SUFFIX), base_offset, files)

    # Names -----------------------------------------------------------------------------------------------------------

    def path(self, kind: str) -> str:
        """Returns the path of one of the files."""
        return f"{self.directory}/{segment_file(self._base_offset, kind)}{self.suffix}"

    def paths(self) -> list[str]:
        """Returns the paths of all files, including those that do not exist."""
        return self.paths_of(self.directory, self._base_offset, self.suffix)

    @staticmethod
    def paths_of(directory: str, base_offset: int, suffix: str = "") -> list[str]:
        """Returns the paths that the files of a segment would have."""
        return [f"{directory}/{segment_file(base_offset, kind)}{suffix}" for kind in SEGMENT_SUFFIXES]

    def change_suffix(self, suffix: str) -> None:
        """Renames the files, so that a log file never exists without its indexes.

        The log file is renamed first where the segment is deleted, and last otherwise.
        """
        for kind in SEGMENT_SUFFIXES if suffix == DELETED_SUFFIX else reversed(SEGMENT_SUFFIXES):
            source = self.path(kind)
            if self._disk.exists(source):
                self._disk.rename(source, source.removesuffix(self.suffix) + suffix)
        self.suffix = suffix
        self._rename_indexes()

    def moved(self, directory: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self.directory = directory
        self._rename_indexes()

    def _rename_indexes(self) -> None:
        self._offset_index.renamed(self.path(INDEX_SUFFIX))
        self._time_index.renamed(self.path(TIME_INDEX_SUFFIX))
        self._transaction_index.renamed(self.path(TRANSACTION_INDEX_SUFFIX))

    # Files -----------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> SharedFile:
        """The log file, which stays open for as long as a caller holds it.

        Raises:
            OSError: The file could not be opened, or the log was closed.
        """
        if self._settled:
            self._open_files.used(self)
        file = self._log  # held here: another thread may close it meanwhile
        if file is None:
            if self._released:
                raise OSError(errno.EBADF, "the log was closed", self.path(LOG_SUFFIX))
            # A settled segment is only read, and a file that was removed meanwhile must not be made again.
            mode = OpenMode.READ if self._settled else OpenMode.WRITE
            file = self._log = self._open_files.open(self.path(LOG_SUFFIX), mode)
        return file

    @property
    def offset_index(self) -> OffsetIndex:
        """Maps offsets to positions."""
        if self._settled:
            self._open_files.used(self)
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """Maps timestamps to offsets."""
        if self._settled:
            self._open_files.used(self)
        return self._time_index

    @property
    def transaction_index(self) -> TransactionIndex:
        """Lists aborted transactions."""
        if self._settled:
            self._open_files.used(self)
        return self._transaction_index

    @property
    def open_count(self) -> int:
        """How many of the files are open, without the sparse indexes, which count themselves."""
        return (self._log is not None) + self._transaction_index.is_open

    # Settling --------------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Makes all files durable; blocks. A settled segment is durable already."""
        if self._settled:
            return
        self.log.sync()
        self._offset_index.sync()
        self._time_index.sync()
        self._transaction_index.sync()

    def settle(self) -> None:
        """Marks a closed and durable segment as settled: its files may be closed to make room for others."""
        if not self._settled and not self.suffix:
            self._settled = True
            self._open_files.used(self)

    def unsettle(self) -> None:
        """Opens the log file for changes; it stays open.

        Raises:
            OSError: The file could not be opened. Nothing has changed.
        """
        if self._settled:
            file = self._open_files.open(self.path(LOG_SUFFIX))
            self._log, self._settled = file, False
            self._open_files.forget(self)

    def hold(self) -> None:
        """Opens all files for changes until ``let_go``, so that no later step can fail for lack of descriptors.

        Raises:
            OSError: A file could not be opened.
        """
        self.unsettle()
        _ = self.log
        self._offset_index.hold()
        self._time_index.hold()
        self._transaction_index.hold()

    def let_go(self) -> None:
        """Allows the sparse indexes to be closed again."""
        self._offset_index.let_go()
        self._time_index.let_go()

    def rest(self) -> None:
        """Leaves only the log file open, for a log that may be idle from now on; blocks.

        Raises:
            OSError: An aborted transaction could not be written or synced.
        """
        self._offset_index.close()
        self._time_index.close()
        self._transaction_index.rest()

    # Closing ---------------------------------------------------------------------------------------------------------

    def close_files(self) -> None:
        """Closes each file when its last reader is done; files are opened again when they are needed."""
        self._log = None
        self._close_indexes()

    def release(self) -> None:
        """Closes each file when its last reader is done; none is opened again."""
        self._released = True
        self._settled = False
        self._open_files.forget(self)
        self.close_files()

    def close_indexes(self) -> None:
        """Closes the index files; the log file closes when its last reader is done (``SharedFile``)."""
        self._open_files.forget(self)
        self._close_indexes()

    def _close_indexes(self) -> None:
        self._offset_index.close()
        self._time_index.close()
        self._transaction_index.close()

    def close(self) -> None:
        """Closes all files at once; they must have no readers left."""
        self.close_indexes()
        file = self._log
        if file is not None:
            file.close()
