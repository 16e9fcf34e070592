"""Goal: the housekeeping's work grows with the number of changed logs, and it misses no change.

Method: random changes of logs on a virtual disk; what the housekeeping knows is compared with a look at all logs. And
the bytecodes that it executes are counted, which includes the turns of comprehensions.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

from moldau.values import LeaderEpoch
from moldau_broker.log.config import LogConfig
from moldau_broker.log.directories.directory import log_starts_of
from moldau_broker.log.directories.housekeeping import _perhaps_unsynced
from moldau_broker.log.errors import DescriptorsShortError
from moldau_broker.log.files.checkpoint import read_offsets
from moldau_broker.log.values import TopicPartition
from support.log.lab import create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, make_batch

if TYPE_CHECKING:
    from types import FrameType

    from moldau_broker.log.directories.manager import LogManager
    from moldau_broker.log.partition.partition_log import PartitionLog

TOPICS = ("t", "u")
CONFIGS = (
    LogConfig(segment_bytes=400),
    LogConfig(segment_bytes=400, flush_ms=3_000),
    LogConfig(segment_bytes=400, flush_messages=3),
    LogConfig(segment_bytes=400, compact=True, delete=False),
    LogConfig(segment_bytes=400, retention_bytes=500),
)


def change(manager: LogManager, drawn: random.Random, now: int) -> None:
    """Makes one random change, of a log or of the table."""
    partition = TopicPartition(drawn.choice(TOPICS), drawn.randrange(3))
    log = manager.get(partition)
    if log is None or log.failed:
        create(manager, partition)
        return
    kind = drawn.randrange(12)
    if kind <= 5:
        put(log, b"v" * drawn.randrange(200), now=now)
    elif kind == 6:
        manager.update_topic_config(partition.topic, drawn.choice(CONFIGS))
    elif kind == 7:
        log.increment_log_start_offset(drawn.randint(log.log_start_offset, log.high_watermark))
    elif kind == 8:
        log.truncate_to(drawn.randint(log.log_start_offset, log.log_end_offset))
    elif kind == 9:
        log.truncate_fully_and_start_at(log.log_end_offset + 5, now)
    elif kind == 10:
        manager.delete(partition)
    elif manager.future_logs.get(partition) is None:
        other = "/d2" if log.parent_directory == "/d1" else "/d1"
        manager.alter_replica_log_dir(partition, other, now)
    else:
        while not manager.copy_to_future(partition, now):
            pass
        manager.replace_current_with_future(partition)


def check(manager: LogManager) -> None:
    """Compares what the housekeeping knows after a tick with a look at all logs."""
    logs = [*manager.logs.values(), *manager.future_logs.values()]
    housekeeping = manager._housekeeping
    # A flush that has ended meanwhile leaves a log too many, never one too few.
    assert set(_perhaps_unsynced(logs)) <= set(housekeeping._unsynced)
    assert not [
        log for log in logs if log.storage.segments.deletions and log.storage not in housekeeping._changed.touched
    ]
    compacted = {key: log for key, log in manager.logs.items() if log.config.compact and key not in manager.future_logs}
    assert dict(housekeeping._changed.compacted) == compacted


def check_checkpoints(manager: LogManager, machine: VirtualMachine) -> None:
    """Compares the checkpoints on disk with the logs."""
    for directory in manager.directories:
        logs = [log for log in manager.logs.values() if log.parent_directory == directory.path]
        for file, offsets in (
            (directory.high_watermarks, {log.topic_partition: log.high_watermark for log in logs}),
            (directory.recovery_points, {log.topic_partition: log.recovery_point for log in logs}),
            (directory.log_starts, log_starts_of(logs)),
        ):
            assert read_offsets(machine.disk, file.path) == offsets, file.path


@pytest.mark.parametrize("seed", range(12))
def test_no_change_is_missed(seed: int) -> None:
    drawn, machine, now = random.Random(seed), VirtualMachine(1), START_MS
    manager = open_manager(machine)
    for topic in TOPICS:
        manager.update_topic_config(topic, CONFIGS[0])
    for _ in range(40):
        for _ in range(drawn.randrange(4)):
            change(manager, drawn, now)
        now += 1_000
        tick(manager, now)
        check(manager)
    for _ in range(130):  # twice the longest period of a checkpoint
        now += 1_000
        tick(manager, now)
    check(manager)
    check_checkpoints(manager, machine)


def bytecodes(manager: LogManager, now: int, seconds: int) -> int:
    """Returns how many bytecodes the ticks of some seconds execute."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    former = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 counts them only if a frame asks for it before
    sys.settrace(trace)
    try:
        for second in range(seconds):
            for work in manager.tick(now + 1_000 * second, now + 1_000 * second):
                raise AssertionError(work.name)
    finally:
        sys.settrace(former)
    return count


