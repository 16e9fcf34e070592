"""Goal: leader epochs cost no write when they begin, and are nevertheless right after every crash.

Method: logs on a virtual disk, appended to, truncated and crashed at critical moments; the epochs after the restart are
compared with those of the batches.
"""

from __future__ import annotations

import pytest

from moldau_broker.log.values import TopicPartition, run_work
from moldau_jepsen.world.disk.disk import NodeDisk
from support.log.lab import A, create, open_manager, tick
from support.log.model import START_MS, PowerLoss, VirtualMachine, committed_rows, make_batch


def put(log, epoch: int, *, count: int = 1) -> None:
    log.append_as_leader(memoryview(make_batch([(START_MS, b"k", b"v")] * count)), leader_epoch=epoch, now_ms=START_MS)


def entries(log) -> list[tuple[int, int]]:
    return [(entry.leader_epoch, entry.start_offset) for entry in log.epochs.entries]


def crash(machine: VirtualMachine, manager, *, power_lost: bool):
    for directory in manager.directories:
        directory.release()
    machine.boot(power_lost=power_lost)
    return open_manager(machine)


class _WrittenError(Exception):
    pass


def test_beginning_to_lead_writes_nothing() -> None:
    """Each epoch once cost two syncs in the event loop: seconds for the partitions of a dead broker."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    logs = [create(manager, TopicPartition("a", number)) for number in range(300)]

    def written() -> None:
        raise _WrittenError

    machine.disk.crash_after_writes(1, written)
    for log in logs:
        log.begin_leader_epoch(7)
    machine.disk.crash_after_writes(1 << 60, written)
    assert [log.latest_epoch for log in logs] == [7] * 300


def test_epochs_below_the_recovery_point_survive_a_power_loss() -> None:
    """Leader epochs that begin below the recovery point survive a power loss."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    log.begin_leader_epoch(3)
    put(log, 3)
    put(log, 5)
    log.flush()
    again = crash(machine, manager, power_lost=True).logs[A]
    assert (again.log_end_offset, entries(again)) == (2, [(3, 0), (5, 1)])


def test_epochs_above_the_recovery_point_come_from_the_batches() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 3)
    log.flush()
    tick(manager, START_MS + 6000)
    put(log, 4)
    put(log, 6)
    log.begin_leader_epoch(9)  # without a record, so no replica can have records of it
    again = crash(machine, manager, power_lost=False).logs[A]
    assert entries(again) == [(3, 0), (4, 1), (6, 2)]


def test_a_truncated_epoch_does_not_return_over_older_records() -> None:
    """The new leader's log has records of an older epoch where this log had begun a later one."""
    for power_lost in (False, True):
        machine = VirtualMachine(1)
        manager = open_manager(machine)
        log = create(manager)
        put(log, 3, count=5)
        put(log, 5, count=3)
        log.flush()
        tick(manager, START_MS + 6000)
        log.truncate_to(5)
        put(log, 3, count=10)
        assert entries(log) == [(3, 0)]
        again = crash(machine, manager, power_lost=power_lost).logs[A]
        assert entries(again) == [(3, 0)]


def test_a_cut_inside_a_batch_lowers_the_recovery_point() -> None:
    """A bug checkpointed the requested offset, so records appended below it counted as durable."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 4)
    put(log, 5, count=36)
    log.flush()
    tick(manager, START_MS + 6000)
    log.truncate_to(8)
    assert log.log_end_offset == 1
    assert manager.directories[0].recovery_points.offsets[A] == 1
    put(log, 4, count=5)
    again = crash(machine, manager, power_lost=False).logs[A]
    assert (again.log_end_offset, entries(again)) == (6, [(4, 0)])


def test_a_checkpoint_in_flight_does_not_undo_a_truncation() -> None:
    """A checkpoint that is being written does not undo a truncation."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 1, count=5)
    put(log, 1, count=5)
    log.flush()
    works = [work for work in manager.tick(START_MS + 6000, START_MS + 6000) if "recovery-point" in work.name]
    assert len(works) == 1
    works[0].run()
    log.truncate_to(5)
    works[0].complete()
    assert manager.directories[0].recovery_points.offsets.get(A, 0) <= 5
    assert crash(machine, manager, power_lost=False).logs[A].recovery_point <= 5


