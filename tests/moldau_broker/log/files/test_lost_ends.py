"""Goal: a closed segment whose file ends too early, even between two batches, is refused there and never passed over,
and a log can be cut there, or where a header has rotted.

Method: a log is closed, the file of one of its closed segments is cut, and the log is opened again, once and once more.
"""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import iterate_batches
from moldau_broker.log.errors import CorruptLogFileError, LogError
from moldau_broker.log.values import run_work
from support.log.lab import A, create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, all_rows, read_rows

RECORDS = 60


def closed_log(**config: object) -> tuple[VirtualMachine, str, list[int], range]:
    """A machine, a closed segment's file, where its batches begin, and its offsets."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"], **config)
    log = create(manager)
    for number in range(RECORDS):
        put(log, b"%d" % number)
    segment = log.segments[1]
    offsets = range(segment.base_offset, log.segments[2].base_offset)
    path = segment.path(".log")
    manager.close()
    batches = [at for at, _ in iterate_batches(bytes(machine.virtual_disk.lookup(path).content))]
    assert len(batches) == len(offsets) > 4
    return machine, path, batches, offsets


def started_again(machine: VirtualMachine, **config: object):
    machine.boot(power_lost=False)
    manager = open_manager(machine, ["/d1"], **config)
    return manager, create(manager)


def refused(log, *, gaps: bool = False) -> list[int]:
    """The offsets that cannot be read; every other one is answered with its own record, with gaps what follows."""
    found = []
    for offset in range(RECORDS):
        code = ErrorCode.NONE
        try:
            _, rows, following = read_rows(log, offset)
            assert following is not None
            assert gaps or rows[0].offset == offset
        except LogError as error:
            code = error.code
        if code is not ErrorCode.NONE:
            assert code is ErrorCode.CORRUPT_MESSAGE
            found.append(offset)
    return found


def clean(manager) -> None:
    """Cleans all dirty logs; damage is reported to the manager and not raised here."""
    for _ in range(30):
        for work in manager.cleaner_works(START_MS + 60_000):
            with suppress(CorruptLogFileError):
                run_work(work)


@pytest.mark.parametrize("kept", range(5))
def test_lost_batches_are_refused_after_each_start(kept: int) -> None:
    machine, path, batches, offsets = closed_log()
    machine.virtual_disk.cut_short(path, batches[kept])
    for start in range(3):
        manager, log = started_again(machine)
        for _ in range(2):
            assert refused(log) == list(offsets[kept:]), start
        assert any("its end is missing" in problem for problem in manager.reports[A].problems)
        put(log, b"more")
        manager.close()


def test_it_is_refused_after_a_crash_too() -> None:
    machine, path, batches, offsets = closed_log()
    machine.virtual_disk.cut_short(path, batches[3])
    _, log = started_again(machine)
    put(log, b"more")
    _, log = started_again(machine)  # the process before did not stop in order
    assert refused(log) == list(offsets[3:])


def lose_end(machine: VirtualMachine, path: str, position: int) -> None:
    machine.virtual_disk.cut_short(path, position)


def rot_header(machine: VirtualMachine, path: str, position: int) -> None:
    machine.virtual_disk.lookup(path).content[position + 8 : position + 12] = b"\xff" * 4  # the batch's length


def rot_base_offset(machine: VirtualMachine, path: str, position: int) -> None:
    machine.virtual_disk.lookup(path).content[position] ^= 0x80  # below zero


@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("cut", [-2, 0, 2])
@pytest.mark.parametrize("damage", [lose_end, rot_header, rot_base_offset])
def test_a_truncated_log_goes_on_where_the_file_is_unreadable(damage, kept: int, cut: int) -> None:
    """A follower whose log was truncated far back fetches the lost records again.

    Two defects are covered: the log reported the follower's new records as lost, and a rotten header prevented the
    truncation.
    """
    machine, path, batches, offsets = closed_log()
    damage(machine, path, batches[kept])
    manager, log = started_again(machine)
    ends = offsets[kept] + min(cut, 0)
    assert log.truncate_to(offsets[kept] + cut)
    assert log.log_end_offset == ends
    for number in range(ends, RECORDS):
        put(log, b"%d again" % number)
    assert refused(log) == []
    manager.close()
    _, log = started_again(machine)
    assert refused(log) == []
    assert [row.value for row in all_rows(log)][ends:] == [b"%d again" % number for number in range(ends, RECORDS)]


@pytest.mark.parametrize("bit", range(12, 31))
def test_a_position_that_rotted_in_the_index_loses_nothing(bit: int) -> None:
    machine, path, batches, _ = closed_log()
    content = machine.virtual_disk.lookup(path.replace(".log", ".index")).content
    _, position = struct.unpack(">ii", content[-8:])
    assert position == batches[-1], "the last entry is that of the last batch"
    content[-4:] = struct.pack(">i", position ^ 1 << bit)
    manager, log = started_again(machine)
    assert not log.segments[1].has_lost_its_end
    assert [row.offset for row in all_rows(log)] == list(range(RECORDS))
    manager.close()
    assert struct.unpack(">ii", machine.virtual_disk.lookup(path.replace(".log", ".index")).content[-8:])[1] == position


def test_records_compacted_at_the_end_of_a_segment_are_skipped() -> None:
    """A read skips offsets that were compacted away at the end of a segment."""
    config = {"compact": True, "delete": False, "min_cleanable_dirty_ratio": 0.0}
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"], **config)
    log = create(manager)
    for number in range(RECORDS):
        put(log, b"%d" % number)
    log.storage.roll(log.log_end_offset, START_MS)
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    manager.directories[0].recovery_points.write_now({log.topic_partition: log.log_end_offset})
    clean(manager)
    tick(manager, START_MS + 120_000)
    put(log, b"last")
    left = [row.offset for row in all_rows(log)]
    assert 0 < len(left) < RECORDS / 2, left
    manager.close()
    _, log = started_again(machine, **config)
    assert [row.offset for row in all_rows(log)] == left
    assert refused(log, gaps=True) == []


def test_the_cleaner_leaves_a_log_alone_that_has_lost_records() -> None:
    config = {"compact": True, "delete": False, "min_cleanable_dirty_ratio": 0.0}
    machine, path, batches, offsets = closed_log(**config)
    machine.virtual_disk.cut_short(path, batches[2])
    manager, log = started_again(machine, **config)
    log.update_high_watermark(log.log_end_offset)
    clean(manager)
    assert list(manager.cleaner.uncleanable) == [log.topic_partition]
    assert refused(log) == list(offsets[2:])


def test_a_log_is_cut_behind_a_header_that_rotted_when_open() -> None:
    """Each batch of the segment rots in turn; what the log was at its last stop in order lies in the same segment."""
    for rotten in range(20, 40):
        machine = VirtualMachine(1)
        manager = open_manager(machine, ["/d1"])
        log = create(manager)
        for number in range(RECORDS // 2 + 3):
            put(log, b"%d" % number)
        manager.close()
        manager, log = started_again(machine)
        for number in range(log.log_end_offset, RECORDS):
            put(log, b"%d" % number)
        segment = log.segments[log.storage.segments.index_of(rotten)]
        end = log.segments[log.storage.segments.index_of(rotten) + 1].base_offset
        rot_header(machine, segment.path(".log"), segment.position_of(rotten))
        assert log.truncate_to(end - 1)
        assert log.log_end_offset in (rotten, end - 1)
        put(log, b"more")