def resting(partitions: int) -> tuple[LogManager, list[PartitionLog], int]:
    """Returns the manager of logs with records, long after their last change, and the time."""
    manager = open_manager(VirtualMachine(1))
    logs = [create(manager, TopicPartition("t", number)) for number in range(partitions)]
    for log in logs:
        put(log)
    for second in range(150):
        tick(manager, START_MS + 1_000 * second)
    return manager, logs, START_MS + 150_000


def test_logs_at_rest_cost_nothing() -> None:
    few, many = (bytecodes(*resting(partitions)[::2], 100) for partitions in (2, 40))
    assert many == few


def test_a_change_is_checkpointed_when_it_is_due() -> None:
    """High watermarks are written every 5 seconds, recovery points and log start offsets every 60."""
    manager, logs, now = resting(4)
    put(logs[2], now=now)
    logs[2].flush()
    logs[3].increment_log_start_offset(1)
    written: dict[str, int] = {}
    for second in range(70):
        for name in tick(manager, now + 1_000 * second):
            written.setdefault(name.rpartition("/")[2], second)
    due = manager.settings
    assert written.pop("replication-offset-checkpoint") < due.high_watermark_checkpoint_interval_ms / 1_000
    assert written.pop("recovery-point-offset-checkpoint") < due.flush_offset_checkpoint_interval_ms / 1_000
    assert written.pop("log-start-offset-checkpoint") < due.flush_start_offset_checkpoint_interval_ms / 1_000
    assert not written


def test_a_segment_is_synced_in_the_second_after_its_roll() -> None:
    manager, logs, now = resting(4)
    put(logs[1], now=now)
    assert not [name for name in tick(manager, now) if name.startswith("flush")]
    logs[1].storage.roll(logs[1].log_end_offset, now)
    assert [name for name in tick(manager, now + 1_000) if name.startswith("flush")] == ["flush t-1"]


def test_a_flush_policy_needs_no_further_change() -> None:
    """``flush.ms`` counts from the tick that finds the records; a policy set later finds older records too."""
    manager, logs, now = resting(4)
    manager.update_topic_config("t", LogConfig(flush_ms=5_000))
    names = [name for second in range(12) for name in tick(manager, now + 1_000 * second)]
    assert sorted(name for name in names if name.startswith("flush")) == [
        f"flush {log.topic_partition}" for log in logs
    ]


def test_a_clock_that_jumped_back_puts_off_no_flush() -> None:
    """The records that an hour of the clock covered twice were not synced for that hour."""
    manager, logs, now = resting(4)
    manager.update_topic_config("t", LogConfig(flush_ms=5_000))
    tick(manager, now)  # finds the records
    names = [name for second in range(12) for name in tick(manager, now - 3_600_000 + 1_000 * second)]
    assert sorted(name for name in names if name.startswith("flush")) == [
        f"flush {log.topic_partition}" for log in logs
    ]


def test_a_late_flush_reaches_the_checkpoint() -> None:
    """The sync ends long after the last append, and after a checkpoint has found nothing to write."""
    manager, logs, now = resting(4)
    manager.update_topic_config("t", LogConfig(flush_ms=100_000))
    for second in range(170):
        tick(manager, now + 1_000 * second)
    for log in logs:
        file = f"{log.parent_directory}/recovery-point-offset-checkpoint"
        assert read_offsets(manager._store.disk, file)[log.topic_partition] == 1


@pytest.mark.parametrize("moves", ["high watermark", "log start"])
def test_each_watermark_alone_is_a_change(moves: str) -> None:
    manager, logs, now = resting(4)
    log = logs[0]
    log.append_as_leader(memoryview(make_batch([(now, b"k", b"v")])), leader_epoch=LeaderEpoch(1), now_ms=now)
    for second in range(70):
        tick(manager, now + 1_000 * second)
    if moves == "high watermark":
        log.update_high_watermark(2)
    else:
        log.increment_log_start_offset(1)
    names = [name for second in range(70, 140) for name in tick(manager, now + 1_000 * second)]
    assert ["replication" in name or "log-start" in name for name in names] == [True]


