"""Goal: what a cleaning keeps byte for byte, when it may begin, and what the cleaner says of itself.

Method: logs over a virtual disk, cleaned step by step. Each test states one rule that readers or operators depend on.
"""

from __future__ import annotations

import errno
from copy import deepcopy
from itertools import product
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from moldau.records import encode_batch, iterate_batches, parse_batch_header
from moldau.values import LeaderEpoch
from moldau_broker.log.cleaner.cleaner import LogCleaning, plan_cleaning
from moldau_broker.log.cleaner.offset_map import OffsetMap
from moldau_broker.log.config import LogManagerSettings
from moldau_broker.log.errors import CorruptLogFileError
from moldau_broker.log.files.names import SWAP_SUFFIX
from moldau_broker.log.files.segment import LogSegment
from moldau_broker.log.files.segment_files import SegmentFiles
from moldau_broker.log.values import TopicPartition, run_work
from moldau_jepsen.world.disk.virtual_disk import Directory
from support.log.cleaner_lab import DAY, Lab
from support.log.model import PARTITION, all_rows, make_batch

if TYPE_CHECKING:
    from moldau_broker.log.files.transaction_index import AbortedEntry


def settings_of(**fields: Any) -> LogManagerSettings:
    return LogManagerSettings(
        **{
            "cleaner_dedupe_buffer_size": 24 * 1000,
            "cleaner_backoff_ms": 0,
            "flush_offset_checkpoint_interval_ms": 1,
            **fields,
        }
    )


def batches(lab: Lab) -> dict[int, bytes]:
    """The bytes of all batches, by base offset."""
    found: dict[int, bytes] = {}
    for segment in lab.log.segments:
        data = segment.file.read(0, segment.size)
        found |= {
            header.base_offset: data[at : at + header.size_bytes] for at, header in iterate_batches(memoryview(data))
        }
    return found


def test_records_behind_a_cut_wait_for_their_lag() -> None:
    """The log was cut within a segment: what is appended there is as young as what other segments get."""
    lab = Lab(min_compaction_lag_ms=10_000, segment_bytes=100_000)
    for number in range(10):
        lab.put(b"old%d" % number, b"v")
    lab.fill()
    lab.now += 60_000
    assert lab.clean() > 0
    lab.log.truncate_to(5)
    young = [lab.put(b"key", b"%d" % number) for number in range(5)]
    lab.fill()
    assert lab.clean() == 0
    assert [row.offset for row in all_rows(lab.log)] == list(range(10))
    lab.now += 10_001
    assert lab.clean() > 0
    assert [row.offset for row in all_rows(lab.log)] == [0, 1, 2, 3, 4, young[-1]]


@pytest.mark.parametrize(("age_ms", "is_due"), [(None, True), (5_001, True), (5_000, False), (0, False)])
def test_a_record_beyond_the_longest_lag_must_be_cleaned(age_ms: int | None, is_due: bool) -> None:
    """However little of the log is dirty. A record of the first millisecond of 1970 is old like any other."""
    lab = Lab(max_compaction_lag_ms=5_000, min_cleanable_dirty_ratio=1.0)
    stamp = 0 if age_ms is None else lab.now - age_ms
    data = make_batch([(stamp, b"k", b"1")])
    lab.log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(1), now_ms=lab.now)
    lab.fill()
    assert plan_cleaning(lab.log, 0, 1 << 60, lab.now).must_clean == is_due
    assert not plan_cleaning(lab.log, lab.log.log_end_offset, 1 << 60, lab.now).must_clean, "it is clean already"


@pytest.mark.parametrize("overdue", list(product((False, True), repeat=4)))
def test_any_dirty_segment_beyond_the_lag_must_be_cleaned(overdue: tuple[bool, ...]) -> None:
    """Kafka takes the oldest of them: younger segments behind it change nothing. The active segment does not count."""
    lab = Lab(max_compaction_lag_ms=5_000, min_cleanable_dirty_ratio=1.0)
    for number, is_overdue in enumerate(overdue):
        if number:
            lab.fill()
        data = make_batch([(lab.now - 5_001 * is_overdue, b"k", b"1")])
        lab.log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(1), now_ms=lab.now)
    *closed, active = lab.log.segments
    for clean in range(len(closed) + 1):  # segments below the checkpointed first dirty offset
        checkpoint = lab.log.segments[clean].base_offset
        plan = plan_cleaning(lab.log, checkpoint, active.base_offset, lab.now)
        assert plan.first_uncleanable_offset == active.base_offset
        assert plan.must_clean == any(overdue[clean : len(closed)])


