"""The state machine of a controller over the metadata log: an image, and a cache of snapshots for followers.

This is the ``StateMachine`` behind the ``MetadataLog`` port. It replays commands in the engine's task and calls its
listeners; it never waits, and decides nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from moldau.runtime.telemetry.log import EventLogger
from moldau_quorum.controller.cluster.features import SUPPORTED_FEATURES, unsupported_level
from moldau_quorum.log.port import SnapshotInvalidError
from moldau_quorum.metadata.epoch_history import EpochHistory
from moldau_quorum.metadata.image import MetadataImage
from moldau_quorum.metadata.records import MetadataCorruptError, decode_command
from moldau_quorum.metadata.snapshot import SnapshotReader, snapshot_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from moldau_quorum.log.port import CommittedEntry, Leadership, LogPosition, MetadataLog


class MetadataStateMachine:
    """Holds the committed image."""

    def __init__(self, node_id: int, features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES) -> None:
        """Empty, as before the first entry. ``features`` are what this node supports."""
        self._features = features
        self.image = MetadataImage(offset=0)
        self.epochs = EpochHistory()
        """The epochs of the commands in ``image``."""
        self.log: MetadataLog | None = None
        """The log that drives this machine, once it is made."""
        self._restoring: SnapshotReader | None = None
        self._expected: deque[tuple[MetadataImage, MetadataImage]] = deque()
        self._on_image: list[Callable[[MetadataImage], None]] = []
        self._on_leadership: list[Callable[[Leadership], None]] = []
        self._log = EventLogger("moldau.metadata", node=node_id)

    def on_image(self, listener: Callable[[MetadataImage], None]) -> None:
        """Registers a listener, which must not wait, for the image after every applied entry or restored snapshot."""
        self._on_image.append(listener)

    def on_leadership(self, listener: Callable[[Leadership], None]) -> None:
        """Registers a listener, which must not wait, for changes of the leadership."""
        self._on_leadership.append(listener)

    def expect(self, previous: MetadataImage, image: MetadataImage) -> None:
        """Announces a command that the active controller has replayed itself.

        When the entry at the offset and epoch of ``image`` is committed on top of ``previous``, ``image`` is taken over
        instead of computed again. An entry is unique by index and epoch (Raft, log matching), so this is that command.
        """
        self._expected.append((previous, image))

    def expect_nothing(self) -> None:
        """Forgets announced commands, because the controller epoch is over."""
        self._expected.clear()

    def _expected_image(self, entry: CommittedEntry) -> MetadataImage | None:
        expected = self._expected
        while expected and expected[0][1].offset < entry.index:
            expected.popleft()
        if not expected or expected[0][1].offset != entry.index:
            return None
        previous, image = expected.popleft()
        return image if image.epoch == entry.epoch and previous is self.image else None

    def apply(self, entry: CommittedEntry) -> bool:
        """Replays a committed entry.

        Asks for a snapshot when the level of a feature has gone down: earlier entries and snapshots are of the higher
        level, and a node of the older version that starts here refuses them.

        Raises:
            MetadataCorruptError: the entry cannot be replayed; this node must stop.
        """
        before = self.image.features
        assert entry.index > self.image.offset, "entries are applied in order, once"
        image = self._expected_image(entry)
        if image is None:
            editor = self.image.edit()
            if not editor.replay_command(decode_command(entry.data)):
                self._log.warning("command-of-deposed-controller-ignored", offset=entry.index, epoch=entry.epoch)
            image = editor.finish_image(offset=entry.index, epoch=entry.epoch)
        self.epochs.take(image.offset, image.epoch)
        self._advance(image)
        return image.features != before and any(image.features.get(name, 0) < level for name, level in before.items())

    def leadership_changed(self, leadership: Leadership) -> None:
        """Passes it on."""
        for listener in self._on_leadership:
            listener(leadership)

    def snapshot_pieces(self) -> Iterator[bytes]:
        """Yields the present image as a snapshot; it may be advanced later, because images never change."""
        return snapshot_pieces(self.image)

    def restore_begin(self) -> None:
        """Starts to read a snapshot."""
        self._restoring = SnapshotReader()

    def restore_piece(self, piece: bytes) -> None:
        """Reads a piece."""
        assert self._restoring is not None, "a snapshot begins before its pieces"
        try:
            self._restoring.feed(piece)
        except MetadataCorruptError as error:
            raise SnapshotInvalidError(str(error)) from error

    def restore_end(self, position: LogPosition) -> None:
        """Takes over the snapshot's image, if it continues the present one."""
        assert self._restoring is not None, "a snapshot begins before it ends"
        try:
            image = self._restoring.finish()
        except MetadataCorruptError as error:
            raise SnapshotInvalidError(str(error)) from error
        refusal = self._refusal(image, position)
        if refusal is not None:
            raise SnapshotInvalidError(refusal)
        self._restoring = None
        self.epochs.restart(image.offset, image.epoch)
        self._advance(image)

    def _refusal(self, image: MetadataImage, position: LogPosition) -> str | None:
        """Returns why an image cannot follow the present one; None if it can."""
        own = self.image
        if image.offset > position.index:
            return f"a snapshot of offset {image.offset} claims to end at {position.index}"
        if own.cluster_id and image.cluster_id != own.cluster_id:
            return f"a snapshot of cluster {image.cluster_id or 'none'} reached a node of cluster {own.cluster_id}"
        if image.offset < own.offset or image.epoch < own.epoch:
            return (
                f"a snapshot of offset {image.offset}, epoch {image.epoch} is older than offset {own.offset}, epoch "
                f"{own.epoch}"
            )
        return unsupported_level(image.features, self._features)

    def _advance(self, image: MetadataImage) -> None:
        if image.features != self.image.features:
            # A node that does not know what a level means must not guess: it would decide, and be followed.
            unsupported = unsupported_level(image.features, self._features)
            if unsupported is not None:
                raise MetadataCorruptError(unsupported)
        self.image = image
        for listener in self._on_image:
            listener(image)
