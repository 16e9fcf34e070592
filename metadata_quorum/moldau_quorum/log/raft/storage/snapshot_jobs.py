"""Long work on snapshots in short steps, so that the loop that keeps the quorum alive never stops for it.

The owner of the node advances a job: ``step`` until it returns False, then ``blocking_work`` (if any) outside the event
loop, then ``finish``, in which the node may queue the next job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau_quorum.log.port import LogPosition, SnapshotInvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_quorum.log.port import StateMachine
    from moldau_quorum.log.raft.storage.snapshot_store import SnapshotFileReader, SnapshotWriter


class Job(Protocol):
    """Long work in short steps; the module gives the order of the calls."""

    def step(self) -> bool:
        """Does a bounded amount of work; returns whether there is more of it."""
        ...

    def blocking_work(self) -> Callable[[], object] | None:
        """Returns the work for ``Disk.offload``; called once, after the last step. None: there is none."""
        ...

    def finish(self) -> None:
        """Reports the outcome to the node; called once, when the blocking work is done."""
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
        """Reports the end to the node."""
        self._done(self._writer)


class SealSnapshot:
    """Makes a received snapshot durable, still without its name."""

    def __init__(self, writer: SnapshotWriter, done: Callable[[SnapshotWriter], None]) -> None:
        """``done`` is called when the content is durable."""
        self._writer = writer
        self._done = done

    def step(self) -> bool:
        """Returns False: the pieces are written already."""
        return False

    def blocking_work(self) -> Callable[[], object]:
        """Syncs."""
        return self._writer.seal

    def finish(self) -> None:
        """Reports the end to the node."""
        self._done(self._writer)


class InstallSnapshot:
    """Puts a sealed snapshot in place, which the state machine has taken over."""

    def __init__(self, writer: SnapshotWriter, done: Callable[[SnapshotWriter], None]) -> None:
        """``done`` is called when the snapshot is in place."""
        self._writer = writer
        self._done = done

    def step(self) -> bool:
        """Returns False: there is nothing to do in steps."""
        return False

    def blocking_work(self) -> Callable[[], object]:
        """Renames."""
        return self._writer.place

    def finish(self) -> None:
        """Reports the end to the node."""
        self._done(self._writer)


class RestoreSnapshot:
    """Feeds a durable snapshot to the state machine."""

    def __init__(
        self,
        reader: SnapshotFileReader,
        machine: StateMachine,
        restored: Callable[[], None],
        refused: Callable[[SnapshotInvalidError], None] | None = None,
    ) -> None:
        """Restores from ``reader`` into ``machine``.

        ``restored`` is called when the state machine is at the snapshot's position, ``refused`` when it refuses the
        snapshot; without ``refused`` the exception is raised.
        """
        self._reader = reader
        self._machine = machine
        self._restored = restored
        self._refused = refused
        self._refusal: SnapshotInvalidError | None = None
        self._next = -1

    def step(self) -> bool:
        """Feeds a piece.

        Raises:
            LogDamagedError: the piece does not match its checksum.
            SnapshotInvalidError: the state machine refuses the snapshot, and there is no callback for that.
        """
        if self._next < 0:
            self._machine.restore_begin()
        elif self._next < self._reader.piece_count:
            return self._guarded(lambda: self._machine.restore_piece(self._reader.read_piece(self._next)))
        else:
            return False
        self._next += 1
        return True

    def _guarded(self, call: Callable[[], None]) -> bool:
        """Returns whether there is more to do."""
        try:
            call()
        except SnapshotInvalidError as error:
            if self._refused is None:
                raise
            self._refusal = error
            return False
        self._next += 1
        return True

    def blocking_work(self) -> None:
        """Returns None: there is no blocking work."""
        return

    def finish(self) -> None:
        """Reports that the state machine has the whole snapshot, or has refused it."""
        point = self._reader.point
        if self._refusal is None:
            self._guarded(lambda: self._machine.restore_end(LogPosition(index=point.index, epoch=point.epoch)))
        if self._refusal is not None:
            assert self._refused is not None, "a refusal without a callback was raised"
            self._refused(self._refusal)
        else:
            self._restored()
