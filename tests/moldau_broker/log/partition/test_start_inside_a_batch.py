"""Goal: a log that must begin inside a batch, because DeleteRecords ended there, can be copied, and begins there.

Method: a leader's log as a value, and logs that get its batches: as a follower, in another directory, after a loss,
and with the power failing after each write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.errors import LogError, OffsetOutOfRangeError
from moldau_broker.log.files.names import LOG_SUFFIX
from support.log.lab import A, create, open_manager
from support.log.model import START_MS, PowerLoss, VirtualMachine, all_rows, make_batch

if TYPE_CHECKING:
    from moldau_broker.log.partition.partition_log import PartitionLog

START = 15
"""Inside the second of three batches of ten records each."""


def ledger() -> PartitionLog:
    """A leader's log of three batches in two epochs, by two producers, the second in a transaction that is open."""
    log = create(open_manager(VirtualMachine(9), segment_bytes=100_000))
    for number, epoch in enumerate((1, 1, 2)):
        rows = [(START_MS, b"k", b"%d" % (10 * number + index)) for index in range(10)]
        data = make_batch(rows, producer=(7 + number % 2, 0, 10 * (number // 2)), transactional=number == 1)
        log.append_as_leader(memoryview(data), leader_epoch=epoch, now_ms=START_MS)
    log.update_high_watermark(30)
    assert log.delete_records(START) == START
    return log


def fetch(follower: PartitionLog, leader: PartitionLog, max_bytes: int = 1 << 20) -> None:
    """Fetches as a follower does until it has all, from the leader's log start if there is nothing else in common."""
    if follower.log_end_offset < leader.log_start_offset:
        follower.truncate_fully_and_start_at(leader.log_start_offset, START_MS)
    while follower.log_end_offset < leader.log_end_offset:
        result = leader.read(follower.log_end_offset, max_bytes=max_bytes, upper_bound_offset=30, min_one_batch=True)
        data = b"".join(piece.file.read(piece.position, piece.count) for piece in result.ranges)
        follower.append_as_follower(memoryview(data), now_ms=START_MS, leader_epoch=2)


def batch_at(log: PartitionLog, offset: int) -> memoryview:
    """The one batch that holds an offset."""
    (piece,) = log.read(offset, max_bytes=1, upper_bound_offset=30, min_one_batch=True).ranges
    return memoryview(piece.file.read(piece.position, piece.count))


def assert_same(log: PartitionLog, leader: PartitionLog) -> None:
    assert (log.log_start_offset, log.log_end_offset, log.segments[0].base_offset) == (START, 30, 10)
    assert START <= log.high_watermark <= 30
    assert [row.offset for row in all_rows(log)] == list(range(START, 30))
    assert all_rows(log) == all_rows(leader)
    assert log.epochs.entries == leader.epochs.entries
    with pytest.raises(OffsetOutOfRangeError):
        log.read(START - 1, max_bytes=1, upper_bound_offset=30)
    log.update_high_watermark(30)
    assert log.last_stable_offset == START, "the transaction that is open began below the log start"


@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
@pytest.mark.parametrize("stopped_in_order", [True, False])
def test_a_follower_begins_with_the_batch_at_the_log_start(max_bytes: int, stopped_in_order: bool) -> None:
    """A bug refused this batch as overlapping for as long as the leader's log began inside it."""
    leader = ledger()
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    log.truncate_fully_and_start_at(START, START_MS)
    fetch(log, leader, max_bytes)
    assert log.high_watermark == START, "what a follower has is committed when its leader says so"
    assert_same(log, leader)
    assert [row.producer_id for row in log.producer_state.describe()] == [7, 8]
    if stopped_in_order:
        manager.close()
    else:
        log.flush()
    machine.boot(power_lost=True)
    assert_same(open_manager(machine).logs[A], leader)


def test_a_log_that_begins_inside_a_batch_can_be_moved() -> None:
    """A log whose start offset lies inside a batch can be moved to another directory."""
    manager = open_manager(VirtualMachine(1))
    log = create(manager)
    leader = ledger()
    fetch(log, leader)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS, max_bytes=1):
        pass
    moved = manager.replace_current_with_future(A)
    assert moved.parent_directory == "/d2"
    assert_same(moved, leader)


def test_a_log_without_segments_takes_the_batch_at_its_start() -> None:
    """A log that lost its segments begins at its log start offset and accepts the batch that holds this offset."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    leader = ledger()
    fetch(log, leader)
    log.flush()
    paths = [segment.path(LOG_SUFFIX) for segment in log.segments]
    machine.boot(power_lost=False)
    for path in paths:
        machine.disk.remove(path)
    log = open_manager(machine).logs[A]
    assert (log.log_start_offset, log.log_end_offset) == (START, START)
    fetch(log, leader)
    assert_same(log, leader)


def test_no_crash_restores_deleted_records_or_stops_a_follower() -> None:
    """No crash on the way restores deleted records or keeps the follower from copying its leader's log."""
    leader = ledger()
    writes, ended = 1, False
    while not ended:
        for power_lost in (True, False):
            machine = VirtualMachine(1)
            log = create(open_manager(machine))
            log.truncate_fully_and_start_at(START, START_MS)
            machine.arm(writes)
            try:
                fetch(log, leader)
                log.flush()
                ended = True
            except PowerLoss:
                pass
            machine.boot(power_lost=power_lost)
            manager = open_manager(machine)
            log = create(manager)
            assert all(row.offset >= START for row in all_rows(log)), f"deleted, and back after {writes} writes"
            fetch(log, leader)
            assert_same(log, leader)
            manager.close()
        writes += 1
    assert writes > 10


def test_only_an_empty_log_takes_a_batch_below_its_end() -> None:
    """Only an empty log accepts a batch that begins below its end, and only as the first batch."""
    leader = ledger()
    held, following = batch_at(leader, START), batch_at(leader, 20)
    log = create(open_manager(VirtualMachine(1)))
    log.truncate_fully_and_start_at(START, START_MS)
    for refused in (bytes(held) + bytes(held), bytes(following) + bytes(held)):
        with pytest.raises(LogError) as caught:
            log.append_as_follower(memoryview(refused), now_ms=START_MS)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (START, START, 0)
    log.truncate_fully_and_start_at(0, START_MS)
    log.append_as_follower(memoryview(make_batch([(START_MS, b"k", b"v")] * 15)), now_ms=START_MS)
    with pytest.raises(LogError, match="overlaps the log, it ends at 15"):
        log.append_as_follower(held, now_ms=START_MS)


def test_a_log_that_loses_its_first_batch_begins_at_its_end() -> None:
    """A truncation removes the batch that holds the log start as a whole: no log ends below its start."""
    log = ledger()
    log.truncate_to(START + 2)
    assert (log.log_start_offset, log.log_end_offset) == (10, 10)
    assert log.high_watermark == 10