@pytest.mark.parametrize("producer", [0, 9])
def test_the_last_batch_of_any_producer_keeps_its_header(producer: int) -> None:
    lab = Lab()
    data = make_batch([(lab.now, b"k", b"1")], producer=(producer, 3, 0))
    lab.log.append_as_leader(memoryview(data), leader_epoch=LeaderEpoch(1), now_ms=lab.now)
    lab.put(b"k", b"2")
    lab.fill()
    lab.clean()
    header = parse_batch_header(batches(lab)[0])
    assert (header.record_count, header.producer_id, header.producer_epoch, header.base_sequence) == (0, producer, 3, 0)


def horizons(lab: Lab) -> dict[int, int | None]:
    """The time until which each batch stays for readers that lag, by base offset."""
    return {offset: parse_batch_header(data).delete_horizon_ms for offset, data in batches(lab).items()}


def test_a_marker_counts_down_once_its_data_is_gone() -> None:
    """The cleaning that removes aborted records is not yet one that finds none; the horizon itself is the end."""
    lab = Lab(delete_retention_ms=DAY)
    lab.transaction(7, {b"k": b"1"}, commit=False)
    lab.transaction(7, {b"other": b"1"}, commit=True)
    seen = []
    for _ in range(2):
        lab.put(b"k", b"2")
        lab.fill()
        lab.clean()
        seen.append(horizons(lab)[1])
    assert seen[0] is None
    horizon = seen[1]
    assert horizon is not None
    for now, stays in ((horizon - 1, True), (horizon, False)):
        lab.put(b"k", b"3")
        lab.fill()
        lab.now = now - 1  # the cleaner's clock goes on by one with each step
        lab.clean()
        assert (1 in batches(lab) and parse_batch_header(batches(lab)[1]).record_count == 1) == stays


def test_data_of_a_forgotten_producer_leaves_no_header() -> None:
    """A marker that arrives after the producer expired is all that the log still knows of it."""
    lab = Lab()
    lab.transaction(7, {b"k": b"1"}, commit=True)
    assert lab.log.producer_state.remove_expired(lab.now + 365 * DAY) == 1
    lab.end(7, commit=True)
    lab.put(b"k", b"2")
    lab.fill()
    lab.clean()
    assert 0 not in batches(lab)
    assert 2 in batches(lab), "the marker holds the producer's epoch"


@pytest.mark.parametrize("commit", [False, True])
def test_an_epoch_that_a_marker_began_outlives_all_records(commit: bool) -> None:
    """The header of the marker is all that still fences the former epoch where the snapshots are lost, or on a copy."""
    lab = Lab(delete_retention_ms=DAY)
    lab.begin(7, {b"k": b"1"})
    lab.log.append_end_transaction_marker(
        producer_id=7, producer_epoch=1, coordinator_epoch=0, commit=commit, leader_epoch=LeaderEpoch(1), now_ms=lab.now
    )
    for number in range(4):
        lab.put(b"k", b"%d" % number)
        lab.fill()
        lab.clean()
        lab.now += 2 * DAY
    assert 0 not in batches(lab)
    assert parse_batch_header(batches(lab)[1]).record_count == 0
    copy = lab.create(TopicPartition("copy", 0))
    for _, data in sorted(batches(lab).items()):
        copy.append_as_follower(memoryview(data), now_ms=lab.now)
    for offset in lab.log.storage.snapshots.offsets():
        lab.machine.disk.remove(lab.log.storage.snapshots.path(offset))
    lab.log.storage.snapshots.restore(lab.log.storage.segments, lab.log.log_end_offset)
    for log in (lab.log, copy):
        assert [(each.producer_id, each.producer_epoch) for each in log.producer_state.describe()] == [(7, 1)]


