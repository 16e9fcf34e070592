"""Goal: rows C1 to C8 of compaction.

Method: logs over a virtual disk, cleaned step by step; the model tests do the same at random.
"""

from __future__ import annotations

import mmap
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from moldau.protocol.errors import ErrorCode
from moldau.records import (
    BATCH_HEADER_BYTES,
    Compression,
    encode_batch,
    iterate_batches,
    parse_batch_header,
    renew_crc,
    set_partition_leader_epoch,
)
from moldau_broker.log.cleaner.cleaner import LogCleaning, plan_cleaning
from moldau_broker.log.cleaner.manager import CleanerManager
from moldau_broker.log.cleaner.offset_map import ENTRY_BYTES, OffsetMap
from moldau_broker.log.config import LogManagerSettings
from moldau_broker.log.errors import LogError
from moldau_broker.log.partition import timestamps
from moldau_broker.log.partition.retention import expired_count
from moldau_broker.log.values import TopicPartition, run_work
from support.log.cleaner_lab import DAY, NOW, Lab
from support.log.model import PARTITION, VirtualMachine, all_rows, make_batch

STATM = Path("/proc/self/statm")


def test_the_last_value_of_each_key_stays_at_its_offset() -> None:
    """C1."""
    lab = Lab()
    rnd = random.Random(1)
    expected: dict[bytes, tuple[int, bytes]] = {}
    for number in range(300):
        key = b"k%d" % rnd.randrange(20)
        codec = rnd.choice(list(Compression))
        expected[key] = (lab.put(key, b"v%d" % number, codec=codec), b"v%d" % number)
    lab.fill()
    size = lab.log.size_bytes
    lab.clean()
    assert lab.log.size_bytes < size / 4
    rows = all_rows(lab.log)
    assert sorted((row.offset, row.value) for row in rows) == sorted(expected.values())
    gone = next(offset for offset in range(300) if offset not in [row.offset for row in rows])
    result = lab.log.read(gone, max_bytes=1, upper_bound_offset=300, min_one_batch=True)
    piece = result.ranges[0]
    _, header = next(iter(iterate_batches(piece.file.read(piece.position, piece.count))))
    assert header.last_offset >= min(row.offset for row in rows if row.offset > gone) or header.last_offset >= gone
    assert lab.clean() == 0, "a clean log was cleaned again"


def test_tombstones_stay_for_a_while() -> None:
    """C2: a reader that is at most ``delete.retention.ms`` behind sees that the key was deleted."""
    lab = Lab(delete_retention_ms=DAY)
    lab.put(b"gone", b"1")
    deleted = lab.put(b"gone", None)
    lab.put(b"here", b"2")
    lab.fill()
    lab.clean()
    assert lab.values() == {b"gone": None, b"here": b"2"}
    horizon = [
        header.delete_horizon_ms
        for piece in lab.log.read(deleted, max_bytes=1 << 20, upper_bound_offset=9, min_one_batch=True).ranges
        for _, header in iterate_batches(piece.file.read(piece.position, piece.count))
        if header.base_offset == deleted
    ]
    assert horizon[0] is not None
    assert NOW + DAY <= horizon[0] <= lab.now + DAY
    lab.now += DAY // 2
    lab.put(b"other", b"3")
    lab.fill()
    lab.clean()
    assert lab.values()[b"gone"] is None
    lab.now += DAY
    lab.put(b"other", b"4")
    lab.fill()
    lab.clean()
    assert lab.values() == {b"here": b"2", b"other": b"4"}


