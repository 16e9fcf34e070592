"""The snapshot that a follower receives from its leader, piece by piece in order. Pure.

A piece of another snapshot begins again with its piece 0. After the last piece the snapshot is to be installed, and no
further one is taken meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau_quorum.log.raft.core.ready import SnapshotPiece
from moldau_quorum.log.raft.core.types import SnapshotPoint, decode_configuration

if TYPE_CHECKING:
    from moldau_quorum.log.raft.core.messages import SnapshotRequest


class IncomingSnapshot:
    """Invariant: a snapshot is received or installed, or neither, but not both."""

    __slots__ = ("_receiving", "installing")

    def __init__(self) -> None:
        """Starts without a snapshot."""
        self.installing: SnapshotPoint | None = None
        """The complete snapshot that is being installed."""
        self._receiving: tuple[SnapshotPoint, int] | None = None  # and its next piece

    def wanted_piece(self, request: SnapshotRequest) -> int:
        """Returns the number of the next piece of the snapshot that ``request`` belongs to."""
        if self._receiving is None:
            return 0
        point, wanted = self._receiving
        return wanted if (point.index, point.epoch) == (request.index, request.index_epoch) else 0

    def take(self, request: SnapshotRequest) -> SnapshotPiece | None:
        """Takes a piece, which is to be stored; None if it is not the next one."""
        assert self.installing is None, "no piece is taken while a snapshot is being installed"
        if request.piece != self.wanted_piece(request):
            return None
        point = SnapshotPoint(
            index=request.index,
            epoch=request.index_epoch,
            configuration=decode_configuration(request.configuration),
        )
        last = request.piece + 1 == request.piece_count
        self._receiving = None if last else (point, request.piece + 1)
        self.installing = point if last else None
        return SnapshotPiece(point=point, piece=request.piece, last=last, data=request.data)

    def ended(self, point: SnapshotPoint) -> None:
        """Forgets the snapshot, which was installed, or refused as invalid; the leader offers a refused one again."""
        assert self.installing == point, "only what was received is installed"
        self.installing = None