def test_kept_batches_keep_their_bytes() -> None:
    """Neither records nor the marker of a transaction that still has data begin to count down to their removal."""
    lab = Lab(delete_retention_ms=DAY)
    lab.put(b"replaced", b"old")
    plain = lab.put(b"plain", b"v")
    lab.transaction(7, {b"t": b"data"}, commit=True)
    lab.transaction(7, {b"u": b"later"}, commit=True)
    lab.put(b"replaced", b"new")
    lab.fill()
    before = batches(lab)
    lab.clean()
    after = batches(lab)
    assert sorted(after) == [offset for offset in sorted(before) if offset != 0]
    assert {offset: before[offset] for offset in after} == after
    assert plain in after


def test_a_log_that_cannot_be_read_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its damage shows when its cleaning begins; the next log is looked for at once, not after a pause."""
    lab = Lab(settings=settings_of(cleaner_backoff_ms=15_000))
    other = lab.create(TopicPartition("other", 0))
    for log in (lab.log, other):
        lab.put(b"k", b"1", log)
        lab.put(b"k", b"2", log)
        lab.fill(log)
    damaged = lab.log.segments[0]

    def read(segment: LogSegment) -> list[AbortedEntry]:
        if segment is damaged:
            raise CorruptLogFileError(segment.path(".txnindex"), 0, "damaged")
        return []

    monkeypatch.setattr(LogSegment, "aborted_entries", read)
    lab.now += 1
    assert lab.manager.cleaner_works(lab.now) == []
    assert list(lab.manager.cleaner.uncleanable) == [PARTITION]
    assert lab.manager.cleaner.next_due_ms(lab.now) == lab.now
    (step,) = lab.manager.cleaner_works(lab.now)
    assert "other" in step.name


def test_a_group_that_cannot_be_renamed_leaves_the_log_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure is reported, so that the directory goes offline, as after any failed write."""
    lab = Lab()
    for number in range(30):
        lab.put(b"k%d" % (number % 3), b"x" * 50)
    lab.fill()
    before = batches(lab)
    cleaning = LogCleaning(
        lab.machine.disk, lab.log, plan_cleaning(lab.log, 0, 1 << 60, lab.now), OffsetMap(24 * 100), lab.now
    )
    while cleaning.ready is None:
        cleaning.step(1 << 30)

    def fail(files: SegmentFiles, suffix: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SegmentFiles, "change_suffix", fail)
    with pytest.raises(OSError, match="Input/output error"):
        cleaning.swap()
    assert cleaning.done
    assert batches(lab) == before


def test_indexes_of_a_cleaned_segment_are_complete() -> None:
    """Its last batch is in both, as in any closed segment, so the next start finds the largest timestamp."""
    lab = Lab(segment_bytes=100_000)
    for number in range(40):
        lab.put(b"k%d" % (number % 20), b"x" * 100)
        lab.now += 10
    lab.fill()
    largest = lab.log.segments[0].max_entry()
    lab.clean()
    cleaned = lab.log.segments[0]
    position, entry = cleaned.offset_index.last(), cleaned.time_index.last()
    assert position is not None
    assert position.offset == lab.log.log_end_offset - 1
    assert entry is not None
    assert (entry.timestamp_ms, entry.offset) == (largest.timestamp_ms, lab.log.log_end_offset - 1)


def test_one_step_at_a_time_within_the_rate() -> None:
    """No second step begins before the first has ended, and none begins with nothing left of the rate."""
    lab = Lab(settings=settings_of(cleaner_io_max_bytes_per_second=1_000), segment_bytes=100_000)
    for number in range(60):
        lab.put(b"k%d" % (number % 20), b"x" * 100)
    lab.fill()
    lab.now += 1
    (step,) = lab.manager.cleaner_works(lab.now)
    assert lab.manager.cleaner_works(lab.now) == []
    assert lab.manager.cleaner.next_due_ms(lab.now) is None
    run_work(step)
    assert lab.manager.cleaner_works(lab.now) == []
    due_ms = lab.manager.cleaner.next_due_ms(lab.now)
    assert due_ms == lab.now + 1_000
    assert len(lab.manager.cleaner_works(due_ms + 1_000)) == 1