def test_markers_and_aborted_data() -> None:
    """C2: aborted data goes at once, its marker when nothing is left of the transaction and the horizon is over."""
    lab = Lab(delete_retention_ms=DAY)

    def transaction(producer: int, key: bytes, commit: bool) -> None:
        data = make_batch([(lab.now, key, b"t")], producer=(producer, 0, 0), transactional=True)
        lab.log.append_as_leader(memoryview(data), leader_epoch=1, now_ms=lab.now)
        lab.log.append_end_transaction_marker(
            producer_id=producer, producer_epoch=0, coordinator_epoch=0, commit=commit, leader_epoch=1, now_ms=lab.now
        )
        # Another batch of the producer: what was before is not its last any more.
        later = make_batch([(lab.now, b"p%d" % producer, b"x")], producer=(producer, 0, 1))
        lab.log.append_as_leader(memoryview(later), leader_epoch=1, now_ms=lab.now)
        lab.log.update_high_watermark(lab.log.log_end_offset)

    transaction(1, b"committed", True)
    transaction(2, b"aborted", False)
    lab.put(b"committed", b"new")
    lab.fill()
    lab.clean()
    assert lab.values() == {b"p1": b"x", b"p2": b"x", b"committed": b"new"}

    def markers() -> list[int]:
        return [row.offset for row in all_rows(lab.log) if row.control]

    assert markers() == [1, 4]
    for wait, expected in ((1, [1, 4]), (DAY // 2, [1, 4]), (DAY, [])):
        lab.now += wait
        lab.put(b"z", b"%d" % wait)
        lab.fill()
        lab.clean()
        assert markers() == expected


def test_producer_state_is_kept() -> None:
    """A producer's last batch stays as an empty header: its sequence numbers survive the loss of the snapshots."""
    lab = Lab()
    data = make_batch([(lab.now, b"k", b"1")], producer=(9, 3, 0))
    lab.log.append_as_leader(memoryview(data), leader_epoch=1, now_ms=lab.now)
    lab.put(b"k", b"2")
    lab.fill()
    lab.clean()
    assert lab.values() == {b"k": b"2"}
    for offset in lab.log.storage.snapshots.offsets():
        lab.machine.disk.remove(lab.log.storage.snapshots.path(offset))
    lab.log.storage.snapshots.restore(lab.log.storage.segments, lab.log.log_end_offset)
    (producer,) = lab.log.producer_state.describe()
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (9, 3, 0)


def test_lags_and_the_active_segment() -> None:
    """C3."""
    lab = Lab(min_compaction_lag_ms=10_000)
    lab.put(b"k", b"1")
    lab.put(b"k", b"2")
    lab.fill()
    lab.put(b"k", b"3")
    active = lab.log.storage.segments.active
    before = active.file.read(0, active.size)
    assert lab.clean() == 0, "records younger than min.compaction.lag.ms were cleaned"
    lab.now += 10_001
    assert lab.clean() > 0
    assert [row.offset for row in all_rows(lab.log)] == [1, 2]
    assert lab.log.storage.segments.active is active
    assert active.file.read(0, active.size) == before

    eager = Lab(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)
    eager.put(b"k", b"1")
    eager.put(b"k", b"2")
    eager.fill()
    assert eager.clean() == 0, "the dirty ratio is not reached"
    eager.now += 5001
    assert eager.clean() > 0, "max.compaction.lag.ms is over"


def test_the_lag_holds_for_records_without_timestamps() -> None:
    """The file shows their age, as it does for retention; a record must not be compacted at once."""
    lab = Lab(min_compaction_lag_ms=10_000)
    written_ms, lab.now = lab.now, -1  # the producer's clock: no timestamp
    lab.put(b"k", b"1")
    lab.put(b"k", b"2")
    lab.now = written_ms
    lab.fill()
    closed = lab.log.segments[0]
    assert closed.max_entry().timestamp_ms == -1
    lab.machine.virtual_disk.lookup(closed.path(".log")).modified_ms = written_ms
    assert lab.clean() == 0
    lab.now = written_ms + 10_001
    assert lab.clean() > 0
    assert [row.offset for row in all_rows(lab.log)] == [1]


def test_a_cleaning_keeps_the_age_of_records_without_timestamps() -> None:
    """Each cleaning renewed the time of the file, by which they expire, and a busy topic kept them for good."""
    lab = Lab(delete=True, retention_ms=10_000)
    written_ms, lab.now = lab.now, -1  # the producer's clock: no timestamp
    lab.put(b"k", b"1")
    lab.put(b"k", b"2")
    lab.now = written_ms
    lab.fill()
    lab.machine.virtual_disk.lookup(lab.log.segments[0].path(".log")).modified_ms = written_ms - 10_000
    lab.clean()
    assert [row.offset for row in all_rows(lab.log)] == [1]
    assert expired_count(lab.log.storage, lab.log.log_end_offset, written_ms, has_staged=False) == 0
    assert expired_count(lab.log.storage, lab.log.log_end_offset, written_ms + 1, has_staged=False) == 1


def test_the_dirtiest_log_goes_first() -> None:
    """C4: ratios .2, .5, .9."""
    lab = Lab(min_cleanable_dirty_ratio=0.1, segment_bytes=100_000)
    order = []
    for number, dirty in ((0, 20), (1, 50), (2, 90)):
        partition = TopicPartition("ratio", number)
        log = lab.create(partition)
        for index in range(100):
            lab.put(b"key%d" % index, b"v" * 50, log)
            if index == 99 - dirty:
                log.storage.roll(log.log_end_offset, lab.now)
                lab.manager.cleaner.clean_offsets[partition] = log.log_end_offset
        lab.fill(log)
    chosen = []
    directories = {"/data": lab.manager.directories[0]}
    for _ in range(3):
        picked = lab.manager.cleaner.choose(directories, lab.manager.logs, lab.now, lambda *_: None)
        assert picked is not None
        chosen.append(round(picked[1].dirty_ratio, 1))
        order.append(picked[0].topic_partition.partition)
        lab.manager.cleaner.clean_offsets[picked[0].topic_partition] = picked[0].log_end_offset
    assert (order, chosen) == ([2, 1, 0], [0.9, 0.5, 0.2])


def test_the_map_has_24_bytes_an_entry() -> None:
    """C5."""
    offset_map = OffsetMap(24 * 1000 + 23, 0.9)
    assert (offset_map.slots, offset_map.memory_bytes, offset_map.entries_max) == (1000, 24 * 1000, 900)

    def add(key: int, offset: int) -> bool:
        batch = encode_batch([(1, b"key-%d" % key, b"v", ())], base_offset=offset)
        return offset_map.add(batch, 61, len(batch), parse_batch_header(batch), 0)

    def last_offset(key: int) -> int:
        found = bytes(offset_map._buffer).find(xxh3_128_digest(b"key-%d" % key))
        return int.from_bytes(offset_map._buffer[found + 16 : found + 24], "big") - 1 if found >= 0 else -1

    assert sum(add(number, number) for number in range(2000)) == 900
    assert all(last_offset(number) == number for number in range(900))
    assert last_offset(1500) == -1
    assert add(5, 7777), "a key that is there can always be updated"
    assert last_offset(5) == 7777
    assert offset_map.is_full
    # An entry is the key's 16-byte hash and 8 bytes of offset.
    assert xxh3_128_digest(b"key-5") + (7778).to_bytes(8, "big") in bytes(offset_map._buffer)
    offset_map.clear()
    assert (offset_map.size, last_offset(5)) == (0, -1)
    assert OffsetMap(24 * 10, 1.0).entries_max == 9, "looking for a key ends at an empty entry"
    # 8 GB cover the keys of about 366 GB of 1 KB records: entries times the size of a record.
    assert pytest.approx(366, rel=0.01) == 8 * 2**30 // ENTRY_BYTES * 1024 / 1e9
    with pytest.raises(ValueError, match="holds no keys"):
        OffsetMap(24)


@pytest.mark.skipif(not STATM.exists(), reason="no /proc/self/statm on this system")
def test_a_large_map_costs_only_the_memory_of_its_entries() -> None:
    """Each cleaning begins with an empty map: to write zeros to all of it held a broker up for 0.1 s."""

    def resident_bytes() -> int:
        return int(STATM.read_text().split()[1]) * mmap.PAGESIZE

    before = resident_bytes()
    offset_map = OffsetMap(256 << 20)
    batch = encode_batch([(1, b"key", b"v", ())])
    for _ in range(3):
        assert offset_map.add(batch, 61, len(batch), parse_batch_header(batch), 0)
        offset_map.clear()
        assert offset_map.size == 0
        assert resident_bytes() - before < 64 << 20


def test_a_full_map_leaves_the_rest_dirty() -> None:
    """C5: several passes, each covering as many keys as fit."""
    settings = LogManagerSettings(
        cleaner_dedupe_buffer_size=24 * 40, cleaner_backoff_ms=0, flush_offset_checkpoint_interval_ms=1
    )
    lab = Lab(settings=settings, segment_bytes=5000)
    for round_number in range(2):
        for key in range(100):
            lab.put(b"key%d" % key, b"r%d" % round_number)
    lab.fill()
    plan = plan_cleaning(lab.log, None, 1 << 60, lab.now)
    offset_map = OffsetMap(24 * 40)
    cleaning = LogCleaning(lab.machine.disk, lab.log, plan, offset_map, lab.now)
    while not cleaning.done and cleaning.ready is None:
        cleaning.step(1 << 20)
    assert (offset_map.size, cleaning.end_offset, cleaning.statistics.map_full) == (36, 36, True)
    cleaning.abandon()
    lab.clean()
    assert lab.manager.cleaner.statistics().map_full_count >= 5
    assert lab.values() == {b"key%d" % key: b"r1" for key in range(100)}
    assert len(all_rows(lab.log)) == 100
    assert plan_cleaning(lab.log, lab.manager.cleaner.clean_offsets[PARTITION], 1 << 60, lab.now).dirty_bytes == 0


def test_a_map_smaller_than_one_batch_is_reported() -> None:
    settings = LogManagerSettings(
        cleaner_dedupe_buffer_size=24 * 5, cleaner_backoff_ms=0, flush_offset_checkpoint_interval_ms=1
    )
    lab = Lab(settings=settings)
    data = make_batch([(NOW, b"key%d" % number, b"v") for number in range(9)])
    lab.log.append_as_leader(memoryview(data), leader_epoch=1, now_ms=NOW)
    lab.fill()
    lab.clean()
    assert "log.cleaner.dedupe.buffer.size" in lab.manager.cleaner.uncleanable[PARTITION]
    assert len(all_rows(lab.log)) == 9


@pytest.mark.parametrize("limit", [100, 1 << 30])
def test_records_that_cannot_be_unpacked_leave_the_log_alone(limit, monkeypatch) -> None:
    """A batch from a leader that did not look into it, or of before the bound was lowered: the directory is sound."""
    monkeypatch.setattr(timestamps, "DECOMPRESSED_BYTES_MAX", 100)
    lab = Lab(max_message_uncompressed_bytes=limit)
    data = make_batch([(NOW, b"key", bytes(500))], codec=Compression.LZ4)
    if limit > 100:
        data[BATCH_HEADER_BYTES] ^= 1
        renew_crc(data, 0)
    set_partition_leader_epoch(data, 0, 1)
    lab.log.append_as_follower(memoryview(data), now_ms=NOW)
    lab.log.begin_leader_epoch(2)
    for number in range(30):
        lab.log.append_as_leader(memoryview(make_batch([(NOW, b"k%d" % number, b"v")])), leader_epoch=2, now_ms=NOW)
    lab.log.update_high_watermark(lab.log.log_end_offset)
    lab.fill()
    lab.clean()
    reason = lab.manager.cleaner.uncleanable[PARTITION]
    assert ("more than 100 bytes" if limit == 100 else "lz4 data is damaged") in reason
    assert "byte 0" in reason
    assert not lab.log.failed
    assert lab.manager.offline_directories == []


def test_extra_space_is_one_group_of_segments() -> None:
    """C6: never more than one group stands twice."""
    lab = Lab(segment_bytes=2000)
    for number in range(600):
        lab.put(b"key%d" % number, b"x" * 20)
    lab.fill()
    log = lab.log
    plan = plan_cleaning(log, None, 1 << 60, lab.now)
    cleaning = LogCleaning(lab.machine.disk, log, plan, OffsetMap(24 * 1000), lab.now)
    groups = 0
    while not cleaning.done:
        cleaning.step(500)
        cleaned = [path for path in lab.machine.virtual_disk.files("/data") if path.endswith(".log.cleaned")]
        assert sum(lab.machine.disk.file_size(path) for path in cleaned) <= 2000
        if cleaning.ready is not None:
            groups += 1
            assert cleaning.swap()
    assert groups > 5
    assert len(all_rows(log)) == 600
    # A cut must find the producers as of the begin of each segment: their batches may be cleaned away.
    assert log.storage.snapshots.offsets() == [segment.base_offset for segment in log.segments[1:]]


def test_the_rate_is_held() -> None:
    """C7: 10 s of virtual time at 20,000 bytes a second."""
    rate = 20_000
    settings = LogManagerSettings(
        cleaner_io_max_bytes_per_second=rate,
        cleaner_dedupe_buffer_size=24 * 10_000,
        cleaner_backoff_ms=0,
        flush_offset_checkpoint_interval_ms=1,
    )
    lab = Lab(settings=settings, segment_bytes=50_000)
    for number in range(2000):
        lab.put(b"key%d" % (number % 700), b"x" * 100)
    lab.fill()
    moved = 0
    start = lab.now
    while lab.now < start + 10_000:
        for work in lab.manager.cleaner_works(lab.now):
            run_work(work)
        lab.now = max(lab.now + 1, lab.manager.next_tick_ms(lab.now))
    statistics = lab.manager.cleaner._current.statistics
    moved = statistics.bytes_read + statistics.map_bytes_read + statistics.bytes_written
    assert moved == pytest.approx(rate * 10, rel=0.1)
    assert 0 < lab.manager.cleaner.statistics().current_progress < 1


def test_settings_that_change_hold_from_the_next_cleaning() -> None:
    """KIP-226: a rate that stops the cleaner is lifted, and the next map has the new size, without a start."""
    slow = LogManagerSettings(
        cleaner_io_max_bytes_per_second=0,
        cleaner_dedupe_buffer_size=24 * 1000,
        cleaner_backoff_ms=0,
        flush_offset_checkpoint_interval_ms=1,
    )
    lab = Lab(settings=slow)
    for _ in range(20):
        lab.put(b"key", b"x" * 100)
    lab.fill()
    assert lab.manager.cleaner_works(lab.now) == []
    statistics = lab.manager.cleaner.statistics
    assert (statistics().cleanings, statistics().map_entries_max) == (0, 900)
    quick = replace(slow, cleaner_io_max_bytes_per_second=float("inf"), cleaner_dedupe_buffer_size=24 * 2000)
    lab.manager.follow(quick)
    lab.clean()
    assert (statistics().cleanings, statistics().map_entries_max) == (1, 900), "a cleaning keeps its map"
    for _ in range(20):
        lab.put(b"key", b"y" * 100)
    lab.fill()
    lab.clean()
    assert (statistics().cleanings, statistics().map_entries_max) == (2, 1800)


def test_producers_expire_by_the_newest_setting() -> None:
    lab = Lab()
    lab.put(b"key", b"x", producer=(7, 0, 0))
    assert [each.producer_id for each in lab.log.producer_state.describe()] == [7]
    lab.manager.follow(replace(lab.settings, producer_id_expiration_ms=1_000))
    assert lab.log.producer_state.remove_expired(lab.now + 999) == 0
    assert lab.log.producer_state.remove_expired(lab.now + 1_000) == 1
    later = lab.create(TopicPartition("later", 0))
    assert later.producer_state.expiration_ms == 1_000


@pytest.mark.parametrize("rate", [sys.float_info.max, float("inf")])
def test_the_default_rate_is_no_rate(rate: float) -> None:
    """Kafka's default is the largest double: two windows of it were more than a double holds, and ended the broker."""
    settings = LogManagerSettings(cleaner_io_max_bytes_per_second=rate, cleaner_dedupe_buffer_size=24 * 10_000)
    lab = Lab(settings=settings, segment_bytes=50_000)
    for _ in range(2):
        for number in range(2000):
            lab.put(b"key%d" % (number % 700), b"x" * 100)
        lab.fill()
        lab.clean()
        lab.now += 60_000
    assert lab.manager.cleaner.statistics().cleanings >= 2


def test_compact_and_delete() -> None:
    """C7: ``cleanup.policy=compact,delete`` does both."""
    lab = Lab(delete=True, retention_ms=10_000, retention_bytes=-1)
    lab.put(b"old", b"1")
    lab.put(b"old", b"2")
    lab.fill()
    lab.clean()
    assert [row.offset for row in all_rows(lab.log)] == [1]
    lab.now += 11_000
    lab.put(b"new", b"1")
    lab.log.apply_retention(lab.now)
    assert lab.values() == {b"new": b"1"}


def test_a_record_without_key_is_refused() -> None:
    """C8."""
    lab = Lab()
    with pytest.raises(LogError) as caught:
        lab.put(None, b"v")
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert lab.log.log_end_offset == 0


def test_a_damaged_log_is_left_alone_and_others_are_cleaned() -> None:
    lab = Lab()
    for _ in range(3):
        lab.put(b"k", b"v")
    lab.fill()
    other = lab.create(TopicPartition("other", 0))
    for _ in range(3):
        lab.put(b"k", b"v", other)
    lab.fill(other)
    lab.machine.virtual_disk.flip_bit(lab.log.segments[0].path(".log"), 70, 1)
    lab.clean()
    assert list(lab.manager.cleaner.uncleanable) == [PARTITION]
    assert not lab.log.failed
    assert len(all_rows(other)) == 1


def test_a_log_in_place_of_a_damaged_one_is_cleaned() -> None:
    """The replica was taken away and came back, as the line of the damaged log advises."""
    lab = Lab()
    for _ in range(3):
        lab.put(b"k", b"v")
    lab.fill()
    lab.machine.virtual_disk.flip_bit(lab.log.segments[0].path(".log"), 70, 1)
    lab.clean()
    assert list(lab.manager.cleaner.uncleanable) == [PARTITION]
    assert lab.manager.delete(PARTITION)
    log = lab.create(PARTITION)
    for _ in range(3):
        lab.put(b"k", b"v", log)
    lab.fill(log)
    lab.clean()
    assert len(all_rows(log)) == 1


def test_a_log_that_changes_meanwhile_is_not_harmed() -> None:
    """The cleaned group is thrown away if the log was truncated, or its segments were dropped, while it was made."""
    lab = Lab(delete=True)
    for number in range(200):
        lab.put(b"k%d" % (number % 7), b"x" * 50)
    lab.fill()
    log = lab.log
    for change in ("truncate", "drop", "delete"):
        cleaning = LogCleaning(
            lab.machine.disk, log, plan_cleaning(log, 0, 1 << 60, lab.now), OffsetMap(24 * 100), lab.now
        )
        while cleaning.ready is None and not cleaning.done:
            cleaning.step(1 << 30)
        assert cleaning.ready is not None
        if change == "truncate":
            log.update_high_watermark(log.log_end_offset - 5)
            log.truncate_to(log.log_end_offset - 5)
        elif change == "drop":
            log.storage.drop_oldest(1)
        else:
            lab.manager.delete(PARTITION)
        before = [segment.base_offset for segment in log.segments]
        assert not cleaning.swap()
        assert cleaning.done
        assert [segment.base_offset for segment in log.segments] == before
        left = [path for path in lab.machine.virtual_disk.files("/data") if path.endswith((".cleaned", ".swap"))]
        assert all("-delete/" in path for path in left)


def test_a_failed_write_takes_the_directory_offline() -> None:
    lab = Lab()
    for _ in range(5):
        lab.put(b"k", b"v")
    lab.fill()
    lab.machine.virtual_disk.profile.write_error_probability = 1.0
    lab.now += 1
    with pytest.raises(OSError, match="Input/output error"):
        lab.clean()
    assert lab.manager.offline_directories == ["/data"]


def test_nothing_to_do_costs_nothing() -> None:
    manager = CleanerManager(VirtualMachine(1).disk, LogManagerSettings())
    assert manager.works({}, {}, 5, lambda *arguments: None) == []
    assert manager.statistics().map_memory_bytes == 0
    assert manager.next_due_ms(5) == 5 + 15_000
