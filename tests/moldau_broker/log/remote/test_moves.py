"""Goal: a tiered log that is moved to another directory begins there as before, and no crash changes that.

Method: log managers over two virtual directories; the power fails after each write of a move.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from moldau.values import LeaderEpoch
from moldau_broker.log.files.checkpoint import encode_epochs
from support.log.lab import A
from support.log.model import START_MS, PowerLoss, VirtualMachine
from support.log.tiered import append, check_whole, copies_of, filled, local_rows, open_tiered, run_retention

if TYPE_CHECKING:
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog

DIRECTORIES = ("/d1", "/d2")


def move(manager: LogManager) -> PartitionLog:
    target = "/d1" if manager.logs[A].parent_directory == "/d2" else "/d2"
    manager.alter_replica_log_dir(A, target, START_MS)
    while not manager.copy_to_future(A, START_MS, max_bytes=300):
        pass
    return manager.replace_current_with_future(A)


def test_crash_after_each_write_of_a_move() -> None:
    for writes in itertools.count(1, 3):
        machine = VirtualMachine(writes)
        manager = open_tiered(machine, DIRECTORIES)
        log = filled(manager)
        rows, epochs, copies = local_rows(log), log.epochs.entries, copies_of(log)
        run_retention(log)
        machine.arm(writes)
        try:
            log = move(manager)
        except PowerLoss:
            machine.boot(power_lost=True)
            log = open_tiered(machine, DIRECTORIES).logs[A]
            check_whole(log, rows, copies)
            assert log.epochs.entries == epochs
            continue
        check_whole(log, rows, copies)
        assert log.epochs.entries == epochs
        assert log.copied_end_offset == copies[-1].end_offset
        assert log.producer_state.get(77) is not None
        return


def test_a_moved_log_knows_its_copies() -> None:
    manager = open_tiered(VirtualMachine(2), DIRECTORIES)
    copies = copies_of(filled(manager))
    log = move(manager)
    assert log.local_log_start_offset == 0
    assert log.copied_end_offset == copies[-1].end_offset
    run_retention(log)
    assert log.local_log_start_offset == copies[-1].end_offset


def test_a_log_start_that_falls_while_the_log_is_moved() -> None:
    """A log that starts over behind remote segments may begin lower than before."""
    manager = open_tiered(VirtualMachine(2), DIRECTORIES)
    log = filled(manager)
    copies = copies_of(log)
    log.note_copied(copies[1].end_offset)
    run_retention(log)
    log.increment_log_start_offset(3)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS):
        pass
    parts = copies[3].parts
    log.restart_behind(
        copies[3].end_offset,
        log_start_offset=1,
        leader_epochs=parts.leader_epochs,
        producer_snapshot=parts.producer_snapshot,
        now_ms=START_MS,
    )
    while not manager.copy_to_future(A, START_MS):
        pass
    moved = manager.replace_current_with_future(A)
    assert (moved.log_start_offset, moved.log_end_offset) == (1, copies[3].end_offset)


@pytest.mark.parametrize("change", ["deletes", "restarts", "restarts lower", "truncates"])
def test_the_log_changes_while_it_is_moved(change: str) -> None:
    machine = VirtualMachine(2)
    manager = open_tiered(machine, DIRECTORIES)
    log = filled(manager)
    copies = copies_of(log)
    log.note_copied(copies[3].end_offset)
    run_retention(log)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    manager.copy_to_future(A, START_MS, max_bytes=300)
    parts = copies[1].parts
    if change == "deletes":
        log.note_copied(copies[-1].end_offset)
        run_retention(log)
    elif change == "truncates":
        log.truncate_to(copies[1].end_offset)
    else:
        log.restart_behind(
            1000 if change == "restarts" else copies[1].end_offset,
            log_start_offset=0,
            leader_epochs=parts.leader_epochs,
            producer_snapshot=parts.producer_snapshot,
            now_ms=START_MS,
        )
    log.begin_leader_epoch(LeaderEpoch(12))
    append(log, 9)
    rows, epochs, local = local_rows(log), log.epochs.entries, log.local_log_start_offset
    while not manager.copy_to_future(A, START_MS, max_bytes=300):
        pass
    moved = manager.replace_current_with_future(A)
    for restarted in (False, True):
        if restarted:
            machine.boot(power_lost=True)
            moved = open_tiered(machine, DIRECTORIES).logs[A]
        assert moved.parent_directory == "/d2"
        assert (moved.log_start_offset, moved.log_end_offset) == (0, log.log_end_offset)
        assert moved.local_log_start_offset <= local
        assert local_rows(moved)[-len(rows) :] == rows
        assert encode_epochs(moved.epochs.entries) == encode_epochs(epochs)
