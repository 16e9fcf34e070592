"""Goal: damage in the active segment of one log costs records of that log at most, never its directory.

Method: a log is stopped in order or killed, a few bits of its last segment are changed, and the log is opened again.
"""

from __future__ import annotations

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import iterate_batches
from moldau.values import LeaderEpoch
from moldau_broker.log.errors import LogError
from moldau_broker.server.lifecycle.startup import clean_epoch
from support.log.lab import create, open_manager, put
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch, read_rows

RECORDS = 30
CONFIG = {"segment_bytes": 100_000, "index_interval_bytes": 400}
MAGIC, LENGTH, RECORD = 16, 8, 61
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
