"""Goal: a start takes the state of producers from no snapshot that describes batches which the log does not have.

Method: a virtual disk, on which a crash has brought removed snapshots back, or has torn the newest one.
"""

from __future__ import annotations

from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.files.checkpoint import read_file
from support.log.lab import START_MS, create, open_manager, put
from support.log.model import VirtualMachine

OPEN, LATER = 7, 8


def write(machine: VirtualMachine, path: str, data: bytes) -> None:
    file = machine.disk.open(path, OpenMode.CREATE)
    file.append([data])
    file.close()


def roll(log) -> None:
    log.storage.roll(log.log_end_offset, START_MS)


def test_a_snapshot_of_deleted_segments_counts_for_nothing() -> None:
    """Its transaction ended in a segment that is deleted: it would stay open and hold committed readers for ever."""
    machine = VirtualMachine(1)
    log = create(open_manager(machine))
    put(log, producer=(OPEN, 0, 0), transactional=True)
    roll(log)
    snapshots = log.storage.snapshots
    removed = read_file(machine.disk, snapshots.path(1))
    log.append_end_transaction_marker(
        producer_id=OPEN, producer_epoch=0, coordinator_epoch=3, commit=True, leader_epoch=1, now_ms=START_MS
    )
    log.update_high_watermark(log.log_end_offset)
    roll(log)
    put(log, producer=(LATER, 0, 0))
    log.storage.drop_oldest(2)
    log.flush()
    write(machine, snapshots.path(1), removed)
    machine.disk.remove(snapshots.path(2))
    machine.boot(power_lost=False)
    log = open_manager(machine).logs[log.topic_partition]
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == log.log_end_offset == 3
    assert [each.producer_id for each in log.producer_state.describe()] == [LATER]
    assert not machine.disk.exists(snapshots.path(1))


def test_a_torn_snapshot_gives_way_to_the_one_before() -> None:
    """The batches behind the older one say the rest, with the transaction that is open in it."""
    machine = VirtualMachine(1)
    log = create(open_manager(machine))
    put(log, producer=(OPEN, 0, 0), transactional=True)
    roll(log)
    put(log, producer=(LATER, 0, 0))
    roll(log)
    put(log, producer=(LATER, 0, 1))
    log.flush()
    snapshots = log.storage.snapshots
    torn = read_file(machine.disk, snapshots.path(2))[:-1]
    machine.disk.remove(snapshots.path(2))
    write(machine, snapshots.path(2), torn)
    machine.boot(power_lost=False)
    log = open_manager(machine).logs[log.topic_partition]
    log.update_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 0
    assert [(each.producer_id, each.last_sequence) for each in log.producer_state.describe()] == [(OPEN, 0), (LATER, 1)]


def test_a_log_without_its_first_records_knows_not_all_producers() -> None:
    """A producer of these records goes on with its next sequence number, and must not be refused for ever."""
    machine = VirtualMachine(1)
    log = create(open_manager(machine))
    put(log, producer=(LATER, 0, 0))
    roll(log)
    put(log)
    put(log)
    snapshots = log.storage.snapshots
    log.storage.drop_oldest(1)
    write(machine, f"{snapshots.path(1)}.torn", b"torn")
    machine.disk.rename(f"{snapshots.path(1)}.torn", snapshots.path(1))
    log.truncate_to(2)
    assert not log.producer_state.knows_all
    assert put(log, producer=(LATER, 0, 1)).first_offset == 2


def test_a_sync_that_failed_leaves_all_snapshots_to_the_next() -> None:
    """Those of its begin, and those of the segments that began meanwhile."""
    snapshots = create(open_manager(VirtualMachine(1))).storage.snapshots
    snapshots.take(1)
    begun = snapshots.take_unsynced()
    snapshots.take(2)
    snapshots.not_synced(begun)
    assert snapshots.take_unsynced() == [snapshots.path(1), snapshots.path(2)]
    assert snapshots.take_unsynced() == []
