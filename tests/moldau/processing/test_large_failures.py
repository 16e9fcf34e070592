"""Goal: a failed record that nearly fills a request reaches its retry topic, or the error says what to raise.

Method: the processors of threads, trio and asyncio, with a producer that refuses records above a size.
"""

import asyncio
from types import SimpleNamespace

import pytest
import trio

import moldau.aio.processing
import moldau.blocking.processing
from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.processing import RetryTopics, failure_of, process
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import Record

PLACE = TopicPartition("t", 0)
RETRIES = RetryTopics("t")
SHORT_FITS, NOTHING_FITS = 600, 100


class Case:
    """One record whose handler fails, and a producer that takes ``limit`` bytes of headers."""

    def __init__(self, limit):
        self.limit = limit
        self.polls = 0
        self.sent = []

    def poll(self):
        self.polls += 1
        if self.polls > 1:
            return []
        shape = {"records": [Record(0, 0, b"k", b"v")], "next_offset": 1, "leader_epoch": 0, "high_watermark": 1}
        return [ConsumedBatch(topic="t", partition=0, **shape)]

    def send(self, topic, headers):
        if sum(len(name) + len(content) for name, content in headers) > self.limit:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "a record is larger than max.request.size")
        self.sent.append((topic, failure_of(headers).error))

    def is_over(self):
        return bool(self.sent)

    def consumer(self, poll, commit):
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


def in_threads(case):
    def send(topic, value, key, headers):
        return SimpleNamespace(result=lambda _: case.send(topic, headers))

    def handler(record):
        raise ValueError("x" * 900)

    consumer = case.consumer(lambda _: case.poll(), lambda *_, **__: None)
    given = {"retries": RETRIES, "producer": SimpleNamespace(send=send), "until": case.is_over}
    moldau.blocking.processing.process(consumer, handler, **given)


async def in_tasks(face, rest, case):
    async def send(topic, value, key, headers):
        case.send(topic, headers)
        return rest()

    async def handler(record):
        raise ValueError("x" * 900)

    async def poll(_):
        await rest()
        return case.poll()

    async def commit(*_, **__):
        await rest()

    given = {"retries": RETRIES, "producer": SimpleNamespace(send=send), "until": case.is_over}
    await face(case.consumer(poll, commit), handler, **given)


FACES = {
    "threads": in_threads,
    "trio": lambda case: trio.run(in_tasks, process, trio.lowlevel.checkpoint, case),
    "asyncio": lambda case: asyncio.run(in_tasks(moldau.aio.processing.process, lambda: asyncio.sleep(0), case)),
}


@pytest.mark.parametrize("face", FACES)
def test_a_failed_record_without_room_lacks_its_errors_text(face):
    case = Case(SHORT_FITS)
    FACES[face](case)
    assert case.sent == [("t.dead", "ValueError")]


@pytest.mark.parametrize("face", FACES)
def test_a_failed_record_that_never_fits_names_the_limits(face):
    case = Case(NOTHING_FITS)
    with pytest.raises((KafkaError, ExceptionGroup)) as caught:
        FACES[face](case)
    error = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert "raise max.request.size of the producer and max.message.bytes of the topic" in str(error)