def test_a_flush_of_a_deleted_log_spares_its_successor() -> None:
    """The flush of a deleted log does not write into the new log of the same name."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ("/d1",))
    old = create(manager)
    put(old, 8)
    work = old.flush_work()
    manager.delete(A)
    new = create(manager)
    run_work(work)
    assert not machine.disk.exists(f"{new.directory}/leader-epoch-checkpoint")


def test_a_log_deleted_within_a_write_spares_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread has found the log in its place already, and writes into the directory of the next one."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ("/d1",))
    old = create(manager)
    put(old, 8)
    work = old.flush_work()
    opens = NodeDisk.open

    def late(disk: NodeDisk, path: str, *arguments: object, **options: object) -> object:
        if "leader-epoch-checkpoint" in path and manager.logs[A] is old:
            manager.delete(A)
            create(manager)
        return opens(disk, path, *arguments, **options)

    monkeypatch.setattr(NodeDisk, "open", late)
    run_work(work)
    new = manager.logs[A]
    assert new is not old
    assert not [name for name in machine.disk.list_directory(new.directory) if "leader-epoch" in name]


def test_an_older_write_of_epochs_does_not_replace_a_newer_one() -> None:
    """A write of the epochs that began earlier does not replace a newer one."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    log.epochs.assign(3, 0)
    older = log.epochs.prepare_write()
    log.epochs.assign(4, 7)
    newer = log.epochs.prepare_write()
    newer()
    assert not log.epochs.is_dirty
    older()
    assert type(log.epochs).load(machine.disk, f"{log.directory}/leader-epoch-checkpoint").entries == log.epochs.entries
    assert not log.epochs.is_dirty


def test_a_write_of_epochs_within_another_one_is_the_last() -> None:
    """Two threads write the file. Whichever step of the older write the newer one meets, its epochs stay."""
    steps = 0
    while True:
        machine = VirtualMachine(1)
        log = create(open_manager(machine))
        log.epochs.assign(3, 0)
        older = log.epochs.prepare_write()
        written: list[bool] = []

        def newer(log=log, written=written) -> None:
            log.epochs.assign(4, 7)
            log.epochs.write()
            written.append(log.epochs.is_dirty)

        machine.disk.crash_after_writes(steps + 1, newer)
        older()
        if not written:
            break
        steps += 1
        path = f"{log.directory}/leader-epoch-checkpoint"
        assert (written, log.epochs.is_dirty) == ([False], False), f"after step {steps}"
        assert type(log.epochs).load(machine.disk, path).entries == log.epochs.entries, f"after step {steps}"
    assert steps > 2, "the older write is interrupted before and after its rename"


@pytest.mark.parametrize("power_lost", [False, True])
def test_an_epoch_that_begins_during_a_flush_is_not_durable(power_lost: bool) -> None:
    """The flush wrote the epochs as they were when it began, so the next flush must write them again."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 3)
    work = log.flush_work()
    put(log, 5)
    run_work(work)
    assert log.epochs.is_dirty
    log.storage.roll(2, START_MS)  # after a crash, the batches before it are not read
    put(log, 5)
    log.flush()
    tick(manager, START_MS + 6000)
    assert manager.directories[0].recovery_points.offsets[A] == 3
    again = crash(machine, manager, power_lost=power_lost).logs[A]
    assert (again.log_end_offset, entries(again)) == (3, [(3, 0), (5, 1)])


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_late_write_of_epochs_does_not_remove_a_newer_one(power_lost: bool) -> None:
    """The file equals the entries again after truncations, but an older write without the last epoch is under way."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 3, count=5)
    put(log, 5)
    log.flush()
    log.truncate_to(5)
    put(log, 3)
    late = log.flush_work()  # in a thread that does not get on
    log.truncate_to(5)
    put(log, 5, count=5)
    log.storage.roll(10, START_MS)  # after a crash, the batches before it are not read
    put(log, 5)
    log.flush()
    tick(manager, START_MS + 6000)
    assert manager.directories[0].recovery_points.offsets[A] == 11
    late.run()
    assert not late.complete()
    again = crash(machine, manager, power_lost=power_lost).logs[A]
    assert (again.log_end_offset, entries(again)) == (11, [(3, 0), (5, 5)])


