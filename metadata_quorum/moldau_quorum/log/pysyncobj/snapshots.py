"""Snapshots of the pysyncobj engine: how the port shows them, and how the library loads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from moldau_quorum.log.raft.storage.snapshot_store import SnapshotFileReader


class PublicSnapshot:
    """A snapshot as the port shows it, without the first piece, which belongs to the library."""

    def __init__(self, reader: SnapshotFileReader) -> None:
        """Takes over ``reader``."""
        self._reader = reader
        info = reader.info
        self.info = type(info)(
            index=info.index, epoch=info.epoch, piece_count=info.piece_count - 1, size_bytes=info.size_bytes
        )

    def read_pieces(self, first: int, bytes_max: int) -> tuple[bytes, ...]:
        """See ``SnapshotReader``."""
        return self._reader.read_pieces(first + 1, bytes_max)

    def close(self) -> None:
        """See ``SnapshotReader``."""
        self._reader.close()


class LoadSnapshot:
    """The job that makes the library load the newest snapshot, in one step."""

    def __init__(self, load: Callable[[], None]) -> None:
        """``load`` loads it."""
        self._load = load

    def step(self) -> bool:
        """See ``Job``."""
        self._load()
        return False

    def blocking_work(self) -> None:
        """See ``Job``."""
        return

    def finish(self) -> None:
        """See ``Job``."""
        return