def test_a_batch_beyond_the_rate_is_paid_for_later() -> None:
    """Batches are five times as large as the rate allows in a second: each is followed by seconds without a step."""
    lab = Lab(settings=settings_of(cleaner_io_max_bytes_per_second=1_000), segment_bytes=100_000)
    for number in range(6):
        lab.put(b"k%d" % number, b"x" * 5_000)
    lab.fill()
    end = lab.now + 12_000
    while lab.now < end:
        for step in lab.manager.cleaner_works(lab.now):
            run_work(step)
        lab.now = max(lab.now + 1, lab.manager.next_tick_ms(lab.now))
    assert lab.manager.cleaner._current is not None
    assert 10_000 < lab.manager.cleaner._current.statistics.map_bytes_read < 18_000


def test_a_clock_that_was_set_back_begins_a_new_window() -> None:
    """The rate of the last second was used up; it is not that of the hour which comes a second time."""
    lab = Lab(settings=settings_of(cleaner_io_max_bytes_per_second=10_000), segment_bytes=100_000)
    for number in range(6):
        lab.put(b"k%d" % number, b"x" * 9_000)
    lab.fill()
    run_work(*lab.manager.cleaner_works(lab.now))
    for step in lab.manager.cleaner_works(lab.now):
        run_work(step)
    assert lab.manager.cleaner_works(lab.now) == []
    lab.now -= 3_600_000
    assert len(lab.manager.cleaner_works(lab.now) + lab.manager.cleaner_works(lab.now + 1_000)) == 1


def test_metrics_count_cleanings_and_name_the_dirtiest_log() -> None:
    lab = Lab(min_cleanable_dirty_ratio=0.5, segment_bytes=100_000)
    for number in range(10):
        lab.put(b"k%d" % number, b"x")
    lab.fill()
    lab.clean()
    statistics = lab.manager.cleaner.statistics()
    assert (statistics.cleanings, statistics.map_entries, statistics.max_dirty_ratio) == (1, 10, 0.0)
    lab.put(b"k0", b"y")
    lab.fill()
    assert lab.clean() == 0, "not dirty enough"
    statistics = lab.manager.cleaner.statistics()
    assert 0 < statistics.max_dirty_ratio < 0.5
    for number in range(40):
        lab.put(b"other%d" % number, b"x")
    lab.fill()
    lab.now += 1
    (step,) = lab.manager.cleaner_works(lab.now)
    assert lab.manager.cleaner.statistics().max_dirty_ratio > 0.5
    lab.log.truncate_to(lab.log.log_end_offset - 1)
    run_work(step)
    statistics = lab.manager.cleaner.statistics()
    assert (statistics.cleanings, statistics.map_entries) == (1, 10), "a cleaning that was given up does not count"


def test_an_emptied_map_is_as_a_new_one() -> None:
    """Entries of one log must not count in the next log."""
    offset_map, new = OffsetMap(24 * 100), OffsetMap(24 * 100)
    batch = encode_batch([(1, b"key", b"v", ())], base_offset=5)
    assert offset_map.add(batch, 61, len(batch), parse_batch_header(batch), 0)
    offset_map.latest_offset = 5
    offset_map.clear()
    assert bytes(offset_map._buffer) == bytes(new._buffer)
    others = [name for name in OffsetMap.__slots__ if name != "_buffer"]
    assert all(getattr(offset_map, name) == getattr(new, name) for name in others)


