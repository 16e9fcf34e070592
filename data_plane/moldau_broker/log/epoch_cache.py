"""Leader epochs of one log and where each began (KIP-101, KIP-279).

The cache answers "where does epoch e end here?", which is how a follower finds the offset it shares with a leader.

Changes are made in memory. The file ``leader-epoch-checkpoint`` follows before the recovery point moves: the flush that
moves it writes the file first (``prepare_write``), and so does a clean stop. What lies above the recovery point is read
from the batches after a crash, so the loader takes from the file only what begins below it; and truncation lowers the
checkpointed recovery point before anything else. So neither an entry that the file lacks nor one that it has too many
can matter, and a broker that begins to lead a thousand partitions writes nothing. An epoch without a record of its own
is forgotten by a crash: nobody can have anything of it. Kafka writes truncations lazily for the same reason
(KAFKA-15046).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.environment import OpenMode
from moldau_broker.log.checkpoint import EpochEntry, decode_epochs, encode_epochs, parent_of, read_file
from moldau_broker.log.names import TEMPORARY_SUFFIX
from moldau_broker.log.values import NO_EPOCH, EpochEndOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.environment import Disk


class LeaderEpochCache:
    """Epochs and start offsets. Invariant: both rise strictly from entry to entry.

    Everything belongs to the event loop but the function that ``prepare_write`` returns, which a thread may call.
    """

    __slots__ = ("_begun", "_disk", "_durable", "_entries", "_newest", "_path", "_released", "_written")

    def __init__(
        self, disk: Disk, path: str, entries: Sequence[EpochEntry] = (), durable: Sequence[EpochEntry] | None = ()
    ) -> None:
        """``durable`` is what the file holds, None if that is of no use."""
        self._disk = disk
        self._path = path
        self._entries = list(entries)
        self._durable = None if durable is None else tuple(durable)
        self._begun = self._written = 0  # writes that were prepared, and the newest of them that is durable
        self._newest: tuple[int, tuple[EpochEntry, ...]] = (0, ())  # what the newest write holds
        self._released = False

    @classmethod
    def load(cls, disk: Disk, path: str) -> LeaderEpochCache:
        """Reads the checkpoint, empty if missing; raises ``CorruptLogFileError``."""
        entries = decode_epochs(path, read_file(disk, path)) if disk.exists(path) else ()
        return cls(disk, path, entries, entries)

    @property
    def entries(self) -> Sequence[EpochEntry]:
        """Oldest first."""
        return tuple(self._entries)

    @property
    def durable(self) -> Sequence[EpochEntry] | None:
        """What the file holds, None if that is of no use."""
        return self._durable

    @property
    def is_dirty(self) -> bool:
        """Whether the file may hold something else."""
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

        Entries that contradict it (a higher epoch, or a start at or after it) are dropped: a newer leader's word
        counts.
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
        """Largest epoch not above ``leader_epoch`` and where it ends (exclusive); -1, -1 if that is not known."""
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
        """Epoch in which ``offset`` was (or will be) written, -1 if not known."""
        for entry in reversed(self._entries):
            if entry.start_offset <= offset:
                return entry.leader_epoch
        return NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> bool:
        """Drops entries that begin at or after ``end_offset``."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) == len(self._entries):
            return False
        self._entries = kept
        return True

    def truncate_from_start(self, start_offset: int) -> bool:
        """Drops what ended at or before ``start_offset``; the epoch that holds it begins there from now on."""
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

    def clear(self) -> None:
        """Forgets all epochs."""
        self._entries.clear()

    # Writing ---------------------------------------------------------------------------------------------------------

    def prepare_write(self) -> Callable[[], bool] | None:
        """What makes the present entries durable, to be called in any thread; None if they are.

        The function blocks, and raises ``OSError``. It returns False, and has done nothing, if the log has gone
        elsewhere: deleted, or its directory renamed. Of several at the same time, the last to end leaves the newest
        entries in the file.
        """
        if not self.is_dirty:
            return None
        self._begun += 1
        self._newest = (self._begun, tuple(self._entries))
        own, path = self._begun, self._path
        return lambda: self._write(own, path)

    def _write(self, own: int, path: str) -> bool:
        disk = self._disk
        temporary = f"{path}.{own}{TEMPORARY_SUFFIX}"
        while True:
            number, entries = self._newest
            if self._is_gone(path):
                return False
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
                    return False
                disk.rename(temporary, path)
                disk.sync_directory(parent_of(path))
            except FileNotFoundError:
                if self._is_gone(path):
                    return False
                raise
            if self._newest[0] == number:
                self._durable, self._written = entries, number
                return True

    def _is_gone(self, path: str) -> bool:
        return self._released or path != self._path

    def write(self) -> None:
        """Makes the present entries durable if they are not. Blocks; raises ``OSError``."""
        write = self.prepare_write()
        if write is not None:
            write()

    def release(self) -> None:
        """Nothing is written any more: another log may get this one's path."""
        self._released = True
