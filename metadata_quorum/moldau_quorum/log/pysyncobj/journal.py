"""A durable journal and snapshots for pysyncobj, over the write-ahead log of the other engine.

The library keeps its log in a journal object and reads it like a list of (command, index, term). It never syncs, so the
node around it does: it sends nothing, and lets the library count nothing, before what was written is durable.

The library wants the two last entries that a snapshot covers at the front of its log; they travel in the snapshot's
first piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgpack

from moldau_quorum.log.raft.core.types import NO_NODE, Entry, EntryKind, HardState

if TYPE_CHECKING:
    from moldau_quorum.log.raft.core.entry_log import EntryLog
    from moldau_quorum.log.raft.storage.wal import WriteAheadLog

LibraryEntry = tuple[bytes, int, int]
"""Command, index, term."""

DATA: Final = b"\x10"
"""First byte of a command that holds an entry of the metadata log; none of the library's own command types."""
NOOP: Final = b"\x01"
"""The library's command without effect."""


def encode_anchor(before: LibraryEntry, last: LibraryEntry) -> bytes:
    """Returns the first piece of a snapshot."""
    return bytes(msgpack.packb((before, last)))


def decode_anchor(piece: bytes) -> tuple[LibraryEntry, LibraryEntry]:
    """Returns the last two entries that a snapshot covers.

    Raises:
        ValueError: the bytes are something else.
    """
    try:
        before, last = msgpack.unpackb(piece, use_list=False)
    except (TypeError, msgpack.UnpackException, RecursionError) as error:
        raise ValueError(f"not the first piece of a snapshot: {error}") from error
    for entry in (before, last):
        if type(entry) is not tuple or [type(value) for value in entry] != [bytes, int, int]:
            raise ValueError("the first piece of a snapshot does not hold its last entries")
    if before[1] + 1 != last[1] or not 0 <= before[2] <= last[2] or before[1] < 0:
        raise ValueError(f"entries {before[1:]} and {last[1:]} cannot be the last of a snapshot")
    return before, last


class DurableJournal:
    """The library's journal interface. Invariant: the list and the write-ahead log hold the same entries."""

    def __init__(self, wal: WriteAheadLog, hard_state: HardState, log: EntryLog) -> None:
        """``log`` is what the write-ahead log held when it was opened."""
        self._wal = wal
        self._hard_state = hard_state
        self._entries: list[LibraryEntry] = [
            (entry.data, entry.index, entry.epoch)
            for entry in (
                log.slice(log.first_index, log.last_index, 1 << 62) if log.last_index > log.base_index else ()
            )
        ]
        self._cleared = False

    def anchor(self, before: LibraryEntry, last: LibraryEntry) -> None:
        """Drops what stands before ``before`` if the journal holds both entries: the snapshot covers it."""
        for position, entry in enumerate(self._entries[:-1]):
            if entry == before and self._entries[position + 1] == last:
                del self._entries[:position]
                return

    def entry(self, position: int) -> LibraryEntry:
        """Returns the entry at a position of the list, counted from its end if negative."""
        return self._entries[position]

    # --- what the library calls

    def __getitem__(self, item: int | slice) -> LibraryEntry | list[LibraryEntry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, command: bytes, index: int, term: int) -> None:
        """Appends an entry; what stood at its index was deleted before."""
        if self._cleared:
            self._wal.reset(index - 1, 0)
            self._cleared = False
        prev_epoch = self._entries[-1][2] if self._entries else 0
        kind = EntryKind.DATA if command[:1] == DATA else EntryKind.NOOP
        self._wal.write(None, (Entry(index, term, int(kind), bytes(command)),), prev_epoch)
        self._entries.append((bytes(command), index, term))

    def clear(self) -> None:
        """Drops all entries; those of a snapshot follow."""
        self._entries = []
        self._cleared = True

    def deleteEntriesFrom(self, position: int) -> None:
        """Drops the entries from a position on; they stay in the file until those of the leader replace them."""
        del self._entries[position:]

    def deleteEntriesTo(self, position: int) -> None:
        """Drops the entries before ``position``, which a durable snapshot covers."""
        if 0 < position < len(self._entries):
            del self._entries[:position]
            self._wal.drop_before(self._entries[0][1] - 1)

    def setCurrentTerm(self, term: int, voted_for: int | None) -> None:
        """Sets term and vote."""
        self._hard_state = HardState(epoch=term, voted_for=NO_NODE if voted_for is None else voted_for)
        self._wal.write(self._hard_state, ())

    def getCurrentTerm(self) -> int:
        """Returns the term that was set last."""
        return self._hard_state.epoch

    def getVotedForNodeId(self) -> int | None:
        """Returns the vote that was set last."""
        return None if self._hard_state.voted_for == NO_NODE else self._hard_state.voted_for

    def setRaftCommitIndex(self, index: int) -> None:
        """Keeps nothing: the next leader reports the commit index again."""

    def getRaftCommitIndex(self) -> int:
        """Returns an index that is committed on all nodes: that of the first entry, or the end of a snapshot."""
        return self._entries[1][1] if len(self._entries) > 1 and self._entries[0][1] > 1 else 1

    def onOneSecondTimer(self) -> None:
        """Does nothing, because nothing is due."""

    def _destroy(self) -> None:
        """Does nothing: the node closes the files."""
