"""Goal: a cancelled processor commits what it has processed, and a running one commits at its interval.

Method: the processors of trio, asyncio and threads with a consumer of the test, whose polls move the time on.
"""

import asyncio
import functools
import itertools
import threading
from types import SimpleNamespace

import pytest
import trio
import trio.testing

import moldau.aio.processing
import moldau.blocking.processing
from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.processing import native, process
from moldau.records import Record

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
POLLS = 50
WAIT_S = 60


class Reader:
    """Gives one record at each poll, which takes a tenth of a second."""

    def __init__(self):
        self.now_s = 0.0
        self.polls = 0
        self.handled = threading.Semaphore(0)
        self.assigned = [PLACE]
        self.commits = []
        self.paused = []
        self.seen = []

    def take(self):
        self.now_s += 0.1
        offset, self.polls = self.polls, self.polls + 1
        shape = {"records": [Record(offset, 0, b"", b"")], "next_offset": offset + 1}
        return [ConsumedBatch(topic="t", partition=0, leader_epoch=0, high_watermark=99, **shape)]

    def handle(self, record):
        self.seen.append(record.offset)
        self.handled.release()

    def commit(self, offsets):
        self.commits.append((round(self.now_s, 1), offsets[PLACE]))

    def pause(self, *partitions):
        assert set(partitions) <= set(self.assigned), "a consumer refuses partitions that it does not have"
        self.paused += partitions

    def consumer(self, poll, commit):
        clock = SimpleNamespace(monotonic_ms=lambda: 0, wall_ms=lambda: 0)
        opened = SimpleNamespace(environment=SimpleNamespace(clock=clock))
        return Consumer(
            reader=self,
            clusters_left=0,
            commits_automatically=False,
            group_metadata=lambda: None,
            pause=self.pause,
            resume=lambda *_: None,
            seek=lambda *_, **__: None,
            poll=poll,
            commit=commit,
            _opened=lambda: [opened],
        )


class Consumer(SimpleNamespace):
    """A consumer whose assignment is that of its reader."""

    @property
    def assignment(self):
        return list(self.reader.assigned)


def threads(reader, monkeypatch, **options):
    monkeypatch.setattr(moldau.blocking.processing, "time", SimpleNamespace(monotonic=lambda: reader.now_s))

    def poll(_):
        assert not reader.polls or OTHER in reader.assigned or reader.handled.acquire(timeout=WAIT_S)
        return reader.take()

    consumer = reader.consumer(poll, lambda offsets, **_: reader.commit(offsets))
    moldau.blocking.processing.process(consumer, reader.handle, **options)


def calls_of_tasks(reader, pause):
    async def poll(_):
        for _ in range(5):  # until handlers have ended
            await pause()
        return reader.take()

    async def commit(offsets, **_):
        await pause()
        reader.commit(offsets)

    async def handler(record):
        await pause()
        reader.handle(record)

    return reader.consumer(poll, commit), handler


def tasks_of_trio(reader, monkeypatch, **options):
    monkeypatch.setattr(trio, "current_time", lambda: reader.now_s)
    consumer, handler = calls_of_tasks(reader, trio.lowlevel.checkpoint)
    trio.run(lambda: process(consumer, handler, **options))


def tasks_of_asyncio(reader, monkeypatch, **options):
    consumer, handler = calls_of_tasks(reader, lambda: asyncio.sleep(0))

    async def main():
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: reader.now_s)
        await moldau.aio.processing.process(consumer, handler, **options)

    asyncio.run(main())


FACES = [threads, tasks_of_trio, tasks_of_asyncio]


@pytest.mark.parametrize("run", FACES, ids=lambda each: each.__name__)
def test_commits_keep_their_interval(run, monkeypatch):
    """Each costs the coordinator a write: one at each poll would be ten in a second."""
    reader = Reader()
    run(reader, monkeypatch, commit_interval_ms=1000, until=lambda: reader.polls >= POLLS)
    *regular, last = reader.commits
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(regular)]
    assert 3 <= len(regular) <= 5
    assert all(0.95 < gap < 1.25 for gap in gaps)
    assert last[1] >= POLLS - 1, "the end commits the rest at once"


@pytest.mark.parametrize("run", FACES, ids=lambda each: each.__name__)
def test_a_partition_that_goes_during_a_poll_is_not_kept(run, monkeypatch):
    """Its next member reads its records; a commit or a pause of it would fail."""
    reader = Reader()
    takes = reader.take

    def take():
        reader.assigned = [OTHER]
        return takes()

    reader.take = take
    run(reader, monkeypatch, commit_interval_ms=0, until=lambda: reader.polls >= 3, pending_max=1)
    assert (reader.seen, reader.commits) == ([], [])


@pytest.mark.parametrize("run", FACES[1:], ids=lambda each: each.__name__)
def test_a_partition_that_goes_before_a_pause_is_not_paused(run, monkeypatch):
    """The group may take it between two looks, as the heartbeat runs beside the processor."""
    reader = Reader()

    def until():
        if reader.polls:
            reader.assigned = [OTHER]
        return reader.polls >= 3

    run(reader, monkeypatch, pending_max=1, until=until)
    assert reader.paused == []


def test_a_cancelled_processor_commits_what_is_done():
    """Under trio every call in a cancelled task is cancelled, too, unless it is shielded."""
    reader = Reader()
    consumer, handler = calls_of_tasks(reader, trio.lowlevel.checkpoint)

    async def main():
        with trio.CancelScope() as scope:

            def until():
                if reader.polls >= 5:
                    scope.cancel()
                return False

            await process(consumer, handler, until=until, commit_interval_ms=60_000)
        assert scope.cancelled_caught

    trio.run(main)
    ((_, offset),) = reader.commits
    assert offset >= 1


@pytest.mark.parametrize("run", [native.process, moldau.aio.processing.process], ids=["trio", "asyncio"])
def test_a_last_commit_that_hangs_is_given_up(run, monkeypatch):
    """The consumer is free for its owner when ``process`` has returned."""
    reader, ended = Reader(), []
    pause = trio.lowlevel.checkpoint if run is native.process else lambda: asyncio.sleep(0)
    monkeypatch.setattr(moldau.aio.processing, "FAREWELL_S", 0.01)
    consumer, handler = calls_of_tasks(reader, pause)
    forever = trio.sleep_forever if run is native.process else asyncio.Event().wait

    async def commit(offsets, **_):
        try:
            await forever()
        finally:
            ended.append(offsets)

    consumer.commit = commit

    async def main():
        await run(consumer, handler, until=lambda: reader.polls >= 3, commit_interval_ms=60_000)
        if run is not native.process:
            await asyncio.sleep(0)
        assert len(ended) == 1, "before the event loop ends all tasks"

    if run is native.process:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    else:
        asyncio.run(main())


async def awaited(record):
    raise AssertionError


def yielding(record):
    yield record


async def yielding_soon(record):
    yield record


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (awaited, "the handler is a coroutine function"),
        (functools.partial(awaited), "the handler is a coroutine function"),
        (yielding, "the handler has a yield"),
        (yielding_soon, "the handler has a yield"),
        (5, "the handler must be a function, not int 5"),
    ],
)
def test_a_handler_that_a_call_does_not_run_is_refused(wrong, text):
    """Its records would be committed, and nothing would have processed them."""
    with pytest.raises(TypeError, match=f"^process: {text}"):
        moldau.blocking.process(None, wrong)
