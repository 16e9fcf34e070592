"""Goal: a log directory that is nearly full frees what it may, at once, also right after a start.

Method: a virtual disk whose capacity shrinks.
"""

from __future__ import annotations

from moldau.values import LOW_BYTES_MAX
from moldau_broker.log.directories.log_table import DeletionQueue
from moldau_broker.log.directories.room import Space
from support.log.lab import A, create, new_manager, put, tick
from support.log.model import START_MS, VirtualMachine

DELETE_DELAY_MS = 60_000


def filled(machine: VirtualMachine, directories=("/d1",), **config):
    """A manager whose retention has its usual delays, with twenty segments of which two may stay."""
    manager = new_manager(
        machine, directories, retention_bytes=2_000, file_delete_delay_ms=DELETE_DELAY_MS, segment_bytes=1_000, **config
    )
    manager.start(START_MS)
    manager.recover_all()
    if A not in manager.logs:
        log = create(manager)
        for _ in range(40):
            put(log, b"v" * 400)
    return manager


def shrink(machine: VirtualMachine, free: int) -> None:
    machine.virtual_disk.profile.capacity_bytes = machine.virtual_disk.used_bytes() + free


def test_a_low_mark_is_a_share_and_has_a_bound() -> None:
    assert Space(total_bytes=1_000, usable_bytes=49).is_low
    assert not Space(total_bytes=1_000, usable_bytes=50).is_low
    assert not Space(total_bytes=1 << 50, usable_bytes=LOW_BYTES_MAX).is_low


def test_a_nearly_full_disk_is_freed_right_after_a_start() -> None:
    """Followers fetch at once after a start, so retention must not wait for its first period, nor files for theirs."""
    machine = VirtualMachine(1)
    filled(machine).close()
    machine.boot(power_lost=False)
    shrink(machine, 10)
    again = filled(machine)
    assert list(again.room.low) == ["/d1"]
    used = machine.virtual_disk.used_bytes()
    again.begin_discarding(START_MS)
    tick(again, START_MS)
    log = again.logs[A]
    assert log.size_bytes <= 3_000
    assert machine.virtual_disk.used_bytes() < used // 2, "the files are gone, not only renamed"
    tick(again, START_MS + 1_000)
    assert again.room.low == {}


def test_files_that_wait_already_go_at_once_too() -> None:
    queue = DeletionQueue()
    queue.add_files(60_000, ("/d1/a",))
    queue.add_files(60_000, ("/d2/b",))
    assert queue.take_due(0) == []
    queue.hasten("/d1")
    assert queue.take_due(1) == ["/d1/a"]
    assert queue.take_due(59_999) == []
    assert queue.take_due(60_000) == ["/d2/b"]


def test_a_disk_with_room_keeps_its_delays() -> None:
    machine = VirtualMachine(1)
    filled(machine).close()
    machine.boot(power_lost=False)
    again = filled(machine)
    again.begin_discarding(START_MS)
    tick(again, START_MS)
    assert again.room.low == {}
    assert again.logs[A].size_bytes > 10_000


def test_retention_of_a_low_directory_leaves_others_alone() -> None:
    machine = VirtualMachine(1)
    manager = filled(machine)
    log = manager.logs[A]
    manager.begin_discarding(START_MS)
    before = log.log_start_offset
    shrink(machine, 10)
    assert not manager.room.is_short("/d1", 5), "nothing is short before a look"
    manager.room.look()
    assert manager.room.is_short("/d1", 5)
    assert not manager.room.is_short("/elsewhere", 5)
    tick(manager, START_MS)
    assert log.log_start_offset > before
    manager.room.look()
    assert not manager.room.is_short("/d1", 5)


def test_the_size_of_a_disk_is_that_of_the_whole_disk() -> None:
    """DescribeLogDirs with some topics only added up their replicas."""
    machine = VirtualMachine(1)
    manager = filled(machine)
    shrink(machine, 5_000)
    for topics in (None, []):
        (described,) = manager.describe_log_dirs(topics)
        assert described.total_bytes == machine.virtual_disk.profile.capacity_bytes
        assert described.usable_bytes == 5_000
