"""Leader epochs of one log and where each began (KIP-101, KIP-279).

The cache answers "where does epoch e end here?", which is how a follower finds the offset it shares with a leader. It
is written to ``leader-epoch-checkpoint`` before the first batch of a new epoch reaches the log, so after a crash it
covers at least what the log holds; the loader cuts what is beyond the log's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_broker.log.checkpoint import EpochEntry, decode_epochs, encode_epochs, read_file, write_atomically
from moldau_broker.log.values import NO_EPOCH, EpochEndOffset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.runtime.environment import Disk


class LeaderEpochCache:
    """Epochs and start offsets. Invariant: both rise strictly from entry to entry."""

    __slots__ = ("_disk", "_entries", "_path")

    def __init__(self, disk: Disk, path: str, entries: Sequence[EpochEntry] = ()) -> None:
        self._disk = disk
        self._path = path
        self._entries = list(entries)

    @classmethod
    def load(cls, disk: Disk, path: str) -> LeaderEpochCache:
        """Reads the checkpoint, empty if missing; raises ``CorruptLogFileError``."""
        return cls(disk, path, decode_epochs(path, read_file(disk, path)) if disk.exists(path) else ())

    @property
    def entries(self) -> Sequence[EpochEntry]:
        """Oldest first."""
        return tuple(self._entries)

    @property
    def latest_epoch(self) -> int:
        """Epoch of the newest entry, -1 if there is none."""
        return self._entries[-1].leader_epoch if self._entries else NO_EPOCH

    def moved(self, path: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self._path = path

    def assign(self, leader_epoch: int, start_offset: int, *, write: bool = True) -> bool:
        """Records that ``leader_epoch`` begins at ``start_offset``; durable on return if that is new. Returns whether
        it was.

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
        if not changed:
            return False
        if write:
            self.write()
        return True

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

    def truncate_from_end(self, end_offset: int, *, write: bool = True) -> bool:
        """Drops entries that begin at or after ``end_offset``."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) == len(self._entries):
            return False
        self._entries = kept
        if write:
            self.write()
        return True

    def truncate_from_start(self, start_offset: int, *, write: bool = True) -> bool:
        """Drops what ended at or before ``start_offset``; the epoch that holds it begins there from now on."""
        first = 0
        while first + 1 < len(self._entries) and self._entries[first + 1].start_offset <= start_offset:
            first += 1
        if not self._entries or self._entries[0].start_offset >= start_offset:
            return False
        epoch = self._entries[first].leader_epoch
        self._entries[: first + 1] = [EpochEntry(leader_epoch=epoch, start_offset=start_offset)]
        if write:
            self.write()
        return True

    def extend_to(self, start_offset: int) -> None:
        """Lets the first epoch begin at ``start_offset``, which is not above its present start. Not written."""
        first = self._entries[0]
        assert start_offset <= first.start_offset, f"{start_offset} is above {first}"
        self._entries[0] = EpochEntry(leader_epoch=first.leader_epoch, start_offset=start_offset)

    def clear(self) -> None:
        """Forgets all epochs."""
        self._entries.clear()
        self.write()

    def write(self) -> None:
        """Replaces the checkpoint; durable on return. Raises ``OSError``."""
        write_atomically(self._disk, self._path, encode_epochs(self._entries))
