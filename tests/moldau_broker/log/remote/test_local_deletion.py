"""Goal: a tiered log deletes local segments that are copied, and no crash loses, hides or skips a record.

Method: the power fails after each write of a deletion on a virtual disk. The log after the restart is compared with the
records before, and with the copies that were made. Checkpoints are lost or damaged, too.
"""

from __future__ import annotations

import itertools

import pytest

from moldau.runtime.ports.environment import OpenMode
from moldau.values import LeaderEpoch
from moldau_broker.log.config import LogConfig
from moldau_broker.log.files.checkpoint import write_atomically
from moldau_broker.log.files.names import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    LOCAL_START_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    LOG_SUFFIX,
    RECOVERY_POINT_CHECKPOINT,
    SNAPSHOT_SUFFIX,
    segment_file,
)
from moldau_broker.log.values import EARLIEST_LOCAL_TIMESTAMP, EARLIEST_TIMESTAMP
from support.log.lab import A, create, tick
from support.log.model import START_MS, PowerLoss, VirtualMachine, make_batch
from support.log.tiered import (
    PRODUCER,
    append,
    check_whole,
    copies_of,
    filled,
    loaded,
    local_rows,
    open_tiered,
    run_retention,
)
from support.proof import all_examples

DIRECTORY = f"/d1/{A}"
STEP = 1 if all_examples() else 2
"""The power fails after each write, or after each second."""


def test_copied_segments_leave_the_disk_and_the_log_start_stays() -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    rows, epochs = local_rows(log), log.epochs.entries
    copies = copies_of(log)
    assert run_retention(log) == len(copies)
    assert (log.local_log_start_offset, log.copied_end_offset) == (copies[-1].end_offset,) * 2
    assert log.epochs.entries == epochs
    check_whole(log, rows, copies)


def test_look_ups_by_time_find_what_is_on_the_disk() -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    copies_of(log)
    run_retention(log)
    local = log.local_log_start_offset
    found = [log.offset_for_timestamp(timestamp) for timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, 0)]
    assert [(entry.offset, entry.leader_epoch) for entry in found if entry is not None] == [
        (0, 1),
        (local, 5),
        (local, 5),
    ]


@pytest.mark.parametrize("noted", [False, True])
def test_only_segments_that_are_noted_as_copied_leave(noted: bool) -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    rows, copies = local_rows(log), copies_of(log)
    log.note_copied(copies[2].end_offset if noted else 0)
    assert run_retention(log) == 3 * noted
    check_whole(log, rows, copies[:3] if noted else [])


def test_a_segment_that_is_not_durable_stays() -> None:
    """Its epochs are not durable either; after a crash no batch on the disk would show them."""
    log = create(open_tiered(VirtualMachine(1)))
    log.begin_leader_epoch(1)
    append(log, 20)
    assert log.closed_segments(0) == []
    log.note_copied(log.log_end_offset)
    assert run_retention(log) == 0
    log.flush()
    closed = len(log.segments) - 1
    assert run_retention(log) == closed, "the active segment is never copied"
    assert log.local_log_start_offset == log.segments[-1].base_offset


@pytest.mark.drawn
@pytest.mark.parametrize("power_lost", [True, False])
def test_crash_after_each_write_of_a_deletion(power_lost: bool) -> None:
    for writes in itertools.count(1, STEP):
        machine = VirtualMachine(writes)
        log = filled(open_tiered(machine))
        rows, epochs, copies = local_rows(log), log.epochs.entries, copies_of(log)
        log.note_copied(copies[1].end_offset)
        run_retention(log)
        log.note_copied(copies[-2].end_offset)
        machine.arm(writes)
        try:
            run_retention(log)
        except PowerLoss:
            machine.boot(power_lost=power_lost)
            again = loaded(machine)
            check_whole(again, rows, copies)
            assert again.epochs.entries == epochs
            assert again.local_log_start_offset >= copies[1].end_offset
            again.note_copied(copies[-1].end_offset)
            again.flush()
            run_retention(again)
            check_whole(again, rows, copies)
            continue
        assert writes > 5
        return


