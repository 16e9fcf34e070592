"""Goal: the rules on tiered partitions convict lost, foreign, early and left-over segments, and nothing else.

Method: committed batches, segments and logs by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from moldau_jepsen.simulation.judge.invariants import BatchSeen
from moldau_jepsen.simulation.judge.rules.producers import NO_PRODUCER, ProducerBatch
from moldau_jepsen.simulation.judge.rules.remote import (
    CommittedBatches,
    RemoteRules,
    SegmentSeen,
    first_gap,
    unneeded,
)

KEY = "tiered-0"


def batch(base, last, epoch=1, crc=None, producer=NO_PRODUCER):
    return BatchSeen(base, last, epoch, base if crc is None else crc, producer)


BATCHES = [batch(0, 2), batch(3, 3), batch(4, 6, 2), batch(7, 9, 2), batch(10, 10, 5)]
COMMITTED = CommittedBatches({each.base_offset: each for each in BATCHES})
FIRST, SECOND = SegmentSeen(0, 3, 1), SegmentSeen(4, 9, 2)


@dataclass
class Court:
    found: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self):
        self.rules = RemoteRules(lambda rule, text: self.found.append((rule, text)))

    @property
    def names(self):
        return [rule for rule, _ in self.found]


def copied(segment, batches, end=11):
    court = Court()
    court.rules.copied(KEY, "broker-1", segment, batches, COMMITTED, end)
    return [text.rpartition(": ")[2] for _, text in court.found]


def test_a_copy_has_the_committed_batches():
    assert copied(FIRST, BATCHES[:2]) == []
    assert copied(SECOND, BATCHES[2:4]) == []


@pytest.mark.parametrize(
    ("segment", "batches", "text"),
    [
        (FIRST, BATCHES[:1], "its last batch is another one"),
        (FIRST, [], "its last batch is another one"),
        (FIRST, BATCHES[1:2], "the batch at offset 0 is not in it"),
        (SegmentSeen(0, 6, 2), [BATCHES[0], BATCHES[2]], "the batch at offset 3 is not in it"),
        (FIRST, [BATCHES[0], batch(3, 3, crc=9)], "committed is another batch at offset 3"),
        (FIRST, [BATCHES[0], batch(3, 3, 2)], "committed is another batch at offset 3"),
        (SegmentSeen(0, 3, 2), BATCHES[:2], "its last batch is another one"),
        (SegmentSeen(10, 12, 5), [BATCHES[4], batch(11, 12, 5)], "offset 12 is not committed, 11 is the end"),
        (FIRST, [BATCHES[0], BATCHES[0]], "offset 0 follows 2"),
    ],
)
def test_another_copy_convicts(segment, batches, text):
    assert copied(segment, batches) == [text]


def test_batches_that_no_judge_saw_are_passed_over():
    assert copied(SegmentSeen(10, 12, 5), [BATCHES[4], batch(11, 12, 5)], end=13) == []


@pytest.mark.parametrize(
    ("segments", "start", "end", "gap"),
    [
        ([FIRST, SECOND], 0, 10, None),
        ([FIRST, SECOND], 0, 11, 10),
        ([SECOND], 0, 10, 0),
        ([SECOND], 5, 10, None),
        ([FIRST, SegmentSeen(5, 9, 2)], 0, 10, 4),
        ([SegmentSeen(2, 6, 2), FIRST, SegmentSeen(5, 9, 2)], 0, 10, None),
        ([], 3, 3, None),
        ([], 3, 4, 3),
    ],
)
def test_gaps_between_segments_are_found(segments, start, end, gap):
    assert first_gap(segments, start, end) == gap


def test_a_disk_lacks_only_what_the_store_has():
    court = Court()
    court.rules.lacks_locally(KEY, 1, 0, 10, [FIRST, SECOND], COMMITTED)
    court.rules.left_store(KEY, 1, 4, 10, [SECOND], COMMITTED)
    assert court.found == []
    court.rules.lacks_locally(KEY, 1, 0, 10, [SECOND], COMMITTED)
    court.rules.left_store(KEY, 1, 0, 4, [SegmentSeen(0, 3, 7)], COMMITTED)
    assert court.names == ["local-range-copied", "remote-range-kept"]
    assert "offset 0 is not in the store, which has segment 4..9 of epoch 2" in court.found[0][1]


def test_retention_keeps_its_bytes_wherever_they_are():
    court = Court()
    court.rules.log_start_moved(KEY, 1, 4, 500, 500)
    court.rules.log_start_moved(KEY, 1, 4, 0, -1)
    assert court.found == []
    court.rules.log_start_moved(KEY, 1, 4, 499, 500)
    assert court.names == ["retention-keeps"]


WRITER, OTHER = ProducerBatch(7, 0, 3, 5, False), ProducerBatch(8, 2, 0, 0, False)
MARKER = ProducerBatch(8, 2, -1, -1, True)
WRITTEN = CommittedBatches(
    {
        each.base_offset: each
        for each in (
            batch(0, 2, producer=WRITER),
            batch(3, 3, producer=OTHER),
            batch(4, 6, 2, producer=WRITER._replace(base_sequence=6, last_sequence=8)),
            batch(7, 7, 2, producer=MARKER),
        )
    }
)


def started(epochs=((1, 0), (2, 4)), producers=None, log_start=0):
    court = Court()
    known = {7: (0, 8), 8: (2, 0)} if producers is None else producers
    court.rules.started(KEY, 1, log_start, 8, epochs, known, WRITTEN)
    return court.names


def test_a_log_that_starts_behind_the_store_knows_its_past():
    assert started() == []
    assert started(producers={7: (0, 8), 8: (3, -1)}) == [], "a marker began an epoch"
    assert started(epochs=((2, 4),), log_start=4, producers={7: (0, 8)}) == []


@pytest.mark.parametrize("epochs", [(), ((1, 0),), ((2, 4),), ((1, 0), (2, 5)), ((2, 0),)])
def test_a_start_without_the_epochs_convicts(epochs):
    assert started(epochs) == ["remote-start-state"]


@pytest.mark.parametrize("producers", [{}, {7: (0, 8)}, {7: (0, 5), 8: (2, 0)}, {7: (0, 8), 8: (1, 0)}])
def test_a_start_without_the_producers_convicts(producers):
    assert started(producers=producers) == ["remote-start-state"]


def test_what_no_log_needs_is_named():
    assert unneeded([FIRST, SECOND], 0, COMMITTED) == []
    assert unneeded([FIRST, SECOND], 3, COMMITTED) == []
    (text,) = unneeded([FIRST, SECOND], 4, COMMITTED)
    assert text == "segment 0..3 of epoch 1 lies below the log start offset 4"
    (text,) = unneeded([FIRST, SegmentSeen(4, 6, 3)], 0, COMMITTED)
    assert text == "segment 4..6 of epoch 3 is of another log"
    for twice in ([FIRST, FIRST], [FIRST, SegmentSeen(0, 2, 1)], [SegmentSeen(3, 3, 1), FIRST]):
        (text,) = unneeded(twice, 0, COMMITTED)
        assert text.endswith("is contained in another one")
