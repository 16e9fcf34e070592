"""Goal: the life of logs over several directories: start, work, failure, move, stop.

Method: a virtual disk with injected errors.
"""

from __future__ import annotations

import errno
import random
import uuid
from functools import partial

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.records import encode_batch, encode_end_txn_marker, iterate_batches, renew_crc
from moldau_broker.log.config import LogConfig
from moldau_broker.log.directories.manager import LogManager
from moldau_broker.log.errors import LogError, LogStorageError, OffsetOutOfRangeError
from moldau_broker.log.files.checkpoint import decode_offsets, read_file
from moldau_broker.log.values import TopicPartition, Work, run_work
from moldau_jepsen.world.disk.disk import NodeDisk
from support.log.lab import TOPIC_ID, A, create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, all_rows, make_batch

# Directories


def test_logs_spread_over_the_directories_and_come_back() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    logs = [create(manager, TopicPartition("t", number)) for number in range(6)]
    assert [log.parent_directory for log in logs] == ["/d1", "/d2"] * 3
    for number, log in enumerate(logs):
        put(log, b"%d" % number)
    manager.close()
    machine.boot(power_lost=True)
    again = open_manager(machine)
    assert sorted(again.logs) == [TopicPartition("t", number) for number in range(6)]
    for number in range(6):
        log = again.logs[TopicPartition("t", number)]
        assert [row.value for row in all_rows(log)] == [b"%d" % number]
        assert (log.topic_id, log.high_watermark) == (TOPIC_ID, 1)


def test_work_of_a_start_is_bounded_and_its_progress_is_known() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    for number in range(7):
        put(create(manager, TopicPartition("t", number)))
    machine.boot(power_lost=False)
    again = LogManager(machine.disk, ["/d1", "/d2"], node_id=1, cluster_id="c", random=random.Random(1))
    again.start(START_MS)
    works = again.recovery_work()
    assert len(works) == 7
    assert sorted({work.directory for work in works}) == ["/d1", "/d2"]
    for done, work in enumerate(works):
        assert again.recovery_progress.logs_done == done
        run_work(work)
    progress = again.recovery_progress
    assert (progress.logs_done, progress.logs_total, progress.truncated_logs) == (7, 7, 0)
    assert progress.recovered_bytes == sum(log.size_bytes for log in again.logs.values())


