"""Leader epochs of one log and their start offsets (KIP-101, KIP-279).

The cache answers "where does epoch e end here?", which is how a follower finds the offset it shares with a leader.

Changes are made in memory. The file ``leader-epoch-checkpoint`` follows before the recovery point moves: the flush that
moves it writes the file first (``prepare_write``), and so does a clean stop. After a crash, epochs above the recovery
point are read from the batches, so the loader uses only entries of the file that begin below it; and truncation lowers
the checkpointed recovery point before anything else. So missing or surplus entries of the file do no harm, and a broker
that begins to lead a thousand partitions writes nothing. A crash loses an epoch without records; no replica can have
records of it. Kafka writes truncations lazily for the same reason (KAFKA-15046).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.files.checkpoint import EpochEntry, decode_epochs, encode_epochs, parent_of, read_file
from moldau_broker.log.files.names import TEMPORARY_SUFFIX
from moldau_broker.log.values import NO_EPOCH, EpochEndOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import Disk


class LeaderEpochCache:
    """Epochs and start offsets of one log. Invariant: both rise strictly from entry to entry.

    All methods belong to the event loop, except the function that ``prepare_write`` returns: a thread may call it.
    """

    __slots__ = ("_begun", "_disk", "_durable", "_entries", "_newest", "_path", "_released", "_written")

    def __init__(
        self, disk: Disk, path: str, entries: Sequence[EpochEntry] = (), durable: Sequence[EpochEntry] | None = ()
    ) -> None:
        """``durable`` is the content of the file, None if it cannot be used."""
        self._disk = disk
        self._path = path
        self._entries = list(entries)
        self._durable = None if durable is None else tuple(durable)
        self._begun = self._written = 0  # writes that were prepared, and the newest of them that is durable
        self._newest: tuple[int, tuple[EpochEntry, ...]] = (0, ())  # what the newest write holds
        self._released = False

    @classmethod
    def load(cls, disk: Disk, path: str) -> LeaderEpochCache:
        """Reads the checkpoint; a missing one is empty.

        Raises:
            CorruptLogFileError: The checkpoint is damaged.
        """
        entries = decode_epochs(path, read_file(disk, path)) if disk.exists(path) else ()
        return cls(disk, path, entries, entries)

    @property
    def entries(self) -> Sequence[EpochEntry]:
        """All entries, oldest first."""
        return tuple(self._entries)

    @property
    def durable(self) -> Sequence[EpochEntry] | None:
        """The content of the file, None if it cannot be used."""
        return self._durable

    @property
    def is_dirty(self) -> bool:
        """Whether the file may differ from the entries in memory."""
        return self._begun != self._written or self._durable != tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """Epoch of the newest entry, -1 if there is none."""
        return self._entries[-1].leader_epoch if self._entries else NO_EPOCH

    def moved(self, path: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self._path = path

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Records that ``leader_epoch`` begins at ``start_offset``; returns whether that is new.

        Entries that contradict it (a higher epoch, or a start at or after it) are dropped, because the newer leader is
        right.
        """
        if leader_epoch < 0:
            return False
        entries = self._entries
        changed = False
        while entries and (
            entries[-1].leader_epoch > leader_epoch
            or entries[-1].start_offset > start_offset
            or (entries[-1].start_offset == start_offset and entries[-1].leader_epoch < leader_epoch)
        ):
            entries.pop()
            changed = True
        if not entries or entries[-1].leader_epoch < leader_epoch:
            entries.append(EpochEntry(leader_epoch=leader_epoch, start_offset=start_offset))
            changed = True
        return changed

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Returns the largest epoch not above ``leader_epoch`` and its end (exclusive); -1, -1 if unknown."""
        if leader_epoch == NO_EPOCH or not self._entries:
            return EpochEndOffset(leader_epoch=NO_EPOCH, end_offset=-1)
        if leader_epoch == self.latest_epoch:
            return EpochEndOffset(leader_epoch=leader_epoch, end_offset=log_end_offset)
        floor: EpochEntry | None = None
        for entry in self._entries:
            if entry.leader_epoch > leader_epoch:
                # An epoch before the first known one ends where the first known one begins.
                epoch = floor.leader_epoch if floor is not None else leader_epoch
                return EpochEndOffset(leader_epoch=epoch, end_offset=entry.start_offset)
            floor = entry
        return EpochEndOffset(leader_epoch=NO_EPOCH, end_offset=-1)

    def epoch_for_offset(self, offset: int) -> int:
        """Returns the epoch in which ``offset`` was (or will be) written, -1 if not known."""
        for entry in reversed(self._entries):
            if entry.start_offset <= offset:
                return entry.leader_epoch
        return NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drops entries that begin at or after ``end_offset``; returns whether there were any."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) == len(self._entries):
            return False
        self._entries = kept
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Drops epochs that ended at or before ``start_offset``; the epoch that holds it begins there now."""
        first = 0
        while first + 1 < len(self._entries) and self._entries[first + 1].start_offset <= start_offset:
            first += 1
        if not self._entries or self._entries[0].start_offset >= start_offset:
            return False
        epoch = self._entries[first].leader_epoch
        self._entries[: first + 1] = [EpochEntry(leader_epoch=epoch, start_offset=start_offset)]
        return True

    def extend_to(self, start_offset: int) -> None:
        """Lets the first epoch begin at ``start_offset``, which is not above its present start."""
        first = self._entries[0]
        assert start_offset <= first.start_offset, f"{start_offset} is above {first}"
        self._entries[0] = EpochEntry(leader_epoch=first.leader_epoch, start_offset=start_offset)

    def replace(self, entries: Sequence[EpochEntry]) -> None:
        """Takes over the epochs of another log with the same records."""
        self._entries = list(entries)

    def clear(self) -> None:
        """Forgets all epochs."""
        self._entries.clear()

    # Writing ---------------------------------------------------------------------------------------------------------

    def prepare_write(self) -> Callable[[], None] | None:
        """Returns a function that makes the present entries durable, in any thread; None if they are durable.

        The function blocks, and raises ``OSError``. If the log was deleted or its directory renamed, it leaves no file,
        and the entries stay dirty. If several run at the same time, the file ends up with the newest entries; it has
        older ones for a moment if an older write renames its file last, until that write has seen it and written again.
        No recovery point moves in that moment: a log has one flush at a time (``Housekeeping.flush_work``).
        """
        if not self.is_dirty:
            return None
        self._begun += 1
        self._newest = (self._begun, tuple(self._entries))
        own, path = self._begun, self._path
        return lambda: self._write(own, path)

    def _write(self, own: int, path: str) -> None:
        disk = self._disk
        temporary = f"{path}.{own}{TEMPORARY_SUFFIX}"
        while True:
            number, entries = self._newest
            if self._is_gone(path):
                return
            try:
                file = disk.open(temporary, OpenMode.CREATE)
                try:
                    file.append([encode_epochs(entries)])
                    file.sync()
                finally:
                    file.close()
                if self._is_gone(path):
                    # Another log may have that path by now, and then this file is in its directory.
                    disk.remove(temporary)
                    return
                disk.rename(temporary, path)
                disk.sync_directory(parent_of(path))
            except FileNotFoundError:
                if self._is_gone(path):
                    return
                raise
            if self._newest[0] == number:
                self._durable, self._written = entries, number
                return

    def _is_gone(self, path: str) -> bool:
        return self._released or path != self._path

    def write(self) -> None:
        """Makes the present entries durable if they are not; blocks.

        Raises:
            OSError: The checkpoint could not be written.
        """
        write = self.prepare_write()
        if write is not None:
            write()

    def release(self) -> None:
        """Ends all writing, because another log may get this log's path."""
        self._released = True
