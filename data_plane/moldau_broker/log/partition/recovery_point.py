"""How far a log is durable, and the sync that moves it.

Bytes are durable below the recovery point, and so are the leader epochs that begin there. Only a finished flush moves
it up. A flush runs in a thread, while appends go on; a truncation in between makes its result void.

The same holds for names: a new segment is a new name in the log's directory, and a flush makes it durable only when it
has finished. Until then another flush syncs the directory too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.ports.descriptors import is_shortage
from moldau_broker.log.files.checkpoint import parent_of, sync_file

if TYPE_CHECKING:
    from moldau_broker.log.partition.segmented_log import SegmentedLog


class RecoveryPoint:
    """How far a log is durable.

    Invariant: ``offset <= log end offset``; ``offset`` falls only by truncation.
    """

    __slots__ = ("_names_synced", "names", "offset", "parent_durable", "unflushed_since_ms")

    def __init__(self, offset: int, *, names_durable: bool, parent_durable: bool) -> None:
        self.offset = offset
        self.names = 1  # counts the changes of names in the log's directory
        self._names_synced = int(names_durable)  # how many of these changes are durable
        self.parent_durable = parent_durable  # whether a power loss leaves the directory itself
        self.unflushed_since_ms: int | None = None  # when the oldest unflushed append was noticed

    @property
    def names_durable(self) -> bool:
        """Whether a power loss leaves all names in the log's directory."""
        return self._names_synced == self.names

    def names_changed(self) -> None:
        """Takes note of a new name in the log's directory, which the next flush makes durable."""
        self.names += 1

    def names_synced(self, names: int) -> None:
        """Takes note that the first ``names`` changes are durable."""
        self._names_synced = max(self._names_synced, names)


class Flush:
    """One sync of a log up to an offset, in a thread.

    The shell calls ``run`` there, and then ``complete`` or ``failed`` in the event loop.
    """

    def __init__(self, log: SegmentedLog, offset: int, *, up_to_closed_only: bool) -> None:
        """Collects the work of a sync up to ``offset``, the log's end or the base offset of the active segment."""
        segments, point = log.segments, log.recovery
        self._log = log
        self._offset = offset
        self._directory = log.directory
        self._generation = segments.generation
        # The active segment's indexes are not synced, because a crash makes recovery rebuild them.
        first = segments.first_to_sync(point.offset)
        self._closed = [segment for segment in segments.all[first:] if segment is not segments.active]
        self._active = None if up_to_closed_only else segments.active.file
        self._names, self._sync_names = point.names, not point.names_durable
        self._sync_parent = not point.parent_durable
        self._snapshots = log.snapshots.take_unsynced()
        self._write_epochs = log.epochs.prepare_write()
        self._since_ms, point.unflushed_since_ms = point.unflushed_since_ms, None

    def run(self) -> None:
        """Syncs; blocks.

        Raises:
            OSError: A write or a sync failed. The log is marked as failed, unless only descriptors are short.
        """
        disk = self._log.disk
        try:
            # First, so that the directory is synced with all its names.
            if self._write_epochs is not None:
                self._write_epochs()
            for segment in self._closed:
                segment.files.sync()
            if self._active is not None:
                self._active.sync()
            for path in self._snapshots:
                sync_file(disk, path)
            if self._sync_names:
                self._sync_directory()
            if self._sync_parent:
                disk.sync_directory(parent_of(self._directory))
        except OSError as error:
            # Here and not only in ``failed``, which is not called when the caller is cancelled. A failed sync must
            # never be retried: the next one would succeed though the pages are lost (fsyncgate).
            self._log.failed = self._log.failed or not is_shortage(error)
            raise

    def _sync_directory(self) -> None:
        """Makes the names in the log's directory durable, while the log may be deleted or moved."""
        try:
            self._log.disk.sync_directory(self._directory)
        except FileNotFoundError:
            if not self._log.released and self._log.directory == self._directory:
                raise

    def complete(self) -> bool:
        """Moves the recovery point after ``run``; returns False if the flush was void."""
        log, point = self._log, self._log.recovery
        has_moved = self._directory != log.directory  # then the names of another directory were synced
        if self._sync_names and not has_moved:
            point.names_synced(self._names)
        if has_moved or self._generation != log.segments.generation or log.failed:
            self._keep_deadline()
            return False
        point.parent_durable = True
        point.offset = max(point.offset, self._offset)
        log.touched[log] = None
        for segment in self._closed:
            segment.files.settle()
        return True

    def failed(self, error: BaseException) -> None:
        """Takes note that ``run`` raised ``error``."""
        if not is_shortage(error):
            self._log.failed = True
            return
        # A file or directory could not be opened: nothing has changed, and the next flush tries again.
        self._log.snapshots.not_synced(self._snapshots)
        self._keep_deadline()

    def _keep_deadline(self) -> None:
        """Leaves records that are not durable as old as they were, so that ``flush.ms`` does not begin again."""
        if self._since_ms is not None:
            self._log.recovery.unflushed_since_ms = self._since_ms