def test_a_failing_directory_goes_alone() -> None:
    """L15."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    first, second = create(manager), create(manager, TopicPartition("b", 0))
    put(first)
    first.flush()
    put(second)
    held = first.read(0, max_bytes=100, upper_bound_offset=1).ranges[0]
    machine.virtual_disk.profile.write_error_probability = 1.0
    with pytest.raises(LogStorageError) as caught:
        put(first)
    machine.virtual_disk.profile.write_error_probability = 0.0
    assert caught.value.directory == "/d1"
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert first.log_end_offset == 1, "a failed write counts for nothing"
    assert manager.fail_directory("/d1", caught.value) == [A]
    assert manager.fail_directory("/d1", caught.value) == []
    assert (manager.online_directories, manager.offline_directories) == (["/d2"], ["/d1"])
    assert manager.get(A) is None
    assert put(second).first_offset == 1
    with pytest.raises(LogStorageError):
        put(first)
    assert len(held.file.read(held.position, held.count)) == held.count, "a reader ends what it began"
    assert create(manager, TopicPartition("c", 0)).parent_directory == "/d2"
    info = {info.path: info for info in manager.describe_log_dirs()}
    assert (info["/d1"].error, info["/d2"].error) == (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE)
    tick(manager, START_MS + 10_000)
    manager.close()
    machine.boot(power_lost=True)
    again = open_manager(machine)
    assert [row.value for row in all_rows(again.logs[A])] == [b"v"]


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_errors_at_any_time_harm_one_directory(kind: str) -> None:
    """EIO at random.

    Whatever fails, the other directory serves what it has, and a restart finds what was acknowledged.
    """
    for seed in range(12):
        machine = VirtualMachine(seed)
        manager = open_manager(machine)
        logs = [create(manager, TopicPartition("t", number)) for number in range(4)]
        acknowledged = dict.fromkeys(range(4), 0)
        rnd = random.Random(seed)
        now = START_MS
        for _ in range(60):
            number = rnd.randrange(4)
            log = logs[number]
            now += 700
            rate = 0.05 if log.parent_directory == "/d1" and "/d1" in manager.online_directories else 0.0
            setattr(machine.virtual_disk.profile, f"{kind}_error_probability", rate)
            try:
                put(log, b"x" * 100, now=now)
                log.flush()
                acknowledged[number] = log.log_end_offset
            except LogStorageError as error:
                manager.fail_directory(error.directory, error)
            setattr(machine.virtual_disk.profile, f"{kind}_error_probability", 0.0)
            tick(manager, now)
        assert "/d2" in manager.online_directories
        machine.boot(power_lost=True)
        again = open_manager(machine)
        for number, end in acknowledged.items():
            log = again.logs.get(TopicPartition("t", number))
            found = log.log_end_offset if log is not None else 0  # its name may never have become durable
            assert found >= end


def test_no_space() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    put(log)
    machine.virtual_disk.profile.capacity_bytes = machine.virtual_disk.used_bytes() + 30
    with pytest.raises(LogStorageError, match="No space") as caught:
        put(log)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert log.storage.segments.active.file.size == log.size_bytes, "the partial write was taken back"


def test_directories_that_cannot_be_used() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    with pytest.raises(LogStorageError, match="no log directory works"):
        open_manager(machine)
    manager.close()
    with pytest.raises(ValueError, match="names a directory twice"):
        open_manager(machine, ["/x", "/x"])
    with pytest.raises(ValueError, match=r"log\.dirs is empty"):
        open_manager(machine, [])


def test_moving_a_replica_to_another_directory() -> None:
    """AlterReplicaLogDirs fills the future log in bounded steps while the current one goes on, then replaces it."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for number in range(50):
        put(log, b"%d" % number * 20)
    log.delete_records(7)
    with pytest.raises(LogError) as caught:
        manager.alter_replica_log_dir(A, "/d3", START_MS)
    assert caught.value.code == ErrorCode.LOG_DIR_NOT_FOUND
    assert manager.alter_replica_log_dir(A, "/d1", START_MS) is None
    future = manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert future is not None
    assert future is manager.alter_replica_log_dir(A, "/d2", START_MS)
    steps = 0
    while not manager.copy_to_future(A, START_MS, max_bytes=500):
        steps += 1
        if steps == 5:
            put(log, b"late")
            lag = {info.path: info for info in manager.describe_log_dirs()}["/d2"].replicas[0]
            assert lag.is_future
            assert lag.offset_lag == log.log_end_offset - future.log_end_offset
    assert steps > 5
    moved = manager.replace_current_with_future(A)
    assert manager.logs == {A: moved}
    assert (moved.parent_directory, moved.storage.is_future, moved.log_start_offset) == ("/d2", False, 7)
    assert len(all_rows(moved)) == 44
    put(moved, b"after")
    tick(manager, START_MS + 1000)
    tick(manager, START_MS + 9000)
    assert not [path for path in machine.virtual_disk.files("/d1") if "a-0" in path]
    machine.boot(power_lost=False)
    again = open_manager(machine)
    assert again.logs[A].parent_directory == "/d2"
    assert all_rows(again.logs[A])[-1].value == b"after"


def test_a_move_to_the_present_directory_ends_another_move() -> None:
    """A request for the directory that holds the replica discards the unfinished copy in another one."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    put(create(manager), b"x" * 50)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    assert manager.alter_replica_log_dir(A, "/d1", START_MS) is None
    assert not manager.future_logs
    assert manager.logs[A].parent_directory == "/d1"
    assert manager.alter_replica_log_dir(A, "/d2", START_MS) is not None


def test_a_move_that_was_interrupted_goes_on_after_a_restart() -> None:
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for _ in range(30):
        put(log, b"x" * 50)
    manager.alter_replica_log_dir(A, "/d2", START_MS)
    manager.copy_to_future(A, START_MS, max_bytes=1000)
    manager.close()
    machine.boot(power_lost=True)
    again = open_manager(machine)
    assert 0 < again.future_logs[A].log_end_offset < 30
    while not again.copy_to_future(A, START_MS):
        pass
    assert len(all_rows(again.replace_current_with_future(A))) == 30


# Creating and deleting


def test_deleting_and_creating_again() -> None:
    """The new log uses neither files nor checkpoints of the deleted one. A reader of the deleted log goes on."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    for _ in range(30):
        put(log, b"x" * 100)
    log.flush()
    tick(manager, START_MS + 6000)
    assert decode_offsets("", read_file(machine.disk, "/d1/recovery-point-offset-checkpoint"))[A] == 30
    piece = log.read(3, max_bytes=500, upper_bound_offset=30).ranges[0]
    assert manager.delete(A)
    assert not manager.delete(A)
    assert manager.get(A) is None
    with pytest.raises(LogStorageError):
        put(log)
    new = create(manager)
    assert (new.log_end_offset, new.high_watermark, new.recovery_point) == (0, 0, 0)
    put(new, b"new")
    tick(manager, START_MS + 7000)
    tick(manager, START_MS + 9000)
    assert not [path for path in machine.virtual_disk.files("/") if "-delete" in path]
    assert len(piece.file.read(piece.position, piece.count)) == piece.count
    machine.boot(power_lost=False)
    assert [row.value for row in all_rows(open_manager(machine).logs[A])] == [b"new"]


