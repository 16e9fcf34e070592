"""Goal: the rules on hanging disks convict a broker that keeps one, and writes that take too long, and nothing else.

Method: a replica by hand whose records wait for a sync; histories of writes.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moldau.cluster.metadata import TopicPartition
from moldau_jepsen.history import Kind, Operation, Send, Status
from moldau_jepsen.simulation.campaign.clients import late_writes
from moldau_jepsen.simulation.judge.rules.disks import GAP_MS, DiskRules

TIMEOUT_MS = 3_000.0
BOUND_MS = 4_500.0
STEP_MS = 250.0


class Waiting:
    """A replica whose records wait for a sync."""

    key = "flights-0"

    def __init__(self, log):
        self.log = log


class Story:
    """One replica on a disk that hangs; its broker runs every quarter of a second."""

    def __init__(self, timeout_ms=TIMEOUT_MS):
        self.found = []
        self.rules = DiskRules(lambda rule, text: self.found.append((rule, text)), timeout_ms)
        self.watermarks = SimpleNamespace(settled_end_offset=5)
        self.log = SimpleNamespace(
            watermarks=self.watermarks, log_end_offset=8, failed=False, directory="/data/flights-0"
        )
        self.partition = Waiting(self.log)
        self.hangs = True
        self.now_ms = 10_000.0

    def steps(self, milliseconds):
        for _ in range(int(milliseconds / STEP_MS)):
            self.now_ms += STEP_MS
            self.rules.look(1, self.now_ms, [self.partition], lambda path: self.hangs and path == "/data/flights-0")
        return [rule for rule, _ in self.found]


def test_a_broker_has_until_the_bound():
    story = Story()
    assert story.steps(BOUND_MS + STEP_MS) == []
    assert story.steps(STEP_MS) == ["hanging-disk-given-up"]
    ((_, text),) = story.found
    assert "keeps /data/flights-0, where offset 5 of flights-0 has waited for a sync for 4.8 s" in text


def test_records_that_settle_begin_a_new_wait():
    story = Story()
    story.steps(BOUND_MS)
    story.watermarks.settled_end_offset = 6
    assert story.steps(BOUND_MS) == []


@pytest.mark.parametrize("change", ["settled", "failed", "answers", "calm"])
def test_a_wait_that_ends_is_acquitted(change):
    story = Story()
    story.steps(BOUND_MS)
    match change:
        case "settled":
            story.watermarks.settled_end_offset = story.log.log_end_offset
        case "failed":
            story.log.failed = True
        case "answers":
            story.hangs = False
        case _:
            story.rules.calm(1)
    assert story.steps(STEP_MS) == []
    story.watermarks.settled_end_offset, story.log.failed, story.hangs = 5, False, True
    assert story.steps(BOUND_MS) == []


def test_a_pause_of_the_broker_does_not_count():
    story = Story()
    story.steps(BOUND_MS)
    story.now_ms += GAP_MS
    assert story.steps(BOUND_MS) == []
    assert story.steps(2 * STEP_MS) == ["hanging-disk-given-up"]


def test_without_a_limit_no_wait_is_too_long():
    assert Story(timeout_ms=0.0).steps(100_000.0) == []


def write(kind, took_ms, status=Status.OK):
    send = Send(partition=TopicPartition("flights", 0), value=1, offset=None)
    return Operation(
        index=0, process=4, kind=kind, status=status, begun_ms=7_000.0, ended_ms=7_000.0 + took_ms, operations=(send,)
    )


def test_writes_that_take_too_long_are_named():
    history = [
        write(Kind.SEND, 5_000.0),
        write(Kind.SEND, 5_001.0),
        write(Kind.SEND, 9_000.0, Status.INFO),
        write(Kind.TRANSACTION, 9_000.0),
    ]
    first, second = late_writes(history, 5.0)
    assert first == "a write of client 4 at 7.000 s to flights-0 took 5.0 s, 5 s are allowed"
    assert "took 9.0 s" in second
    assert late_writes(history, None) == []