def test_each_cleaned_segment_lists_its_own_aborted_transactions() -> None:
    """An entry of another segment would make the next start take the index for damaged, and read the whole segment."""
    lab = Lab()
    for number in range(8):
        lab.put(b"k%d" % number, b"x" * 400)
        lab.transaction(1 + number, {b"a": b"y"}, commit=False)
    lab.fill()
    lab.clean()
    storage = lab.log.storage
    listed = [
        [entry.last_offset for entry in segment.aborted_entries()]
        for segment in lab.log.segments
        if segment.base_offset < storage.segments.active.base_offset
    ]
    bounds = [(segment.base_offset, storage.next_base_offset(index)) for index, segment in enumerate(lab.log.segments)]
    assert sum(map(bool, listed)) >= 2
    assert sum(map(len, listed)) == 8
    assert all(base <= last < end for (base, end), own in zip(bounds, listed, strict=False) for last in own)


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("former", [10, 30, 60])
def test_a_deleted_key_of_a_new_topic_stays_deleted(former: int, is_checkpointed: bool) -> None:
    """The next log of a name is not clean, however far the cleaner came in the deleted one.

    A tombstone in it may go only after the older value of its key.
    """
    lab = Lab(delete_retention_ms=DAY)
    for number in range(former):
        lab.put(b"key%d" % number, b"v")
    lab.fill()
    assert lab.clean() > 0
    if is_checkpointed:
        lab.tick()
    assert lab.manager.delete(PARTITION)
    lab.log = lab.manager.get_or_create(PARTITION, topic_id=UUID(int=2), now_ms=lab.now)
    lab.put(b"gone", b"secret")
    lab.put(b"gone", None)
    for _ in range(3):
        for number in range(40):
            lab.put(b"key%d" % number, b"w")
        lab.fill()
        assert lab.clean() > 0
        lab.now += 2 * DAY
    assert lab.committed() == {b"key%d" % number: b"w" for number in range(40)}


def test_a_deleted_key_of_a_moved_log_stays_deleted() -> None:
    """A move begins during a cleaning and copies what is not cleaned yet: how far that cleaning comes says nothing."""
    lab = Lab(directories=("/d1", "/d2"), delete_retention_ms=DAY)

    def close_segments() -> None:
        lab.fill()
        for directory in lab.manager.directories:
            directory.recovery_points.write_now({PARTITION: lab.log.log_end_offset})

    def copy() -> None:
        while not lab.manager.copy_to_future(PARTITION, lab.now):
            pass

    lab.put(b"gone", b"secret")
    lab.put(b"gone", None)
    for number in range(40):
        lab.put(b"key%d" % number, b"v")
    close_segments()
    (step,) = lab.manager.cleaner_works(lab.now)
    step.run()
    (target,) = set(lab.directories) - {lab.log.parent_directory}
    lab.manager.alter_replica_log_dir(PARTITION, target, lab.now)
    copy()
    step.complete()
    assert lab.clean() > 0, "the cleaning goes on"
    copy()
    lab.log = lab.manager.replace_current_with_future(PARTITION)
    assert lab.committed()[b"gone"] is None
    for _ in range(3):
        for number in range(40):
            lab.put(b"key%d" % number, b"w")
        close_segments()
        assert lab.clean() > 0
        lab.now += 2 * DAY
    assert lab.committed() == {b"key%d" % number: b"w" for number in range(40)}


def test_names_of_a_swap_may_arrive_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system need not keep the order of renames between two syncs of their directory: any one may be lost."""
    lab = Lab()
    for number in range(9):
        lab.put(b"k%d" % (number % 5), b"%d" % number)
        if number % 3 == 2:
            lab.fill()
    kept, disk, before_syncs = lab.values(), lab.machine.virtual_disk, []
    sync = Directory.sync

    def noting(directory: Directory) -> None:
        if any(name.endswith(SWAP_SUFFIX) for change in directory.changes for name in change):
            before_syncs.append((deepcopy(disk._root), len(directory.changes)))
        sync(directory)

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "sync", noting)
        lab.clean()
    assert len(before_syncs) > 1
    for root, count in before_syncs:
        for lost in range(count):
            disk._root = deepcopy(root)
            directory = disk._root.names["data"].names["topic-0"]
            arrived = directory.changes[:lost] + directory.changes[lost + 1 :]
            directory.names = dict(directory.durable)
            for change in arrived:
                directory.change(change)
            lab.machine.boot(power_lost=False)
            lab.manager = lab.open()
            assert lab.values(lab.manager.logs[PARTITION]) == kept, f"change {lost} of {count}"