def test_a_flushed_new_log_survives_a_power_loss() -> None:
    """The flush, and not the creation, makes the name of the log's directory durable."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 2)
    run_work(log.flush_work())
    again = crash(machine, manager, power_lost=True)
    assert again.logs[A].log_end_offset == 1
    assert again.logs[A].topic_id == log.topic_id


@pytest.mark.parametrize("seed", range(12))
def test_a_removed_producer_snapshot_does_not_come_back(seed: int) -> None:
    """A bug removed the snapshot without a sync: after a power loss it showed a transaction that had ended."""
    machine = VirtualMachine(seed)
    manager = open_manager(machine)
    log = create(manager)
    batch = make_batch([(START_MS, b"k", b"v")], producer=(100, 0, 0), transactional=True)
    log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=START_MS)
    put(log, 1, count=4)
    manager.close()
    machine.boot(power_lost=False)
    manager = open_manager(machine)
    log = manager.logs[A]
    assert log.storage.snapshots.offsets()[-1] == 5
    log.truncate_to(1)
    assert log.storage.snapshots.offsets() in ([], [0])
    log.append_end_transaction_marker(
        producer_id=100, producer_epoch=0, coordinator_epoch=1, commit=True, leader_epoch=2, now_ms=START_MS
    )
    put(log, 2, count=8)
    log.storage.segments.active.file.sync()  # as the operating system may
    again = crash(machine, manager, power_lost=True).logs[A]
    assert again.log_end_offset == 10
    assert [row.current_transaction_start_offset for row in again.producer_state.describe()] == [-1]


@pytest.mark.parametrize("seed", range(8))
def test_a_log_never_flushed_is_durable_after_the_next_flush(seed: int) -> None:
    """A new log whose process died before its first flush is durable with the first flush of the next process."""
    machine = VirtualMachine(seed)
    manager = open_manager(machine)
    put(create(manager), 2)
    manager = crash(machine, manager, power_lost=False)
    run_work(manager.logs[A].flush_work())
    again = crash(machine, manager, power_lost=True)
    assert again.logs[A].log_end_offset == 1


@pytest.mark.parametrize("crashes", [False, True])
def test_a_log_restarted_at_an_offset_has_no_former_epochs(crashes: bool) -> None:
    """A former epoch would be a false point of agreement with a leader whose records were deleted."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 3)
    put(log, 5)
    log.flush()
    log.truncate_fully_and_start_at(40, START_MS)
    assert entries(log) == []
    assert log.epochs.end_offset_for(5, 40).leader_epoch < 0
    if crashes:
        log = crash(machine, manager, power_lost=True).logs[A]
        assert entries(log) == []
    assert (log.log_start_offset, log.log_end_offset) == (40, 40)


@pytest.mark.parametrize("power_lost", [False, True])
@pytest.mark.parametrize("offset", [1, 40])
def test_a_restart_cut_short_keeps_no_epoch_too_many(offset: int, power_lost: bool) -> None:
    """Whichever write is the last one: the epochs are those of the former log's rest, or none in a log that is new."""
    writes, ended = 1, False
    while not ended:
        machine = VirtualMachine(1)
        manager = open_manager(machine)
        log = create(manager)
        put(log, 3)
        put(log, 5)
        log.flush()
        manager.directories[0].write_checkpoints(manager.logs.values())
        machine.arm(writes)
        try:
            log.truncate_fully_and_start_at(offset, START_MS)
            ended = True
        except PowerLoss:
            writes += 1
        again = create(crash(machine, manager, power_lost=power_lost))
        is_new = again.log_start_offset == offset
        former = [] if is_new else [each for each in [(3, 0), (5, 1)] if each[1] < again.log_end_offset]
        assert entries(again) == former, f"after {writes} writes"
    assert writes > 10


@pytest.mark.parametrize("power_lost", [False, True])
def test_a_restart_cut_short_forgets_the_former_log_start(power_lost: bool) -> None:
    """An empty log at its former start would follow a leader from there on, and lack the leader's earlier records."""
    writes, ended = 1, False
    while not ended:
        machine = VirtualMachine(1)
        manager = open_manager(machine)
        log = create(manager)
        for _ in range(6):
            put(log, 3)
            log.storage.roll(log.log_end_offset, START_MS)
        log.update_high_watermark(6)
        log.increment_log_start_offset(5)
        log.flush()
        manager.directories[0].write_checkpoints(manager.logs.values())
        machine.arm(writes)
        try:
            log.truncate_fully_and_start_at(2, START_MS)
            ended = True
        except PowerLoss:
            writes += 1
        machine.boot(power_lost=power_lost)
        again = create(open_manager(machine))
        assert again.log_start_offset <= 2 or again.log_end_offset == 6, f"after {writes} writes"
    assert writes > 10


