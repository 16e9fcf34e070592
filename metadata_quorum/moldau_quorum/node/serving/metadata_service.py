"""Serves the committed metadata to followers: the tail of the log, or a snapshot of the present image in pieces.

A snapshot is encoded once, piece by piece as it is asked for, and shared by all followers that ask while it is young;
at most ``SNAPSHOTS_MAX`` are kept. An image never changes, so a snapshot costs no copy.

While followers read all kept snapshots, a further follower gets an old one, because a new one would take the place of
one that is being read. The reader would have to begin again, with a snapshot that takes the place of the next one, and
so on: brokers that start together while the metadata change would not come to an end.

A kept snapshot is of the feature levels at its offset. When a level has gone down, brokers of the older version start,
which cannot read earlier snapshots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.protocol.errors import ErrorCode
from moldau_quorum.broker_side.metadata_fetch import MetadataFetchRequest, MetadataFetchResponse
from moldau_quorum.log.port import OffsetOutOfRangeError
from moldau_quorum.metadata.snapshot import snapshot_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moldau_quorum.log.port import MetadataLog
    from moldau_quorum.metadata.image import MetadataImage
    from moldau_quorum.node.state_machine import MetadataStateMachine

SNAPSHOTS_MAX: Final = 2
SNAPSHOT_LAG_MAX: Final = 100
"""A kept snapshot is given to a new follower while it is at most so many offsets old."""
SNAPSHOT_IDLE_SECONDS: Final = 10.0
"""A snapshot of which no piece was asked for so long is not being read any more."""


class _KeptSnapshot:
    """A snapshot whose pieces come into being on demand."""

    def __init__(self, image: MetadataImage) -> None:
        self.offset = image.offset
        self.features = image.features
        self.read_at = 0.0
        """When a piece was last asked for."""
        self._pieces: list[bytes] = []
        self._more: Iterator[bytes] | None = snapshot_pieces(image)

    def read(self, first: int, bytes_max: int) -> tuple[tuple[bytes, ...], bool]:
        """Pieces from number ``first`` on, at least one if there is one, and whether they are the last."""
        result: list[bytes] = []
        size = 0
        while True:
            number = first + len(result)
            while self._more is not None and len(self._pieces) <= number:
                piece = next(self._more, None)
                if piece is None:
                    self._more = None
                else:
                    self._pieces.append(piece)
            if number >= len(self._pieces):
                return tuple(result), True
            if result and size + len(self._pieces[number]) > bytes_max:
                return tuple(result), False
            size += len(self._pieces[number])
            result.append(self._pieces[number])


class MetadataService:
    """Answers metadata fetches of one controller."""

    def __init__(self, log: MetadataLog, machine: MetadataStateMachine) -> None:
        """Reads from ``log`` and ``machine``, changes neither."""
        self._log = log
        self._machine = machine
        self._snapshots: list[_KeptSnapshot] = []

    async def fetch(self, request: MetadataFetchRequest) -> MetadataFetchResponse:
        """Answers within the request's ``wait_ms``."""
        cluster_id = self._machine.image.cluster_id
        if request.cluster_id and cluster_id and request.cluster_id != cluster_id:
            return self._respond(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        if self._log.leadership.leader_id < 0 or self._log.hangs:
            # Cut off from the quorum, or unable to apply entries, this controller may be far behind.
            return self._respond(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        if self._contradicts(request):
            return self._respond(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        if request.snapshot_offset >= 0:
            return self._snapshot_part(request)
        if self._wants_snapshot(request.next_offset):
            return self._new_snapshot(request)
        if self._log.high_watermark < request.next_offset:
            with trio.move_on_after(request.wait_ms / 1000):
                await self._log.wait_for_commit(request.next_offset)
            if self._contradicts(request):  # entries of another history may have been committed meanwhile
                return self._respond(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return self._tail(request)

    def _contradicts(self, request: MetadataFetchRequest) -> bool:
        """Returns whether the committed log cannot contain the follower's position.

        A position above this node's high watermark is no contradiction in itself, because this node may lag behind
        another controller. It is one if commands here are already of a later epoch, or if this node is active and its
        log ends before: all that is committed is in the log of the leader, though a slow disk may let other controllers
        apply it first. If the follower has heard of a later leader, this one may be deposed and not know it yet.
        """
        offset = request.next_offset - 1
        if offset <= 0 or request.last_epoch < 0:
            return False
        if offset <= self._log.high_watermark:
            return self._machine.epochs.epoch_at(offset) not in (None, request.last_epoch)
        leadership = self._log.leadership
        if leadership.active and leadership.epoch >= request.leader_epoch and offset > self._log.status().log_end_index:
            return True
        return self._machine.epochs.latest > request.last_epoch

    def _wants_snapshot(self, next_offset: int) -> bool:
        return next_offset < self._log.log_start_index or (next_offset <= 0 and self._machine.image.offset > 0)

    def _tail(self, request: MetadataFetchRequest) -> MetadataFetchResponse:
        try:
            committed = self._log.read_committed(max(1, request.next_offset), request.bytes_max)
        except OffsetOutOfRangeError:
            return self._new_snapshot(request)
        entries = [(entry.index, entry.epoch, entry.data) for entry in committed.entries]
        last = committed.next_index - 1
        if last >= request.next_offset and (not entries or entries[-1][0] < last):
            epoch = entries[-1][1] if entries else self._log.leadership.epoch
            entries.append((last, epoch, b""))  # what Raft wrote for itself: only the offset moves
        return self._respond(entries=tuple(entries), committed_offset=committed.high_watermark)

    def _new_snapshot(self, request: MetadataFetchRequest) -> MetadataFetchResponse:
        image = self._machine.image
        kept = self._kept(max(request.next_offset, image.offset - SNAPSHOT_LAG_MAX))
        if kept is None and self._are_read():
            # From an older one on, the follower goes on with the log, if the log still has what comes next.
            kept = self._kept(max(request.next_offset, self._log.log_start_index - 1))
        if kept is None:
            kept = _KeptSnapshot(image)
            if len(self._snapshots) >= SNAPSHOTS_MAX:
                self._snapshots.remove(min(self._snapshots, key=lambda each: each.read_at))
            self._snapshots.append(kept)
        return self._part(kept, 0, request.bytes_max)

    def _kept(self, offset_min: int) -> _KeptSnapshot | None:
        """Returns the newest kept snapshot of this offset or a later one, unless a level has gone down since."""
        levels = self._machine.image.features
        for kept in reversed(self._snapshots):
            if kept.offset >= offset_min:
                has_fallen = any(levels.get(name, 0) < level for name, level in kept.features.items())
                return None if has_fallen else kept
        return None

    def _are_read(self) -> bool:
        """Returns whether followers read as many snapshots as are kept."""
        idle_since = trio.current_time() - SNAPSHOT_IDLE_SECONDS
        return sum(kept.read_at >= idle_since for kept in self._snapshots) >= SNAPSHOTS_MAX

    def _snapshot_part(self, request: MetadataFetchRequest) -> MetadataFetchResponse:
        for kept in self._snapshots:
            if kept.offset == request.snapshot_offset:
                return self._part(kept, request.piece, request.bytes_max)
        return self._respond(error_code=ErrorCode.SNAPSHOT_NOT_FOUND)

    def _part(self, kept: _KeptSnapshot, first: int, bytes_max: int) -> MetadataFetchResponse:
        kept.read_at = trio.current_time()
        pieces, complete = kept.read(first, min(bytes_max, 256 * 1024))
        return self._respond(snapshot_offset=kept.offset, pieces=pieces, complete=complete)

    def _respond(
        self,
        *,
        error_code: ErrorCode = ErrorCode.NONE,
        committed_offset: int | None = None,
        entries: tuple[tuple[int, int, bytes], ...] = (),
        snapshot_offset: int = -1,
        pieces: tuple[bytes, ...] = (),
        complete: bool = False,
    ) -> MetadataFetchResponse:
        leadership = self._log.leadership
        return MetadataFetchResponse(
            error_code=error_code,
            leader_id=leadership.leader_id,
            leader_epoch=leadership.epoch,
            committed_offset=self._log.high_watermark if committed_offset is None else committed_offset,
            entries=entries,
            snapshot_offset=snapshot_offset,
            pieces=pieces,
            complete=complete,
            voters=tuple((node_id, voter.host, voter.port) for node_id, voter in sorted(self._log.voters.items())),
        )
