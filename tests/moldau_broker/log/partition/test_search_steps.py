"""Goal: a search by time in a log of many segments does not stop the event loop, and may see the log change.

Method: the steps of a search are counted, and the oldest segments are deleted between two of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from moldau.records import Compression, CorruptRecordError
from moldau.records.decompression import LongStep
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
