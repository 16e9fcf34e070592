"""The position in the metadata log that a broker has applied, kept in its log directories across restarts.

A broker deletes the logs of deleted topics. If its controllers lose their data while it is down, and it then believed
their older or empty metadata, it would set aside or delete logs that the cluster still needs. Each online log directory
therefore holds ``applied-metadata-checkpoint``:

    version=0
    cluster.id=K9k...
    offset=4711        last applied offset of the metadata log
    epoch=12           epoch of the last command at or below it

The file is written before logs are deleted because of newer metadata, when a broker has caught up and when it stops,
and otherwise every ``PERIOD_MS`` if the metadata have changed. At start the highest position of all directories is the
floor of ``MetadataFollower``. A broker whose file is missing accepts any metadata of its cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.ports.descriptors import is_shortage
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.checkpoint import read_file, write_atomically, write_temporary
from moldau_broker.log.files.names import APPLIED_METADATA, TEMPORARY_SUFFIX
from moldau_quorum.broker_side.metadata_position import MetadataPosition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from moldau.runtime.ports.environment import Disk
    from moldau.runtime.telemetry.log import EventLogger
    from moldau_broker.log.directories.manager import LogManager
    from moldau_quorum.metadata.image import MetadataImage

PERIOD_MS: Final = 5_000.0
"""Shortest time between two writes that no deletion demands."""
_VERSION = "0"


def encode_position(cluster_id: str, position: MetadataPosition) -> bytes:
    """Returns the content of the file."""
    return (f"version={_VERSION}\ncluster.id={cluster_id}\noffset={position.offset}\nepoch={position.epoch}\n").encode()


def decode_position(path: str, content: bytes) -> tuple[str, MetadataPosition]:
    """Returns the cluster id and the position in the file.

    Raises:
        CorruptLogFileError: the file is damaged.
    """
    values = dict(line.partition("=")[::2] for line in content.decode("utf-8", "replace").splitlines())
    if values.get("version") != _VERSION:
        raise CorruptLogFileError(path, 0, f"expected version={_VERSION}, found {values.get('version')!r}")
    try:
        position = MetadataPosition(offset=int(values["offset"]), epoch=int(values["epoch"]))
        return values["cluster.id"], position
    except (KeyError, ValueError) as error:
        raise CorruptLogFileError(path, 0, f"missing or bad value: {error}") from error


def known_position(
    disk: Disk, directories: Iterable[str], cluster_id: str, logger: EventLogger
) -> MetadataPosition | None:
    """Returns the highest position in the directories; None if none has a readable one of this cluster.

    An unreadable file is logged as an error and does not count: the other directories decide.
    """
    found: list[MetadataPosition] = []
    for directory in directories:
        path = f"{directory}/{APPLIED_METADATA}"
        try:
            if disk.exists(path):
                belongs_to, position = decode_position(path, read_file(disk, path))
                if belongs_to == cluster_id:
                    found.append(position)
        except (OSError, CorruptLogFileError) as error:
            logger.error("applied-metadata-unreadable", path=path, reason=error)
    return max(found, default=None)


class AppliedPosition:
    """Keeps the applied position in the log directories. Its methods run in the event loop."""

    def __init__(
        self,
        disk: Disk,
        logs: LogManager,
        image: Callable[[], MetadataImage],
        run_in: Callable[[str, Callable[[], None]], Awaitable[None]],
    ) -> None:
        """``image`` returns the newest metadata that the broker has taken; ``run_in`` is ``LogTasks.run_in``."""
        self._run_in = run_in
        self._disk = disk
        self._logs = logs
        self._image = image
        self._kept = MetadataPosition(offset=-1, epoch=-1)
        self._writes = 0  # a periodic write that another write has overtaken is void

    def write(self) -> None:
        """Makes the newest position durable if it is not yet; blocks. A directory that fails goes offline."""
        image = self._image()
        position = MetadataPosition(offset=image.offset, epoch=image.epoch)
        if position == self._kept:
            return
        self._writes += 1
        content = encode_position(image.cluster_id, position)
        is_kept = True
        for directory in self._logs.online_directories:
            try:
                write_atomically(self._disk, f"{directory}/{APPLIED_METADATA}", content)
            except OSError as error:
                self._logs.fail_directory(directory, error)
                is_kept = is_kept and not is_shortage(error)
        if is_kept:
            self._kept = position

    async def run(self) -> None:
        """Writes changed positions from time to time, until cancelled. The disk is waited for in a thread."""
        while True:
            await trio.sleep(PERIOD_MS / 1000)
            image = self._image()
            position = MetadataPosition(offset=image.offset, epoch=image.epoch)
            if position == self._kept:
                continue
            self._writes += 1
            number, content = self._writes, encode_position(image.cluster_id, position)
            is_kept = True
            for directory in self._logs.online_directories:
                is_kept &= await self._write_in_thread(directory, content, number)
            if is_kept and number == self._writes:
                self._kept = position

    async def _write_in_thread(self, directory: str, content: bytes, number: int) -> bool:
        """Replaces the file of a directory, unless a newer position is written meanwhile.

        Returns False if that lacked descriptors: the directory works, and its file is older.
        """
        disk, path = self._disk, f"{directory}/{APPLIED_METADATA}"
        prepared = f"{path}.next{TEMPORARY_SUFFIX}"

        def prepare() -> None:
            write_temporary(disk, prepared, content)

        try:
            await self._run_in(directory, prepare)
            if number == self._writes:
                disk.rename(prepared, path)
                await self._run_in(directory, lambda: disk.sync_directory(directory))
        except OSError as error:
            self._logs.fail_directory(directory, error)
            return not is_shortage(error)
        return True
