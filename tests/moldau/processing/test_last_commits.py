"""Goal: the last commit of a processor has nothing of partitions that went to other members.

Method: the processors of threads and of trio, with a consumer that loses a partition in a poll that then fails.
"""

from types import SimpleNamespace

import pytest
import trio
import trio.testing

import moldau.blocking.processing
from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.processing import process
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import Record

KEPT, LOST = TopicPartition("t", 0), TopicPartition("t", 1)


class Group:
    """Has the records of two partitions in one poll; in the next one it takes ``LOST`` away, and fails."""

    def __init__(self):
        self.assignment = [KEPT, LOST]
        self.polls = 0
        self.committed = []

    def poll(self):
        self.polls += 1
        if self.polls == 1:
            shape = {"records": [Record(0, 0, b"", b"")], "next_offset": 1, "leader_epoch": 0, "high_watermark": 1}
            return [ConsumedBatch(topic="t", partition=each.partition, **shape) for each in (KEPT, LOST)]
        self.assignment = [KEPT]
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def commit(self, offsets):
        self.committed.append(offsets)


class Face(SimpleNamespace):
    """A consumer whose assignment is that of its group."""

    @property
    def assignment(self):
        return self.group.assignment


def face(group, poll, commit):
    calls = {"poll": poll, "commit": commit, "pause": lambda: None, "resume": lambda: None}
    clock = SimpleNamespace(monotonic_ms=lambda: 0, wall_ms=lambda: 0)
    opened = SimpleNamespace(environment=SimpleNamespace(clock=clock))
    return Face(group=group, commits_automatically=False, clusters_left=0, _opened=lambda: [opened], **calls)


def test_threads_commit_nothing_of_a_lost_partition():
    group = Group()
    consumer = face(group, lambda timeout_ms: group.poll(), group.commit)
    with pytest.raises(KafkaError):
        moldau.blocking.processing.process(consumer, lambda record: None)
    assert group.committed == [{KEPT: 1}]


def test_tasks_commit_nothing_of_a_lost_partition():
    group = Group()

    async def poll(timeout_ms):
        await trio.testing.wait_all_tasks_blocked()
        return group.poll()

    async def commit(offsets):
        await trio.lowlevel.checkpoint()
        group.commit(offsets)

    async def handler(record):
        await trio.lowlevel.checkpoint()

    with pytest.raises(ExceptionGroup):
        trio.run(lambda: process(face(group, poll, commit), handler))
    assert group.committed == [{KEPT: 1}]
