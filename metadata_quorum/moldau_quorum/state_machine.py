"""What the entries of the metadata log mean to a controller: an image, and a cache of snapshots for followers.

This is the ``StateMachine`` behind the ``MetadataLog`` port. It replays commands in the engine's task and tells its
listeners; it never waits, and decides nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moldau.runtime.log import EventLogger
from moldau_quorum.image import MetadataDelta, MetadataImage, delta_between
from moldau_quorum.records import MetadataCorruptError, decode_command
from moldau_quorum.snapshot import SnapshotReader, snapshot_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from moldau_quorum.log_engine import CommittedEntry, Leadership, LogPosition


class MetadataStateMachine:
    """Holds the committed image."""

    def __init__(self, node_id: int) -> None:
        """Empty, as before the first entry."""
        self.image = MetadataImage(offset=0)
        self._restoring: SnapshotReader | None = None
        self._expected: deque[MetadataDelta] = deque()
        self._on_delta: list[Callable[[MetadataDelta], None]] = []
        self._on_leadership: list[Callable[[Leadership], None]] = []
        self._log = EventLogger("moldau.metadata", node=node_id)

    def on_delta(self, listener: Callable[[MetadataDelta], None]) -> None:
        """``listener`` gets every applied entry's delta, empty ones too. It must not wait."""
        self._on_delta.append(listener)

    def on_leadership(self, listener: Callable[[Leadership], None]) -> None:
        """``listener`` hears of changes of the leadership. It must not wait."""
        self._on_leadership.append(listener)

    def expect(self, delta: MetadataDelta) -> None:
        """The active controller has replayed a command of its own already: when the entry at the offset and epoch of
        ``delta.image`` is committed on top of ``delta.previous``, the outcome is taken over instead of computed again.
        An entry is unique by index and epoch (Raft, log matching), so it is the same command.
        """
        self._expected.append(delta)

    def expect_nothing(self) -> None:
        """The reign is over."""
        self._expected.clear()

    def _expected_delta(self, entry: CommittedEntry) -> MetadataDelta | None:
        expected = self._expected
        while expected and expected[0].image.offset < entry.index:
            expected.popleft()
        if not expected or expected[0].image.offset != entry.index:
            return None
        delta = expected.popleft()
        return delta if delta.image.epoch == entry.epoch and delta.previous is self.image else None

    def apply(self, entry: CommittedEntry) -> None:
        """Replays a committed entry. Raises ``MetadataCorruptError``: this node must stop rather than guess."""
        assert entry.index > self.image.offset, "entries are applied in order, once"
        delta = self._expected_delta(entry)
        if delta is None:
            delta = self.image.apply_command(decode_command(entry.data), offset=entry.index, epoch=entry.epoch)
        if not delta.accepted:
            self._log.warning("command-of-deposed-controller-ignored", offset=entry.index, epoch=entry.epoch)
        self._advance(delta)

    def leadership_changed(self, leadership: Leadership) -> None:
        """Passes it on."""
        for listener in self._on_leadership:
            listener(leadership)

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The present image as a snapshot; advanced at leisure, since images never change."""
        return snapshot_pieces(self.image)

    def restore_begin(self) -> None:
        """Starts to read a snapshot."""
        self._restoring = SnapshotReader()

    def restore_piece(self, piece: bytes) -> None:
        """Reads a piece."""
        assert self._restoring is not None, "a snapshot begins before its pieces"
        self._restoring.feed(piece)

    def restore_end(self, position: LogPosition) -> None:
        """Takes over the snapshot's image."""
        assert self._restoring is not None, "a snapshot begins before it ends"
        image = self._restoring.finish()
        self._restoring = None
        if image.offset > position.index:
            raise MetadataCorruptError(f"a snapshot of offset {image.offset} claims to end at {position.index}")
        self._advance(delta_between(self.image, image))

    def _advance(self, delta: MetadataDelta) -> None:
        self.image = delta.image
        for listener in self._on_delta:
            listener(delta)