def test_another_topic_of_the_same_name_is_refused() -> None:
    manager = open_manager(VirtualMachine(1))
    create(manager)
    with pytest.raises(LogError) as caught:
        manager.get_or_create(A, topic_id=uuid.UUID(int=10), now_ms=START_MS)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID


# Flush policy


def test_flush_messages_and_flush_ms() -> None:
    """L11: at most M messages, or S ms of them, are lost with the power."""
    for config, appends, wait, expected in (
        ({"flush_messages": 10}, 9, 0, 0),
        ({"flush_messages": 10}, 10, 0, 10),
        ({"flush_ms": 3000}, 5, 1000, 0),
        ({"flush_ms": 3000}, 5, 4000, 5),
        ({}, 5, 1 << 40, 0),
    ):
        machine = VirtualMachine(2)
        log_config = {"segment_bytes": 100_000, "retention_ms": -1, "segment_ms": 1 << 60, **config}
        manager = open_manager(machine, ["/d1"], **log_config)
        log = create(manager)
        tick(manager, START_MS)
        for _ in range(appends):
            put(log)
        tick(manager, START_MS)
        tick(manager, START_MS + wait)
        assert log.recovery_point == expected, config
        machine.boot(power_lost=True)
        assert open_manager(machine, ["/d1"], **log_config).logs[A].log_end_offset >= expected


def test_a_truncation_during_a_flush_does_not_put_off_the_next() -> None:
    """The flush is void, and the records below the cut are as old as before; ``flush.ms`` began again for them."""
    manager = open_manager(VirtualMachine(1), ["/d1"], flush_ms=3000, segment_bytes=100_000)
    log = create(manager)
    for _ in range(10):
        put(log)
    tick(manager, START_MS)
    (flush,) = [work for work in manager.tick(START_MS + 3000, START_MS + 3000) if work.name.startswith("flush")]
    flush.run()
    log.update_high_watermark(0)
    log.truncate_to(4)
    flush.complete()
    assert log.recovery_point == 0
    tick(manager, START_MS + 4000)
    assert log.recovery_point == 4


@pytest.mark.parametrize("on_disk", [0, 10])
def test_a_checkpoint_in_flight_keeps_a_lowered_recovery_point(on_disk: int) -> None:
    """The recovery point on disk stays at or below a truncation, though an older value was being written.

    It may be the first one that is written at all, so that the file itself needs no lower one.
    """
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"])
    log = create(manager)
    for _ in range(10):
        put(log)
    log.flush()
    works = [work for work in manager.tick(START_MS + 6000, START_MS + 6000) if "recovery-point" in work.name]
    assert works
    works[0].run()
    log.update_high_watermark(0)
    manager.directories[0].recovery_points.offsets[A] = on_disk
    log.truncate_to(4)
    works[0].complete()
    written = decode_offsets("", read_file(machine.disk, "/d1/recovery-point-offset-checkpoint"))
    assert written.get(A, 0) == min(on_disk, 4)


def test_a_flush_in_flight_while_the_log_is_truncated() -> None:
    """The result of the flush is void, because the log has other bytes than it synced."""
    machine = VirtualMachine(1)
    log = create(open_manager(machine, ["/d1"]))
    for _ in range(10):
        put(log)
    work = log.flush_work()
    assert isinstance(work, Work)
    log.update_high_watermark(0)
    log.truncate_to(4)
    for _ in range(6):
        put(log, b"other")
    run_work(work)
    assert log.recovery_point <= 4


# Reads and retention


