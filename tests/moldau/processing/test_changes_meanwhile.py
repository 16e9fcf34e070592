"""Goal: a processor commits nothing of partitions that went to other members, and skips nothing of another cluster.

Method: the processors of threads and of trio, with a consumer whose partitions or cluster change while they wait.
"""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import trio
import trio.testing

import moldau.aio.processing
import moldau.blocking.processing
from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.processing import RetryTopics, process
from moldau.processing.core.work import Work
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

    def commit(self, offsets, **_):
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
    calls["group_metadata"] = lambda: None
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

    async def commit(offsets, **more):
        await trio.lowlevel.checkpoint()
        group.commit(offsets, **more)

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

    def seek(self, partition, offset, *, cluster):
        if cluster != self.clusters_left:
            raise LookupError
        self.seeks.append((partition, offset))

    def send(self):
        self.clusters_left += self.moves

    def commit(self, offsets, *, cluster):
        assert cluster == self.clusters_left
        self.committed.append(offsets)


def poisoned_threads(group):
    def send_bytes(*_, **__):
        return SimpleNamespace(result=lambda _: group.send())

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


class Log:
    """One partition with eight records, four for each poll. The handler fails once, at the second record."""

    def __init__(self):
        self.assignment = [KEPT]
        self.clusters_left = 0
        self.position = 0
        self.polls = 0
        self.is_paused = False
        self.handled = []
        self.committed = []

    def poll(self):
        self.polls += 1
        if self.is_paused or self.position >= 8:
            return []
        first, self.position = self.position, min(self.position + 4, 8)
        records = [Record(offset, 0, b"", b"") for offset in range(first, self.position)]
        shape = {"next_offset": self.position, "leader_epoch": 0, "high_watermark": 8}
        return [ConsumedBatch(topic="t", partition=0, records=records, **shape)]

    def is_over(self):
        return 7 in self.handled or self.polls > 10_000

    def seek(self, partition, offset, *, cluster):
        assert cluster == self.clusters_left
        self.position = offset

    def pause(self, *partitions):
        self.is_paused |= bool(partitions)

    def resume(self, *partitions):
        self.is_paused &= not partitions

    def handle(self, record):
        self.handled.append(record.offset)
        if self.handled == [0, 1]:
            raise ValueError("once")

    def commit(self, offsets, **_):
        self.committed.append(offsets[KEPT])


def twice_with_threads(log):
    more = {"seek": log.seek, "pause": log.pause, "resume": log.resume}
    consumer = face(log, lambda timeout_ms: log.poll(), log.commit, **more)
    settings = {"pending_max": 2, "until": log.is_over}
    with pytest.raises(ValueError, match="once"):
        moldau.blocking.processing.process(consumer, log.handle, **settings)
    moldau.blocking.processing.process(consumer, log.handle, **settings)


def twice_with_tasks(log):
    poll, commit = calls_of_tasks(log, trio.testing.wait_all_tasks_blocked)
    consumer = face(log, poll, commit, seek=log.seek, pause=log.pause, resume=log.resume)
    settings = {"pending_max": 2, "until": log.is_over}

    async def handle(record):
        await trio.lowlevel.checkpoint()
        log.handle(record)

    async def main():
        with pytest.raises(ExceptionGroup):
            await process(consumer, handle, **settings)
        await process(consumer, handle, **settings)

    trio.run(main)


@pytest.mark.parametrize("run", [twice_with_threads, twice_with_tasks])
def test_records_that_were_not_processed_come_again(run):
    """The first ``process`` fails, the second one reads with the same consumer what the first had taken."""
    log = Log()
    run(log)
    assert log.handled == [0, 1, 1, 2, 3, 4, 5, 6, 7]
    assert log.committed == [1, 8]


def refuse():
    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def refused_threads(log, **settings):
    consumer = face(log, lambda timeout_ms: log.poll(), log.commit, seek=log.seek)
    producer = SimpleNamespace(send=lambda *_, **__: SimpleNamespace(result=lambda _: refuse()))
    with pytest.raises(KafkaError):
        moldau.blocking.processing.process(consumer, log.handle, producer=producer, **settings)


def refused_tasks(log, **settings):
    poll, commit = calls_of_tasks(log, trio.testing.wait_all_tasks_blocked)

    async def delivered():
        await trio.lowlevel.checkpoint()
        refuse()

    async def send(*_, **__):
        await trio.lowlevel.checkpoint()
        return delivered()

    async def handle(record):
        await trio.lowlevel.checkpoint()
        log.handle(record)

    consumer, producer = face(log, poll, commit, seek=log.seek), SimpleNamespace(send=send)
    with pytest.raises(ExceptionGroup):
        trio.run(lambda: process(consumer, handle, producer=producer, **settings))


@pytest.mark.parametrize("run", [refused_threads, refused_tasks])
def test_a_record_that_no_retry_topic_takes_is_not_committed(run):
    """It would be in no topic that a later processor reads."""
    log = Log()
    run(log, retries=RetryTopics("t"), until=log.is_over)
    assert log.handled[:2] == [0, 1]
    assert (log.committed, log.position) == ([1], 1)


class Moving(Group):
    """Goes to another cluster as soon as its first poll has returned, and has read nothing there."""

    def poll(self):
        if self.polls:
            self.polls += 1
            return []
        batches = super().poll()
        self.clusters_left += 1
        return batches