@pytest.mark.parametrize("end_offset", [1, 0])
def test_a_copy_alone_is_a_change(end_offset: int) -> None:
    """Retention looks at a quiet tiered log when its segments may go, and the housekeeping when they may not."""
    manager = open_manager(VirtualMachine(1))
    log = create(manager)
    put(log)
    log.note_copied(1 - end_offset)
    tick(manager, START_MS)
    assert not log.storage.touched
    log.note_copied(end_offset)
    assert list(log.storage.touched) == [log.storage]


def test_a_write_that_became_void_is_repeated() -> None:
    manager, logs, now = resting(2)
    put(logs[0], now=now)
    works = [work for second in range(6) for work in manager.tick(now + 1_000 * second, now + 1_000 * second)]
    (work,) = (work for work in works if "replication-offset" in work.name)
    work.run()
    for directory in manager.directories:
        directory.high_watermarks.void()
    work.complete()
    names = [name for second in range(6, 12) for name in tick(manager, now + 1_000 * second)]
    assert names == [work.name]


def test_retention_looks_when_the_oldest_segment_expires() -> None:
    """Also after the settings were changed, and not before."""
    manager, logs, now = resting(3)
    tick(manager, now)
    manager.update_topic_config("t", LogConfig(retention_ms=500_000))
    put(logs[1], now=now)  # its only segment expires later

    def starts() -> list[int]:
        return [log.log_start_offset for log in logs]

    for second in range(1_000):
        at_ms = now + 1_000 * second
        tick(manager, at_ms)
        expired = [at_ms > START_MS + 500_000, at_ms > now + 500_000]
        assert starts() == [int(expired[0]), 2 * int(expired[1]), int(expired[0])], second
    manager.update_topic_config("t", LogConfig(retention_ms=5_000))
    put(logs[0], now=now + 1_000_000)
    tick(manager, now + 1_002_000)
    assert starts()[0] == 1
    tick(manager, now + 1_006_000)
    assert starts()[0] == 2


def test_retention_that_failed_is_tried_at_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log does not change any more, so nothing else would have it looked at again."""
    manager, logs, now = resting(3)
    manager.update_topic_config("t", LogConfig(retention_ms=5_000))

    def short(*arguments: object) -> None:
        raise DescriptorsShortError(logs[1].directory, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(logs[1].storage, "maybe_roll", short)
        tick(manager, now)
    assert [log.log_start_offset for log in logs] == [1, 0, 1]
    tick(manager, now + 1_000)
    assert [log.log_start_offset for log in logs] == [1, 1, 1]


def test_a_segment_rolls_by_time_without_appends() -> None:
    manager, logs, now = resting(3)
    manager.update_topic_config("t", LogConfig(segment_ms=400_000))
    rolled = [second for second in range(400) if tick(manager, now + 1_000 * second) and len(logs[0].segments) == 2]
    assert rolled[0] == (START_MS + 400_000 - now) // 1_000 + 1


def test_random_logs_expire_as_if_all_were_looked_at() -> None:
    """The same changes at the same times: once with due times, once with a look at each log in each run."""
    for seed in range(6):
        found: list[list[tuple[int, list[list[int]]]]] = []
        for looks_at_all in (False, True):
            drawn, now, runs = random.Random(seed), START_MS, list[tuple[int, list[list[int]]]]()
            manager = open_manager(VirtualMachine(1))
            logs = [create(manager, TopicPartition("t", number)) for number in range(4)]
            for _ in range(150):
                now += drawn.choice([1_000, 1_000, 5_000, 60_000, -30_000])
                if drawn.random() < 0.3:
                    put(drawn.choice(logs), b"v" * 100, now=now + drawn.choice([-10_000, 0, 50_000]))
                if drawn.random() < 0.1:
                    config = LogConfig(
                        segment_bytes=drawn.choice([300, 1_000]),
                        retention_ms=drawn.choice([-1, 10_000, 100_000]),
                        segment_ms=drawn.choice([20_000, 1_000_000]),
                    )
                    manager.update_topic_config("t", config)
                if drawn.random() < 0.1:
                    log = drawn.choice(logs)
                    log.increment_log_start_offset(drawn.randint(log.log_start_offset, log.high_watermark))
                if looks_at_all:
                    manager._housekeeping._retention_times.changed(logs)
                tick(manager, now)
                bases = [[segment.base_offset for segment in log.segments] for log in logs]
                runs.append((now, bases))
            found.append(runs)
            assert any(log.log_start_offset > 0 for log in logs)
        assert found[0] == found[1]
