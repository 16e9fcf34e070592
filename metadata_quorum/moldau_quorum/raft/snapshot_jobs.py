"""Long work on snapshots in short steps, so that the loop that keeps the quorum alive never stops for it.

A job is advanced by whoever runs the node: ``step`` until it returns False, then ``blocking_work`` (if any) outside the
event loop, then ``finish``, which may return the job that comes after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau_quorum.log_engine import LogPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_quorum.log_engine import StateMachine
    from moldau_quorum.raft.snapshot_store import SnapshotFileReader, SnapshotWriter
    from moldau_quorum.raft.types import SnapshotPoint


class Job(Protocol):
    """See the module."""

    def step(self) -> bool:
        """Does a bounded amount of work; returns whether there is more of it."""
        ...

    def blocking_work(self) -> Callable[[], object] | None:
        """Called once, after the last step: what is to be run by ``Disk.offload``."""
        ...

    def finish(self) -> None:
        """Called once, when the blocking work is done."""
        ...


class TakeSnapshot:
    """Writes the state machine's state of this moment."""

    def __init__(self, writer: SnapshotWriter, pieces: Iterator[bytes], done: Callable[[SnapshotWriter], None]) -> None:
        """``done`` is called when the snapshot is durable and in place."""
        self._writer = writer
        self._pieces = pieces
        self._done = done

    def step(self) -> bool:
        """Writes a piece."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._writer.add(piece)
        return True

    def blocking_work(self) -> Callable[[], object]:
        """Syncs and renames."""
        return self._writer.finish

    def finish(self) -> None:
        """Tells the node."""
        self._done(self._writer)


class StoreSnapshot:
    """Makes a received snapshot durable."""

    def __init__(self, writer: SnapshotWriter, done: Callable[[SnapshotWriter], None]) -> None:
        """``done`` is called when the snapshot is durable and in place."""
        self._writer = writer
        self._done = done

    def step(self) -> bool:
        """There is nothing to write any more."""
        return False

    def blocking_work(self) -> Callable[[], object]:
        """Syncs and renames."""
        return self._writer.finish

    def finish(self) -> None:
        """Tells the node."""
        self._done(self._writer)


class RestoreSnapshot:
    """Feeds a durable snapshot to the state machine."""

    def __init__(
        self, reader: SnapshotFileReader, machine: StateMachine, done: Callable[[SnapshotPoint], None]
    ) -> None:
        """``done`` is called when the state machine is at the snapshot's position."""
        self._reader = reader
        self._machine = machine
        self._done = done
        self._next = -1

    def step(self) -> bool:
        """Feeds a piece; raises ``LogDamagedError``."""
        if self._next < 0:
            self._machine.restore_begin()
        elif self._next < self._reader.piece_count:
            self._machine.restore_piece(self._reader.read_piece(self._next))
        else:
            return False
        self._next += 1
        return True

    def blocking_work(self) -> None:
        """There is none."""
        return

    def finish(self) -> None:
        """The state machine has all of it."""
        point = self._reader.point
        self._machine.restore_end(LogPosition(index=point.index, epoch=point.epoch))
        self._done(point)
