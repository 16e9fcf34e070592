"""Goal: after a seek the first record at or after its target comes next, and nothing is skipped or repeated between
seeks; each way to miss is convicted.

Method: golden histories by hand over offsets 0..7, of which 5 holds a marker.
"""

from __future__ import annotations

import pytest

from moldau_jepsen.checkers import AnomalyKind
from moldau_jepsen.history import Kind, Seek
from support.kit.golden_histories import P0, P1, Story

K = AnomalyKind
OFFSETS = (0, 1, 2, 3, 4, 6, 7)
ALL = tuple((offset, value) for value, offset in enumerate(OFFSETS))


class SeekStory(Story):
    """Process 2 reads and seeks."""

    def __init__(self):
        super().__init__()
        for offset, value in ALL:
            self.send(1, value, offset)
        self.add(2, Kind.ASSIGN, partitions=(P0,))

    def sought(self, offset, *time):
        return self.add(2, Kind.SEEK, seeks=(Seek(P0, offset, *time),))

    def at(self, *offsets):
        return self.poll(2, *(pair for pair in ALL if pair[0] in offsets))

    def found(self, **options):
        if options.get("final_phase", True):
            self.poll(9, *ALL, final=True)
        return self.check(**options).counts


@pytest.mark.parametrize("target", [0, 2, 4, 6])
def test_a_seek_lands_at_its_target(target):
    rest = [offset for offset in OFFSETS if offset >= target]
    assert SeekStory().at(0, 1, 2, 3).sought(target).at(*rest[:2]).at(*rest[2:]).found() == {}


def test_a_marker_is_no_record():
    assert SeekStory().at(0, 1, 2, 3, 4, 6).sought(5).at(6, 7).found() == {}


def test_a_seek_that_lands_elsewhere():
    behind = SeekStory().at(0, 1, 2, 3).sought(1).at(2, 3)
    assert behind.found() == {K.SEEK_MISSED: 1}
    (anomaly,) = behind.check().anomalies
    assert anomaly.text == "process 2 sought offset 1 and polled offset 2, and skipped offset 1"
    assert {9, 10} <= set(anomaly.operations)
    assert SeekStory().at(0, 1, 2, 3).sought(1).at(0, 1, 2).found() == {K.SEEK_MISSED: 1}
    assert SeekStory().at(0, 1, 2, 3).sought(1).at(4, 6).found() == {K.SEEK_MISSED: 1}, "it was not carried out"


def test_the_beginning_is_the_first_record():
    assert SeekStory().at(0, 1, 2).sought(None).at(0, 1, 2, 3).found() == {}
    assert SeekStory().at(0, 1, 2).sought(None).at(1, 2, 3).found() == {K.SEEK_MISSED: 1}
    assert SeekStory().at(0, 1, 2).sought(None).at(1, 2, 3).found(final_phase=False) == {}, "retention may move it"


def test_reading_goes_on_in_order_after_a_seek():
    assert SeekStory().at(0, 1, 2).sought(1).at(1).at(3).found() == {K.POLL_SKIP: 1}
    assert SeekStory().at(0, 1, 2).sought(1).at(1, 2).at(1).found() == {K.NONMONOTONIC_POLL: 1}


def test_only_the_last_seek_counts_and_a_rebalance_ends_it():
    assert SeekStory().at(0, 1, 2).sought(0).sought(2).at(2, 3).found() == {}
    assert SeekStory().at(0, 1, 2).sought(0).poll(2, (3, 3), rebalanced=True).found() == {}
    assert SeekStory().at(0, 1, 2).sought(0).add(2, Kind.ASSIGN, partitions=(P0,)).at(3).found() == {}


def test_a_seek_leaves_other_partitions_and_processes_alone():
    """A seek does not change the positions of other partitions and other processes."""
    story = SeekStory().send(1, 0, 0, partition=P1).send(1, 1, 1, partition=P1).poll(2, (0, 0), partition=P1)
    story.poll(3, (0, 0), (1, 1)).sought(0).poll(2, (0, 0), partition=P1).poll(3, (3, 3))
    story.poll(9, (0, 0), (1, 1), partition=P1, final=True)
    assert story.found() == {K.NONMONOTONIC_POLL: 1, K.POLL_SKIP: 1}


@pytest.mark.parametrize(
    ("seek", "convicted"),
    [
        ((2, 500, 500, 2), False),
        ((1, 500, 510, 2), False),  # an earlier record that is not earlier in time
        ((3, 500, 500, 2), True),
        ((2, 500, 499, 2), True),
        ((-1, 500, -1, 2), True),
        ((-1, 500, -1, -1), False),
    ],
)
def test_seeks_to_a_time(seek, convicted):
    story = SeekStory().at(0, 1, 2, 3).sought(*seek)
    story.at(*(offset for offset in OFFSETS if offset >= (seek[0] if seek[0] >= 0 else 4)))
    assert story.found() == ({K.SEEK_MISSED: 1} if convicted else {})


def test_a_seek_that_found_no_record_leaves_the_position():
    assert SeekStory().at(0, 1, 2, 3).sought(-1, 500, -1, -1).at(6, 7).found() == {K.POLL_SKIP: 1}
    assert SeekStory().at(0, 1, 2, 3).sought(-1, 500, -1, -1).at(2).found() == {K.NONMONOTONIC_POLL: 1}


def test_deleted_records_are_no_answer_for_a_time():
    later = SeekStory().at(0, 1, 2, 3).sought(3, 500, 500, 2).at(3, 4, 6, 7)
    assert later.found(final_phase=False) == {}
    gone = SeekStory().at(0, 1, 2, 3).sought(-1, 500, -1, 2).at(4, 6, 7)
    assert gone.found(final_phase=False) == {}
    earlier = SeekStory().at(0, 1, 2, 3).sought(2, 500, 499, 2).at(2, 3)
    assert earlier.found(final_phase=False) == {K.SEEK_MISSED: 1}, "the answer itself is wrong"


def test_a_reader_from_the_earliest_offset_skips_nothing():
    """A reader that begins at the earliest offset skips nothing."""
    assert SeekStory().sought(None).at(0, 1, 2).found() == {}
    assert SeekStory().sought(None).at(2, 3).found() == {K.SEEK_MISSED: 1}
