"""The write-ahead log of a voter: epoch, vote and entries, in numbered segments.

A segment ``log-<sequence>.wal`` is a sequence of records (``record_format``). Its first record repeats the hard state
and says behind which position of the log the segment begins, so that older segments can go as soon as a snapshot covers
their entries. Entries that take the place of others follow a record that says so; nothing is ever overwritten in place,
but for what is not known to be durable when the log is opened: that is written again as it is.

    write (page cache)  ->  begin_sync ... sync (any thread) ... sync_done  ->  durable

A new segment is begun only when all before it is durable, and its first record says how long the one before is. So
only the last segment may have a torn end that counts, which is cut off when the log is opened; any other invalid record
is damage and raises.

Behind its first record a segment has two slots, which take turns. After each sync one of them is overwritten with how
much is durable, and the next sync makes that durable too. So a file that was cut, or whose last record was damaged,
can be distinguished from a torn end, unless it lost no more than what the last sync covered and power was lost after
that. The slots of a sealed segment say that another one follows it: that one must be there. Segments of format 1 have
no slots.
"""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgpack

from moldau.runtime.ports.environment import Disk, File, OpenMode
from moldau_quorum.log.port import LogDamagedError
from moldau_quorum.log.raft.core.entry_log import EntryLog
from moldau_quorum.log.raft.core.types import Entry, EntryKind, HardState
from moldau_quorum.log.raft.storage.record_format import (
    HEADER_BYTES,
    Record,
    RecordType,
    encode_record,
    proof_of_damage,
    read_record,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 2
FORMATS: Final = (1, 2)
_SLOT: Final = struct.Struct("<QB")
SLOT_BYTES: Final = HEADER_BYTES + _SLOT.size
_ENTRY: Final = struct.Struct("<QQB")
_HARD_STATE: Final = struct.Struct("<Qq")
_POSITION: Final = struct.Struct("<QQ")
_KINDS: Final = frozenset(int(kind) for kind in EntryKind)


def _format(record: Record) -> int:
    return int(msgpack.unpackb(record.payload)[0])


def make_durable_directories(disk: Disk, path: str) -> None:
    """Creates a directory and its parents where missing; their names are durable on return. Blocks."""
    missing = []
    while not disk.exists(path):
        missing.append(path)
        path = path.rsplit("/", 1)[0] or "/"
    for directory in reversed(missing):
        disk.make_directories(directory)
        disk.sync_directory(directory.rsplit("/", 1)[0] or "/")


@dataclass(slots=True, kw_only=True)
class _Segment:
    sequence: int
    path: str
    index_max: int = 0
    """The highest index of all entries ever written to it."""
    size: int = 0
    """Sealed segments: bytes that count, all of them durable."""
    slots: int | None = None
    """Position of the two slots; None in segments of format 1."""
    durable: int = 0
    """The durable end, by the newest slot."""
    followed: bool = False
    """Whether the newest slot says that another segment follows."""
    mark_count: int = 0

    def read_slots(self, buffer: bytes, position: int) -> None:
        """Takes over the newest valid slot, if there is any."""
        self.slots = position
        for slot in (position, position + SLOT_BYTES):
            record = read_record(self.sequence, buffer, slot)
            if record is not None and record.type == RecordType.DURABLE_MARK and len(record.payload) == _SLOT.size:
                count, followed = _SLOT.unpack(record.payload)
                if count >= self.mark_count:
                    self.mark_count, self.durable, self.followed = count, record.synced, bool(followed)

    def next_mark(self, durable: int, *, followed: bool) -> tuple[int, bytes]:
        """Returns the position and the bytes that overwrite the older slot."""
        assert self.slots is not None, "the segment has slots"
        self.mark_count += 1
        self.durable, self.followed = durable, followed
        payload = _SLOT.pack(self.mark_count, followed)
        mark = encode_record(self.sequence, durable, RecordType.DURABLE_MARK, payload)
        return self.slots + SLOT_BYTES * (self.mark_count % 2), mark


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncWork:
    """Makes durable what had been written when it was made. ``run`` may be called in another thread."""

    disk: Disk
    file: File
    size: int
    directory: str | None
    followed: tuple[str, int, bytes] | None = None
    """Path, position and bytes of the mark in the segment before that this one follows it."""

    def run(self) -> None:
        """Blocks until it is done.

        Raises:
            OSError: the disk failed; nothing unsynced may be relied on afterwards.
        """
        self.file.sync()
        if self.directory is not None:
            self.disk.sync_directory(self.directory)
        if self.followed is not None:
            path, position, mark = self.followed
            file = self.disk.open(path, OpenMode.WRITE)
            try:
                file.write_at(position, mark)
                file.sync()
            finally:
                file.close()


class WriteAheadLog:
    """An open log. Invariant: ``_synced <= file size``; at most one sync is under way."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        """Use ``open``."""
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._sealed: list[_Segment] = []
        self._file: File | None = None
        self._synced = 0  # bytes of the active segment known to be durable
        self._dirty = False  # something but a mark was written since the last sync began
        self._syncing = False
        self._name_synced = True
        self._hard_state = HardState()
        self._log = EntryLog()  # only while opening
        self._last_index = 0
        self._last_epoch = 0
        self.torn_bytes = 0
        """Bytes that were cut off when the log was opened."""

    # --- opening

    @classmethod
    def open(
        cls, disk: Disk, directory: str, segment_bytes: int, *, exists: bool = False
    ) -> tuple[WriteAheadLog, HardState, EntryLog]:
        """Reads what is there, repairs a torn end, and begins a new log in an empty directory. Blocks.

        ``exists``: there has been a log, so it must not be missing.

        Raises:
            LogDamagedError: a record that had been durable is invalid, or a segment is missing.
        """
        wal = cls(disk, directory, segment_bytes)
        sequences = sorted(
            int(name[4:-4]) for name in disk.list_directory(directory) if name[:4] == "log-" and name[-4:] == ".wal"
        )
        for before, after in itertools.pairwise(sequences):
            if after != before + 1:
                raise LogDamagedError(f"{directory}: log segments {before + 1} to {after - 1} are missing")
        if exists and not sequences:
            raise LogDamagedError(f"{directory}: the log is gone: there is no segment")
        for sequence in sequences:
            wal._load(sequence, last=sequence == sequences[-1], first=sequence == sequences[0], exists=exists)
        log, wal._log = wal._log, EntryLog()
        wal._last_index, wal._last_epoch = log.last_index, log.last_epoch
        if wal._file is None:
            if wal._sealed:
                wal._settle(wal._sealed[-1])
            wal._begin_segment(wal._sealed[-1].sequence + 1 if wal._sealed else 1)
        wal._sync()
        if wal._active.slots is None:
            wal.rotate()
            wal._sync()
        assert wal._file is not None, "the log is open"
        wal._file.sync()  # the mark too: from here on nothing of what was found may vanish without being noticed
        return wal, wal._hard_state, log

    def _sync(self) -> None:
        work = self.begin_sync()
        if work is not None:
            work.run()
            self.sync_done(work)

    def _path(self, sequence: int) -> str:
        return f"{self._directory}/log-{sequence:020d}.wal"

    def _load(self, sequence: int, *, first: bool, last: bool, exists: bool) -> None:
        path = self._path(sequence)
        file = self._disk.open(path, OpenMode.WRITE)
        buffer = file.read(0, file.size)
        segment = _Segment(sequence=sequence, path=path)
        synced = 0
        while (record := read_record(sequence, buffer, segment.size)) is not None:
            self._replay(segment, record, first=first)
            segment.size, synced = record.end, max(synced, record.synced)
            if record.type == RecordType.SEGMENT and _format(record) > 1:
                segment.read_slots(buffer, record.end)
                segment.size += 2 * SLOT_BYTES
        synced = max(synced, segment.durable)
        if segment.size < len(buffer):
            self._check_torn(segment, buffer)
        begun = 0 < segment.size <= len(buffer)  # its first record and its slots are there
        if segment.durable > min(segment.size, len(buffer)):
            raise LogDamagedError(
                f"{path}: cut or damaged at {min(segment.size, len(buffer))}, though {segment.durable} bytes had been "
                "durable"
            )
        if not begun and not last:
            raise LogDamagedError(f"{path}: the first record is invalid, but there are later segments")
        if not begun:
            self._check_never_durable(segment, exists=exists)
            file.close()
            self._disk.remove(path)
        elif last:
            if segment.followed:
                raise LogDamagedError(f"{path}: the segment that followed is missing")
            self._open_active(segment, file, buffer, synced)
        else:
            file.close()
            self._sealed.append(segment)

    def _check_never_durable(self, segment: _Segment, *, exists: bool) -> None:
        """Checks that nothing in the last segment, whose beginning is incomplete, ever became durable."""
        before = self._sealed[-1] if self._sealed else None
        if before.followed if before is not None else exists or segment.sequence > 1:
            raise LogDamagedError(f"{segment.path}: cut or damaged at its beginning, which had been durable")

    def _open_active(self, segment: _Segment, file: File, buffer: bytes, synced: int) -> None:
        self.torn_bytes = len(buffer) - segment.size
        if self.torn_bytes:
            file.truncate(segment.size)
        self._active, self._file = segment, file
        # The read bytes may come from a cache that power loss empties: sync it first. If a sync of the process before
        # has failed, the kernel counts these pages as written and no sync writes them: write them again.
        file.write_at(synced, buffer[synced : segment.size])
        self._dirty = True
        self._name_synced = False

    def _settle(self, segment: _Segment) -> None:
        """Makes the end of a segment durable whose successor was torn away: the mark may be in the cache only."""
        file = self._disk.open(segment.path, OpenMode.WRITE)
        file.truncate(segment.size)
        file.sync()
        file.close()

    def _check_torn(self, segment: _Segment, buffer: bytes) -> None:
        proof = proof_of_damage(segment.sequence, buffer, segment.size)
        if proof is not None:
            raise LogDamagedError(
                f"{segment.path}: invalid record at {segment.size}, though the record at {proof.position} shows that "
                f"the first {proof.synced} bytes had been durable"
            )

    def _replay(self, segment: _Segment, record: Record, *, first: bool) -> None:
        payload, log = record.payload, self._log
        where = f"{segment.path}: record at {record.position}"
        if (record.type == RecordType.SEGMENT) != (record.position == 0):
            raise LogDamagedError(f"{where} is of type {record.type}, which does not belong there")
        if record.type == RecordType.SEGMENT:
            version, base_index, base_epoch, epoch, voted_for, size_before = msgpack.unpackb(payload)
            if version not in FORMATS:
                raise LogDamagedError(f"{where} has format {version}; this version of Moldau reads {FORMATS}")
            if self._sealed and self._sealed[-1].size < size_before:
                path, size = self._sealed[-1].path, self._sealed[-1].size
                raise LogDamagedError(f"{path}: invalid record at {size}, but {size_before} bytes had been durable")
            if first:
                log.reset(base_index, base_epoch)
            elif (log.last_index, log.last_epoch) != (base_index, base_epoch):
                raise LogDamagedError(f"{where} follows index {base_index}, but the log ends at {log.last_index}")
            self._hard_state = HardState(epoch=epoch, voted_for=voted_for)
            segment.index_max = base_index
        elif record.type == RecordType.HARD_STATE:
            epoch, voted_for = _HARD_STATE.unpack(payload)
            self._hard_state = HardState(epoch=epoch, voted_for=voted_for)
        elif record.type == RecordType.ENTRY:
            index, epoch, kind = _ENTRY.unpack_from(payload)
            if index != log.last_index + 1 or kind not in _KINDS:
                raise LogDamagedError(f"{where} holds index {index} (kind {kind}); the log ends at {log.last_index}")
            log.append((Entry(index, epoch, kind, payload[_ENTRY.size :]),))
            segment.index_max = max(segment.index_max, index)
        elif record.type == RecordType.TRUNCATE:
            index, epoch = _POSITION.unpack(payload)
            if index >= log.base_index:
                log.truncate(index)
            else:
                log.reset(index, epoch)  # the segments with what comes before are on their way out
        elif record.type == RecordType.RESET:
            index, epoch = _POSITION.unpack(payload)
            log.reset(index, epoch)
            segment.index_max = max(segment.index_max, index)
        elif record.type != RecordType.SYNC_MARK:
            raise LogDamagedError(f"{where} is of type {record.type}, which does not belong there")

    # --- writing

    def write(self, hard_state: HardState | None, entries: Sequence[Entry], prev_epoch: int = 0) -> None:
        """Writes to the page cache; ``entries`` replace what stands at the index of the first and after.

        ``prev_epoch`` is the epoch of the entry before the first of ``entries``.

        Raises:
            OSError: the disk failed; the log must not be used any more.
        """
        assert not self.wants_rotation or self._dirty or self._syncing, "rotate first"
        sequence, synced = self._active.sequence, self._synced
        buffers = []
        if hard_state is not None:
            payload = _HARD_STATE.pack(hard_state.epoch, hard_state.voted_for)
            buffers.append(encode_record(sequence, synced, RecordType.HARD_STATE, payload))
            self._hard_state = hard_state
        if entries:
            index = entries[0].index
            assert index <= self._last_index + 1, "the log has no gaps"
            if index <= self._last_index:
                payload = _POSITION.pack(index - 1, prev_epoch)
                buffers.append(encode_record(sequence, synced, RecordType.TRUNCATE, payload))
            self._last_index, self._last_epoch = entries[-1].index, entries[-1].epoch
            self._active.index_max = max(self._active.index_max, self._last_index)
        for entry in entries:
            payload = _ENTRY.pack(entry.index, entry.epoch, entry.kind) + entry.data
            buffers.append(encode_record(sequence, synced, RecordType.ENTRY, payload))
        if buffers:
            self._append(buffers)

    def reset(self, index: int, epoch: int) -> None:
        """Begins the log again behind a durable snapshot of ``index``; all entries are void."""
        self._append(
            [encode_record(self._active.sequence, self._synced, RecordType.RESET, _POSITION.pack(index, epoch))]
        )
        self._last_index, self._last_epoch = index, epoch
        self._active.index_max = max(self._active.index_max, index)

    def _append(self, buffers: list[bytes]) -> None:
        assert self._file is not None, "the log is open"
        self._file.append(buffers)
        self._dirty = True

    @property
    def dirty(self) -> bool:
        """Whether something was written that no finished or running sync covers."""
        return self._dirty

    @property
    def hard_state(self) -> HardState:
        """The hard state that was written last."""
        return self._hard_state

    def begin_sync(self) -> SyncWork | None:
        """Returns the work that makes all that was written durable; None if there is nothing to do."""
        assert not self._syncing, "one sync at a time"
        assert self._file is not None, "the log is open"
        if not self._dirty:
            return None
        self._dirty = False
        self._syncing = True
        directory = None if self._name_synced else self._directory
        before = self._sealed[-1] if self._sealed and directory is not None else None
        followed = None
        if before is not None and before.slots is not None and not before.followed:
            followed = before.path, *before.next_mark(before.size, followed=True)
        return SyncWork(disk=self._disk, file=self._file, size=self._file.size, directory=directory, followed=followed)

    def sync_done(self, work: SyncWork) -> None:
        """Ends a sync whose ``run`` has returned."""
        assert self._syncing, "a sync ends once"
        assert self._file is not None, "the log is open"
        self._syncing = False
        self._synced = work.size
        self._name_synced = self._name_synced or work.directory is not None
        if self._active.slots is not None:
            self._file.write_at(*self._active.next_mark(self._synced, followed=False))

    # --- segments

    @property
    def wants_rotation(self) -> bool:
        """Whether the active segment is full."""
        return self._file is not None and self._file.size >= self._segment_bytes

    def rotate(self) -> None:
        """Begins a new segment; all writes must be durable."""
        assert not self._dirty, "a segment ends when it is durable"
        assert not self._syncing, "a segment ends when it is durable"
        assert self._file is not None, "the log is open"
        self._file.close()
        self._active.size = self._synced
        self._sealed.append(self._active)
        self._begin_segment(self._active.sequence + 1)

    def _begin_segment(self, sequence: int) -> None:
        path = self._path(sequence)
        state = self._hard_state
        size_before = self._sealed[-1].size if self._sealed else 0
        payload = msgpack.packb((FORMAT, self._last_index, self._last_epoch, state.epoch, state.voted_for, size_before))
        first = encode_record(sequence, 0, RecordType.SEGMENT, payload)
        self._active = _Segment(sequence=sequence, path=path, index_max=self._last_index, slots=len(first))
        self._file = self._disk.open(path, OpenMode.CREATE)
        self._synced = 0
        self._name_synced = False
        self._append([first, bytes(2 * SLOT_BYTES)])

    def drop_before(self, index: int) -> int:
        """Removes segments whose entries all stand at or before ``index``; returns how many.

        A durable snapshot must cover ``index``. Nothing is removed while the active segment's beginning, which repeats
        the hard state, is not durable.
        """
        removed = 0
        if self._synced and self._name_synced:
            while self._sealed and self._sealed[0].index_max <= index:
                self._disk.remove(self._sealed.pop(0).path)
                removed += 1
        return removed

    def close(self) -> None:
        """Closes without syncing; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
