"""Goal: no checkpoint says more of a log than it has after it was deleted, cut or started over.

Method: each periodic write of a checkpoint is under way in its thread while the log changes, or was done before.
"""

from __future__ import annotations

import pytest

from moldau.records import encode_batch
from moldau_broker.log.directories.directory import (
    CLEANER_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from moldau_broker.log.files.checkpoint import read_offsets
from support.log.lab import A, create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, all_rows


@pytest.mark.parametrize("name", [RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT])
def test_a_checkpoint_in_flight_is_none_of_the_next_log(name: str) -> None:
    """The next start would drop all records below the log start offset of the deleted log."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for _ in range(10):
        put(log, b"old")
    log.flush()
    log.delete_records(7)
    (work,) = [work for work in manager.tick(START_MS + 6000, START_MS + 6000) if work.name.endswith(name)]
    work.run()
    assert manager.delete(A)
    new = create(manager)
    put(new, b"new")
    work.complete()
    assert A not in read_offsets(machine.disk, f"/d1/{name}")
    new.flush()
    machine.boot(power_lost=False)
    assert [row.value for row in all_rows(open_manager(machine, ["/d1"]).logs[A])] == [b"new"]


CHANGES = {
    "deleted": lambda manager: (manager.delete(A), create(manager)),
    "cut": lambda manager: manager.logs[A].truncate_to(8),
    "starts at 0": lambda manager: manager.logs[A].truncate_fully_and_start_at(0, START_MS),
    "starts at 5": lambda manager: manager.logs[A].truncate_fully_and_start_at(5, START_MS),
}
BOUNDS = {
    RECOVERY_POINT_CHECKPOINT: lambda log: log.recovery_point,
    LOG_START_OFFSET_CHECKPOINT: lambda log: log.log_start_offset,
    HIGH_WATERMARK_CHECKPOINT: lambda log: log.high_watermark,
    CLEANER_CHECKPOINT: lambda log: log.log_end_offset,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", BOUNDS)
def test_no_checkpoint_in_flight_outlives_a_change(name: str, change: str) -> None:
    """None says more of a log than it has, whether the file had an entry of the log before or not."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for _ in range(10):
        put(log)
    log.flush()
    log.delete_records(7)
    manager.cleaner.clean_offsets[A] = 9
    (work,) = [work for work in manager.tick(START_MS + 6000, START_MS + 6000) if work.name.endswith(name)]
    work.run()
    CHANGES[change](manager)
    work.complete()
    assert read_offsets(machine.disk, f"/d1/{name}").get(A, 0) <= BOUNDS[name](manager.logs[A])


def test_records_behind_a_cut_are_not_committed_by_a_start() -> None:
    """An unclean election has dropped committed records; the next leader's lie at the same offsets."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for _ in range(10):
        put(log)
    tick(manager, START_MS + 6000)
    log.truncate_to(8)
    for number in range(8, 12):
        data = encode_batch([(START_MS, b"k", b"new", ())], base_offset=number, partition_leader_epoch=2)
        log.append_as_follower(memoryview(data), now_ms=START_MS)
    manager.directories[0].release()
    machine.boot(power_lost=False)
    log = open_manager(machine, ["/d1"]).logs[A]
    assert (log.high_watermark, log.log_end_offset) == (8, 12)
