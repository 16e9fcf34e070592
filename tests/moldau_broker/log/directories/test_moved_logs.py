"""Goal: a log that is moved, or found in two directories, is the right one and has the right path.

Method: log managers over two virtual directories, restarted.
"""

from __future__ import annotations

import errno
import itertools
import uuid
from typing import TYPE_CHECKING

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.log.config import LogConfig
from moldau_broker.log.errors import LogError, LogStorageError
from moldau_broker.log.values import TopicPartition
from support.log.lab import A, create, new_manager, open_manager, tick
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch

if TYPE_CHECKING:
    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog
    from moldau_broker.log.values import AppendInfo


def put(log, value: bytes, epoch: int) -> None:
    log.append_as_leader(memoryview(make_batch([(START_MS, b"k", value)])), leader_epoch=epoch, now_ms=START_MS)


def test_a_moved_log_records_leader_epochs_in_its_new_place() -> None:
    """A bug wrote leader epochs to the future log's old path, which was gone, and so took the directory offline."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    log.begin_leader_epoch(3)
    put(log, b"a", 3)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS):
        pass
    moved = manager.replace_current_with_future(A)
    moved.begin_leader_epoch(4)
    put(moved, b"b", 4)
    manager.close()
    machine.boot(power_lost=False)
    again = open_manager(machine).logs[A]
    assert again.parent_directory == "/d2"
    assert (again.latest_epoch, again.end_offset_for_epoch(3).end_offset) == (4, 1)


@pytest.mark.parametrize("records", [0, 2])
def test_a_moved_log_keeps_a_leader_epoch_without_records(records: int) -> None:
    """A bug lost a leader epoch without records in the move, so followers got errors for their own epochs."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for _ in range(records):
        put(log, b"a", 3)
    log.begin_leader_epoch(5)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS):
        pass
    moved = manager.replace_current_with_future(A)
    assert moved.latest_epoch == 5
    assert moved.end_offset_for_epoch(4) == log.end_offset_for_epoch(4)


def test_settings_of_a_topic_hold_for_the_copy_of_a_move() -> None:
    """A log that has moved would else keep the former retention until the next change of its topic."""
    manager = open_manager(VirtualMachine(1))
    put(create(manager), b"a", 3)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    manager.update_topic_config(A.topic, LogConfig(retention_ms=500))
    while not manager.copy_to_future(A, START_MS):
        pass
    assert manager.replace_current_with_future(A).config.retention_ms == 500


def append_of_producer(log: PartitionLog) -> AppendInfo:
    """Appends a batch of producer 7, each time the same."""
    batch = make_batch([(START_MS, b"k", b"v")], producer=(7, 0, 0))
    return log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=START_MS)


def moved_after_deletion(manager: LogManager) -> PartitionLog:
    """Returns a log that has moved after retention had deleted the batch of producer 7, at offset 0."""
    log = create(manager)
    assert append_of_producer(log).first_offset == 0
    log.storage.roll(1, START_MS)
    log.update_high_watermark(1)
    log.increment_log_start_offset(1)
    log.apply_retention(START_MS)
    put(log, b"later", 1)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert manager.copy_to_future(A, START_MS)
    return manager.replace_current_with_future(A)


