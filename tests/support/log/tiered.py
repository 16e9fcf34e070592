"""A tiered log for tests: records of several leader epochs, copies of its segments, and the checks of a whole log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.values import LeaderEpoch
from moldau_broker.log.errors import OffsetInRemoteStorageError
from support.log.lab import A, create, open_manager
from support.log.model import START_MS, make_batch, read_rows

if TYPE_CHECKING:
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import SegmentParts
    from support.log.model import Row, VirtualMachine

TIERED: dict[str, Any] = {"remote_storage_enable": True, "retention_ms": -1, "local_retention_bytes": 1}
"""All copied segments leave the disk. With 0 bytes the active segment would be closed, and go, too."""

PRODUCER = 77


class Copy(NamedTuple):
    """A segment as the object store has it."""

    base_offset: int
    end_offset: int
    last_epoch: int
    content: bytes
    parts: SegmentParts


def open_tiered(machine: VirtualMachine, directories: tuple[str, ...] = ("/d1",), **config: Any) -> LogManager:
    return open_manager(machine, directories, **{**TIERED, **config})


def append(log: PartitionLog, count: int, *, sequence: int | None = None) -> None:
    """Appends batches of one record, each of a size of which a segment holds a few, and commits them."""
    for number in range(count):
        offset = log.log_end_offset
        producer = (-1, -1, -1) if sequence is None else (PRODUCER, 0, sequence + number)
        batch = make_batch([(START_MS + offset, b"k", b"%04d" % offset * 20)], producer=producer)
        log.append_as_leader(memoryview(batch), leader_epoch=LeaderEpoch(log.latest_epoch), now_ms=START_MS)
    log.update_high_watermark(log.log_end_offset)


def filled(manager: LogManager) -> PartitionLog:
    """Returns a log with several segments of three leader epochs, all durable."""
    log = create(manager)
    for epoch in (1, 4, 5):
        log.begin_leader_epoch(LeaderEpoch(epoch))
        append(log, 14, sequence=log.log_end_offset)
    log.flush()
    assert len(log.segments) > 5
    return log


def copies_of(log: PartitionLog, from_offset: int = 0) -> list[Copy]:
    """Copies all segments that may be copied, and notes that."""
    found: list[Copy] = []
    for segment in log.closed_segments(from_offset):
        content = segment.content.read(0, segment.content.size_bytes)
        found.append(Copy(segment.base_offset, segment.end_offset, segment.last_epoch, content, segment.parts()))
        segment.release()
    if found:
        log.note_copied(found[-1].end_offset)
    return found


def run_retention(log: PartitionLog, now_ms: int = START_MS) -> int:
    return log.apply_retention(now_ms)


def local_rows(log: PartitionLog) -> list[Row]:
    """Returns all records on this disk, which must have no gap."""
    rows: list[Row] = []
    offset: int = log.local_log_start_offset
    while offset < log.log_end_offset:
        _, found, following = read_rows(log, offset, max_bytes=300)
        assert following is not None, f"nothing at {offset} of a log that ends at {log.log_end_offset}"
        rows += [row for row in found if row.offset >= offset]
        offset = following
    assert [row.offset for row in rows] == list(range(log.local_log_start_offset, log.log_end_offset))
    return rows


def check_whole(log: PartitionLog, rows: list[Row], copies: list[Copy], start: int = 0) -> None:
    """Checks that each record from ``start`` on is on this disk or copied, and is served or refused accordingly."""
    assert log.log_start_offset == start
    assert log.log_end_offset == len(rows)
    local = log.local_log_start_offset
    copied = copies[-1].end_offset if copies else 0
    assert local <= max(start, copied), f"{copied} to {local} is nowhere"
    assert local_rows(log) == rows[local:]
    for offset in range(start, local):
        with pytest.raises(OffsetInRemoteStorageError) as caught:
            log.read(offset, max_bytes=1, upper_bound_offset=log.log_end_offset, min_one_batch=True)
        assert caught.value.code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert local <= log.high_watermark <= log.log_end_offset


def loaded(machine: VirtualMachine, **config: Any) -> PartitionLog:
    """Starts a manager on a machine that was booted, and returns its log."""
    return open_tiered(machine, **config).logs[A]