@pytest.mark.parametrize("later", ["nothing", "a flush of the next segment"])
@pytest.mark.parametrize("seed", range(8))
def test_aborted_transactions_at_the_recovery_point_stay(seed: int, later: str) -> None:
    """A segment is closed where a flush has ended, which synced its batches and not its indexes. Power is lost then.

    The next flush syncs the indexes, because a start after it does not look at the segment any more.
    """
    machine = VirtualMachine(seed)
    manager = open_manager(machine)
    log = create(manager)
    data = make_batch([(START_MS, b"k", b"aborted")], producer=(7, 0, 0), transactional=True)
    log.append_as_leader(memoryview(data), leader_epoch=2, now_ms=START_MS)
    log.append_end_transaction_marker(
        producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=False, leader_epoch=2, now_ms=START_MS
    )
    log.flush()
    log.storage.roll(log.log_end_offset, START_MS)
    machine.disk.sync_directory(log.directory)  # a system may write names at any time
    if later != "nothing":
        put(log, 2)
        log.flush()
    tick(manager, START_MS + 6000)
    again = crash(machine, manager, power_lost=True).logs[A]
    assert again.log_end_offset == again.update_high_watermark(log.log_end_offset)
    assert [row.value for row in committed_rows(again)] == ([] if later == "nothing" else [b"v"])


@pytest.mark.parametrize("seed", range(8))
def test_a_flush_after_a_shortage_syncs_the_names(seed: int) -> None:
    """A flush that found no free descriptor has not synced the directory, so the next one must, and soon."""
    machine = VirtualMachine(seed)
    manager = open_manager(machine, flush_ms=3000)
    log = create(manager)
    put(log, 2)
    log.flush()
    log.storage.roll(log.log_end_offset, START_MS)
    put(log, 2)
    assert not log.storage.flush_due(START_MS)
    profile, bound = machine.virtual_disk.profile, machine.virtual_disk.profile.open_files_max
    work = log.flush_work()
    profile.open_files_max = machine.disk.open_files
    with pytest.raises(OSError, match="Too many") as caught:
        work.run()  # the producer snapshot cannot be opened
    work.failed(caught.value)
    profile.open_files_max = bound
    assert log.storage.flush_due(START_MS + 3000), "flush.ms began again"
    run_work(log.flush_work())
    again = crash(machine, manager, power_lost=True)
    assert again.logs[A].log_end_offset == 2


@pytest.mark.parametrize("seed", range(8))
def test_a_second_flush_does_not_trust_the_first_one(seed: int) -> None:
    """A bug took new names for durable as soon as a flush had begun, so a second one moved the recovery point."""
    machine = VirtualMachine(seed)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 2)
    log.flush()
    log.storage.roll(log.log_end_offset, START_MS)
    put(log, 2)
    assert log.flush_work() is not None  # in a thread that does not get on
    log.flush()
    assert log.recovery_point == 2
    again = crash(machine, manager, power_lost=True)
    assert again.logs[A].log_end_offset == 2


@pytest.mark.parametrize("seed", range(8))
def test_a_segment_that_begins_during_a_flush_is_not_durable(seed: int) -> None:
    """The flush synced the directory before the segment was in it, so the next flush must sync it too."""
    machine = VirtualMachine(seed)
    manager = open_manager(machine)
    log = create(manager)
    put(log, 2)
    work = log.flush_work()
    work.run()
    log.storage.roll(log.log_end_offset, START_MS)
    put(log, 2)
    work.complete()
    log.flush()
    assert log.recovery_point == 2
    again = crash(machine, manager, power_lost=True)
    assert again.logs[A].log_end_offset == 2


def test_an_epoch_without_records_does_not_stay() -> None:
    """The log now starts where its next epoch begins."""
    log = create(open_manager(VirtualMachine(1)))
    for epoch in (3, 5, 5):
        put(log, epoch)
    assert log.epochs.truncate_from_start(1)
    assert entries(log) == [(5, 1)]
    assert not log.epochs.truncate_from_start(1)
    assert log.epochs.truncate_from_start(2)
    assert entries(log) == [(5, 2)]
