"""Goal: a commit that fails is made again, and a cancellation does not take the last one back.

Method: the processors of threads, trio and asyncio, with a consumer whose commits fail or wait.
"""

import asyncio
import math
import threading
from types import SimpleNamespace

import pytest
import trio

import moldau.aio.processing
import moldau.blocking.processing
from moldau import TopicPartition
from moldau.consumer import CommitFailedError, ConsumedBatch
from moldau.processing import RetryTopics, process
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import Record

PLACE = TopicPartition("t", 0)


FAILURES = 5
POLLS_MAX = 100_000


class Log:
    """Three records, one for each poll. Its first commits fail with ``error``, if there is one."""

    def __init__(self, error=None):
        self.error = error
        self.polls = 0
        self.failures = 0
        self.committed = []

    def poll(self):
        offset, self.polls = self.polls, self.polls + 1
        if offset >= 3:
            return []
        shape = {"records": [Record(offset, 0, b"", b"")], "next_offset": offset + 1}
        return [ConsumedBatch(topic="t", partition=0, leader_epoch=0, high_watermark=3, **shape)]

    def commit(self, offsets):
        if self.error is not None and self.failures < FAILURES:
            self.failures += 1
            raise self.error
        self.committed.append(offsets[PLACE])

    def is_over(self):
        has_failed = self.error is None or self.failures == FAILURES
        return (self.polls > 20 and has_failed) or self.polls > POLLS_MAX


def consumer_of(poll, commit):
    nothing = {
        "group_metadata": lambda: None,
        "pause": lambda *_: None,
        "resume": lambda *_: None,
        "seek": lambda *_, **__: None,
    }
    clock = SimpleNamespace(monotonic_ms=lambda: 0, wall_ms=lambda: 0)
    opened = SimpleNamespace(environment=SimpleNamespace(clock=clock))
    own = {"assignment": [PLACE], "clusters_left": 0, "commits_automatically": False}
    return SimpleNamespace(poll=poll, commit=commit, _opened=lambda: [opened], **nothing, **own)


def threads(log):
    handled = threading.Semaphore(0)

    def poll(timeout_ms):
        if 1 <= log.polls <= 3:
            assert handled.acquire(timeout=60)
        return log.poll()

    consumer = consumer_of(poll, lambda offsets, **_: log.commit(offsets))
    run = moldau.blocking.processing.process
    run(consumer, lambda record: handled.release(), commit_interval_ms=0, until=log.is_over)


def tasks_of_trio(log):
    async def poll(timeout_ms):
        await trio.lowlevel.checkpoint()
        return log.poll()

    async def commit(offsets, **_):
        await trio.lowlevel.checkpoint()
        log.commit(offsets)

    async def handler(record):
        await trio.lowlevel.checkpoint()

    trio.run(lambda: process(consumer_of(poll, commit), handler, commit_interval_ms=0, until=log.is_over))


def tasks_of_asyncio(log):
    async def poll(timeout_ms):
        await asyncio.sleep(0)
        return log.poll()

    async def commit(offsets, **_):
        await asyncio.sleep(0)
        log.commit(offsets)

    async def handler(record):
        await asyncio.sleep(0)

    run = moldau.aio.processing.process
    asyncio.run(run(consumer_of(poll, commit), handler, commit_interval_ms=0, until=log.is_over))


FACES = [threads, tasks_of_trio, tasks_of_asyncio]


@pytest.mark.parametrize("run", FACES)
@pytest.mark.parametrize(
    "error",
    [None, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), CommitFailedError(ErrorCode.ILLEGAL_GENERATION, "")],
    ids=["none", "broker", "generation"],
)
def test_a_failed_commit_is_made_again(run, error):
    """Without it all records since the one before come again, although they were processed."""
    log = Log(error)
    run(log)
    assert log.failures == (0 if error is None else FAILURES)
    assert log.committed[-1:] == [3]
    assert log.committed == sorted(set(log.committed)), "a commit that succeeds is made once"


def test_a_second_cancellation_leaves_the_last_commit():
    """Ctrl-C twice, or a time limit around a task that is cancelled, took back what had been processed."""
    log, ended = Log(), []

    async def main():
        committing, handled, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def poll(timeout_ms):
            await asyncio.sleep(0)
            return log.poll() if log.polls == 0 else []

        async def commit(offsets, **_):
            committing.set()
            await answered.wait()
            ended.append(offsets)

        async def handler(record):
            handled.set()

        task = asyncio.create_task(moldau.aio.processing.process(consumer_of(poll, commit), handler))
        await handled.wait()
        task.cancel()
        await committing.wait()
        task.cancel()
        await asyncio.sleep(0)
        answered.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert ended == [{PLACE: 1}]


def test_threads_wait_for_a_failed_record_as_long_as_it_may_take():
    """After 120 s they raised TimeoutError; trio and asyncio wait for the delivery, whose error names the cause."""
    log, limits = Log(), []

    def result(timeout_ms=120_000):
        limits.append(timeout_ms)
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "not delivered within 300000 ms")

    def handler(record):
        raise ValueError

    consumer = consumer_of(lambda _: log.poll(), lambda offsets, **_: log.commit(offsets))
    producer = SimpleNamespace(send=lambda *_, **__: SimpleNamespace(result=result))
    with pytest.raises(KafkaError, match="not delivered within 300000 ms"):
        moldau.blocking.processing.process(consumer, handler, retries=RetryTopics("t"), producer=producer)
    assert limits == [math.inf]


def test_the_commit_of_a_closed_consumer_hides_no_failure():
    log = Log(RuntimeError("the client was closed during the call"))

    async def poll(timeout_ms):
        await trio.lowlevel.checkpoint()
        return log.poll()

    async def commit(offsets, **_):
        log.commit(offsets)

    async def handler(record):
        if record.offset:
            raise ValueError("broken")

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(lambda: process(consumer_of(poll, commit), handler))
    assert caught.group_contains(ValueError, match="broken")
    assert log.failures == 1


@pytest.mark.parametrize("run", [process, moldau.aio.processing.process])
@pytest.mark.parametrize("call", ["commit", "seek", "resume"])
def test_an_end_that_fails_hides_no_failure(call, run):
    """Another task may close the consumer because of the failure; the end then can neither commit nor seek."""
    pause = trio.lowlevel.checkpoint if run is process else lambda: asyncio.sleep(0)
    log = Log()

    def broken(*_, **__):
        raise OSError("the client was closed")

    async def poll(timeout_ms):
        await pause()
        return log.poll()

    async def commit(offsets, **_):
        if call == "commit":
            broken()
        log.commit(offsets)

    async def handler(record):
        if record.offset:
            if call == "resume":
                consumer.resume = broken
            raise ValueError("broken")

    consumer = consumer_of(poll, commit)
    if call == "seek":
        consumer.seek = broken

    async def main():
        await run(consumer, handler)

    with pytest.raises(ExceptionGroup) as caught:
        trio.run(main) if run is process else asyncio.run(main())
    assert caught.group_contains(ValueError, match="broken")


@pytest.mark.parametrize("run", FACES)
def test_an_end_that_fails_alone_is_an_error(run, monkeypatch):
    """Nothing else says that partitions stay paused, or that records will be skipped."""
    log, made = Log(), consumer_of

    def resume(*_):
        if log.is_over():
            raise OSError("broken")

    def breaking(poll, commit):
        consumer = made(poll, commit)
        consumer.resume = resume
        return consumer

    monkeypatch.setitem(globals(), "consumer_of", breaking)
    with pytest.raises(OSError, match="broken"):
        run(log)
    assert log.committed[-1:] == [3]