@pytest.mark.parametrize("gone", range(4))
def test_a_file_system_that_reorders_deletions_leaves_no_hole(gone: int) -> None:
    """A power loss in a deletion may leave any of the segments; a read must not skip those that are gone."""
    machine = VirtualMachine(3)
    log = filled(open_tiered(machine))
    rows, epochs, copies = local_rows(log), log.epochs.entries, copies_of(log)
    names = machine.disk.list_directory(DIRECTORY)
    files = {name: machine.disk.open(f"{DIRECTORY}/{name}", OpenMode.READ).read(0, 1 << 20) for name in names}
    run_retention(log)
    machine.boot(power_lost=True)
    for index, copy in enumerate(copies):
        name = segment_file(copy.base_offset, LOG_SUFFIX)
        if index != gone:
            write_atomically(machine.disk, f"{DIRECTORY}/{name}", files[name])
    again = loaded(machine)
    check_whole(again, rows, copies)
    assert again.epochs.entries == epochs
    assert again.local_log_start_offset == copies[-1].end_offset


@pytest.mark.parametrize("lost", [LOG_START_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT])
@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_checkpoint_hides_and_serves_nothing_wrong(lost: str, clean: bool) -> None:
    machine = VirtualMachine(3)
    manager = open_tiered(machine)
    log = filled(manager)
    rows, epochs, copies = local_rows(log), log.epochs.entries, copies_of(log)
    run_retention(log)
    for now in range(START_MS, START_MS + 20_000, 5000):
        tick(manager, now)
    if clean:
        manager.close()
    machine.boot(power_lost=not clean)
    machine.disk.remove(f"/d1/{lost}")
    again = loaded(machine)
    check_whole(again, rows, copies)
    assert again.epochs.entries == epochs


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_crash_the_log_start_is_at_least_a_former_one(clean: bool) -> None:
    """Below the local log start offset only the checkpoint has it; a leader finds that the segments are gone."""
    machine = VirtualMachine(3)
    manager = open_tiered(machine)
    log = filled(manager)
    rows, copies = local_rows(log), copies_of(log)
    run_retention(log)
    log.increment_log_start_offset(copies[1].end_offset)
    if clean:
        manager.close()
    machine.boot(power_lost=True)
    again = loaded(machine)
    start = copies[1].end_offset if clean else 0
    check_whole(again, rows, copies, start)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [LOCAL_START_CHECKPOINT, LEADER_EPOCH_CHECKPOINT])
def test_a_damaged_file_of_the_log_hides_no_record(damage: str, clean: bool) -> None:
    machine = VirtualMachine(3)
    manager = open_tiered(machine)
    log = filled(manager)
    rows, epochs, copies = local_rows(log), log.epochs.entries, copies_of(log)
    run_retention(log)
    if clean:
        manager.close()
    machine.boot(power_lost=not clean)
    machine.virtual_disk.flip_bit(f"{DIRECTORY}/{damage}", 3, 1)
    manager = open_tiered(machine)
    again = manager.logs[A]
    assert manager.reports[A].problems
    check_whole(again, rows, copies)
    assert again.epochs.entries == epochs
    # The damaged file was replaced.
    manager.close()
    machine.boot(power_lost=True)
    manager = open_tiered(machine)
    assert not manager.reports[A].problems
    check_whole(manager.logs[A], rows, copies)


def test_a_log_that_lost_its_remote_epochs_says_so() -> None:
    """Without them, no remote segment is known to be the log's own: none may be deleted, and the log start stays."""
    machine = VirtualMachine(3)
    manager = open_tiered(machine)
    log = filled(manager)
    rows, copies = local_rows(log), copies_of(log)
    run_retention(log)
    assert log.knows_remote_epochs
    manager.close()
    machine.boot(power_lost=False)
    for damage in (LOCAL_START_CHECKPOINT, LEADER_EPOCH_CHECKPOINT):
        machine.virtual_disk.flip_bit(f"{DIRECTORY}/{damage}", 3, 1)
    again = loaded(machine)
    check_whole(again, rows, copies)
    assert not again.knows_remote_epochs
    assert again.epochs.epoch_for_offset(0) == -1


def test_epochs_show_the_log_start_if_its_files_are_lost() -> None:
    machine = VirtualMachine(3)
    manager = open_tiered(machine)
    log = filled(manager)
    rows, copies = local_rows(log), copies_of(log)
    run_retention(log)
    log.increment_log_start_offset(9)
    manager.close()
    machine.boot(power_lost=False)
    machine.disk.remove(f"/d1/{LOG_START_OFFSET_CHECKPOINT}")
    machine.virtual_disk.flip_bit(f"{DIRECTORY}/{LOCAL_START_CHECKPOINT}", 3, 1)
    again = loaded(machine)
    check_whole(again, rows, copies, 9)
    assert again.knows_remote_epochs


