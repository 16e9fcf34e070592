"""How much room the log directories have, and which of them are nearly full.

A write that finds no room fails its directory, and a restart does not help, because the disk is still full. So rules of
a nearly full directory differ: retention looks at its logs every few seconds, removed files go at once instead of after
``file.delete.delay.ms``, replicas out of sync do not take the last bytes, and checkpoints wait if even these are gone.
Deleted records, or a shorter retention, thus free such a disk while the broker runs and when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from moldau.runtime.telemetry.log import EventLogger
from moldau.values import low_mark_bytes

if TYPE_CHECKING:
    from moldau_broker.log.directories.log_store import LogStore

RESERVE_SHARE: Final = 4
"""Replicas out of sync leave this fraction of the low mark to checkpoints, snapshots and leaders."""
CHECKPOINTS_BYTES: Final = 1 << 16
"""Regular checkpoints wait if less is usable, unless the reserve is smaller."""
_logger = EventLogger("moldau.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Size of a directory's disk and the bytes that can still be written to it."""

    total_bytes: int
    usable_bytes: int

    @property
    def low_mark_bytes(self) -> int:
        """Fewer usable bytes than these are low."""
        return low_mark_bytes(self.total_bytes)

    @property
    def is_low(self) -> bool:
        """Whether the disk is nearly full."""
        return self.usable_bytes < self.low_mark_bytes

    @property
    def reserve_bytes(self) -> int:
        """Bytes that replicas out of sync leave."""
        return self.low_mark_bytes // RESERVE_SHARE


class DirectoryRoom:
    """Watches the room of the directories of one broker."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.low: dict[str, Space] = {}
        """The directories that were nearly full at the last look."""
        self.spaces: dict[str, Space] = {}
        """The room of each online directory at the last look."""

    def look(self) -> None:
        """Measures all online directories; one that cannot be measured goes offline."""
        self.spaces = {}
        for path in self._store.online_directories:
            try:
                self.spaces[path] = self.measure(path)
            except OSError as error:
                self._store.fail_directory(path, error)
        low = {path: space for path, space in self.spaces.items() if space.is_low}
        for path, space in low.items():
            if path not in self.low:
                _logger.warning(
                    "log-directory-nearly-full",
                    directory=path,
                    usable_bytes=space.usable_bytes,
                    total_bytes=space.total_bytes,
                    advice="delete records, shorten retention, move replicas or enlarge the disk",
                )
        for path in self.low:
            if path not in low and path in self.spaces:
                _logger.info("log-directory-has-room", directory=path, usable_bytes=self.spaces[path].usable_bytes)
        self.low = low

    def measure(self, path: str) -> Space:
        """Returns the present room of a directory.

        Raises:
            OSError: The disk does not answer.
        """
        disk = self._store.disk
        return Space(total_bytes=disk.total_bytes(path), usable_bytes=disk.free_bytes(path))

    def is_short(self, path: str, size_bytes: int) -> bool:
        """Returns whether a follower must not write ``size_bytes`` to a directory now."""
        return path in self.low and self.would_fill(path, size_bytes)

    def would_fill(self, path: str, size_bytes: int) -> bool:
        """Returns whether a directory with ``size_bytes`` more would have less than its reserve left; measures it."""
        try:
            space = self.measure(path)
        except OSError:
            return False  # the append meets the same disk, and its error fails the directory
        return space.usable_bytes - size_bytes < space.reserve_bytes

    def is_full(self, path: str) -> bool:
        """Returns whether a directory had no room for checkpoints at the last look."""
        space = self.low.get(path)
        return space is not None and space.usable_bytes < min(CHECKPOINTS_BYTES, space.reserve_bytes)
