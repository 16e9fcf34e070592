"""Goal: the rules on leader epochs of a log and on waiting produces convict what they must, and nothing else.

Method: stories of facts for the epochs; a purgatory with a partition by hand for the waits.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moldau.protocol.errors import ErrorCode
from moldau_broker.replication.purgatory import Purgatory
from moldau_jepsen.simulation.judge.rules.epochs import EpochRules
from moldau_jepsen.simulation.judge.rules.waits import LOOKS, WaitRules


def convicted(log_start, log_end, *epochs):
    found = []
    EpochRules(lambda rule, text: found.append(rule)).began("flights-0", 1, log_start, log_end, epochs)
    return found


def test_epochs_lie_in_the_log():
    assert convicted(5, 9) == []
    assert convicted(5, 9, (1, 5), (3, 7), (4, 9)) == []
    assert convicted(5, 5, (2, 5)) == []


@pytest.mark.parametrize(
    "epochs", [[(1, 4)], [(1, 5), (1, 7)], [(3, 5), (2, 7)], [(1, 5), (2, 5)], [(1, 5), (2, 10)]], ids=str
)
def test_epochs_outside_of_the_log_are_convicted(epochs):
    assert convicted(5, 9, *epochs) == ["epochs-in-log"]


class Partition:
    """A partition whose answer to waiting produces the test decides."""

    key = ("flights", 0)
    answer = None

    def acknowledgement(self, leader_epoch, required_offset):
        return self.answer


class Story:
    """One produce that waits in a partition, and the steps of its broker."""

    def __init__(self, answer):
        partition = Partition()
        partition.answer = answer
        wait = SimpleNamespace(leader_epoch=1, required_offset=8)
        self.purgatory = Purgatory(0.0, 10)
        self.delayed = self.purgatory.watch(SimpleNamespace(waiting={partition: wait}), [partition], 30_000.0)
        self.waits = SimpleNamespace(produces=SimpleNamespace(purgatory=self.purgatory))
        self.found = []
        self.rules = WaitRules(lambda rule, text: self.found.append((rule, text)))
        self.now = 0.0

    def steps(self, count, seconds):
        for _ in range(count):
            self.now += seconds
            self.rules.look(1, self.waits, self.now)
        return [rule for rule, _ in self.found]


def test_a_produce_that_has_something_to_wait_for_waits():
    assert Story(None).steps(10 * LOOKS, 0.1) == []


def test_a_produce_that_is_answered_in_time_is_acquitted():
    story = Story(ErrorCode.NONE)
    assert story.steps(LOOKS - 1, 0.1) == []
    assert story.purgatory.complete(story.delayed)
    assert story.steps(LOOKS, 0.1) == []


def test_a_paused_broker_is_acquitted():
    story = Story(ErrorCode.NONE)
    assert story.steps(1, 0.1) == []
    assert story.steps(1, 30.0) == []


def test_a_lost_wake_up_is_convicted():
    story = Story(ErrorCode.NONE)
    assert story.steps(2 * LOOKS, 0.1) == ["wait-ends"]
    ((_, text),) = story.found
    assert "up to offset 8, where the answer is NONE" in text


def test_many_steps_in_no_time_are_acquitted():
    story = Story(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert story.steps(5 * LOOKS, 0.001) == []
    assert story.steps(LOOKS, 0.1) == ["wait-ends"]
