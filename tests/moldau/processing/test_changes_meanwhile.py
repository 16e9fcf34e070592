"""Goal: a processor commits nothing of partitions that went to other members, and skips nothing of another cluster.

Method: the processors of threads and of trio, with a consumer whose partitions or cluster change while they wait.
"""

from types import SimpleNamespace

import pytest
import trio
import trio.testing

import moldau.blocking.processing
from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.processing import RetryTopics, process
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import Record
from moldau.serialization import RecordDeserializationError

KEPT, LOST = TopicPartition("t", 0), TopicPartition("t", 1)


class Group:
    """Has the records of two partitions in one poll; in the next one it takes ``LOST`` away, and fails."""

    def __init__(self):
        self.assignment = [KEPT, LOST]
        self.clusters_left = 0
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
    """A consumer whose assignment and cluster are those of its group."""

    @property
    def assignment(self):
        return self.group.assignment

    @property
    def clusters_left(self):
        return self.group.clusters_left


def face(group, poll, commit, **more):
    calls = {"poll": poll, "commit": commit, "pause": lambda: None, "resume": lambda: None, **more}
    clock = SimpleNamespace(monotonic_ms=lambda: 0, wall_ms=lambda: 0)
    opened = SimpleNamespace(environment=SimpleNamespace(clock=clock))
    return Face(group=group, commits_automatically=False, _opened=lambda: [opened], **calls)


def test_threads_commit_nothing_of_a_lost_partition():
    group = Group()
    consumer = face(group, lambda timeout_ms: group.poll(), group.commit)
    with pytest.raises(KafkaError):
        moldau.blocking.processing.process(consumer, lambda record: None)
    assert group.committed == [{KEPT: 1}]


def calls_of_tasks(group, rest):
    """The group's ``poll`` and ``commit`` for tasks; ``poll`` rests before it."""

    async def poll(timeout_ms):
        await rest()
        return group.poll()

    async def commit(offsets):
        await trio.lowlevel.checkpoint()
        group.commit(offsets)

    return poll, commit


def test_tasks_commit_nothing_of_a_lost_partition():
    group = Group()
    poll, commit = calls_of_tasks(group, trio.testing.wait_all_tasks_blocked)

    async def handler(record):
        await trio.lowlevel.checkpoint()

    with pytest.raises(ExceptionGroup):
        trio.run(lambda: process(face(group, poll, commit), handler))
    assert group.committed == [{KEPT: 1}]


class Poisoned:
    """Its first poll meets a record that cannot be deserialized; ``moves`` changes the cluster with the dead letter."""

    def __init__(self, *, moves):
        self.assignment = [KEPT]
        self.clusters_left = 0
        self.moves = moves
        self.polls = 0
        self.seeks = []
        self.committed = []

    def poll(self):
        self.polls += 1
        if self.polls == 1:
            fields = {"field": "value", "timestamp": 0, "key": None, "value": b"", "headers": ()}
            raise RecordDeserializationError("damaged", topic_partition=KEPT, offset=7, **fields)
        return []

    def seek(self, partition, offset):
        self.seeks.append((partition, offset))

    def send(self):
        self.clusters_left += self.moves

    def commit(self, offsets):
        self.committed.append(offsets)


def poisoned_threads(group):
    def send_bytes(*_, **__):
        return SimpleNamespace(result=group.send)

    consumer = face(group, lambda timeout_ms: group.poll(), group.commit, seek=group.seek)
    producer, until = SimpleNamespace(send_bytes=send_bytes), lambda: group.polls > 1
    moldau.blocking.processing.process(
        consumer, lambda record: None, retries=RetryTopics("t"), producer=producer, until=until
    )


def poisoned_tasks(group):
    poll, commit = calls_of_tasks(group, trio.lowlevel.checkpoint)

    async def delivered():
        await trio.lowlevel.checkpoint()
        group.send()

    async def send_bytes(*_, **__):
        await trio.lowlevel.checkpoint()
        return delivered()

    consumer, producer = face(group, poll, commit, seek=group.seek), SimpleNamespace(send_bytes=send_bytes)
    settings = {"retries": RetryTopics("t"), "producer": producer, "until": lambda: group.polls > 1}
    trio.run(lambda: process(consumer, None, **settings))


@pytest.mark.parametrize("run", [poisoned_threads, poisoned_tasks])
@pytest.mark.parametrize("moves", [False, True])
def test_a_dead_letter_skips_nothing_of_another_cluster(run, moves):
    """The bootstrap servers lead to another cluster while the dead letter is on its way."""
    group = Poisoned(moves=moves)
    run(group)
    assert group.polls > 1
    assert group.seeks == ([] if moves else [(KEPT, 8)])
    assert group.committed == ([] if moves else [{KEPT: 8}])
