"""Finds damage in a file of a log directory that the file alone does not show.

The files beside it know what it must hold: segments have the batches that indexes describe, and a broker that stopped
cleanly left checksums of all text files. Leader epochs are not compared with the batches: while a broker runs, and
after it was killed, the file may be older than those.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from xxhash import xxh3_64_hexdigest

from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.files.batches import scan_headers
from moldau_broker.log.files.checkpoint import read_file
from moldau_broker.log.files.checksums import CHECKSUMS, read_checksums
from moldau_broker.log.files.index import OffsetIndex, TimeIndex
from moldau_broker.log.files.names import (
    CLEAN_SHUTDOWN,
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    RECOVERY_POINT_CHECKPOINT,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_segment_file,
    segment_file,
)
from moldau_broker.log.files.transaction_index import ENTRY as TRANSACTION_ENTRY
from moldau_broker.log.files.transaction_index import decode_entries

if TYPE_CHECKING:
    import struct
    from collections.abc import Callable, Iterator, Sequence

    from moldau.records import BatchHeader
    from moldau.runtime.ports.environment import Disk
    from moldau_broker.log.files.transaction_index import AbortedEntry

COUNTED_FILES: Final = (
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    CLEANER_CHECKPOINT,
)
"""Text files that begin with a line for the version and one for the number of lines that follow."""


class Damage(NamedTuple):
    """The place of a wrong byte, or of the entry that has it, and the reason."""

    byte: int
    reason: str


class _Segment:
    """The batches of a segment with their positions, up to the first damaged one; they are not held in memory."""

    def __init__(self, disk: Disk, log: str, base_offset: int) -> None:
        self.base_offset = base_offset
        self.end = 0
        """Position behind the batches that were read."""
        self.is_whole = False
        """Whether all were read, and the file has nothing behind them."""
        self._disk = disk
        self._log = log

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yields position and header of each batch."""
        file = self._disk.open(self._log, OpenMode.READ)
        try:
            size = file.size
            for position, batch in scan_headers(file, 0, size):
                self.end = position + batch.size_bytes
                yield position, batch
            self.is_whole = self.end == size
        finally:
            file.close()


def cut_head(disk: Disk, path: str) -> Damage | None:
    """Returns the damage of a checkpoint that ends before its first entry: a dump would count its lines as -1."""
    if path.rpartition("/")[2] not in COUNTED_FILES:
        return None
    content = read_file(disk, path)
    if not content:
        return Damage(0, "the file is empty")
    if content.endswith(b"\n") and content.count(b"\n") == 1:
        return Damage(len(content), "the file ends before the number of its lines")
    return None


def hidden_damage(disk: Disk, path: str) -> Damage | None:
    """Returns damage of a file whose form is in order.

    Raises:
        CorruptLogFileError: The form is damaged, too, or the checksums of the directory are.
        OSError: A file could not be read.
    """
    directory, _, file_name = path.rpartition("/")
    name = parse_segment_file(file_name)
    found = None
    if name is not None and name.kind in _INDEXES:
        log = f"{directory}/{segment_file(name.base_offset, LOG_SUFFIX)}{name.state}"
        if disk.exists(log):
            found = _INDEXES[name.kind](read_file(disk, path), _Segment(disk, log, name.base_offset))
    return found or _change_since_stop(disk, path)


def _change_since_stop(disk: Disk, path: str) -> Damage | None:
    """Compares a file with its checksum of the last clean stop, while no broker has used the directory since."""
    parent, _, name = path.rpartition("/")
    directory, _, partition = parent.rpartition("/")
    for top, relative in ((parent, name), (directory, f"{partition}/{name}")):
        checksums = f"{top}/{CHECKSUMS}"
        if disk.exists(checksums) and disk.exists(f"{top}/{CLEAN_SHUTDOWN}"):
            digest = read_checksums(checksums, read_file(disk, checksums)).get(relative)
            if digest is not None and digest != xxh3_64_hexdigest(read_file(disk, path)):
                return Damage(0, f"it has changed since the clean stop of its broker ({CHECKSUMS} has its checksum)")
    return None


# Indexes


def _wrong_position(data: bytes, segment: _Segment) -> Damage | None:
    """Compares an offset index: each entry has the last offset of the batch at its position."""
    entries = _entries(data, OffsetIndex.LAYOUT)
    wanted = {position for _, position in entries}
    last_offsets = {position: batch.last_offset for position, batch in segment if position in wanted}
    for number, (relative, position) in enumerate(entries):
        byte, offset = number * OffsetIndex.LAYOUT.size, segment.base_offset + relative
        if position >= segment.end and not segment.is_whole:
            return None  # the dump of the segment names what is wrong there
        if position not in last_offsets:
            return Damage(byte, f"no batch begins at position {position}")
        if (last := last_offsets[position]) != offset:
            return Damage(byte, f"offset {offset}, but the batch at position {position} ends with {last}")
    return _end_of_space(data, len(entries) * OffsetIndex.LAYOUT.size)


