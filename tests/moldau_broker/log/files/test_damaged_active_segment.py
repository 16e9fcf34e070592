"""Goal: damage in the active segment of one log costs records of that log at most, never its directory.

Method: a log is stopped in order or killed, a few bits of its last segment are changed, and the log is opened again.
"""

from __future__ import annotations

import contextlib

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import CorruptRecordError, decode_records, iterate_batches
from moldau.records.batch import check_batch_crc
from moldau.values import LeaderEpoch
from moldau_broker.log.errors import LogError
from moldau_broker.server.lifecycle.startup import clean_epoch
from support.log.lab import create, open_manager, put
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch, read_rows

RECORDS = 30
CONFIG = {"segment_bytes": 100_000, "index_interval_bytes": 400}
MAGIC, LENGTH, LARGEST_TIMESTAMP, RECORD = 16, 8, 36, 61
"""Bytes of a batch."""


def written(largest_at: int = RECORDS - 1) -> tuple[VirtualMachine, object, str]:
    """A machine, the manager of its log, and the log's only segment; one record has the largest timestamp."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"], **CONFIG)
    log = create(manager)
    for number in range(RECORDS):
        put(log, b"%d" % number, now=START_MS + 1000 * (number == largest_at))
    return machine, manager, log.segments[-1].path(".log")


def flip(machine: VirtualMachine, path: str, number: int, byte: int, bits: int) -> None:
    """Changes bits of one byte of a batch."""
    content = machine.virtual_disk.lookup(path).content
    content[[position for position, _ in iterate_batches(bytes(content))][number] + byte] ^= bits


def started(machine: VirtualMachine):
    machine.boot(power_lost=False)
    manager = open_manager(machine, ["/d1"], **CONFIG)
    assert manager.offline_directories == []
    return manager, create(manager)


def goes_on(log, end: int) -> None:
    """Checks that records are appended at ``end`` and read again."""
    assert log.log_end_offset == end
    put(log, b"more")
    _, rows, _ = read_rows(log, end)
    assert [(row.offset, row.value) for row in rows] == [(end, b"more")]


@pytest.mark.parametrize("byte", [1, 3])
def test_a_far_base_offset_ends_a_log_after_a_crash(byte: int) -> None:
    """No index can hold such an offset, so no batch of that segment had it: recovery cuts the log there.

    The log went on behind that offset, or, where an index entry was due, its directory went offline.
    """
    for number in range(RECORDS):
        machine, manager, path = written()
        manager.directories[0].release()
        flip(machine, path, number, byte, 0x40)
        _, log = started(machine)
        assert [row.value for row in all_rows(log)] == [b"%d" % one for one in range(number)]
        goes_on(log, number)


@pytest.mark.parametrize(("byte", "bits"), [(0, 0x40), (3, 0x40), (7, 0x10)])
def test_a_rotten_last_base_offset_moves_no_log_end(byte: int, bits: int) -> None:
    """After a stop in order the log's end comes from the last batch, whose base offset no checksum covers.

    One bit made the next records overwrite the offsets of others, or lie far behind them.
    """
    machine, manager, path = written()
    manager.close()
    flip(machine, path, RECORDS - 1, byte, bits)
    _, log = started(machine)
    assert [row.value for row in all_rows(log)] == [b"%d" % one for one in range(RECORDS - 1)]
    goes_on(log, RECORDS - 1)


@pytest.mark.parametrize(("byte", "bits"), [(MAGIC, 1), (LENGTH, 0x40)])
def test_a_rotten_header_leaves_the_directory_online(byte: int, bits: int) -> None:
    """The header is that of the batch with the largest timestamp, which is read before the first append."""
    for number in range(RECORDS - 1):
        machine, manager, path = written(largest_at=number)
        manager.close()
        flip(machine, path, number, byte, bits)
        manager, log = started(machine)
        with pytest.raises(LogError) as caught:
            read_rows(log, number)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        goes_on(log, RECORDS)
        if number > 0:
            assert read_rows(log, 0, max_bytes=1)[1][0].value == b"0"
        manager.close()
        _, log = started(machine)
        goes_on(log, RECORDS + 1)


@pytest.mark.parametrize("byte", [3, 7, LARGEST_TIMESTAMP])
def test_a_rotten_batch_lets_the_log_go_on(byte: int) -> None:
    """Offsets and times of a batch enter the indexes without a check of its records, after a stop in order.

    An offset or a time that is too large made the index refuse a later entry, with an assertion: the broker ended. The
    batch itself was served, and its reader went on at an offset far behind the others.
    """
    for number in range(RECORDS - 1):
        machine, manager, path = written(largest_at=number)
        manager.close()
        flip(machine, path, number, byte, 0x40)
        _, log = started(machine)
        for end in range(RECORDS, RECORDS + 10):
            for offset in range(end):
                served(log, offset)
            assert put(log, b"%d" % end).first_offset == end
        log.storage.roll(log.log_end_offset, START_MS)
        goes_on(log, RECORDS + 10)
        assert log.truncate_to(RECORDS + 5)
        end = log.log_end_offset
        assert end in (number, RECORDS + 5)
        for offset in range(number):
            served(log, offset)
        assert put(log, b"again").first_offset == end


def served(log, offset: int) -> None:
    """Reads one batch; it is the right one, or the answer is an error."""
    with contextlib.suppress(LogError, CorruptRecordError):
        result = log.read(offset, max_bytes=1, upper_bound_offset=log.log_end_offset, min_one_batch=True)
        data = b"".join(piece.file.read(piece.position, piece.count) for piece in result.ranges)
        [(position, header)] = iterate_batches(data)
        check_batch_crc(data, position, header)
        assert [record.offset for record in decode_records(data, position, header)] == [offset]


def test_a_rotten_time_before_the_largest_lets_a_segment_close() -> None:
    """The time index ended with a later batch, and refused the earlier one with an assertion."""
    for number in range(1, RECORDS - 1):
        machine, manager, path = written(largest_at=number)
        manager.close()
        flip(machine, path, number - 1, LARGEST_TIMESTAMP, 0x40)
        _, log = started(machine)
        log.storage.roll(log.log_end_offset, START_MS)
        goes_on(log, RECORDS)


def test_a_truncation_leaves_no_hole() -> None:
    """A follower fetches what the truncation removed with the batch whose offset had jumped."""
    for number in range(25):
        machine, manager, path = written()
        manager.close()
        batches = [position for position, _ in iterate_batches(bytes(machine.virtual_disk.lookup(path).content))]
        flip(machine, path, number, 7, 0x40)
        _, log = started(machine)
        assert log.truncate_to(25)
        end = log.log_end_offset
        assert (end, log.size_bytes) in ((number, batches[number]), (25, batches[25]))
        for offset in range(end, RECORDS):
            assert put(log, b"again").first_offset == offset


def test_a_cut_at_a_rotten_first_batch_empties_the_segment() -> None:
    """The first batch of the active segment begins below it, and the log is cut at the segment's beginning."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for number in range(40):
        put(log, b"%d" % number)
    base, path = log.segments[-1].base_offset, log.segments[-1].path(".log")
    manager.close()
    flip(machine, path, 0, 7, base & -base)
    machine.boot(power_lost=False)
    log = create(open_manager(machine, ["/d1"]))
    assert log.truncate_to(base)
    assert (log.log_end_offset, log.segments[-1].size) == (base, 0)
    goes_on(log, base)
    log.storage.roll(log.log_end_offset, START_MS)