@pytest.mark.parametrize("end", ["none", "stop", "kill"])
def test_a_moved_log_knows_producers_of_deleted_records(end: str) -> None:
    """A batch is sent again whose records retention has deleted: the log had them, and must not take them twice."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    moved = moved_after_deletion(manager)
    if end == "stop":
        manager.close()
    if end != "none":
        machine.boot(power_lost=False)
        moved = open_manager(machine).logs[A]
    again = append_of_producer(moved)
    assert (again.duplicate, again.first_offset) == (True, 0)
    assert moved.log_end_offset == 2


@pytest.mark.parametrize("seed", range(8))
def test_a_moved_log_knows_its_producers_after_a_power_loss(seed: int) -> None:
    """A log that stays knows the producers of deleted records then, because an older snapshot of it is durable."""
    machine = VirtualMachine(seed)
    moved_after_deletion(open_manager(machine))
    machine.boot(power_lost=True)
    moved = open_manager(machine).logs[A]
    assert append_of_producer(moved).duplicate


def taken(log: PartitionLog, producer_id: int, sequence: int, *, epoch: int = 0) -> tuple[int, bool] | ErrorCode:
    """Returns the offset of a producer's batch, and whether it is a duplicate; or why the log refuses it."""
    batch = make_batch([(START_MS, b"k", b"v")], producer=(producer_id, epoch, sequence))
    try:
        info = log.append_as_leader(memoryview(batch), leader_epoch=1, now_ms=START_MS)
    except LogError as error:
        return error.code
    return info.first_offset, info.duplicate


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("deleted", [False, True])
def test_a_move_changes_no_answer_to_a_producer(deleted: bool, forgotten: bool) -> None:
    """A log that has forgotten a producer takes any sequence number from it, in its new directory too.

    The copy has read all batches of the log, and must not count as one that knows every producer.
    """
    for producer_id, sequence in itertools.product((7, 8, 9), (0, 1, 2, 5)):
        answers = []
        for moves in (False, True):
            manager = open_manager(VirtualMachine(1))
            log = create(manager)
            for written in (0, 1):
                assert taken(log, 7, written) == (written, False)
            if forgotten:
                assert log.producer_state.remove_expired(START_MS + manager.settings.producer_id_expiration_ms) == 1
            if deleted:
                log.storage.roll(2, START_MS)
                log.update_high_watermark(2)
                log.increment_log_start_offset(1)
            assert taken(log, 8, 0) == (2, False)
            if moves:
                manager.alter_replica_log_dir(A, "/d2", START_MS)
                while not manager.copy_to_future(A, START_MS):
                    pass
                log = manager.replace_current_with_future(A)
            answers.append(taken(log, producer_id, sequence))
        assert answers[0] == answers[1], f"producer {producer_id}, sequence {sequence}"


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("sequence", [0, 3])
def test_a_moved_log_knows_that_an_epoch_begins_with_0(sequence: int, moves: bool) -> None:
    """A marker begins the producer's next epoch. If the first batch of that is lost, the second one is not taken."""
    manager = open_manager(VirtualMachine(1))
    log = create(manager)
    assert taken(log, 7, 0) == (0, False)
    log.append_end_transaction_marker(
        producer_id=7, producer_epoch=1, coordinator_epoch=0, commit=True, leader_epoch=1, now_ms=START_MS
    )
    if moves:
        manager.alter_replica_log_dir(A, "/d2", START_MS)
        while not manager.copy_to_future(A, START_MS):
            pass
        log = manager.replace_current_with_future(A)
    answer = (2, False) if sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert taken(log, 7, sequence, epoch=1) == answer


def test_a_moved_log_serves_readers_and_keeps_its_start_offset() -> None:
    """A reader finds the committed records, and none that DeleteRecords removed."""
    manager = open_manager(VirtualMachine(1))
    log = create(manager)
    for value in (b"a", b"b", b"c"):
        put(log, value, 1)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    while not manager.copy_to_future(A, START_MS):
        pass
    log.update_high_watermark(2)
    log.increment_log_start_offset(1)
    moved = manager.replace_current_with_future(A)
    assert (moved.log_start_offset, moved.high_watermark, moved.log_end_offset) == (1, 2, 3)


def test_of_two_logs_the_one_with_the_later_epoch_stays() -> None:
    """A failed directory is back with the longer log, after the replica had started over in the other directory."""
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


def test_a_future_log_follows_truncations_of_the_current_log() -> None:
    """The current log is truncated and grows past its old end between two copies; the future log follows."""
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
    assert [(entry.leader_epoch, entry.start_offset) for entry in future.epochs.entries] == [(3, 0), (5, 6)]


def test_a_future_log_drops_epochs_unknown_to_the_current_log() -> None:
    """A future log drops leader epochs that the current log does not have."""
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
    assert manager.replace_current_with_future(A).latest_epoch == 6


