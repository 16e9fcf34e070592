"""Goal: failures of one log directory are named as what they are, and the log manager keeps its promises around them.

Method: a log manager on a virtual disk whose writes fail, or whose descriptors run out, at a chosen moment.
"""

from __future__ import annotations

import errno

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.directories.directory import LogDirectory, read_offsets
from moldau_broker.log.directories.log_table import DeletionQueue
from moldau_broker.log.errors import DescriptorsShortError, LogError, LogStorageError
from moldau_broker.log.values import TopicPartition, run_work
from support.log.lab import TOPIC_ID, A, create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, make_batch

B = TopicPartition("b", 0)


def test_a_log_cannot_be_created_on_a_failing_disk() -> None:
    """The directory goes offline, and the next log is created in another one."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1", "/d2"])
    machine.virtual_disk.profile.write_error_probability = 1.0
    with pytest.raises(LogStorageError, match=r"creating a-0 failed: .*Input/output error"):
        create(manager, directory="/d1")
    machine.virtual_disk.profile.write_error_probability = 0.0
    assert [directory.path for directory in manager.directories if directory.online] == ["/d2"]
    assert create(manager).parent_directory == "/d2"
    with pytest.raises(LogStorageError, match="offline"):
        create(manager, B, directory="/d1")
    with pytest.raises(LogError) as caught:
        create(manager, B, directory="/d3")
    assert caught.value.code is ErrorCode.LOG_DIR_NOT_FOUND


def test_a_shortage_of_descriptors_fails_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = open_manager(VirtualMachine(1), ["/d1"])
    store = manager._store

    def short(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_set_topic_id", short)
        with pytest.raises(DescriptorsShortError, match="a-0 cannot be created"):
            create(manager)
    assert manager.directories[0].online
    put(create(manager))
    assert store.fail_directory("/d1", DescriptorsShortError("/d1", "no room")) == []
    assert store.fail_directory("/elsewhere", OSError(errno.EIO, "Input/output error")) == []
    assert manager.directories[0].online
    assert store.fail_directory("/d1", OSError(errno.EIO, "Input/output error")) == [A]
    assert not manager.directories[0].online


def test_a_failed_directory_compares_no_logs_with_each_other() -> None:
    """With 10,000 logs that took two seconds, in which the broker did nothing else."""
    compared = 0

    class Counted(TopicPartition):
        __hash__ = TopicPartition.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

    manager = open_manager(VirtualMachine(1), ["/d1"])
    keys = [Counted("t", number) for number in range(30)]
    for key in keys:
        create(manager, key)
    compared = 0
    assert manager.fail_directory("/d1", OSError(errno.EIO, "Input/output error")) == keys
    assert compared <= 3 * len(keys)


def test_a_checkpoint_without_a_descriptor_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory goes on, and so do its checkpoints, though no log changes any more."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    put(create(manager))

    def short(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    path = "/d1/replication-offset-checkpoint"
    before = read_offsets(machine.disk, path)
    with monkeypatch.context() as patch:
        patch.setattr("moldau_broker.log.directories.directory.write_temporary", short)
        for work in manager.tick(START_MS + 10_000, START_MS + 10_000):
            with pytest.raises(OSError, match="Too many open files") as caught:
                work.run()
            work.failed(caught.value)
    assert (manager.directories[0].online, read_offsets(machine.disk, path)) == (True, before)
    tick(manager, START_MS + 20_000)
    assert read_offsets(machine.disk, path) == {A: 1}


@pytest.mark.parametrize("lacking", ["sync_directory", "remove_tree"])
def test_a_deleted_log_goes_after_a_shortage(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """To sync a directory, and to remove it, takes descriptors; its files stayed until the broker started again."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    put(create(manager))

    def short(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(type(machine.disk), lacking, short)
        assert manager.delete(A)
        for now in (START_MS, START_MS + 3_000):
            for work in manager.tick(now, now):
                try:
                    work.run()
                except OSError as error:
                    work.failed(error)
                else:
                    work.complete()
    assert manager.directories[0].online
    tick(manager, START_MS + 6_000)
    assert [name for name in machine.disk.list_directory("/d1") if name.startswith("a-0")] == []


def test_a_deletion_reaches_the_copy_on_another_disk() -> None:
    """The move of a replica is under way when its topic is deleted, and the old disk fails at that moment."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1", "/d2"])
    put(create(manager, directory="/d1"))
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    machine.virtual_disk.profile.failing_paths = ("/d1",)
    with pytest.raises(LogStorageError):
        manager.delete(A)
    for now in (START_MS, START_MS + 3_000):
        tick(manager, now)
    assert [directory.online for directory in manager.directories] == [False, True]
    assert [name for name in machine.disk.list_directory("/d2") if name.startswith("a-0")] == []


def test_a_start_that_cannot_lower_a_checkpoint_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a descriptor for that it is not done: a later crash would leave new records unchecked below it."""
    machine = VirtualMachine(1)
    log = create(open_manager(machine, ["/d1"]))
    for _ in range(5):
        put(log)
    log.flush()
    machine.boot(power_lost=False)
    file = machine.disk.open(f"{log.directory}/00000000000000000000.log", OpenMode.WRITE)
    file.truncate(file.size - 10)
    file.close()

    def short(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(LogDirectory, "lower_to", short)
        manager = open_manager(machine, ["/d1"])
    assert manager.start_shortage is not None
    assert manager.directories[0].online


def test_a_topic_id_that_cannot_be_written_is_a_failed_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = open_manager(VirtualMachine(1), ["/d1"])
    log = create(manager)
    log.topic_id = None

    def broken(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(manager._store, "_set_topic_id", broken)
        with pytest.raises(LogStorageError, match=r"a-0: .*Input/output error"):
            create(manager)
    assert create(manager).topic_id == TOPIC_ID


def test_a_log_whose_sync_failed_takes_no_more_records() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    put(log)
    work = manager.flush_work(log)
    assert work is not None
    machine.virtual_disk.profile.sync_error_probability = 1.0
    with pytest.raises(OSError, match="Input/output error") as caught:
        work.run()
    work.failed(caught.value)
    machine.virtual_disk.profile.sync_error_probability = 0.0
    assert log.failed
    assert not manager.directories[0].online
    with pytest.raises(LogStorageError):
        put(log)


def test_a_moved_log_start_is_announced() -> None:
    """Those who wait for the log start of a partition hear of what retention has removed."""
    manager = open_manager(VirtualMachine(1), ["/d1"], retention_ms=1000, segment_bytes=100)
    log = create(manager)
    moved: list[TopicPartition] = []
    manager._housekeeping.start_listener = moved.append
    for number in range(3):
        put(log, now=START_MS + number)
    assert moved == []
    for _ in range(2):
        tick(manager, START_MS + 60_000)
        assert (log.log_start_offset > 0, moved) == (True, [A])


def test_a_log_restarted_at_an_offset_is_remembered_at_once() -> None:
    """Its checkpoints must not say more than the log holds, whenever the power fails."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for _ in range(5):
        put(log)
    log.flush()
    for work in manager.tick(START_MS + 10_000, START_MS + 10_000):
        run_work(work)
    log.truncate_fully_and_start_at(3, START_MS)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint"):
        assert read_offsets(machine.disk, f"/d1/{name}") == {A: 3}, name


def test_deletions_of_a_full_directory_are_due_at_once() -> None:
    queue = DeletionQueue()
    for directory in ("/d1", "/d10"):
        queue.add_tree(500, f"{directory}/tree")
        queue.add_files(100, (f"{directory}/early.log", f"{directory}/early.index"))
        queue.add_files(900, (f"{directory}/late.log",))
    assert queue.take_due(1000) == []
    assert queue.take_due(1099) == []
    assert queue.take_due(1100) == ["/d1/early.log", "/d1/early.index", "/d10/early.log", "/d10/early.index"]
    queue.hasten("/d1")
    assert queue.take_due(1200) == ["/d1/tree", "/d1/late.log"]
    assert queue.take_due(1900) == ["/d10/tree", "/d10/late.log"]
    queue.add_files(0, ("/d1/x.log",))
    queue.add_files(0, ("/d10/x.log",))
    queue.forget_directory("/d1")
    assert queue.take_due(2000) == ["/d10/x.log"]


def test_a_future_log_leaves_the_offsets_of_the_other_alone() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    log.append_as_leader(memoryview(make_batch([(START_MS, b"k", b"v")])), leader_epoch=1, now_ms=START_MS)
    log.flush()
    directory = manager.directories[0]
    directory.recovery_points.write_now({A: 1})
    manager._store.create(A, TOPIC_ID, "/d1", START_MS, is_future=True)
    assert directory.recovery_points.offsets == {A: 1}
    manager._store.create(B, TOPIC_ID, "/d1", START_MS, is_future=False)
    assert directory.recovery_points.offsets == {A: 1}
