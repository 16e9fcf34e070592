"""Where a log begins on this disk, if the object store has its older records.

Without this file a log begins at its first segment, or above. With it the log start offset may lie below, and these
hold after any crash:

- Records below ``local_log_start_offset`` are in the store. Their local segments may still be there, all or some: the
  file is durable before the first of them goes. The loader removes the rest, so that a log never has a hole.
- The log start offset is ``log_start_offset`` or above: the checkpoint of log start offsets is newer, but may be lost.
- ``leader_epochs`` are those of the log below ``local_log_start_offset``. No batch on this disk shows them.

The format is text, in the style of Kafka's checkpoints:

    0                       version
    100 5000                log start offset, local log start offset
    1                       number of leader epochs
    7 4200                  leader epoch, its start offset
    crc32c: 9f00ac35        checksum of all lines before it, hexadecimal
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from moldau.records.checksum import crc32c
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import decode_epochs, encode_epochs, read_file, write_atomically
from moldau_broker.log.files.names import LOCAL_START_CHECKPOINT
from moldau_broker.log.values import NO_EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.files.checkpoint import EpochEntry

_VERSION = b"0"
_CHECKSUM_PREFIX = b"crc32c: "


class LocalStart(NamedTuple):
    """The content of the file. Invariants: both offsets are in order, and all epochs begin below the second."""

    log_start_offset: int
    local_log_start_offset: int
    leader_epochs: tuple[EpochEntry, ...]


def local_start(log_start_offset: int, local_log_start_offset: int, epochs: Iterable[EpochEntry]) -> LocalStart:
    """Returns the content for a log with these epochs."""
    past = tuple(entry for entry in epochs if entry.start_offset < local_log_start_offset)
    return LocalStart(log_start_offset, local_log_start_offset, past)


def encode_local_start(start: LocalStart) -> bytes:
    """Returns the content of the file."""
    # The lines of the epochs are those of their checkpoint, without its version.
    epochs = encode_epochs(start.leader_epochs).partition(b"\n")[2]
    content = b"%s\n%d %d\n" % (_VERSION, start.log_start_offset, start.local_log_start_offset) + epochs
    return content + b"%s%08x\n" % (_CHECKSUM_PREFIX, crc32c(content))


def decode_local_start(path: str, data: bytes) -> LocalStart:
    """Parses the file.

    Raises:
        CorruptLogFileError: The file is damaged.
    """
    content, prefix, checksum = data.rpartition(_CHECKSUM_PREFIX)
    if not prefix or checksum != b"%08x\n" % crc32c(content):
        raise CorruptLogFileError(path, len(content), "the checksum is not that of the lines before it")
    version, offsets, epochs = content.split(b"\n", 2)
    if version != _VERSION:
        raise CorruptLogFileError(path, 0, f"version {version!r} is unknown")
    log_start_offset, local_log_start_offset = map(int, offsets.split())
    return LocalStart(log_start_offset, local_log_start_offset, tuple(decode_epochs(path, _VERSION + b"\n" + epochs)))


class LocalStartFile:
    """The file of one log. Invariant: ``content`` is durable; None if there is no sound file."""

    __slots__ = ("_directory", "_disk", "content", "is_damaged")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.content: LocalStart | None = None
        self.is_damaged = False
        """Whether ``load`` found a damaged file, and nothing was written since."""

    @property
    def offset(self) -> int:
        """Offset below which the object store has all records of the log; 0 if that is not known."""
        return 0 if self.content is None else self.content.local_log_start_offset

    def with_past(self, entries: Sequence[EpochEntry]) -> list[EpochEntry]:
        """Returns the epochs of the log, given those that other files or batches show."""
        if self.content is None:
            return list(entries)
        past = self.content.leader_epochs
        newest = past[-1].leader_epoch if past else NO_EPOCH
        later = [entry for entry in entries if entry.start_offset >= self.offset and entry.leader_epoch > newest]
        return [*past, *later]

    @property
    def path(self) -> str:
        """Path of the file, which may not exist."""
        return f"{self._directory}/{LOCAL_START_CHECKPOINT}"

    def load(self) -> None:
        """Reads the file.

        Raises:
            CorruptLogFileError: The file is damaged.
            OSError: The file could not be read.
        """
        if self._disk.exists(self.path):
            self.is_damaged = True
            self.content = decode_local_start(self.path, read_file(self._disk, self.path))
            self.is_damaged = False

    def log_start(self, checkpointed: int, first_on_disk: int, epochs: Sequence[EpochEntry]) -> int:
        """Returns the log start offset, given the checkpointed one, the first segment's base offset and the epochs.

        It is below the first segment only if the object store has older records. A damaged file is replaced. The epochs
        are kept from the log start offset on, and tell it then. If they are lost too, it is 0 without a checkpoint: no
        record is hidden that may be in the store.

        Raises:
            OSError: The file could not be written.
        """
        if not self.is_damaged:
            return checkpointed if self.content is not None else max(checkpointed, first_on_disk)
        known_from = epochs[0].start_offset if epochs else first_on_disk
        if known_from < first_on_disk:
            checkpointed = max(checkpointed, known_from)
        self.write(local_start(min(checkpointed, first_on_disk), first_on_disk, epochs))
        return checkpointed

    def write(self, start: LocalStart) -> None:
        """Replaces the content; durable on return.

        Raises:
            OSError: The file could not be written.
        """
        assert start.log_start_offset <= start.local_log_start_offset, f"{start} begins above its local start"
        if start != self.content:
            write_atomically(self._disk, self.path, encode_local_start(start))
            self.content = start
            self.is_damaged = False

    def remove(self) -> None:
        """Removes the file; durable on return.

        Raises:
            OSError: The file could not be removed.
        """
        if self._disk.exists(self.path):
            self._disk.remove(self.path)
            self._disk.sync_directory(self._directory)
        self.content = None

    def moved(self, directory: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self._directory = directory