def test_a_log_whose_segments_are_all_gone_goes_on_behind_them() -> None:
    machine = VirtualMachine(3)
    log = filled(open_tiered(machine))
    epochs, copies = log.epochs.entries, copies_of(log)
    run_retention(log)
    end = copies[-1].end_offset
    machine.boot(power_lost=True)
    for name in machine.disk.list_directory(DIRECTORY):
        if name.endswith(".log"):
            machine.disk.remove(f"{DIRECTORY}/{name}")
    again = loaded(machine)
    assert (again.log_start_offset, again.local_log_start_offset, again.log_end_offset) == (0, end, end)
    assert list(again.epochs.entries) == [entry for entry in epochs if entry.start_offset < end]
    assert again.producer_state.get(77) is not None


def test_epochs_of_remote_records_outlive_deletions_and_crashes() -> None:
    machine = VirtualMachine(9)
    log = filled(open_tiered(machine))
    for epoch in range(6, 12):
        log.begin_leader_epoch(epoch)
        append(log, 9)
        log.flush()
        copies_of(log, log.local_log_start_offset)
        run_retention(log)
        epochs = log.epochs.entries
        machine.boot(power_lost=True)
        log = loaded(machine)
        assert log.epochs.entries == epochs
    assert [entry.leader_epoch for entry in log.epochs.entries] == [1, 4, 5, 6, 7, 8, 9, 10, 11]
    found = log.end_offset_for_epoch(4)
    assert (found.leader_epoch, found.end_offset) == (4, 28)


def test_records_below_the_log_start_leave_without_a_copy() -> None:
    log = filled(open_tiered(VirtualMachine(1)))
    bases = [segment.base_offset for segment in log.segments]
    log.increment_log_start_offset(bases[3] + 1)
    assert run_retention(log) == 3
    assert (log.local_log_start_offset, log.segments[0].base_offset) == (bases[3] + 1, bases[3])


def test_local_retention_by_age() -> None:
    manager = open_tiered(VirtualMachine(1), local_retention_bytes=-2, local_retention_ms=100)
    log = filled(manager)
    copies = copies_of(log)
    last_ms = START_MS + copies[1].end_offset - 1
    assert run_retention(log, last_ms + 100) == 1
    assert log.next_retention_ms() == last_ms + 101
    assert run_retention(log, last_ms + 101) == 1
    log.note_copied(0)
    assert log.next_retention_ms() is None or log.next_retention_ms() > START_MS + 10**8, "only rolls by time are left"


@pytest.mark.parametrize("config", [{"local_retention_ms": 100}, {"local_retention_ms": -2, "retention_ms": 100}])
def test_the_last_records_of_a_quiet_log_leave_in_time(config: dict[str, int]) -> None:
    """Only closed segments are copied, and nothing else closes this one before ``segment.ms``."""
    log = create(open_tiered(VirtualMachine(1), local_retention_bytes=-2, **config))
    log.begin_leader_epoch(LeaderEpoch(1))
    append(log, 2)
    rows, due_ms = local_rows(log), START_MS + 1 + 101
    assert log.next_retention_ms() == due_ms
    run_retention(log, due_ms - 1)
    assert len(log.segments) == 1
    run_retention(log, due_ms)
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    check_whole(log, rows, [])
    log.flush()
    copies = copies_of(log)
    assert run_retention(log, due_ms) == 1
    run_retention(log, due_ms)
    assert [segment.base_offset for segment in log.segments] == [2], "an empty segment is not closed again"
    check_whole(log, rows, copies)


@pytest.mark.parametrize("obstacle", ["uncommitted", "older is not copied"])
def test_an_old_active_segment_stays_open_behind_others(obstacle: str) -> None:
    """Else a log would get a segment with each look while its store is away."""
    log = create(open_tiered(VirtualMachine(1), local_retention_ms=100))
    log.begin_leader_epoch(LeaderEpoch(1))
    append(log, 2)
    if obstacle == "uncommitted":
        log.update_high_watermark(1)
    else:
        run_retention(log, START_MS + 10**6)
        append(log, 2)
    before = [segment.base_offset for segment in log.segments]
    run_retention(log, START_MS + 10**6)
    assert [segment.base_offset for segment in log.segments] == before


