"""Goal: compaction keeps records of committed transactions and drops those of aborted ones, in any order.

Method: logs over a virtual disk in which one producer aborts, commits and deletes keys between cleanings; what a reader
of committed data sees of each key is compared with what the producer committed last. The cleaner runs once with the
compiled loops over records and once with those in Python.
"""

from __future__ import annotations

import pytest

from moldau.records import cleaning
from moldau.records.pure import cleaning as pure_cleaning
from moldau_broker.log.cleaner import offset_map
from moldau_broker.log.cleaner.cleaner import LogCleaning, plan_cleaning
from moldau_broker.log.cleaner.offset_map import OffsetMap
from moldau_broker.log.files.batches import scan_headers
from support.log.cleaner_lab import DAY, Lab
from support.log.model import all_rows

TWINS = [cleaning, pure_cleaning]
if cleaning.map_keys is not pure_cleaning.map_keys:
    IDS = ["compiled", "python"]
else:
    TWINS, IDS = TWINS[1:], ["python"]


@pytest.fixture(params=TWINS, ids=IDS, autouse=True)
def twin(request, monkeypatch) -> None:
    monkeypatch.setattr(offset_map, "map_keys", request.param.map_keys)
    monkeypatch.setattr(offset_map, "select_records", request.param.select_records)


def clean(lab: Lab, *, after_ms: int = 0) -> None:
    """Cleans all that was appended so far."""
    lab.now += after_ms
    lab.put(b"filler", b"%d" % lab.now)
    lab.fill()
    lab.clean()


def test_a_deletion_after_a_cleaned_abort_holds() -> None:
    """The aborted transaction ended in the clean range: the later transaction of its producer is another one."""
    lab = Lab(delete_retention_ms=DAY)
    lab.put(b"key", b"old")
    lab.transaction(7, {b"other": b"aborted"}, commit=False)
    clean(lab)
    lab.transaction(7, {b"key": None}, commit=True)
    clean(lab)
    assert lab.committed()[b"key"] is None
    for _ in range(2):
        clean(lab, after_ms=2 * DAY)
        assert b"key" not in lab.committed()


def test_a_value_after_a_cleaned_abort_replaces_the_old_one() -> None:
    """A committed record of the producer counts as the last one of its key at the next cleaning, not at a later one."""
    lab = Lab()
    old = lab.put(b"key", b"old")
    lab.transaction(7, {b"other": b"aborted"}, commit=False)
    clean(lab)
    lab.transaction(7, {b"key": b"new"}, commit=True)
    clean(lab)
    assert lab.committed()[b"key"] == b"new"
    assert old not in [row.offset for row in lab.rows()], "the record that was replaced is still there"


def test_an_open_transaction_replaces_nothing() -> None:
    """It may abort: the committed value of its key must stay, whatever the cleaner could reach."""
    lab = Lab()
    lab.put(b"key", b"kept")
    lab.begin(7, {b"key": b"open"})
    clean(lab)
    lab.end(7, commit=False)
    assert lab.committed()[b"key"] == b"kept"


def test_an_abort_across_the_clean_range_counts() -> None:
    """The transaction began in a range that is clean and was aborted behind it: nothing of it may mask a record."""
    lab = Lab()
    kept = lab.put(b"key", b"kept")
    lab.begin(7, {b"key": b"aborted early"})
    lab.fill()
    lab.begin(7, {b"key": b"aborted late"})
    lab.end(7, commit=False)
    lab.manager.cleaner.clean_offsets[lab.log.topic_partition] = lab.log.segments[1].base_offset
    clean(lab)
    assert lab.committed()[b"key"] == b"kept"
    assert kept in [row.offset for row in lab.rows()]


@pytest.mark.parametrize("aborts", [1, 2, 5])
def test_commits_between_aborts_of_one_producer(aborts: int) -> None:
    """Aborted and committed transactions of one producer take turns, with and without a cleaning between them."""
    for cleanings in range(1 << (2 * aborts)):
        if aborts == 5 and cleanings % 37:
            continue  # a sample of a thousand
        lab = Lab(delete_retention_ms=DAY)
        lab.put(b"key", b"first")
        for turn in range(aborts):
            lab.transaction(7, {b"key": b"aborted %d" % turn}, commit=False)
            if cleanings >> (2 * turn) & 1:
                clean(lab)
            value = None if turn % 2 else b"committed %d" % turn
            lab.transaction(7, {b"key": value}, commit=True)
            if cleanings >> (2 * turn + 1) & 1:
                clean(lab, after_ms=DAY // 2)
            assert lab.committed().get(b"key") == value
        for _ in range(3):
            clean(lab, after_ms=2 * DAY)
            assert lab.committed().get(b"key") == value


def test_a_commit_of_nothing_behind_one_with_records_goes() -> None:
    """A marker stays as long as its own transaction has records, whatever its producer committed before."""
    lab = Lab(delete_retention_ms=DAY)
    lab.transaction(7, {b"key": b"value"}, commit=True)
    lab.end(7, commit=True)
    for _ in range(2):
        clean(lab, after_ms=2 * DAY)
    assert [row.offset for row in all_rows(lab.log) if row.control] == [1]
    assert lab.committed()[b"key"] == b"value"


def test_a_tombstone_behind_a_full_map_waits_for_its_own() -> None:
    """Its retention begins when older values of its key are gone, not in a pass whose offset map ended before it.

    Else a reader could see the old value shortly before one pass that drops both, and never the deletion.
    """
    lab = Lab(delete_retention_ms=DAY, segment_bytes=100_000)
    lab.put(b"key", b"old")
    for number in range(40):
        lab.put(b"%d" % number, b"x")
    lab.put(b"key", None)
    lab.fill()
    for expected in (None, lab.now + DAY):
        covered = lab.manager.cleaner.clean_offsets.get(lab.log.topic_partition)
        plan = plan_cleaning(lab.log, covered, 1 << 60, lab.now)
        cleaning = LogCleaning(lab.machine.disk, lab.log, plan, OffsetMap(24 * 40), lab.now)
        while not cleaning.done:
            cleaning.step(1 << 20)
            if cleaning.ready is not None:
                assert cleaning.swap()
        lab.manager.cleaner.clean_offsets[lab.log.topic_partition] = cleaning.end_offset
        segment = lab.log.segments[0]
        (tombstone,) = [header for _, header in scan_headers(segment.file, 0, segment.size) if header.base_offset == 41]
        assert tombstone.delete_horizon_ms == expected
    assert lab.values()[b"key"] is None
    assert b"old" not in lab.values().values()
