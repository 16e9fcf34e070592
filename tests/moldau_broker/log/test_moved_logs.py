"""Goal: a log that changes its directory, or is found in two, is the right one and knows where it is.

Method: log managers over two virtual directories, restarted.
"""

from __future__ import annotations

import uuid

import pytest

from log_lab import A, create, new_manager, open_manager, tick
from log_model import START_MS, VirtualMachine, all_rows, make_batch
from moldau_broker.log.errors import LogStorageError


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


@pytest.mark.parametrize("records", [0, 2])
def test_a_leader_whose_log_is_moved_keeps_the_epoch_that_it_has_begun_without_a_record(records: int) -> None:
    """It knew nothing of its own epoch any more, and told followers that had one that theirs are out of range."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for _ in range(records):
        put(log, b"a", 3)
    log.begin_leader_epoch(5)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS):
        pass
    moved = manager.replace_current_with_future(A, START_MS)
    assert moved.latest_epoch == 5
    assert moved.end_offset_for_epoch(4) == log.end_offset_for_epoch(4)


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


def test_a_future_log_loses_what_the_current_one_lost_though_that_has_grown_past_it_since() -> None:
    """A follower was cut and filled by a new leader between two looks; the future log kept the old leader's records."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for number in range(10):
        put(log, b"old %d" % number, 3)
    future = manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert future is not None
    while not manager.copy_to_future(A, START_MS):
        pass
    assert future.log_end_offset == 10
    log.truncate_to(6)
    for number in range(8):
        put(log, b"new %d" % number, 5)
    while not manager.copy_to_future(A, START_MS):
        pass
    expected = [b"old %d" % number for number in range(6)] + [b"new %d" % number for number in range(8)]
    assert [row.value for row in all_rows(future)] == expected
    assert [(entry.leader_epoch, entry.start_offset) for entry in future.epoch_entries()] == [(3, 0), (5, 6)]


def test_a_future_log_drops_epochs_that_the_current_one_does_not_know() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, b"shared", 1)
    put(log, b"gone", 2)
    put(log, b"gone too", 4)
    future = manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert future is not None
    assert manager.copy_to_future(A, START_MS)
    log.truncate_to(1)
    for number in range(4):
        put(log, b"new %d" % number, 6)
    assert manager.copy_to_future(A, START_MS)
    assert [row.value for row in all_rows(future)] == [b"shared", b"new 0", b"new 1", b"new 2", b"new 3"]
    assert manager.replace_current_with_future(A, START_MS).latest_epoch == 6


def test_a_directory_that_cannot_be_read_while_a_replica_is_copied_is_named() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    put(create(manager), b"a", 1)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    machine.platters.profile.read_error_probability = 1.0
    with pytest.raises(LogStorageError, match=r"copying a-0 failed: .*Input/output error") as caught:
        manager.copy_to_future(A, START_MS)
    assert caught.value.directory == "/d1"


def begin_a_move(machine: VirtualMachine, records: int = 3):
    manager = open_manager(machine)
    log = create(manager, directory="/d1")
    for number in range(records):
        put(log, b"old %d" % number, 1)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert manager.copy_to_future(A, START_MS)
    return manager


def names_of(machine: VirtualMachine, parent: str, ending: str) -> set[str]:
    directories = {path.removeprefix(parent + "/").split("/")[0] for path in machine.platters.files(parent)}
    return {name for name in directories if name.endswith(ending)}


def test_a_log_that_begins_where_its_predecessor_was_moving_to_ends_the_move() -> None:
    """The future log took its place by a rename onto it, which cannot be: a good directory was taken for broken."""
    machine = VirtualMachine(1)
    manager = begin_a_move(machine)
    manager.fail_directory("/d1", OSError("gone"))
    new = create(manager, directory="/d2")
    put(new, b"new", 2)
    assert manager.future_logs == {}
    assert not names_of(machine, "/d2", "-future")
    assert len(names_of(machine, "/d2", "-delete")) == 1
    for later in (1000, 9000):
        tick(manager, START_MS + later)
    assert not names_of(machine, "/d2", "-delete")
    assert manager.online_directories == ["/d2"]
    manager.close()
    machine.boot(power_lost=False)
    again = open_manager(machine)
    assert [row.value for row in all_rows(again.logs[A])] == [b"new"]
    # A move asked for anew goes all the way, also back to where the first log was.
    assert again.alter_replica_log_dir(A, "/d1", START_MS) is not None
    assert again.copy_to_future(A, START_MS)
    assert again.replace_current_with_future(A, START_MS).parent_directory == "/d1"
    assert again.online_directories == ["/d1", "/d2"]


def test_a_current_and_a_future_log_found_in_one_directory_are_no_move() -> None:
    """A broker died after it had begun the one, and before it had put the other away."""
    machine = VirtualMachine(1)
    begin_a_move(machine).close()
    machine.disk.rename("/d1/a-0", "/d2/a-0")
    machine.disk.sync_directory("/d1")
    machine.disk.sync_directory("/d2")
    machine.boot(power_lost=False)
    manager = open_manager(machine)
    assert manager.future_logs == {}
    assert not names_of(machine, "/d2", "-future")
    assert [row.value for row in all_rows(manager.logs[A])] == [b"old 0", b"old 1", b"old 2"]
    assert manager.logs[A].parent_directory == "/d2"
    assert manager.online_directories == ["/d1", "/d2"]


def test_a_future_log_of_a_former_topic_of_that_name_does_not_mix_with_the_new_one() -> None:
    """Its directory was away while the topic was deleted and created again; equal epochs say nothing between topics."""
    machine = VirtualMachine(1)
    manager = begin_a_move(machine, records=4)
    manager.fail_directory("/d2", OSError("gone"))
    assert manager.delete(A, START_MS)
    new = manager.get_or_create(A, topic_id=uuid.UUID(int=77), now_ms=START_MS, directory="/d1")
    for number in range(6):
        put(new, b"new %d" % number, 1)
    manager.close()
    machine.boot(power_lost=False)
    again = open_manager(machine)
    assert again.future_logs == {}
    assert not names_of(machine, "/d2", "-future")
    assert [row.value for row in all_rows(again.logs[A])] == [b"new %d" % number for number in range(6)]


def test_a_directory_that_cannot_put_a_log_away_at_start_goes_offline_alone() -> None:
    """The error ended the start, and which of two logs of a partition was kept was forgotten."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    put(create(manager, directory="/d1"), b"old", 1)
    manager.fail_directory("/d1", OSError("gone"))
    put(create(manager, directory="/d2"), b"new", 2)
    manager.close()
    machine.boot(power_lost=False)
    manager = new_manager(machine)
    manager.start(START_MS)
    works = manager.recovery_work()
    for work in works:
        work.run()
    machine.platters.profile.failing_paths = ("/d1",)
    for work in works:
        work.complete()
    assert manager.offline_directories == ["/d1"]
    assert [row.value for row in all_rows(manager.logs[A])] == [b"new"]
