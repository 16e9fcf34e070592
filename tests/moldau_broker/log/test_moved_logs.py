"""Goal: a log that changes its directory, or is found in two, is the right one and knows where it is.

Method: log managers over two virtual directories, restarted.
"""

from __future__ import annotations

from log_lab import A, create, open_manager
from log_model import START_MS, VirtualMachine, all_rows, make_batch


def put(log, value: bytes, epoch: int) -> None:
    log.append_as_leader(memoryview(make_batch([(START_MS, b"k", value)])), leader_epoch=epoch, now_ms=START_MS)


def test_a_log_that_was_moved_records_its_leader_epochs_in_its_new_place() -> None:
    """They were written to where the future log had been, which was gone: the directory was taken for broken."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    log.begin_leader_epoch(3)
    put(log, b"a", 3)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS):
        pass
    moved = manager.replace_current_with_future(A, START_MS)
    moved.begin_leader_epoch(4)
    put(moved, b"b", 4)
    manager.close()
    machine.boot(power_lost=False)
    again = open_manager(machine).logs[A]
    assert again.parent_directory == "/d2"
    assert (again.latest_epoch, again.end_offset_for_epoch(3).end_offset) == (4, 1)


def test_of_two_logs_of_a_partition_the_one_of_the_later_epoch_stays_though_it_is_shorter() -> None:
    """A directory that failed comes back, and the replica has begun anew in the other one meanwhile."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    old = create(manager)
    for value in (b"a", b"b", b"never committed"):
        put(old, value, 1)
    manager.fail_directory("/d1", OSError("gone"))
    new = create(manager)
    assert new.parent_directory == "/d2"
    put(new, b"a", 1)
    put(new, b"c", 2)
    manager.close()
    machine.boot(power_lost=False)
    again = open_manager(machine)
    assert [row.value for row in all_rows(again.logs[A])] == [b"a", b"c"]
    assert again.logs[A].parent_directory == "/d2"
