"""Goal: the indexes of a copied segment are those of its files, if these are sound, and else exact.

Method: index files with single faults, and segments whose right indexes are written down here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from moldau.runtime.ports.environment import OpenMode
from moldau.values import LeaderEpoch
from moldau_broker.log.files.checkpoint import read_file
from moldau_broker.log.files.index import OffsetIndex, TimeIndex
from moldau_broker.log.files.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from support.log.lab import A, create
from support.log.model import START_MS, VirtualMachine, make_batch
from support.log.tiered import open_tiered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import SegmentParts

Entries = list[tuple[int, int]]
COUNT = 7
TIMES = (10, 30, 20, 30, 40, 5, 5)


def closed(machine: VirtualMachine, times: Sequence[int] = TIMES, *, zero_ms: int = START_MS) -> PartitionLog:
    """Returns a log with one closed segment: a batch of one record, always of the same size, for each time."""
    log = create(open_tiered(machine, segment_bytes=100_000, message_timestamp_before_max_ms=1 << 60))
    log.begin_leader_epoch(LeaderEpoch(1))
    for time in times:
        batch = make_batch([(zero_ms + time, b"k", b"v" * 50)])
        log.append_as_leader(memoryview(batch), leader_epoch=LeaderEpoch(1), now_ms=START_MS)
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    log.storage.roll(log.log_end_offset, START_MS)
    return log


def batch_bytes(log: PartitionLog) -> int:
    return log.segments[0].size // COUNT


def parts_of(log: PartitionLog, index_interval_bytes: int) -> SegmentParts:
    log.storage.config = replace(log.config, index_interval_bytes=index_interval_bytes)
    (segment,) = log.closed_segments(0)
    try:
        return segment.parts()
    finally:
        segment.release()


def index_path(suffix: str, base: int = 0) -> str:
    return f"/d1/{A}/{segment_file(base, suffix)}"


def write_index(machine: VirtualMachine, suffix: str, data: bytes, base: int = 0) -> None:
    file = machine.disk.open(index_path(suffix, base), OpenMode.WRITE)
    file.truncate(0)
    file.append([data])
    file.close()


def offsets_of(parts: SegmentParts) -> Entries:
    return list(OffsetIndex.LAYOUT.iter_unpack(parts.offset_index))


def times_of(parts: SegmentParts) -> Entries:
    return [(time - START_MS, at) for time, at in TimeIndex.LAYOUT.iter_unpack(parts.time_index)]


def test_sound_indexes_stay_as_they_are_if_the_interval_changes() -> None:
    machine = VirtualMachine(1)
    log = closed(machine)
    files = [read_file(machine.disk, index_path(suffix)) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
    parts = parts_of(log, 0)
    assert [parts.offset_index, parts.time_index] == files
    assert len(offsets_of(parts)) < COUNT - 1, "as many as an index of the new interval would have"


@pytest.mark.parametrize(
    ("entries", "is_sound"),
    [
        ([(0, 0), (1, 1)], True),
        ([(1, 10), (1, 20)], False),
        ([(1, 10), (2, 10)], False),
        ([(2, 10), (1, 20)], False),
        ([(1, 20), (2, 10)], False),
        ([(COUNT - 1, -1)], True),
        ([(COUNT - 1, 0)], False),
    ],
)
def test_an_offset_index_is_sound_if_it_rises_and_ends_in_time(entries: Entries, is_sound: bool) -> None:
    """The last position is given from the end of the segment, which holds no byte there, if it is 0 or less."""
    machine = VirtualMachine(1)
    log = closed(machine)
    if len(entries) == 1:
        entries = [(entries[0][0], log.segments[0].size + entries[0][1])]
    write_index(machine, INDEX_SUFFIX, b"".join(OffsetIndex.LAYOUT.pack(*entry) for entry in entries))
    assert (offsets_of(parts_of(log, 10**6)) == entries) is is_sound


@pytest.mark.parametrize(
    ("entries", "is_sound"),
    [
        ([(7, 0), (8, COUNT - 1)], True),
        ([(7, 0), (8, COUNT)], False),
        ([(7, 1), (7, 2)], False),
        ([(7, 1), (8, 1)], False),
    ],
)
def test_a_time_index_is_sound_if_it_rises_and_ends_in_time(entries: Entries, is_sound: bool) -> None:
    machine = VirtualMachine(1)
    log = closed(machine)
    data = b"".join(TimeIndex.LAYOUT.pack(START_MS + time, at) for time, at in entries)
    write_index(machine, TIME_INDEX_SUFFIX, data)
    assert (times_of(parts_of(log, 10**6)) == entries) is is_sound


@pytest.mark.parametrize(("shorter_by", "offsets"), [(0, []), (1, [COUNT - 1])])
def test_an_empty_index_is_right_for_a_segment_of_one_interval(shorter_by: int, offsets: list[int]) -> None:
    machine = VirtualMachine(1)
    log = closed(machine)
    write_index(machine, INDEX_SUFFIX, b"")
    found = offsets_of(parts_of(log, log.segments[0].size - shorter_by))
    assert [offset for offset, _ in found] == offsets


@pytest.mark.parametrize(
    ("interval_batches", "offsets", "times"),
    [
        (0.0, [1, 2, 3, 4, 5, 6], [(30, 1), (40, 4)]),
        (1.0, [2, 4, 6], [(30, 1), (40, 4)]),
        (1.5, [2, 4, 6], [(30, 1), (40, 4)]),
        (2.0, [3, 6], [(30, 1), (40, 4)]),
        (9.0, [6], [(40, 4)]),
    ],
)
def test_lost_indexes_have_an_entry_for_each_interval(
    interval_batches: float, offsets: list[int], times: Entries
) -> None:
    """And one for the last batch. A time has an entry if it is larger than all before, with the first such offset."""
    machine = VirtualMachine(1)
    log = closed(machine)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        machine.disk.remove(index_path(suffix))
    size = batch_bytes(log)
    parts = parts_of(log, int(interval_batches * size))
    assert offsets_of(parts) == [(offset, offset * size) for offset in offsets]
    assert times_of(parts) == times


def test_a_segment_of_one_batch_has_a_time_alone() -> None:
    machine = VirtualMachine(1)
    log = closed(machine, (9,))
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        machine.disk.remove(index_path(suffix))
    parts = parts_of(log, 0)
    assert (offsets_of(parts), times_of(parts)) == ([], [(9, 0)])


@pytest.mark.parametrize(("times", "entries"), [((-1, -1), []), ((-1, 0), [(0, 1)]), ((0, 0), [(0, 0)])])
def test_the_first_time_that_has_an_entry_is_zero(times: tuple[int, ...], entries: Entries) -> None:
    """Records without a time have -1."""
    machine = VirtualMachine(1)
    log = closed(machine, times, zero_ms=0)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        machine.disk.remove(index_path(suffix))
    assert list(TimeIndex.LAYOUT.iter_unpack(parts_of(log, 0).time_index)) == entries
    (segment,) = log.closed_segments(0)
    assert segment.max_timestamp_ms == times[-1]


@pytest.mark.parametrize(("behind_end", "is_sound"), [(0, True), (1, False)])
def test_a_time_index_ends_in_its_own_segment(behind_end: int, is_sound: bool) -> None:
    """Its offsets are relative to the base offset, which is not that of the log here."""
    machine = VirtualMachine(1)
    log = closed(machine)
    base = log.log_end_offset
    for time in TIMES:
        batch = make_batch([(START_MS + time, b"k", b"v" * 50)])
        log.append_as_leader(memoryview(batch), leader_epoch=LeaderEpoch(1), now_ms=START_MS)
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    log.storage.roll(log.log_end_offset, START_MS)
    entries = [(START_MS + 7, COUNT - 1 + behind_end)]
    write_index(machine, TIME_INDEX_SUFFIX, b"".join(TimeIndex.LAYOUT.pack(*entry) for entry in entries), base)
    log.storage.config = replace(log.config, index_interval_bytes=10**6)
    parts = log.closed_segments(base)[0].parts()
    assert (list(TimeIndex.LAYOUT.iter_unpack(parts.time_index)) == entries) is is_sound
