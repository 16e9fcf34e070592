"""Goal: the borders of a log hold: beyond its end, below its start, at gaps, and in batches of odd sizes.

Method: one log per border, on a virtual disk.
"""

from __future__ import annotations

import struct

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import Compression, encode_batch
from moldau_broker.log.errors import LogError, OffsetOutOfRangeError
from moldau_broker.log.partition.validator import check_header
from moldau_broker.log.values import AppendOrigin, EpochEndOffset, TimestampOffset
from support.log.lab import A, create, open_manager, put
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch

UNKNOWN = EpochEndOffset(leader_epoch=-1, end_offset=-1)


def follow(log, base_offset: int, *, epoch: int = 1) -> None:
    data = encode_batch([(START_MS, b"k", b"v", ())], base_offset=base_offset, partition_leader_epoch=epoch)
    log.append_as_follower(memoryview(data), now_ms=START_MS)


def test_the_end_of_an_unknown_epoch() -> None:
    log = create(open_manager(VirtualMachine(1)))
    assert log.end_offset_for_epoch(1) == UNKNOWN
    follow(log, 0, epoch=3)
    follow(log, 1, epoch=5)
    assert log.end_offset_for_epoch(-1) == UNKNOWN
    assert log.end_offset_for_epoch(6) == UNKNOWN
    assert log.end_offset_for_epoch(2) == EpochEndOffset(leader_epoch=2, end_offset=0)
    assert log.end_offset_for_epoch(4) == EpochEndOffset(leader_epoch=3, end_offset=1)
    assert log.end_offset_for_epoch(5) == EpochEndOffset(leader_epoch=5, end_offset=2)


def test_a_truncation_beyond_the_end_moves_nothing() -> None:
    log = create(open_manager(VirtualMachine(1)))
    follow(log, 0)
    log.begin_leader_epoch(4)
    for offset in (1, 7):
        assert not log.truncate_to(offset)
        assert (log.log_end_offset, log.latest_epoch) == (1, 1)
    follow(log, 1)
    assert [row.offset for row in all_rows(log)] == [0, 1]


def test_a_truncation_below_the_start_is_refused() -> None:
    log = create(open_manager(VirtualMachine(1)))
    for _ in range(5):
        put(log)
    assert log.increment_log_start_offset(3)
    with pytest.raises(OffsetOutOfRangeError):
        log.truncate_to(2)
    assert (log.log_start_offset, log.log_end_offset) == (3, 5)
    assert log.truncate_to(3)


@pytest.mark.parametrize(("gap", "begins_at_end"), [(5, True), ((1 << 31) - 2, True), (1 << 31, False)])
def test_a_segment_begins_at_the_end_unless_a_gap_is_huge(gap: int, begins_at_end: bool) -> None:
    """Offsets in the index of a segment have 32 bits."""
    log = create(open_manager(VirtualMachine(1), segment_bytes=100))
    follow(log, 0)
    follow(log, 1 + gap)
    assert log.segments[-1].base_offset == (1 if begins_at_end else 1 + gap)
    assert [row.offset for row in all_rows(log)] == [0, 1 + gap]


def test_a_header_longer_than_its_batch_is_refused() -> None:
    """The checksum does not cover the length, so it is right."""
    batch = bytearray(encode_batch([(START_MS, b"k", b"v", ())]))
    (length,) = struct.unpack_from(">i", batch, 8)
    for more in (1, 1000):
        struct.pack_into(">i", batch, 8, length + more)
        with pytest.raises(LogError) as caught:
            check_header(memoryview(batch), AppendOrigin.CLIENT)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("size", [10, 50_000])
def test_times_in_a_batch_that_unpacks_to_much(size: int) -> None:
    """A large batch is unpacked outside of the event loop."""
    log = create(open_manager(VirtualMachine(1), segment_bytes=1_000_000))
    records = [(START_MS + number, b"k", b"v" * size, ()) for number in range(20)]
    batch = encode_batch(records, compression=Compression.GZIP)
    log.append_as_leader(memoryview(batch), leader_epoch=7, now_ms=START_MS)
    found = log.offset_for_timestamp(START_MS + 13)
    assert found == TimestampOffset(timestamp_ms=START_MS + 13, offset=13, leader_epoch=7)
    assert log.offset_for_timestamp(START_MS + 20) is None


def test_epochs_below_the_first_kept_one_are_read_again() -> None:
    """A checkpoint that begins above the log's start does not say whose the first records are."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for offset, epoch in enumerate((3, 5, 8)):
        follow(log, offset, epoch=epoch)
    wanted = log.epochs.entries
    assert log.epochs.truncate_from_start(2)
    log.flush()
    manager.close()
    machine.boot(power_lost=False)
    assert open_manager(machine).logs[A].epochs.entries == wanted


@pytest.mark.parametrize("power_lost", [False, True])
def test_the_first_producer_id_is_recovered(power_lost: bool) -> None:
    """Producer ids begin with 0: after a crash its repeated batch is recognised, and a later one continues it."""
    machine = VirtualMachine(1)
    log = create(open_manager(machine))
    batch = make_batch([(START_MS, b"k", b"v")], producer=(0, 0, 0))
    log.append_as_leader(memoryview(bytearray(batch)), leader_epoch=1, now_ms=START_MS)
    log.flush()
    machine.boot(power_lost=power_lost)
    log = open_manager(machine).logs[A]
    assert log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=START_MS).duplicate
    later = make_batch([(START_MS, b"k", b"w")], producer=(0, 0, 1))
    log.append_as_leader(memoryview(later), leader_epoch=1, now_ms=START_MS)
    assert log.log_end_offset == 2