def test_a_future_log_ends_where_its_epochs_part() -> None:
    """Both logs begin with records of one epoch, which goes on in the current log where the future one has a newer."""
    manager = open_manager(VirtualMachine(1))
    log = create(manager)
    for epoch in (1, 1, 2, 2):
        put(log, b"old", epoch)
    future = manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert future is not None
    assert manager.copy_to_future(A, START_MS)
    log.truncate_to(2)
    for epoch in (1, 1, 1, 3):
        put(log, b"new", epoch)
    assert manager.copy_to_future(A, START_MS)
    assert [row.value for row in all_rows(future)] == [b"old"] * 2 + [b"new"] * 4


def test_a_future_log_drops_records_that_an_older_epoch_replaced() -> None:
    """After an unclean election the leader may have records of an older epoch where the log had those of a newer one.

    The ends of epochs alone would agree: the older one goes on beyond the future log's end.
    """
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for _ in range(3):
        put(log, b"lost", 2)
    future = manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert future is not None
    while not manager.copy_to_future(A, START_MS):
        pass
    log.truncate_to(0)
    for epoch in (1, 1, 1, 1, 3):
        put(log, b"kept", epoch)
    while not manager.copy_to_future(A, START_MS):
        pass
    assert [row.value for row in all_rows(future)] == [b"kept"] * 5


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("records", [0, 3, 20])
def test_a_future_log_starts_over_with_its_current_log(records: int, copied: bool) -> None:
    """A follower starts over below its former log start, because its next leader has lost records.

    The move never ended, or the moved log lacked the records below the start of the copy.
    """
    manager = open_manager(VirtualMachine(1))
    log = create(manager)
    for _ in range(10):
        put(log, b"old", 1)
    log.update_high_watermark(10)
    log.increment_log_start_offset(8)
    future = manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert future is not None
    assert future.log_start_offset == 8
    while copied and not manager.copy_to_future(A, START_MS):
        pass
    log.truncate_fully_and_start_at(2, START_MS)
    for _ in range(records):
        put(log, b"new", 3)
    while not manager.copy_to_future(A, START_MS):
        pass
    moved = manager.replace_current_with_future(A)
    assert (moved.log_start_offset, moved.log_end_offset) == (2, 2 + records)
    assert [row.value for row in all_rows(moved)] == [b"new"] * records


def test_a_log_that_comes_back_brings_no_old_checkpoints() -> None:
    """It was longer then, and its records below the recovery point of that time may be missing after a power loss."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for _ in range(10):
        put(log, b"old", 1)
    log.flush()
    log.update_high_watermark(10)
    tick(manager, START_MS + 10_000)
    assert manager.directories[0].recovery_points.offsets[A] == 10
    for directory in ("/d2", "/d1"):
        future = manager.alter_replica_log_dir(A, directory, START_MS)
        assert future is not None
        while not manager.copy_to_future(A, START_MS):
            pass
        log = manager.replace_current_with_future(A)
        log.truncate_to(2)
    assert A not in manager.directories[0].recovery_points.offsets
    for _ in range(6):
        put(log, b"new", 2)
    machine.boot(power_lost=True)
    again = open_manager(machine).logs[A]
    rows = [row.value for row in all_rows(again)]
    assert rows == ([b"old"] * 2 + [b"new"] * 6)[: len(rows)]
    assert len(rows) >= 2


@pytest.mark.parametrize("cordoned", ["source", "target", "both"])
def test_a_cordon_does_not_hold_up_the_end_of_a_move(cordoned: str) -> None:
    """A replica that leaves a cordoned directory may stay there after all; one on its way to one may arrive."""
    manager = begin_a_move(VirtualMachine(1))
    manager.cordons.follow({"source": ["/d1"], "target": ["/d2"], "both": ["/d1", "/d2"]}[cordoned])
    assert manager.alter_replica_log_dir(A, "/d2", START_MS) is manager.future_logs[A]
    assert manager.alter_replica_log_dir(A, "/d1", START_MS) is None
    assert manager.future_logs == {}
    for path in manager.cordons.paths - {"/d1"}:
        with pytest.raises(LogError) as caught:
            manager.alter_replica_log_dir(A, path, START_MS)
        assert caught.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_log_begins_where_it_was_asked_for_once() -> None:
    """The wish for a log that is to come holds for that one, and only if its directory takes new logs by then."""
    for cordoned, expected in (((), "/d2"), (("/d2",), "/d1")):
        manager = open_manager(VirtualMachine(1))
        with pytest.raises(LogError) as caught:
            manager.alter_replica_log_dir(A, "/d2", START_MS)
        assert caught.value.code == ErrorCode.REPLICA_NOT_AVAILABLE
        manager.cordons.follow(cordoned)
        assert create(manager).parent_directory == expected
        assert manager.delete(A)
        manager.cordons.follow(())
        assert create(manager).parent_directory == "/d1"


def test_a_topic_with_too_long_a_name_is_not_moved() -> None:
    """The name of its future log would be cut: the next start would not know to which partition the copy belongs."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    for length, fits in ((213, True), (214, False)):
        key = TopicPartition("t" * length, 0)
        put(create(manager, key, directory="/d1"), b"a", 1)
        if fits:
            assert manager.alter_replica_log_dir(key, "/d2", START_MS) is not None
            continue
        with pytest.raises(LogError) as caught:
            manager.alter_replica_log_dir(key, "/d2", START_MS)
        assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert manager.alter_replica_log_dir(key, "/d1", START_MS) is None
    manager.close()
    machine.boot(power_lost=False)
    assert [len(key.topic) for key in open_manager(machine).future_logs] == [213]