@pytest.mark.parametrize("bits", [0x01, 0x80])
def test_a_rotten_marker_does_not_stop_a_truncation(bits: int) -> None:
    """A truncation replays the producers of the segment; a marker that cannot be decoded ends its transaction."""
    machine = VirtualMachine(1)
    log = create(open_manager(machine, ["/d1"], **CONFIG))
    for epoch, sequence in ((0, 0), (0, 1)):
        batch = make_batch([(START_MS, b"k", b"v")], producer=(7, epoch, sequence), transactional=True)
        log.append_as_leader(memoryview(batch), leader_epoch=LeaderEpoch(1), now_ms=START_MS)
    log.append_end_transaction_marker(
        producer_id=7, producer_epoch=0, coordinator_epoch=3, commit=True, leader_epoch=LeaderEpoch(1), now_ms=START_MS
    )
    put(log, b"last")
    put(log, b"not committed")
    flip(machine, log.segments[-1].path(".log"), 2, RECORD, bits)
    assert log.truncate_to(log.log_end_offset - 1)
    assert log.last_stable_offset == log.high_watermark == log.log_end_offset
    goes_on(log, 4)


@pytest.mark.parametrize("bits", [0x00, 0x40])
def test_a_log_that_damage_has_cut_makes_its_start_unclean(bits: int) -> None:
    """The broker lacks an acknowledged record, so it must leave the in-sync and eligible replicas (KIP-966)."""
    machine, manager, path = written()
    manager.close(7)
    flip(machine, path, RECORDS - 1, 0, bits)
    manager, log = started(machine)
    assert log.log_end_offset == RECORDS - (bits > 0)
    assert [directory.clean for directory in manager.directories] == [True]
    assert clean_epoch(manager) == (7 if bits == 0 else -1)
