"""Goal: an old segment that is damaged or cannot be read stops neither the housekeeping of other logs nor the broker.

Method: log managers over two virtual directories; a segment's bytes are changed, or its device goes, between two ticks.
"""

from __future__ import annotations

import logging

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.runtime.ports.environment import OpenMode
from moldau_broker.log.cleaner.cleaner import plan_cleaning
from moldau_broker.log.errors import LogError
from moldau_broker.log.values import MAX_TIMESTAMP, TopicPartition, run_work
from support.log.lab import A, create, open_manager, put, tick
from support.log.model import START_MS, VirtualMachine, all_rows

B = TopicPartition("b", 0)
DAY_MS = 24 * 3600 * 1000
COMPACT = {"compact": True, "delete": False, "min_cleanable_dirty_ratio": 0.0}


def filled(manager, partition: TopicPartition, directory: str):
    log = create(manager, partition, directory=directory)
    for number in range(60):
        put(log, b"%d" % number + bytes(50))
    log.storage.roll(log.log_end_offset, START_MS)
    log.update_high_watermark(log.log_end_offset)
    log.flush()
    manager._store.directories[directory].recovery_points.write_now(
        {key: each.log_end_offset for key, each in manager.logs.items() if each.parent_directory == directory}
    )
    return log


def forget_what_was_read(log) -> None:
    """As after a start: nothing of the closed segments is in memory."""
    for segment in log.segments[:-1]:
        segment._max_entry = segment._first_timestamp = None
        segment._tail.clear()


def damage(machine: VirtualMachine, log, index: int) -> str:
    """Makes a batch in the middle of a segment unrecognisable; returns the file."""
    segment = log.segments[index]
    position, _ = segment.find(segment.base_offset + 3)
    forget_what_was_read(log)
    path = segment.path(".log")
    machine.virtual_disk.flip_bit(path, position + 8, 7)  # the batch's length
    return path


def opened(**config: object):
    machine = VirtualMachine(1)
    manager = open_manager(machine, ["/d1", "/d2"], **config)
    return machine, manager, filled(manager, A, "/d1"), filled(manager, B, "/d2")


def warnings_of(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(event + " ")]


@pytest.mark.parametrize("index_points_behind", [False, True])
def test_retention_continues_and_names_the_damaged_file(
    caplog: pytest.LogCaptureFixture, *, index_points_behind: bool
) -> None:
    """An index entry behind the damage ended the broker; without one, what is hidden counted as old as what is seen."""
    caplog.set_level(logging.ERROR)
    machine, manager, damaged, other = opened(retention_ms=DAY_MS)
    path = damage(machine, damaged, 2)
    base_offset = damaged.segments[2].base_offset
    if index_points_behind:
        damaged.segments[2].time_index.maybe_append(START_MS + 1, base_offset + 7)
    now = START_MS + DAY_MS + 40_000
    # Unreadable records may be younger than the readable ones: the segment was written to just now.
    machine.virtual_disk.lookup(path).modified_ms = now
    tick(manager, now)
    assert other.log_start_offset == 60
    assert damaged.log_start_offset == base_offset, "what is older than the damaged segment is gone"
    for seconds in range(1, 6):
        tick(manager, now + seconds * 500)  # every second of which the check is due
    lines = warnings_of(caplog, "log-damaged")
    assert 2 <= len(lines) <= 3
    assert path in lines[0]
    assert "reassign" in lines[0]
    assert manager.online_directories == ["/d1", "/d2"]
    tick(manager, now + DAY_MS + 60_000)
    assert damaged.log_start_offset == 60, "it goes when all in it must be old"


def test_a_damaged_segment_is_deleted_for_other_reasons() -> None:
    """A damaged segment is deleted if it is due for another reason than its age."""
    machine, manager, damaged, _ = opened(retention_ms=DAY_MS)
    damage(machine, damaged, 0)
    damaged.delete_records(40)
    tick(manager, START_MS + 40_000)
    assert damaged.segments[0].base_offset > 20


@pytest.mark.parametrize("where", ["plan", "begin"])
def test_a_log_found_damaged_before_cleaning_is_left_out(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """The cleaner leaves out a log that is found damaged before its cleaning begins."""
    caplog.set_level(logging.ERROR)
    machine, manager, damaged, other = opened(**COMPACT, min_compaction_lag_ms=1)
    if where == "plan":
        path = damage(machine, damaged, 0)
        # The walk to the newest timestamp meets it: by the time index's last entry.
        damaged.segments[0].time_index.maybe_append(START_MS + 1, damaged.segments[0].base_offset + 5)
    else:
        index = damaged.segments[1].transaction_index
        path = index.path
        machine.disk.open(path, OpenMode.WRITE).append([b"garbage"])
        index._entries = None
    for _ in range(30):
        for work in manager.cleaner_works(START_MS + 60_000):
            run_work(work)
    assert list(manager.cleaner.uncleanable) == [A]
    assert path.rpartition(".")[0] in manager.cleaner.uncleanable[A]
    assert len(warnings_of(caplog, "log-uncleanable")) == 1
    assert len(all_rows(other)) < 60
    assert manager.online_directories == ["/d1", "/d2"]


@pytest.mark.parametrize("where", ["plan", "begin"])
def test_a_device_that_is_gone_takes_its_directory_alone_offline(where: str) -> None:
    """The cleaner looked at it in the event loop, and the error ended the broker."""
    machine, manager, lost, other = opened(**COMPACT, min_compaction_lag_ms=1)
    if where == "plan":
        forget_what_was_read(lost)
    else:
        assert plan_cleaning(lost, None, 60, START_MS + 60_000).dirty_bytes > 0
        index = lost.segments[1].transaction_index
        machine.disk.open(index.path, OpenMode.WRITE).append([b"garbage"])
        index._entries = None
    machine.virtual_disk.profile.failing_paths = ("/d1",)
    for _ in range(30):
        for work in manager.cleaner_works(START_MS + 60_000):
            run_work(work)
    assert manager.offline_directories == ["/d1"]
    assert lost.storage.released
    assert len(all_rows(other)) < 60


@pytest.mark.parametrize("timestamp_ms", [MAX_TIMESTAMP, START_MS + 1])
def test_a_search_by_time_names_the_damage(timestamp_ms: int) -> None:
    """Any other error would end the connection with all its requests, and a share group's would end the broker."""
    machine, _, damaged, other = opened()
    for log in (damaged, other):
        for number in range(8):  # the newest record is in the middle of a segment
            put(log, bytes(50), now=START_MS + 9 * (number == 5))
        log.storage.roll(log.log_end_offset, START_MS)
    index = len(damaged.segments) - 2
    damage(machine, damaged, index)
    with pytest.raises(LogError) as refused:
        damaged.offset_for_timestamp(timestamp_ms)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert other.offset_for_timestamp(timestamp_ms) is not None
