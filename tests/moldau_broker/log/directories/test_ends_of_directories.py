"""Goal: a directory that fails, is closed or loses power is described and started as what it is.

Method: log managers on one virtual machine, one after the other; all small histories where the order matters.
"""

from __future__ import annotations

import errno
import random
import uuid
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.directories.retention_times import RetentionTimes
from moldau_broker.log.errors import LogStorageError
from moldau_broker.log.values import TopicPartition
from moldau_jepsen.world.disk.disk import NodeDisk
from support.log.lab import A, create, new_manager, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch

if TYPE_CHECKING:
    from moldau_broker.log.partition.partition_log import PartitionLog

B = TopicPartition("b", 0)
BROKEN = OSError(errno.EIO, "Input/output error")


def test_the_marker_of_a_clean_stop_serves_one_start_only() -> None:
    """A directory whose marker came back would skip the recovery of the records since then."""
    for seed in range(30):
        machine = VirtualMachine(seed)
        open_manager(machine, ["/d1"]).close()
        machine.boot(power_lost=False)
        manager = new_manager(machine, ["/d1"])
        manager.start(START_MS)
        assert manager.directories[0].clean
        machine.boot(power_lost=True)
        again = new_manager(machine, ["/d1"])
        again.start(START_MS)
        assert not again.directories[0].clean, seed


@pytest.mark.parametrize("end", ["close", "fail"])
def test_a_directory_that_is_given_up_can_be_opened(end: str) -> None:
    """Its lock keeps two processes apart, and no longer than the first one uses the directory."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1", "/d2"])
    with pytest.raises(LogStorageError, match="another process holds its lock"):
        open_manager(machine, ["/d1"])
    if end == "close":
        manager.close()
    else:
        manager.fail_directory("/d1", BROKEN)
    assert open_manager(machine, ["/d1"]).online_directories == ["/d1"]


def test_a_failed_directory_says_why_and_deletes_nothing_more() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1", "/d2"])
    create(manager, A, directory="/d1")
    create(manager, B, directory="/d2")
    for key in (A, B):
        manager.delete(key)
    manager.fail_directory("/d1", BROKEN)
    with pytest.raises(LogStorageError, match=r"offline: .*Input/output error"):
        create(manager, A, directory="/d1")
    for second in (1, 60):
        tick(manager, START_MS + second * 1_000)
    left = {path: [name for name in machine.disk.list_directory(path) if "delete" in name] for path in ("/d1", "/d2")}
    assert {path: len(names) for path, names in left.items()} == {"/d1": 1, "/d2": 0}


def test_directories_are_described_by_their_own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cordoned one, one without a cordon, and one that fails while its room is measured."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1", "/d2", "/d3"])
    for number, path in enumerate(("/d1", "/d2", "/d3")):
        create(manager, TopicPartition("t", number), directory=path)
    manager.cordons.follow(["/d2"])
    measured = NodeDisk.free_bytes

    def free_bytes(disk: NodeDisk, path: str) -> int:
        if path == "/d3":
            raise BROKEN
        return measured(disk, path)

    ids = {each.path: each.directory_id for each in manager.directories}
    monkeypatch.setattr(NodeDisk, "free_bytes", free_bytes)
    described = {each.path: each for each in manager.describe_log_dirs()}
    assert {path: each.is_cordoned for path, each in described.items()} == {"/d1": False, "/d2": True, "/d3": False}
    assert {path: each.directory_id for path, each in described.items()} == ids
    assert [len(each.replicas) for each in described.values()] == [1, 1, 0]
    assert [each.error for each in described.values()] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ]
    assert manager.online_directories == ["/d1", "/d2"]


def test_a_directory_without_an_identity_is_described_so() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1", "/d2"])
    manager.directories[0].directory_id = None
    manager.fail_directory("/d1", BROKEN)
    assert manager.describe_log_dirs()[0].directory_id == uuid.UUID(int=0)


def test_a_checkpoint_that_cannot_be_renamed_fails_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, a start would recover from an older offset; a disk that refuses a rename is broken."""
    manager = open_manager(VirtualMachine(1), ["/d1"])
    put(create(manager))

    def broken(*_: object) -> None:
        raise BROKEN

    monkeypatch.setattr(NodeDisk, "rename", broken)
    tick(manager, START_MS + 10_000)
    assert manager.offline_directories == ["/d1"]


@pytest.mark.parametrize("seed", range(8))
def test_one_deleted_record_is_enough_for_a_producer_to_be_known(seed: int) -> None:
    """The log is empty, and moves; the snapshot in its new place alone knows the producer after a power loss."""
    machine = VirtualMachine(seed)
    manager = open_manager(machine)
    log = create(manager, directory="/d1")
    batch = make_batch([(START_MS, b"k", b"v")], producer=(7, 0, 0))
    log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=START_MS)  # type: ignore[arg-type]
    log.update_high_watermark(1)  # type: ignore[arg-type]
    log.storage.roll(1, START_MS)
    log.increment_log_start_offset(1)
    log.apply_retention(START_MS)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert manager.copy_to_future(A, START_MS)
    manager.replace_current_with_future(A)
    machine.boot(power_lost=True)
    moved = open_manager(machine).logs[A]
    assert moved.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=START_MS).duplicate  # type: ignore[arg-type]


@pytest.mark.parametrize("start", range(6, 10))
@pytest.mark.parametrize("records", range(8))
def test_a_copy_has_no_record_that_the_log_has_not(start: int, records: int) -> None:
    """The log starts over above the start of its copy, with another history: both have the offsets of some records."""
    manager = open_manager(VirtualMachine(1))
    log = create(manager, directory="/d1")
    for _ in range(10):
        put(log, b"old")
    log.increment_log_start_offset(5)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert manager.copy_to_future(A, START_MS)
    log.truncate_fully_and_start_at(start, START_MS)  # type: ignore[arg-type]
    for _ in range(records):
        batch = make_batch([(START_MS, b"k", b"new")])
        log.append_as_leader(memoryview(batch), leader_epoch=3, now_ms=START_MS)  # type: ignore[arg-type]
    for _ in range(20):
        if manager.copy_to_future(A, START_MS):
            break
    moved = manager.replace_current_with_future(A)
    assert (moved.log_start_offset, moved.log_end_offset) == (start, start + records)
    assert [row.value for row in all_rows(moved)] == [b"new"] * records


@pytest.mark.parametrize("seed", range(20))
def test_each_log_is_due_at_its_latest_time(seed: int) -> None:
    """Most entries of the heap become void, so it is built again from the valid ones now and then."""
    draw = random.Random(seed)
    logs = [cast("PartitionLog", _Log()) for _ in range(12)]
    times = RetentionTimes()
    wanted: dict[Any, int] = {}
    for now in range(400):
        for log in draw.sample(logs, draw.randrange(8)):
            at = None if draw.random() < 0.2 else now + draw.randrange(1, 200)
            times.looked(log, at)
            wanted.pop(log, None)
            if at is not None:
                wanted[log] = at
        if draw.random() < 0.1:
            due = times.take_due(now)
            assert sorted(map(id, due)) == sorted(id(log) for log, at in wanted.items() if at <= now)
            for log in due:
                del wanted[log]


class _Log:
    """A log of which only its identity counts."""

    def __init__(self) -> None:
        self.storage = SimpleNamespace(released=False)
