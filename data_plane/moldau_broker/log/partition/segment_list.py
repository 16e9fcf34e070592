"""The segments of one log, in the order of their offsets, and the files of those that were removed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from moldau.runtime.ports.descriptors import is_shortage
from moldau_broker.log.files.names import DELETED_SUFFIX, LOG_SUFFIX
from moldau_broker.log.files.open_files import FILES_PER_SEGMENT
from moldau_broker.log.files.segment import LogSegment
from moldau_broker.log.partition.reading import find_range
from moldau_broker.log.values import PendingDeletion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.config import LogConfig
    from moldau_broker.log.files.open_files import OpenFiles
    from moldau_broker.log.values import ReadResult


class SegmentList:
    """The segments of one log; the last one, ``active``, is appended to.

    Invariant: base offsets rise. There is at least one segment, except inside a restart and after ``release``.
    """

    def __init__(self, disk: Disk, directory: str, files: OpenFiles, segments: Iterable[LogSegment]) -> None:
        self.disk = disk
        self.directory = directory
        self.parent_directory = directory.rpartition("/")[0]
        self.all = list(segments)
        self.active = self.all[-1]
        self.deletions: list[PendingDeletion] = []
        self.generation = 0  # counts truncations and replacements, which invalidate work in progress
        self.files = files
        self._bases = [segment.base_offset for segment in self.all]
        self.first_base_offset = self._bases[0]
        """Base offset of the oldest segment."""

    # Queries ---------------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of segments."""
        return len(self.all)

    @property
    def size_bytes(self) -> int:
        """Bytes of all ``.log`` files."""
        return sum(segment.size for segment in self.all)

    def index_of(self, offset: int) -> int:
        """Returns the index of the last segment whose base offset is not above ``offset``, -1 if there is none."""
        return bisect_right(self._bases, offset) - 1

    def end_of(self, index: int, log_end_offset: int) -> int:
        """Returns the highest offset (exclusive) that segment ``index`` may contain."""
        return self._bases[index + 1] if index + 1 < len(self._bases) else log_end_offset

    def first_to_sync(self, recovery_point: int) -> int:
        """Returns the index of the first segment that may be not durable; it includes one below the recovery point.

        That segment may have been closed after all its batches were synced, but before its indexes were.
        """
        return max(0, bisect_left(self._bases, recovery_point) - 1)

    def find_range(
        self, offset: int, log_end_offset: int, max_bytes: int, upper_bound_offset: int, min_one_batch: bool
    ) -> ReadResult:
        """Finds the bytes of a read, see ``SegmentedLog.read``.

        Raises:
            CorruptLogFileError: The log is too damaged to find the batch.
            OSError: A file could not be read.
        """
        return find_range(self.all, self._bases, log_end_offset, offset, max_bytes, upper_bound_offset, min_one_batch)

    @property
    def may_create(self) -> bool:
        """Whether there are descriptors for one more segment."""
        return self.files.has_room(FILES_PER_SEGMENT)

    # Changes ---------------------------------------------------------------------------------------------------------

    def create(self, base_offset: int, config: LogConfig, now_ms: int, suffix: str = "") -> LogSegment:
        """Creates the files of an empty segment, which is not in the list until ``add``; ``suffix`` ends their names.

        Raises:
            OSError: The file could not be created.
        """
        return LogSegment(self.disk, self.directory, base_offset, config, now_ms, suffix, self.files)

    def undo_create(self, segment: LogSegment, error: OSError) -> None:
        """Removes the file of a new segment if ``error`` is a shortage: the log goes on without the segment.

        A start must not find the file then.
        """
        if is_shortage(error):
            segment.files.close()
            self.disk.remove(segment.path(LOG_SUFFIX))

    def add(self, segment: LogSegment) -> None:
        """Adds a segment behind the others and makes it the active one."""
        assert not self._bases or segment.base_offset > self._bases[-1]
        self.all.append(segment)
        self._bases.append(segment.base_offset)
        self.first_base_offset = self._bases[0]
        self.active = segment

    def remove(self, segments: Iterable[LogSegment]) -> None:
        """Removes segments from the log and renames their files; the files are deleted later (``deletions``)."""
        for segment in segments:
            index = self.all.index(segment)
            del self.all[index]
            del self._bases[index]
            if self._bases:
                self.first_base_offset = self._bases[0]
            self._delete_files(segment)

    def cut_behind(self, index: int) -> None:
        """Removes the segments behind segment ``index``, which becomes the active one; durable on return.

        Raises:
            OSError: A file could not be renamed.
        """
        self.generation += 1
        doomed = self.all[index + 1 :]
        # From the end, so that a crash in between leaves a prefix of the log.
        self.remove(list(reversed(doomed)))
        if doomed:
            self.disk.sync_directory(self.directory)
        self.active = self.all[-1]

    def replace(self, old: Sequence[LogSegment], new: LogSegment) -> bool:
        """Replaces ``old`` with a cleaned segment (its files end in ``.swap``); each step is crash-safe.

        The content of ``.swap`` is durable and its name marks it as complete, so a restart finishes the replacement.
        From here on there is no way back: the next cleaning would take the same names.

        Returns False if the directory must be synced again, because no descriptor was free for it.

        Raises:
            OSError: A file could not be renamed.
        """
        first = self.all.index(old[0])
        assert self.all[first : first + len(old)] == list(old), "the replaced segments stand side by side"
        assert old[-1] is not self.active, "the active segment is never replaced"
        self.generation += 1
        self.all[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]
        self.first_base_offset = self._bases[0]
        for segment in reversed(old):
            self._delete_files(segment)
        self._sync_names()
        new.files.change_suffix("")
        is_synced = self._sync_names()
        new.files.settle()
        return is_synced

    def _sync_names(self) -> bool:
        try:
            self.disk.sync_directory(self.directory)
        except OSError as error:
            if not is_shortage(error):
                raise
            return False
        return True

    def _delete_files(self, segment: LogSegment) -> None:
        segment.files.change_suffix(DELETED_SUFFIX)
        segment.files.close_indexes()
        self.deletions.append(PendingDeletion(tuple(segment.files.paths())))

    # Life cycle ------------------------------------------------------------------------------------------------------

    def moved(self, directory: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self.directory = directory
        self.parent_directory = directory.rpartition("/")[0]
        for segment in self.all:
            segment.files.moved(directory)

    def close(self) -> None:
        """Closes all files without syncing; they must have no readers left."""
        for segment in self.all:
            segment.files.close()

    def release(self) -> None:
        """Releases all files; each closes when its last reader is done."""
        for segment in self.all:
            segment.files.release()
        self.all = []
        self._bases = []