def test_read_limits() -> None:
    """L14, KIP-74: the first batch whole if asked for, the last one cut, never above the bound."""
    log = create(open_manager(VirtualMachine(1), segment_bytes=100_000))
    for _ in range(10):
        put(log, b"x" * 100, count=2)
    size = log.size_bytes // 10

    def headers(result):
        data = b"".join(piece.file.read(piece.position, piece.count) for piece in result.ranges)
        assert len(data) == result.size_bytes
        return [header.base_offset for _, header in iterate_batches(data)]

    assert headers(log.read(3, max_bytes=1, upper_bound_offset=20, min_one_batch=True)) == [2]
    small = log.read(3, max_bytes=size - 1, upper_bound_offset=20)
    assert (small.size_bytes, small.first_batch_incomplete) == (0, True)
    cut = log.read(0, max_bytes=size * 3 + 5, upper_bound_offset=20)
    assert (headers(cut), cut.size_bytes) == ([0, 2, 4], size * 3 + 5)
    assert headers(log.read(0, max_bytes=1 << 20, upper_bound_offset=6)) == [0, 2, 4]
    assert log.read(6, max_bytes=1 << 20, upper_bound_offset=6).ranges == ()
    assert log.read(20, max_bytes=1 << 20, upper_bound_offset=20).ranges == ()
    for offset in (-1, 21):
        with pytest.raises(OffsetOutOfRangeError):
            log.read(offset, max_bytes=1, upper_bound_offset=20)
    log.delete_records(5)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        log.read(4, max_bytes=1, upper_bound_offset=20)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(21)


def test_retention_and_its_readers() -> None:
    """L12: retention deletes whole closed segments; their readers go on, also after the files are removed."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1"], retention_ms=10_000)
    log = create(manager)
    for number in range(40):
        put(log, b"x" * 100, now=START_MS + number)
    assert log.storage.segments.count > 4
    piece = log.read(0, max_bytes=1 << 20, upper_bound_offset=40).ranges[0]
    before = piece.file.read(piece.position, piece.count)
    log.update_high_watermark(20)
    tick(manager, START_MS + 40_000)
    assert 0 < log.log_start_offset <= 20, "what is not replicated stays"
    log.update_high_watermark(40)
    tick(manager, START_MS + 45_000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes, log.storage.segments.count) == (40, 40, 0, 1)
    tick(manager, START_MS + 60_000)
    assert not [path for path in machine.virtual_disk.files("/d1") if path.endswith(".deleted")]
    assert piece.file.read(piece.position, piece.count) == before
    assert put(log).first_offset == 40


def test_a_topics_own_settings() -> None:
    manager = open_manager(VirtualMachine(1))
    log, other = create(manager), create(manager, TopicPartition("b", 0))
    before = other.config
    manager.update_topic_config("a", LogConfig(max_message_bytes=50))
    with pytest.raises(LogError) as caught:
        put(log, b"x" * 100)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert (log.config.max_message_bytes, other.config) == (50, before)


# Followers


def test_a_follower_is_byte_for_byte_its_leader() -> None:
    """Batches keep offsets, epochs and bytes; partial and known batches are skipped; the state follows."""
    machine = VirtualMachine(1)
    manager = open_manager(machine, segment_bytes=2000)
    leader, follower = create(manager), create(manager, TopicPartition("b", 0))
    for epoch in (1, 2, 5):
        for number in range(10):
            data = make_batch([(START_MS, b"k", b"%d" % number * 30)] * 3, producer=(4, epoch, number * 3))
            leader.append_as_leader(memoryview(data), leader_epoch=epoch, now_ms=START_MS)
    leader.append_end_transaction_marker(
        producer_id=4, producer_epoch=5, coordinator_epoch=1, commit=True, leader_epoch=5, now_ms=START_MS
    )
    while follower.log_end_offset < leader.log_end_offset:
        result = leader.read(
            max(0, follower.log_end_offset - 1), max_bytes=700, upper_bound_offset=1 << 60, min_one_batch=True
        )
        data = b"".join(piece.file.read(piece.position, piece.count) for piece in result.ranges)
        before = follower.log_end_offset
        info = follower.append_as_follower(memoryview(data), now_ms=START_MS)
        if info.first_offset < 0:
            result = leader.read(before, max_bytes=700, upper_bound_offset=1 << 60, min_one_batch=True)
            data = b"".join(piece.file.read(piece.position, piece.count) for piece in result.ranges)
            follower.append_as_follower(memoryview(data), now_ms=START_MS)
        assert follower.log_end_offset > before

    def stored(log):
        return b"".join(segment.file.read(0, segment.size) for segment in log.segments)

    assert stored(follower) == stored(leader)
    assert follower.epochs.entries == leader.epochs.entries
    assert follower.producer_state.describe() == leader.producer_state.describe()
    leader_end = leader.end_offset_for_epoch(2)
    assert follower.end_offset_for_epoch(2) == leader_end
    assert (leader_end.leader_epoch, leader_end.end_offset) == (2, 60)
    assert leader.end_offset_for_epoch(3).end_offset == 60
    assert leader.end_offset_for_epoch(5).end_offset == leader.log_end_offset
    assert leader.end_offset_for_epoch(9).end_offset == -1


def test_a_follower_refuses_what_cannot_follow() -> None:
    follower = create(open_manager(VirtualMachine(1)))

    def batch(offset: int, epoch: int) -> bytes:
        return encode_batch([(1, b"k", b"v", ())] * 2, base_offset=offset, partition_leader_epoch=epoch)

    follower.append_as_follower(memoryview(batch(0, 3)), now_ms=START_MS)
    damaged = bytearray(batch(2, 3))
    damaged[-1] ^= 1
    for bad in (bytes(damaged), batch(1, 3), batch(2, 2), batch(2, 3) + batch(3, 3), batch(4, 3) + b"\0" * 70):
        with pytest.raises(LogError) as caught:
            follower.append_as_follower(memoryview(bad), now_ms=START_MS)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
        assert (follower.log_end_offset, follower.failed) == (2, False)
    # Holes are the leader's compaction; a cut batch at the end is what KIP-74 allows.
    info = follower.append_as_follower(memoryview(batch(10, 4) + batch(20, 4)[:-3]), now_ms=START_MS)
    assert (info.first_offset, info.last_offset, follower.log_end_offset) == (10, 11, 12)
    assert follower.append_as_follower(memoryview(b""), now_ms=START_MS).first_offset == -1


@pytest.mark.parametrize(("position", "content"), [(61, b"\x7f"), (66, b"\xff\xff"), (70, b"\x02"), (71, b"\xff\xff")])
def test_a_follower_refuses_a_marker_that_cannot_be_read(position: int, content: bytes) -> None:
    """Its checksum fits, but the record, its key or its value does not. Nothing is staged, and the log goes on."""
    follower = create(open_manager(VirtualMachine(1)))
    marker = encode_end_txn_marker(
        commit=True, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=START_MS
    )
    bad = bytearray(marker)
    bad[position : position + len(content)] = content
    renew_crc(bad, 0)
    with pytest.raises(LogError) as caught:
        follower.append_as_follower(memoryview(bad), now_ms=START_MS)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert (follower.log_end_offset, follower.has_staged) == (0, False)
    assert follower.append_as_follower(memoryview(marker), now_ms=START_MS).last_offset == 0


def test_staged_batches_fail_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write drops sequence numbers and offsets of all staged batches, including duplicates."""
    monkeypatch.setattr(NodeDisk, "may_change", lambda disk, what, path: None)  # what was written can be taken back
    machine = VirtualMachine(1)
    log = create(open_manager(machine, ["/d1"], segment_bytes=100_000))
    put(log, producer=(1, 0, 0))
    for sequence in (1, 2, 2):
        data = make_batch([(START_MS, b"k", b"v")], producer=(1, 0, sequence))
        info = log.stage_as_leader(memoryview(data), leader_epoch=1, now_ms=START_MS)
    assert (info.duplicate, info.first_offset, log.staged_end_offset, log.log_end_offset) == (True, 2, 3, 1)
    machine.virtual_disk.profile.write_error_probability = 1.0
    with pytest.raises(LogStorageError):
        log.flush_staged()
    machine.virtual_disk.profile.write_error_probability = 0.0
    assert (log.staged_end_offset, log.log_end_offset, log.has_staged, log.failed) == (1, 1, False, True)
    assert [row.last_sequence for row in log.producer_state.describe()] == [0]
    assert log.storage.segments.active.file.size == log.size_bytes


