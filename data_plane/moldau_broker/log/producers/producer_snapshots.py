"""The snapshot files of a log's producer state, and rebuilding the state from them and the batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.runtime.ports.descriptors import is_shortage
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.batches import scan_headers
from moldau_broker.log.files.checkpoint import read_file, sync_file, write_atomically
from moldau_broker.log.files.names import SNAPSHOT_SUFFIX, parse_segment_file, segment_file
from moldau_broker.log.producers.end_markers import marker_of
from moldau_broker.log.producers.producer_state import ProducerStateManager, decode_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.files.segment import LogSegment
    from moldau_broker.log.partition.segment_list import SegmentList


class ProducerSnapshots:
    """The producer snapshots in a partition's directory."""

    def __init__(self, disk: Disk, directory: str, state: ProducerStateManager) -> None:
        self.state = state
        self._disk = disk
        self._directory = directory
        self._unsynced: list[str] = []

    def offsets(self) -> list[int]:
        """Returns the offsets of the snapshots in the directory, rising."""
        names = (parse_segment_file(name) for name in self._disk.list_directory(self._directory))
        return [
            name.base_offset for name in names if name is not None and name.kind == SNAPSHOT_SUFFIX and not name.state
        ]

    def path(self, offset: int) -> str:
        """Returns the path of the snapshot at ``offset``."""
        return f"{self._directory}/{segment_file(offset, SNAPSHOT_SUFFIX)}"

    def take(self, offset: int) -> None:
        """Writes the producer state as of ``offset``.

        The next flush syncs it. A snapshot torn by a crash has a bad checksum and is rebuilt from the log.

        Raises:
            OSError: The file could not be written.
        """
        self._unsynced.append(self.path(offset))
        write_atomically(self._disk, self.path(offset), self.state.encode_snapshot(), durable=False)

    def read(self, offset: int) -> bytes | None:
        """Returns the snapshot at ``offset``; None if there is none, or it is damaged.

        Raises:
            OSError: The file could not be read.
        """
        path = self.path(offset)
        try:
            data = read_file(self._disk, path)
            decode_snapshot(path, data)
        except (FileNotFoundError, CorruptLogFileError):
            return None
        return data

    def at_end_of(self, segments: Sequence[LogSegment], index: int, end_offset: int) -> bytes:
        """Returns the snapshot at the end of segment ``index``; made from the batches if it is lost or damaged.

        Blocks, and may be called in any thread.

        Raises:
            OSError: A file could not be read.
        """
        data = self.read(end_offset)
        return self._replayed(segments, index) if data is None else data

    def _replayed(self, segments: Sequence[LogSegment], index: int) -> bytes:
        state = ProducerStateManager(0, 0)
        first = index
        while True:
            base_offset = segments[first].base_offset
            data = self.read(base_offset)
            if data is not None:
                state.load_snapshot(decode_snapshot(self.path(base_offset), data), base_offset)
                break
            state.reset(base_offset)
            state.knows_all = False
            if first == 0:
                break
            first -= 1
        for segment in segments[first : index + 1]:
            for position, header in scan_headers(segment.file, 0, segment.size):
                if header.producer_id >= 0:
                    state.replay(header, marker_of(header, segment, position))
        return state.encode_snapshot()

    def settle(self, segments: Sequence[LogSegment], index: int, end_offset: int) -> None:
        """Makes the snapshot at the end of segment ``index`` durable; its name is with the next sync of the directory.

        Raises:
            OSError: A file could not be read, written or synced.
        """
        if self.read(end_offset) is None:
            self.write(end_offset, self._replayed(segments, index))
        else:
            sync_file(self._disk, self.path(end_offset))

    def write(self, offset: int, content: bytes) -> None:
        """Writes a snapshot that another broker took at ``offset``; durable on return.

        Raises:
            OSError: The file could not be written.
        """
        write_atomically(self._disk, self.path(offset), content)

    def remove_if(self, is_unwanted: Callable[[int], bool]) -> None:
        """Removes the snapshots at the offsets for which ``is_unwanted`` is true.

        Raises:
            OSError: A file could not be removed.
        """
        for offset in self.offsets():
            if is_unwanted(offset):
                self._disk.remove(self.path(offset))

    def take_unsynced(self) -> list[str]:
        """Returns the paths of the snapshots that are not durable, for a sync; they count as synced from now on."""
        taken, self._unsynced = self._unsynced, []
        return taken

    def not_synced(self, paths: list[str]) -> None:
        """Takes back the paths of ``take_unsynced`` whose sync failed."""
        self._unsynced = paths + self._unsynced

    def sync(self) -> None:
        """Makes all snapshots durable; blocks.

        Raises:
            OSError: A sync failed.
        """
        for path in self._unsynced:
            sync_file(self._disk, path)
        self._unsynced = []

    def moved(self, directory: str) -> None:
        """Takes note that the partition's directory was renamed."""
        self._unsynced = [f"{directory}/{path.rpartition('/')[2]}" for path in self._unsynced]
        self._directory = directory

    def restore(self, segments: SegmentList, end_offset: int) -> None:
        """Rebuilds the producer state as of ``end_offset`` from the newest good snapshot and the batches after it.

        Snapshots above ``end_offset`` or below the first segment describe removed batches. They are removed durably,
        or they would come back after the log has grown past them with other batches.

        Raises:
            OSError: A file could not be read or removed.
        """
        state = self.state
        removed = False
        first = segments.first_base_offset
        knows_all = state.knows_all and first == 0
        state.reset(first)
        state.knows_all = knows_all
        for offset in reversed(self.offsets()):
            path = self.path(offset)
            if offset > end_offset or offset < first:
                # Batches after a snapshot below the first segment are gone, maybe the end of a transaction open in it.
                self._disk.remove(path)
                removed = True
                continue
            try:
                state.load_snapshot(decode_snapshot(path, read_file(self._disk, path)), offset)
                break
            except CorruptLogFileError:
                self._disk.remove(path)
                removed = True
            except OSError as error:
                if not is_shortage(error):
                    raise
                # An older snapshot and more batches give the same state.
        if removed:
            self._disk.sync_directory(self._directory)
        self._replay(segments, end_offset)
        state.map_end_offset = end_offset

    def _replay(self, segments: SegmentList, end_offset: int) -> None:
        start_offset = self.state.map_end_offset
        for segment in segments.all[max(0, segments.index_of(start_offset)) :]:
            if segment.base_offset >= end_offset:
                return
            try:
                start = segment.position_of(start_offset) if segment.base_offset < start_offset else 0
            except CorruptLogFileError:
                continue  # damaged, as where the walk below ends early: the producers there are unknown
            for position, header in scan_headers(segment.file, start, segment.size):
                if header.base_offset >= end_offset:
                    return
                if header.producer_id >= 0:
                    self.state.replay(header, marker_of(header, segment, position))