def test_a_failed_read_while_copying_names_the_directory() -> None:
    """The error of a failed copy names the directory that could not be read."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    put(create(manager), b"a", 1)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    machine.virtual_disk.profile.read_error_probability = 1.0
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
    directories = {path.removeprefix(parent + "/").split("/")[0] for path in machine.virtual_disk.files(parent)}
    return {name for name in directories if name.endswith(ending)}


def test_a_new_log_ends_the_move_of_its_predecessor() -> None:
    """A bug renamed the future log onto the new log, which fails, and so took a working directory offline."""
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
    # A move asked for again goes all the way, also back to where the first log was.
    assert again.alter_replica_log_dir(A, "/d1", START_MS) is not None
    assert again.copy_to_future(A, START_MS)
    assert again.replace_current_with_future(A).parent_directory == "/d1"
    assert again.online_directories == ["/d1", "/d2"]


def test_a_future_log_beside_its_current_log_is_no_move() -> None:
    """A broker crashed after it had created the new log and before it had removed the future one."""
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


def test_a_future_log_of_a_former_topic_stays_separate() -> None:
    """Its directory was offline while the topic was created again; epochs of two topics cannot be compared."""
    machine = VirtualMachine(1)
    manager = begin_a_move(machine, records=4)
    manager.fail_directory("/d2", OSError("gone"))
    assert manager.delete(A)
    new = manager.get_or_create(A, topic_id=uuid.UUID(int=77), now_ms=START_MS, directory="/d1")
    for number in range(6):
        put(new, b"new %d" % number, 1)
    manager.close()
    machine.boot(power_lost=False)
    again = open_manager(machine)
    assert again.future_logs == {}
    assert not names_of(machine, "/d2", "-future")
    assert [row.value for row in all_rows(again.logs[A])] == [b"new %d" % number for number in range(6)]


def test_a_directory_that_fails_to_delete_at_start_fails_alone() -> None:
    """A bug let the error end the start, without a record of which of two logs was kept."""
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
    machine.virtual_disk.profile.failing_paths = ("/d1",)
    for work in works:
        work.complete()
    assert manager.offline_directories == ["/d1"]
    assert [row.value for row in all_rows(manager.logs[A])] == [b"new"]


def test_a_stop_that_does_not_sync_a_copy_is_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """File descriptors are short when the copy of a move is closed; the next start must not count it as durable."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    put(create(manager, directory="/d1"), b"a", 3)
    copy = manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert copy is not None
    manager.copy_to_future(A, START_MS)

    def seal() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(copy.storage, "seal", seal)
    manager.close(7)
    machine.boot(power_lost=False)
    manager = new_manager(machine)
    manager.start(START_MS)
    assert [directory.clean for directory in manager.directories] == [True, False]