@pytest.mark.parametrize("leads", [True, False])
def test_the_first_batch_after_a_start_notices_a_lost_disk(leads: bool) -> None:
    """The decision to roll needs the segment's age, which is read from its first batch on a lost disk."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    put(create(manager), b"before")
    manager.close()
    machine.boot(power_lost=False)
    log = open_manager(machine).logs[A]
    machine.virtual_disk.profile.failing_paths = (log.parent_directory,)
    batch = encode_batch([(START_MS, b"k", b"after", ())], base_offset=0 if leads else 1, partition_leader_epoch=1)
    data = memoryview(bytearray(batch))
    append = partial(log.append_as_leader, leader_epoch=1) if leads else log.append_as_follower
    with pytest.raises(LogStorageError, match=r"reading a-0 failed: .*Input/output error") as caught:
        append(data, now_ms=START_MS)
    assert caught.value.directory == log.parent_directory
    assert log.failed


def test_a_clock_that_was_set_back_stops_no_regular_work() -> None:
    """Each kind of work is due again within its interval, not when the clock has caught up."""
    machine = VirtualMachine(1)
    manager = open_manager(machine)
    log = create(manager)
    later, earlier = START_MS + 30 * 24 * 3600 * 1000, START_MS + 1_000
    tick(manager, later)
    put(log)
    log.flush()
    found = tick(manager, earlier)
    for name in ("recovery-point", "replication-offset"):
        assert any(name in each for each in found), found