def test_local_retention_is_that_of_the_log_by_default() -> None:
    config = LogConfig(remote_storage_enable=True, retention_ms=5, retention_bytes=6)
    assert (config.disk_retention_ms, config.disk_retention_bytes) == (5, 6)
    config = LogConfig(remote_storage_enable=True, retention_ms=5, local_retention_ms=2, local_retention_bytes=-1)
    assert (config.disk_retention_ms, config.disk_retention_bytes) == (2, -1)
    config = LogConfig(remote_storage_enable=False, retention_ms=5, local_retention_ms=2, local_retention_bytes=3)
    assert (config.disk_retention_ms, config.disk_retention_bytes) == (5, -1)


def test_without_copies_segments_expire_with_the_log() -> None:
    """KIP-950: with ``remote.log.copy.disable`` local retention has no effect, and the log start offset moves."""
    machine = VirtualMachine(1)
    log = filled(open_tiered(machine))
    rows, copies = local_rows(log), copies_of(log)
    log.note_copied(copies[1].end_offset)
    run_retention(log)
    log.update_config(LogConfig(remote_storage_enable=True, remote_log_copy_disable=True, local_retention_bytes=0))
    assert run_retention(log) == 0
    size = log.size_bytes
    log.update_config(
        LogConfig(remote_storage_enable=True, remote_log_copy_disable=True, retention_bytes=size - 1, retention_ms=-1)
    )
    assert run_retention(log) == 0
    log.update_config(
        LogConfig(
            remote_storage_enable=True, remote_log_copy_disable=True, retention_bytes=size - 1000, retention_ms=-1
        )
    )
    assert run_retention(log) >= 1
    start = log.log_start_offset
    assert start == log.local_log_start_offset > copies[1].end_offset
    machine.boot(power_lost=True)
    check_whole(loaded(machine), rows, [], start)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_topic_no_longer_tiered_begins_where_its_disk_does(deletes: bool) -> None:
    machine = VirtualMachine(1)
    manager = open_tiered(machine)
    log = filled(manager)
    rows, copies = local_rows(log), copies_of(log)
    run_retention(log)
    local = log.local_log_start_offset
    log.update_config(LogConfig(remote_storage_enable=False, remote_log_delete_on_disable=deletes, retention_ms=-1))
    start = local if deletes else 0
    check_whole(log, rows, copies, start)
    run_retention(log)
    assert machine.disk.exists(f"{DIRECTORY}/{LOCAL_START_CHECKPOINT}") is not deletes
    machine.boot(power_lost=True)
    again = loaded(machine, remote_storage_enable=False)
    check_whole(again, rows, copies, start)


def test_copies_from_before_a_pause_of_tiering_do_not_count() -> None:
    """They were deleted when it was not tiered, and retention may look at the log before its leader has listed."""
    log = filled(open_tiered(VirtualMachine(1)))
    rows = local_rows(log)
    tiered, copies = log.config, copies_of(log)
    log.update_config(LogConfig(remote_storage_enable=False, remote_log_delete_on_disable=True, retention_ms=-1))
    log.update_config(tiered)
    assert run_retention(log) == 0
    check_whole(log, rows, [])
    log.note_copied(copies[0].end_offset)
    assert run_retention(log) == 1


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_producers_of_remote_records_outlive_a_power_loss(has_snapshot: bool) -> None:
    """The log was durable when its segment was closed, so that no flush had made the snapshot at its end durable."""
    machine = VirtualMachine(9)
    manager = open_tiered(machine)
    log = create(manager)
    log.begin_leader_epoch(LeaderEpoch(1))
    for number in range(2):
        batch = make_batch([(START_MS, b"k", b"v")], producer=(PRODUCER, 0, number), transactional=True)
        log.append_as_leader(memoryview(batch), leader_epoch=LeaderEpoch(1), now_ms=START_MS)
    log.flush()
    log.storage.roll(2, START_MS)
    log.append_end_transaction_marker(
        producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0, commit=False, leader_epoch=LeaderEpoch(1), now_ms=0
    )
    log.update_high_watermark(3)
    if not has_snapshot:
        machine.disk.remove(f"{DIRECTORY}/{segment_file(2, SNAPSHOT_SUFFIX)}")
    copies_of(log)
    assert run_retention(log) == 1
    log.segments[-1].file.sync()  # the operating system may write the marker before the snapshot
    machine.boot(power_lost=True)
    again = loaded(machine)
    assert (again.local_log_start_offset, again.log_end_offset) == (2, 3)
    assert again.producer_state.get(PRODUCER) is not None
    assert [entry.first_offset for entry in again.segments[0].aborted_entries()] == [0]