def _wrong_timestamp(data: bytes, segment: _Segment) -> Damage | None:
    """Compares a time index: each entry is a batch with a timestamp above those of all batches before it."""
    entries = _entries(data, TimeIndex.LAYOUT)
    wanted = {segment.base_offset + relative for _, relative in entries}
    largest, raised = -1, {}
    for _, batch in segment:
        if batch.max_timestamp > largest:
            largest = batch.max_timestamp
            if batch.last_offset in wanted:
                raised[batch.last_offset] = largest
    for number, (timestamp, relative) in enumerate(entries):
        offset = segment.base_offset + relative
        if raised.get(offset) != timestamp:
            reason = f"the batch that ends with offset {offset} does not raise the timestamp to {timestamp}"
            return Damage(number * TimeIndex.LAYOUT.size, reason) if segment.is_whole else None
    return _end_of_space(data, len(entries) * TimeIndex.LAYOUT.size)


def _entries(data: bytes, layout: struct.Struct) -> list[tuple[int, int]]:
    """Returns the entries of an index, without the zeros with which Kafka reserves space behind them."""
    entries = [*layout.iter_unpack(data)]
    unused = next((number for number, entry in enumerate(entries) if number and entry == (0, 0)), len(entries))
    return [(first, second) for first, second in entries[:unused]]


def _end_of_space(data: bytes, byte: int) -> Damage | None:
    """Checks the space that Kafka reserves behind the entries of an index: it holds zeros alone."""
    used = data[byte:].lstrip(b"\0")
    return Damage(len(data) - len(used), "a byte behind the last entry is not 0") if used else None


def _wrong_transaction(data: bytes, segment: _Segment) -> Damage | None:
    """Compares the index of aborted transactions with their markers and with the batches that it names."""
    entries = decode_entries("", data, segment.base_offset)
    named = sorted(
        {at for entry in entries for at in (entry.first_offset, entry.last_offset, entry.last_stable_offset)}
    )
    batches = [batch for _, batch in segment if _holds_any(batch, named)]
    offsets = [batch.base_offset for batch in batches]

    def holding(offset: int) -> BatchHeader | None:
        at = bisect_right(offsets, offset) - 1
        return batches[at] if at >= 0 and offset <= batches[at].last_offset else None

    before = -1
    for number, entry in enumerate(entries):
        first, marker = holding(entry.first_offset), holding(entry.last_offset)
        if marker is None and not segment.is_whole:
            return None  # the dump of the segment names what is wrong there
        reason = None
        if marker is None or not marker.is_control or marker.producer_id != entry.producer_id:
            reason = f"producer {entry.producer_id} has no marker at offset {entry.last_offset}"
        elif first is not None and not _begins(first, entry.first_offset, entry.producer_id):
            reason = f"producer {entry.producer_id} has no batch at offset {entry.first_offset}"
        elif not _may_be_stable(entry, before, holding(entry.last_stable_offset)):
            reason = f"the last stable offset after the marker cannot be {entry.last_stable_offset}"
        if reason is not None:
            return Damage(number * TRANSACTION_ENTRY.size, reason)
        before = entry.last_stable_offset
    return None


def _holds_any(batch: BatchHeader, offsets: Sequence[int]) -> bool:
    """Returns whether one of some ascending offsets is in a batch."""
    at = bisect_left(offsets, batch.base_offset)
    return at < len(offsets) and offsets[at] <= batch.last_offset


def _begins(batch: BatchHeader, offset: int, producer_id: int) -> bool:
    """Returns whether a transaction of a producer may begin with a batch."""
    own = batch.producer_id == producer_id and batch.is_transactional and not batch.is_control
    return own and batch.base_offset == offset


def _may_be_stable(entry: AbortedEntry, before: int, batch: BatchHeader | None) -> bool:
    """Returns whether a last stable offset is that behind the marker, or the begin of another open transaction.

    Compaction removes records, so there may be no batch at its offset.
    """
    stable = entry.last_stable_offset
    if stable == entry.last_offset + 1:
        return True
    if not max(before, 0) <= stable < entry.last_offset:
        return False
    return batch is None or (batch.producer_id != entry.producer_id and _begins(batch, stable, batch.producer_id))


_INDEXES: Final[dict[str, Callable[[bytes, _Segment], Damage | None]]] = {
    INDEX_SUFFIX: _wrong_position,
    TIME_INDEX_SUFFIX: _wrong_timestamp,
    TRANSACTION_INDEX_SUFFIX: _wrong_transaction,
}
