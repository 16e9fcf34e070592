"""Goal: a search by time in a log of many segments does not stop the event loop, and may see the log change.

Method: the steps of a search are counted, and the oldest segments are deleted between two of them.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from moldau.records import Compression, CorruptRecordError, encode_batch
from moldau.records.decompression import LongStep
from moldau_broker.log.cleaner.cleaner import _emptied
from moldau_broker.log.files.batches import parse
from moldau_broker.log.partition.lookups import SEGMENTS_PER_STEP
from moldau_broker.log.values import MAX_TIMESTAMP, TimestampOffset
from support.log.lab import A, create, open_manager, put
from support.log.model import START_MS, VirtualMachine, make_batch

SEGMENTS = 5 * SEGMENTS_PER_STEP


def log_of_many_segments() -> Any:
    manager = open_manager(VirtualMachine(1), ["/d1"])
    log = create(manager, A)
    for number in range(SEGMENTS):
        put(log, b"v", now=START_MS + number)
        log.storage.roll(log.log_end_offset, START_MS)
    return log


@pytest.mark.parametrize("deleted", [0, SEGMENTS_PER_STEP // 2, 2 * SEGMENTS_PER_STEP])
@pytest.mark.parametrize("timestamp_ms", [MAX_TIMESTAMP, START_MS + SEGMENTS - 1])
def test_a_search_lets_other_tasks_run(timestamp_ms: int, deleted: int) -> None:
    log = log_of_many_segments()
    search, steps = log.search_timestamp(timestamp_ms), 0
    while True:
        try:
            step = next(search)
        except StopIteration as end:
            found = end.value
            break
        assert step is None
        steps += 1
        if steps == 1 and deleted:
            log.storage.drop_oldest(deleted)
    assert steps >= (SEGMENTS - deleted) // SEGMENTS_PER_STEP - 1
    assert found == TimestampOffset(timestamp_ms=START_MS + SEGMENTS - 1, offset=SEGMENTS - 1, leader_epoch=1)


def test_a_search_in_a_large_damaged_batch_says_so() -> None:
    """The error of a step in a thread is the answer; a missing one would end the broker."""
    machine = VirtualMachine(1)
    log = create(open_manager(machine, ["/d1"], segment_bytes=10_000), A)
    data = make_batch([(START_MS, b"k", b"v" * 1000)] * 300, codec=Compression.GZIP)
    log.append_as_leader(memoryview(data), leader_epoch=1, now_ms=START_MS)
    machine.virtual_disk.lookup(log.segments[0].path(".log")).content[-5] ^= 1  # the checksum of gzip

    def run_all() -> None:
        for step in log.search_timestamp(START_MS):
            steps.append(step)
            if step is not None:
                step.run()

    steps: list[LongStep | None] = []
    with pytest.raises(CorruptRecordError):
        run_all()
    assert isinstance(steps[-1], LongStep)


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_deleted_records_are_not_the_largest(batch: int, codec: Compression) -> None:
    """A record with a time in the future was deleted: the answer is the largest of the others, wherever they are."""
    for times in itertools.permutations(range(4)):
        log = create(open_manager(VirtualMachine(1), ["/d1"]), A)
        rows = [(START_MS + each, b"k", b"v") for each in times]
        for first in range(0, len(rows), batch):
            data = make_batch(rows[first : first + batch], codec=codec)
            log.append_as_leader(memoryview(data), leader_epoch=1, now_ms=START_MS)
            if first == 2:
                log.storage.roll(log.log_end_offset, START_MS)
        log.update_high_watermark(log.log_end_offset)
        for start in range(1, len(rows)):
            log.delete_records(start)
            largest = max(times[start:])
            expected = TimestampOffset(timestamp_ms=START_MS + largest, offset=times.index(largest), leader_epoch=1)
            assert log.offset_for_timestamp(MAX_TIMESTAMP) == expected, (times, start)
        log.delete_records(len(rows))
        assert log.offset_for_timestamp(MAX_TIMESTAMP) is None


def test_a_batch_without_records_is_not_the_largest() -> None:
    """Compaction keeps the last batch of a producer for its sequence number, with the time of a record that is gone."""
    log = create(open_manager(VirtualMachine(1), ["/d1"]), A)
    for offset, (time_ms, is_empty) in enumerate([(3, False), (9, True), (5, False), (7, True)]):
        batch = encode_batch([(START_MS + time_ms, b"k", b"v", ())], base_offset=offset, partition_leader_epoch=1)
        stored = _emptied(parse(batch)) if is_empty else batch
        log.append_as_follower(memoryview(stored), now_ms=START_MS)
    expected = TimestampOffset(timestamp_ms=START_MS + 5, offset=2, leader_epoch=1)
    assert log.offset_for_timestamp(MAX_TIMESTAMP) == expected
