"""Snapshots of a voter: files of checksummed pieces, written beside and put in place by a rename.

``snapshot-<index>-<epoch>.snap`` holds a header (position and membership), the pieces that the state machine made, and
a footer with their number. It is written under another name, synced, renamed, and the directory is synced: a name
without ``.part`` stands for a complete snapshot, and an invalid record in it is damage. Older snapshots go when a newer
one is in place; readers that have one open keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgpack

from moldau.runtime.ports.environment import Disk, File, OpenMode
from moldau_quorum.log.port import LogDamagedError, SnapshotInfo
from moldau_quorum.log.raft.core.messages import SNAPSHOT_PIECE_BYTES_MAX
from moldau_quorum.log.raft.core.types import SnapshotPoint, decode_configuration, encode_configuration
from moldau_quorum.log.raft.storage.record_format import (
    HEADER_BYTES,
    RecordType,
    encode_record,
    read_record,
    record_length,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 1


class SnapshotFileReader:
    """An open snapshot: the ``SnapshotReader`` of the port, with the membership and pieces that the log needs."""

    def __init__(self, disk: Disk, path: str, point: SnapshotPoint | None = None) -> None:
        """Finds the pieces; their contents are checked when they are read.

        ``point`` is the position of a file that does not have its name yet.

        Raises:
            LogDamagedError: header, footer or framing are damaged.
        """
        self.path = path
        self._file: File | None = disk.open(path, OpenMode.READ)
        self._positions: list[tuple[int, int]] = []
        try:
            index, epoch = _position_in_name(path) if point is None else (point.index, point.epoch)
            self._sequence, self.point = index, self._read_header(index, epoch)
            self._scan()
        except BaseException:
            self.close()
            raise

    def _read_header(self, index: int, epoch: int) -> SnapshotPoint:
        payload, self._scanned = self._record(index, 0, RecordType.SNAPSHOT_HEADER)
        version, stored_index, stored_epoch, configuration = msgpack.unpackb(payload)
        if version != FORMAT or (stored_index, stored_epoch) != (index, epoch):
            raise LogDamagedError(f"{self.path}: header of format {version} for {stored_index}, {stored_epoch}")
        return SnapshotPoint(index=index, epoch=epoch, configuration=decode_configuration(configuration))

    def _record(self, sequence: int, position: int, expected: RecordType) -> tuple[bytes, int]:
        assert self._file is not None, "the snapshot is open"
        length = record_length(self._file.read(position, HEADER_BYTES))
        record = read_record(sequence, self._file.read(position, length), 0) if length is not None else None
        if record is None or record.type != expected:
            raise LogDamagedError(f"{self.path}: invalid record at {position} of a snapshot that had been durable")
        return record.payload, position + record.end

    def _scan(self) -> None:
        assert self._file is not None, "the snapshot is open"
        position = self._scanned
        size = self._file.size
        while True:
            length = record_length(self._file.read(position, HEADER_BYTES))
            if length is None or position + length > size:
                raise LogDamagedError(f"{self.path}: invalid record at {position} of a snapshot that had been durable")
            if position + length == size:
                break
            self._positions.append((position, length))
            position += length
        payload, _ = self._record(self._sequence, position, RecordType.SNAPSHOT_FOOTER)
        (count,) = msgpack.unpackb(payload)
        if count != len(self._positions):
            raise LogDamagedError(f"{self.path}: {len(self._positions)} pieces, the footer says {count}")

    @property
    def info(self) -> SnapshotInfo:
        """See ``SnapshotReader``."""
        return SnapshotInfo(
            index=self.point.index,
            epoch=self.point.epoch,
            piece_count=len(self._positions),
            size_bytes=sum(length for _, length in self._positions),
        )

    @property
    def piece_count(self) -> int:
        """The number of pieces."""
        return len(self._positions)

    def read_piece(self, number: int) -> bytes:
        """Returns a piece.

        Raises:
            LogDamagedError: it does not match its checksum.
        """
        return self._record(self._sequence, self._positions[number][0], RecordType.SNAPSHOT_PIECE)[0]

    def read_pieces(self, first: int, bytes_max: int) -> tuple[bytes, ...]:
        """See ``SnapshotReader``."""
        pieces: list[bytes] = []
        size = 0
        for number in range(first, len(self._positions)):
            size += self._positions[number][1]
            if pieces and size > bytes_max:
                break
            pieces.append(self.read_piece(number))
        return tuple(pieces)

    def close(self) -> None:
        """See ``SnapshotReader``."""
        if self._file is not None:
            self._file.close()
            self._file = None


class SnapshotWriter:
    """A snapshot that is being written: of this node's own state, or from the leader."""

    def __init__(self, disk: Disk, directory: str, point: SnapshotPoint, source: str) -> None:
        """``source`` distinguishes writers that work at the same time; an older file of that source is replaced."""
        self.point = point
        self.piece_count = 0
        self._disk = disk
        self._directory = directory
        self.path = snapshot_path(directory, point)
        self.part_path = f"{directory}/{source}.part"
        self._placed = False
        if disk.exists(self.part_path):
            disk.remove(self.part_path)
        self._file: File | None = disk.open(self.part_path, OpenMode.CREATE)
        header = msgpack.packb((FORMAT, point.index, point.epoch, encode_configuration(point.configuration)))
        self._append(RecordType.SNAPSHOT_HEADER, header)

    def _append(self, record_type: RecordType, payload: bytes) -> None:
        assert self._file is not None, "the writer is open"
        self._file.append([encode_record(self.point.index, 0, record_type, payload)])

    def add(self, piece: bytes) -> None:
        """Writes the next piece to the page cache.

        Raises:
            ValueError: it is too large.
            OSError: the disk failed.
        """
        if len(piece) > SNAPSHOT_PIECE_BYTES_MAX:
            raise ValueError(
                f"a piece of a snapshot has {len(piece)} bytes, at most {SNAPSHOT_PIECE_BYTES_MAX} are allowed"
            )
        self._append(RecordType.SNAPSHOT_PIECE, piece)
        self.piece_count += 1

    def finish(self) -> None:
        """Makes the snapshot durable and puts it in place, at ``path``. Blocks: for ``Disk.offload``."""
        self.seal()
        self.place()

    def seal(self) -> None:
        """Makes the content durable, at ``part_path``. Blocks."""
        assert self._file is not None, "the writer is open"
        self._append(RecordType.SNAPSHOT_FOOTER, msgpack.packb((self.piece_count,)))
        self._file.sync()
        self._file.close()
        self._file = None

    def place(self) -> None:
        """Gives the sealed snapshot its name, durably. Blocks."""
        assert self._file is None, "only what is durable gets its name"
        self._placed = True
        self._disk.rename(self.part_path, self.path)
        self._disk.sync_directory(self._directory)

    def abandon(self) -> None:
        """Removes the file, unless it is in place; idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if not self._placed and self._disk.exists(self.part_path):
            self._disk.remove(self.part_path)


def _position_in_name(path: str) -> tuple[int, int]:
    stem = path.rsplit("/", 1)[1].split(".", 1)[0]
    index, epoch = (int(part) for part in stem.split("-")[1:])
    return index, epoch


def snapshot_path(directory: str, point: SnapshotPoint) -> str:
    """Returns the path of the snapshot of a position."""
    return f"{directory}/snapshot-{point.index:020d}-{point.epoch:010d}.snap"


def _snapshot_names(disk: Disk, directory: str) -> list[str]:
    return [name for name in disk.list_directory(directory) if name.startswith("snapshot-") and name.endswith(".snap")]


def open_newest_snapshot(disk: Disk, directory: str) -> SnapshotFileReader | None:
    """Opens the newest snapshot, None if there is none, and removes unfinished files.

    Raises:
        LogDamagedError: it is damaged.
    """
    for name in disk.list_directory(directory):
        if name.endswith(".part"):
            disk.remove(f"{directory}/{name}")
    names = _snapshot_names(disk, directory)
    if not names:
        return None
    disk.sync_directory(directory)  # a rename that was seen only in the cache must not be relied on
    return SnapshotFileReader(disk, f"{directory}/{names[-1]}")


def remove_older_snapshots(disk: Disk, directory: str, keep: SnapshotPoint) -> Sequence[str]:
    """Removes snapshots older than ``keep``, which is durable; returns their names."""
    kept = snapshot_path("", keep)[1:]
    names = [name for name in _snapshot_names(disk, directory) if name < kept]
    for name in names:
        disk.remove(f"{directory}/{name}")
    return names
