"""Goal: the object store gets the segments of a log as they are, with indexes, producers and epochs that fit.

Method: the parts of each segment are compared with the files of the log, also after some of these were lost or damaged.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import iterate_batches
from moldau.runtime.ports.environment import OpenMode
from moldau.values import LeaderEpoch
from moldau_broker.log.errors import LogError
from moldau_broker.log.files.checkpoint import decode_epochs, read_file
from moldau_broker.log.files.index import OffsetIndex, TimeIndex
from moldau_broker.log.files.names import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, segment_file
from moldau_broker.log.files.transaction_index import ENTRY
from moldau_broker.log.producers.producer_state import decode_snapshot
from support.log.lab import A, create
from support.log.model import START_MS, VirtualMachine, make_batch
from support.log.tiered import PRODUCER, Copy, append, copies_of, filled, loaded, open_tiered, run_retention

DIRECTORY = f"/d1/{A}"


def check_copy(copy: Copy) -> None:
    batches = dict(iterate_batches(copy.content))
    last = list(batches.values())[-1]
    assert (min(batches.values()).base_offset, last.last_offset) == (copy.base_offset, copy.end_offset - 1)
    positions = [
        (copy.base_offset + relative, position)
        for relative, position in OffsetIndex.LAYOUT.iter_unpack(copy.parts.offset_index)
    ]
    assert positions == sorted(positions)
    assert positions[-1][0] == last.last_offset
    assert all(batches[position].last_offset == offset for offset, position in positions)
    times = list(TimeIndex.LAYOUT.iter_unpack(copy.parts.time_index))
    assert times[-1][0] == max(header.max_timestamp for header in batches.values())
    assert {copy.base_offset + relative for _, relative in times} <= {each.last_offset for each in batches.values()}
    (producer,) = [entry for entry in decode_snapshot("", copy.parts.producer_snapshot) if entry.producer_id >= 0]
    assert (producer.producer_id, producer.last_offset) == (PRODUCER, copy.end_offset - 1)
    epochs = decode_epochs("", copy.parts.leader_epochs)
    assert epochs[-1].leader_epoch == copy.last_epoch == last.partition_leader_epoch
    assert epochs[0].start_offset == 0


def test_the_closed_segments_of_a_log() -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    copies = copies_of(log)
    assert [copy.base_offset for copy in copies] == [segment.base_offset for segment in log.segments[:-1]]
    for copy in copies:
        check_copy(copy)
    assert [copy.base_offset for copy in copies_of(log, copies[2].base_offset + 1)] == [
        copy.base_offset for copy in copies[2:]
    ]


def test_sound_indexes_are_copied_as_they_are() -> None:
    machine = VirtualMachine(1)
    log = filled(open_tiered(machine, index_interval_bytes=100))
    for segment in log.closed_segments(0):
        parts = segment.parts()
        for kind, part in ((INDEX_SUFFIX, parts.offset_index), (TIME_INDEX_SUFFIX, parts.time_index)):
            assert part == read_file(machine.disk, f"{DIRECTORY}/{segment_file(segment.base_offset, kind)}")
        headers = [header for _, header in iterate_batches(segment.content.read(0, segment.size_bytes))]
        assert segment.max_timestamp_ms == max(header.max_timestamp for header in headers)
        segment.release()


@pytest.mark.parametrize("kind", [INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX])
@pytest.mark.parametrize("damage", ["lost", "cut", "changed"])
def test_lost_and_damaged_parts_are_made_from_the_batches(kind: str, damage: str) -> None:
    machine = VirtualMachine(1)
    log = filled(open_tiered(machine, index_interval_bytes=100))
    wanted = [decode_snapshot("", copy.parts.producer_snapshot) for copy in copies_of(log)]
    segments = log.closed_segments(0)
    for segment in segments:
        base = segment.end_offset if kind == SNAPSHOT_SUFFIX else segment.base_offset
        path = f"{DIRECTORY}/{segment_file(base, kind)}"
        if damage == "lost":
            machine.disk.remove(path)
        elif damage == "changed":
            machine.virtual_disk.flip_bit(path, 0, 7)
        else:
            file = machine.disk.open(path, OpenMode.WRITE)
            file.truncate(file.size - 3)
            file.close()
    copies = copies_of(log)
    for copy, producers in zip(copies, wanted, strict=True):
        check_copy(copy)
        found = decode_snapshot("", copy.parts.producer_snapshot)
        assert [entry.last_offset for entry in found] == [entry.last_offset for entry in producers][-len(found) :]


def test_nothing_open_and_nothing_that_may_be_lost_is_copied() -> None:
    log = create(open_tiered(VirtualMachine(1)))
    log.begin_leader_epoch(LeaderEpoch(1))
    append(log, 10)
    batch = make_batch([(START_MS, b"k", b"v")], producer=(PRODUCER, 0, 0), transactional=True)
    log.append_as_leader(memoryview(batch), leader_epoch=LeaderEpoch(1), now_ms=START_MS)
    append(log, 20)
    assert log.last_stable_offset == 10
    assert log.closed_segments(0) == [], "a crash may lose all of them"
    log.flush()
    assert log.closed_segments(0)[-1].end_offset <= 10
    log.append_end_transaction_marker(
        producer_id=PRODUCER,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=False,
        leader_epoch=LeaderEpoch(1),
        now_ms=START_MS,
    )
    append(log, 20)
    log.flush()
    segments = log.closed_segments(0)
    assert segments[-1].end_offset == log.segments[-1].base_offset
    (aborted,) = [segment for segment in segments if segment.has_aborted]
    (entry,) = ENTRY.iter_unpack(aborted.parts().transaction_index)
    assert entry[:4] == (0, PRODUCER, 10, 31)
    assert aborted.base_offset <= 31 < aborted.end_offset


def test_a_segment_stays_readable_until_it_is_released() -> None:
    machine = VirtualMachine(1)
    log = filled(open_tiered(machine))
    first, second, *_ = log.closed_segments(0)
    content = first.content.read(0, first.size_bytes)
    log.increment_log_start_offset(log.segments[3].base_offset)
    run_retention(log)
    for name in machine.disk.list_directory(DIRECTORY):
        if name.endswith(".deleted"):
            machine.disk.remove(f"{DIRECTORY}/{name}")
    assert first.content.read(0, first.size_bytes) == content
    assert first.content.read(first.size_bytes - 3, 100) == content[-3:]
    for behind in (0, 1, 100):
        assert first.content.read(first.size_bytes + behind, 1) == b""
    held = first.content
    assert first.content is held
    first.release()
    assert first.content is not held, "it opens its file at the next use"
    first.release()
    second.release()


def test_a_segment_has_the_epochs_that_begin_in_it_or_before() -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    log.begin_leader_epoch(LeaderEpoch(9))
    log.storage.roll(log.log_end_offset, START_MS)
    base = log.log_end_offset
    append(log, 1)
    log.flush()
    log.storage.roll(log.log_end_offset, START_MS)
    before, within = log.closed_segments(0)[-2:]
    assert (before.end_offset, within.base_offset) == (base, base)
    epochs = [decode_epochs("", each.parts().leader_epochs) for each in (before, within)]
    assert [[entry.leader_epoch for entry in entries] for entries in epochs] == [[1, 4, 5], [1, 4, 5, 9]]
    assert (before.last_epoch, within.last_epoch) == (5, 9)


def test_a_segment_that_is_truncated_meanwhile_is_an_error() -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    segment = log.closed_segments(0)[1]
    content = segment.content
    log.update_high_watermark(0)
    log.truncate_to(segment.base_offset + 1)
    with pytest.raises(OSError, match="truncated"):
        content.read(0, segment.size_bytes)


@pytest.mark.parametrize("number", [0, 2])
def test_no_damaged_segment_is_copied_nor_one_behind_it(number: int) -> None:
    machine = VirtualMachine(1)
    manager = open_tiered(machine)
    log = filled(manager)
    base = log.segments[number].base_offset
    manager.close()
    machine.boot(power_lost=False)
    path = f"{DIRECTORY}/{segment_file(base, LOG_SUFFIX)}"
    for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        machine.disk.remove(f"{DIRECTORY}/{segment_file(base, kind)}")
    for bit in range(8):
        machine.virtual_disk.flip_bit(path, 16, bit)  # the version of the format
    again = loaded(machine)
    again.update_high_watermark(again.log_end_offset)
    if number:
        assert len(again.closed_segments(0)) == number
    else:
        with pytest.raises(LogError) as caught:
            again.closed_segments(0)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