def moving_threads(group, handler):
    consumer = face(group, lambda timeout_ms: group.poll(), group.commit)
    moldau.blocking.processing.process(consumer, handler, until=lambda: group.polls > 2)


def moving_tasks(group, handler):
    poll, commit = calls_of_tasks(group, trio.testing.wait_all_tasks_blocked)

    async def handle(record):
        await trio.lowlevel.checkpoint()
        handler(record)

    trio.run(lambda: process(face(group, poll, commit), handle, until=lambda: group.polls > 2))


@pytest.mark.parametrize("run", [moving_threads, moving_tasks])
def test_a_poll_tells_the_cluster_of_its_records(run):
    group, handled = Moving(), []
    run(group, handled.append)
    assert (group.committed, handled) == ([], [])


class Leaving(Group):
    """Goes to another cluster while a poll waits, which then fails."""

    def poll(self):
        batches = super().poll() if self.polls == 0 else []
        if not batches:
            self.clusters_left += 1
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return batches


@pytest.mark.parametrize("run", [moving_threads, moving_tasks])
def test_a_processor_that_ends_commits_nothing_elsewhere(run):
    """The consumer would refuse the offsets, which are of the cluster that it has left."""
    group, handled = Leaving(), []
    with pytest.raises((KafkaError, ExceptionGroup)):
        run(group, handled.append)
    assert group.committed == []


class Late(Face):
    """Its address leads to another cluster right after a look at the cluster, once the processing is over."""

    @property
    def clusters_left(self):
        seen = self.group.clusters_left
        self.group.clusters_left += self.group.polls > 2
        return seen


def test_a_commit_names_the_cluster_of_its_records():
    group, named = Group(), []

    def poll(timeout_ms):
        return group.poll()[:1]

    def commit(offsets, *, cluster):
        named.append((offsets, cluster, group.clusters_left))

    def is_over():
        group.polls += 2 * group.polls
        return group.polls > 2

    consumer = face(group, poll, commit)
    consumer.__class__ = Late
    moldau.blocking.processing.process(consumer, lambda record: None, until=is_over)
    assert named == [({KEPT: 1}, 0, 1)]


def test_a_commit_ends_with_the_processor(monkeypatch):
    """A task of asyncio that was cancelled again during its last commit left that commit running."""
    group, ended = Group(), []

    async def main():
        committing, handled = asyncio.Event(), asyncio.Event()

        async def poll(timeout_ms):
            await asyncio.sleep(0)
            return group.poll() if group.polls == 0 else []

        async def commit(offsets, **_):
            committing.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(offsets)

        async def handler(record):
            handled.set()

        consumer = face(group, poll, commit, seek=lambda *given, **more: None)
        task = asyncio.create_task(moldau.aio.processing.process(consumer, handler))
        await handled.wait()
        task.cancel()
        await committing.wait()
        monkeypatch.setattr(moldau.aio.processing, "FAREWELL_S", 0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await asyncio.sleep(0)  # the turn in which a cancelled task ends
        assert ended, "no commit runs any more"

    asyncio.run(main())


def test_the_first_of_several_failures_is_raised(monkeypatch):
    """The handler that failed next, perhaps because of the first one, hid what had happened."""
    group, end_of = Group(), Work.fail
    has_begun, has_failed = threading.Event(), threading.Event()

    def fail(work, record):
        end_of(work, record)
        has_failed.set()

    def handler(record):
        if record.partition == LOST.partition:
            has_begun.set()
            assert has_failed.wait(60)
        assert has_begun.wait(60)
        raise ValueError(f"failure of partition {record.partition}")

    monkeypatch.setattr(Work, "fail", fail)
    shape = {"records": [Record(0, 0, b"", b"")], "next_offset": 1, "leader_epoch": 0, "high_watermark": 1}
    batches = [ConsumedBatch(topic="t", partition=each.partition, **shape) for each in (KEPT, LOST)]
    given = iter([batches])
    consumer = face(group, lambda timeout_ms: next(given, []), group.commit, seek=lambda *_, **__: None)
    with pytest.raises(ValueError, match="failure of partition 0"):
        moldau.blocking.processing.process(consumer, handler, concurrency=2)


@pytest.mark.parametrize("closes", ["in-poll", "after-poll"])
def test_a_closed_consumer_hides_no_failure(closes, monkeypatch):
    """The thread that closes the consumer may do so because of the failure; the end then cannot commit."""
    group, has_failed = Group(), threading.Event()
    polls = []

    def poll(timeout_ms):
        polls.append(timeout_ms)
        if len(polls) == 1:
            shape = {"records": [Record(0, 0, b"", b"")], "next_offset": 1, "leader_epoch": 0, "high_watermark": 1}
            return [ConsumedBatch(topic="t", partition=0, **shape)]
        assert has_failed.wait(60)
        if closes == "in-poll":
            raise RuntimeError("the client was closed during the call")
        return []

    def commit(*_, **__):
        raise RuntimeError("the client is closed")

    def handler(record):
        raise ValueError("failure of the handler")

    def fail(work, record):
        end_of(work, record)
        has_failed.set()

    end_of = Work.fail
    monkeypatch.setattr(Work, "fail", fail)
    consumer = face(group, poll, commit, seek=commit)
    with pytest.raises(ValueError, match="failure of the handler"):
        moldau.blocking.processing.process(consumer, handler)
