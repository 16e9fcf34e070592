"""Goal: a reader seeks only to where it has been, records each seek, and commits nothing until it is back.

Method: a seeker with a stub in the consumer's place, over 60 polls of three records each.
"""

from __future__ import annotations

from types import SimpleNamespace

import trio
import trio.testing

from moldau.cluster.metadata import TopicPartition
from moldau.records import Record
from moldau_jepsen.history import Kind
from moldau_jepsen.workloads.recording.recorder import Recorder
from moldau_jepsen.workloads.seeks import BEGINNING_MAX, NONE_FOUND, Seeker

PLACE = TopicPartition("queue", 0)
STEP_MS = 10
END = 1_000_000


class StubConsumer:
    """Has one partition, where each offset has a time of its own."""

    def __init__(self, named=lambda offset: offset):
        self.assignment = [PLACE]
        self.offset = self.hasty = 0
        self.named = named

    def poll(self):
        offsets = range(self.offset, self.offset + 3)
        self.offset += 3
        records = [Record(offset, offset * STEP_MS, None, offset.to_bytes(8, "big")) for offset in offsets]
        return [SimpleNamespace(topic=PLACE.topic, partition=PLACE.partition, records=records)]

    def seek(self, partition, offset):
        assert partition == PLACE
        self.offset = offset

    def seek_to_beginning(self, partition):
        self.seek(partition, 0)

    def seek_to_end(self, partition):
        self.seek(partition, END)
        self.hasty += 1

    async def offsets_for_times(self, times):
        offset = self.named(times[PLACE] // STEP_MS)
        return {PLACE: (offset, NONE_FOUND if offset == NONE_FOUND else offset * STEP_MS)}


def seeks_of(consumer, *, share=1.0, after_each=lambda seeker, seek, reached: None):
    """Returns the operations of a seeker; ``after_each`` sees them after each poll."""
    reported = []
    clock = SimpleNamespace(monotonic_ms=lambda: 0.0, wall_ms=lambda: 0)
    seeker = Seeker(Recorder(clock, reported.append), 3, share)

    async def main():
        reached = -1
        for _ in range(60):
            before = len(reported)
            batches = consumer.poll()
            reached = max(reached, batches[0].records[-1].offset)
            await seeker.saw(consumer, batches)
            after_each(seeker, reported[before].seeks[0] if len(reported) > before else None, reached)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.0))
    assert all(operation.kind is Kind.SEEK and operation.process == 3 for operation in reported)
    return [seek for operation in reported for seek in operation.seeks]


def test_each_seek_is_recorded():
    consumer = StubConsumer()
    moves = []
    seeks = seeks_of(consumer, after_each=lambda seeker, seek, reached: moves.append((seek, consumer.offset, reached)))
    assert len(seeks) == 60
    assert 10 < consumer.hasty < 40, "some seeks overtake another one, which is not recorded"
    for seek, stands_at, reached in moves:
        assert stands_at == (seek.offset or 0) <= reached
        if seek.timestamp is not None:
            assert seek.found_timestamp == seek.timestamp == seek.offset * STEP_MS
            assert seek.bound == seek.offset, "the first that it had read and that is not earlier"
    ways = {(seek.offset is None, seek.timestamp is None) for seek in seeks}
    assert ways == {(True, True), (False, True), (False, False)}


def test_an_answer_that_no_record_is_that_late_moves_nothing():
    consumer = StubConsumer(named=lambda offset: NONE_FOUND)
    seeks = [seek for seek in seeks_of(consumer) if seek.timestamp is not None]
    assert seeks
    assert all(seek.offset == NONE_FOUND and seek.bound >= 0 for seek in seeks)


def test_a_reader_far_into_a_partition_does_not_begin_it_again():
    consumer = StubConsumer()
    consumer.offset = BEGINNING_MAX
    assert all(seek.offset is not None for seek in seeks_of(consumer))


def test_a_reader_is_back_when_it_has_come_as_far_as_before():
    """Found by seed 7000 of the swarm: what a member committed after a seek took back what its group had committed."""
    consumer = StubConsumer()
    states = []

    def look(seeker, seek, reached):
        assert seeker.is_back(consumer) == (consumer.offset > reached)
        states.append(seeker.is_back(consumer))
        consumer.assignment, other = [TopicPartition("queue", 1)], consumer.assignment
        assert seeker.is_back(consumer), "what is another member's does not count"
        consumer.assignment = other

    seeks_of(consumer, share=0.2, after_each=look)
    assert set(states) == {True, False}


def test_without_a_share_nothing_is_remembered():
    assert seeks_of(StubConsumer(), share=0.0) == []
