"""Goal: a pipe that loses, repeats, reorders or invents records is convicted, and a sound one is acquitted.

Method: golden histories by hand: values 0..2 in the source, transactions that make records of the target from them.
"""

from __future__ import annotations

import pytest

from moldau_jepsen.checkers import AnomalyKind, CheckOptions, check_history
from moldau_jepsen.checkers.shards import check_in_shards
from moldau_jepsen.history import Kind, Operation, Poll, Send, Status, TopicPartition

SOURCE, TARGET, OTHER = TopicPartition("in", 0), TopicPartition("out", 0), TopicPartition("in", 1)
K = AnomalyKind


class Story:
    """Writes a history line by line."""

    def __init__(self):
        self.history = []

    def add(self, process, kind, *parts, status=Status.OK, **more):
        index = len(self.history)
        self.history.append(
            Operation(
                index=index,
                process=process,
                kind=kind,
                status=status,
                begun_ms=index * 10,
                ended_ms=index * 10 + 5,
                operations=parts,
                **more,
            )
        )
        return self

    def fed(self, *values):
        for value in values:
            self.add(1, Kind.SEND, Send(SOURCE, value, value))
        return self

    def passed_on(self, *pairs, status=Status.OK, rebalanced=True, **more):
        """A transaction that made the values of the target from those of the source."""
        taken = Poll(((SOURCE, tuple((source, source) for source, _ in pairs)),))
        sends = [Send(TARGET, target, None) for _, target in pairs]
        return self.add(2, Kind.TRANSACTION, taken, *sends, status=status, rebalanced=rebalanced, **more)

    def read(self, *target, source=(0, 1, 2)):
        self.add(9, Kind.POLL, Poll(((SOURCE, tuple((value, value) for value in source)),)), final=True)
        return self.add(9, Kind.POLL, Poll(((TARGET, tuple(target)),)), final=True)

    def stuck(self):
        return self.add(9, Kind.POLL, status=Status.INFO, final=True, error="not at the end")

    def found(self):
        options = CheckOptions(pipes=(("in", "out"),))
        verdict = check_history(self.history, options)
        assert check_in_shards(self.history, options).counts == verdict.counts
        return verdict.counts


def test_a_sound_pipe_is_acquitted():
    story = Story().fed(0, 1, 2)
    story.passed_on((0, 0), (1, 1), aborted=True)
    story.passed_on((0, 2), (1, 3)).passed_on((2, 4), status=Status.INFO)
    assert story.read((3, 2), (4, 3), (6, 4)).found() == {}


@pytest.mark.parametrize(
    ("target", "convicted"),
    [
        (((0, 0), (1, 1)), {K.PIPE_LOST: 1}),
        (((0, 0), (1, 1), (2, 2), (3, 3)), {K.PIPE_DUPLICATE: 1}),
        (((0, 1), (1, 0), (2, 2)), {K.PIPE_DISORDER: 1}),
        (((0, 2), (1, 0), (2, 1)), {K.PIPE_DISORDER: 2}),
        (((0, 0), (1, 1), (2, 2), (3, 8)), {K.PIPE_UNKNOWN: 1}),
    ],
)
def test_each_mistake_is_convicted(target, convicted):
    story = Story().fed(0, 1, 2)
    story.passed_on((0, 0), (1, 1), (2, 2), status=Status.INFO).passed_on((2, 3), status=Status.INFO)
    found = story.read(*target).found()
    # A transaction of which a part is missing is torn as well; what is asked here is what the pipe's own checker says.
    assert {kind: count for kind, count in found.items() if kind.value.startswith("pipe")} == convicted


def test_a_record_made_from_nothing_that_was_kept_is_unknown():
    story = Story().fed(0).passed_on((0, 0)).passed_on((1, 1), status=Status.INFO)
    assert story.read((0, 0), (1, 1), source=(0,)).found() == {K.PIPE_UNKNOWN: 1, K.UNSEEN: 1}


def test_partitions_of_the_source_may_interleave():
    taken = Poll(((OTHER, ((0, 0), (1, 1))), (SOURCE, ((0, 0),))))
    story = Story().fed(0).add(3, Kind.TRANSACTION, taken, *(Send(TARGET, value, None) for value in (0, 1, 2)))
    story.add(9, Kind.POLL, Poll(((OTHER, ((0, 0), (1, 1))),)), final=True)
    assert story.read((0, 0), (1, 1), (2, 2), source=(0,)).found() == {}


def test_unfinished_final_reads_make_nothing_lost_or_unknown():
    """A transfer that an unfinished final read has not seen is neither lost nor unknown."""
    short = Story().fed(0, 1, 2).passed_on((0, 0), (1, 1), (2, 2)).read((0, 0), source=(0, 1))
    assert short.found() == {K.PIPE_LOST: 1, K.UNSEEN: 3}
    assert short.stuck().found() == {K.STUCK: 1}
    other = Story().fed(0, 1, 2).passed_on((0, 0), (1, 1), (2, 2)).read((0, 0), (1, 1), (2, 2), source=(0, 1))
    assert other.found() == {K.PIPE_UNKNOWN: 1, K.UNSEEN: 1}
    assert other.stuck().found() == {K.STUCK: 1}
    twice = Story().fed(0, 1, 2).passed_on((0, 0)).passed_on((0, 1)).read((0, 0), (1, 1), source=(0,)).stuck()
    assert twice.found() == {K.STUCK: 1, K.PIPE_DUPLICATE: 1}, "what was read is judged as ever"
