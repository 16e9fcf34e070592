"""Goal: the processors of threads, trio and asyncio treat each mixture of good, failing and damaged records alike.

Method: each possible row of a few records, with and without retry topics, on a consumer and a producer of the test. The
consumer gives one record at a time, and the next one when the handler is done with it. A model of a few lines says what
is sent, committed and read next.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

import moldau.aio.processing
import moldau.blocking.processing
from moldau import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.processing import RetryTopics, process
from moldau.processing.steps import HandlerError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.records import Record
from moldau.serialization import RecordDeserializationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PLACE = TopicPartition("t", 0)
OUTCOMES = ("done", "failed", "damaged", "unsendable")
"""Of a record: handled, refused by the handler, refused by the deserializer, or refused by handler and producer."""
COUNT = 3
ROWS = list(itertools.product(OUTCOMES, repeat=COUNT))
TURNS_MAX = 1000
WAIT_S = 20


class Log:
    """The partition, its reader's position, and what the processor did."""

    is_plain = False

    def __init__(self, row: Sequence[str], *, has_retries: bool) -> None:
        self.row = row
        self.has_retries = has_retries
        self.position = 0
        self.ended = 0
        self.given = 0
        self.is_broken = False
        self.changed = threading.Condition()
        self.limits: dict[str, Any] = {}
        self.commits: list[int] = []
        self.sent: list[tuple[str, bytes, str]] = []

    @property
    def is_idle(self) -> bool:
        return self.ended == self.given

    def end(self, *, is_broken: bool = False) -> None:
        """Notes that a record is done with; after one that ends the processor there are no more."""
        with self.changed:
            self.is_broken = self.is_broken or is_broken
            self.ended += 1
            self.changed.notify_all()

    def take(self) -> list[ConsumedBatch[Any, Any]]:
        if self.position == len(self.row) or self.is_broken:
            return []
        offset = self.position
        if self.row[offset] == "damaged":
            fields: dict[str, Any] = {"field": "value", "timestamp": 0, "key": b"k", "headers": ()}
            raise RecordDeserializationError(
                "damaged", topic_partition=PLACE, offset=offset, value=b"%d" % offset, **fields
            )
        self.position += 1
        self.given += 1
        record = Record(offset, 0, b"k", b"%d" % offset)
        shape = {"next_offset": offset + 1, "leader_epoch": 0, "high_watermark": len(self.row)}
        return [ConsumedBatch(topic="t", partition=0, records=[record], **shape)]

    def handle(self, record: Any) -> None:
        if self.row[record.offset] == "done":
            self.end()
            return
        if not self.has_retries:
            self.end(is_broken=True)
        raise ValueError(f"record {record.offset}")

    def send(self, call: str) -> Callable[..., None]:
        def send(topic: str, value: bytes, key: bytes, *, headers: Sequence[tuple[str, bytes]]) -> None:
            assert key == b"k"
            if self.row[int(value)] == "unsendable":
                self.end(is_broken=True)
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"record {int(value)}")
            found = dict(headers)
            assert (found["__moldau.retry.offset"], found["__moldau.retry.attempts"]) == (value, b"1")
            self.sent.append((topic, value, call))
            if call == "send":
                self.end()

        return send

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.commits.append(offsets[PLACE])

    def seek(self, partition: TopicPartition, offset: int, **_: object) -> None:
        assert partition == PLACE
        self.position = offset

    def consumer(self, poll: Callable[..., object], commit: Callable[..., object]) -> Any:
        clock = SimpleNamespace(monotonic_ms=lambda: 0, wall_ms=lambda: 0)
        opened = SimpleNamespace(environment=SimpleNamespace(clock=clock))
        return SimpleNamespace(
            assignment=[PLACE],
            clusters_left=0,
            commits_automatically=False,
            poll=poll,
            commit=commit,
            seek=self.seek,
            pause=lambda *_: None,
            resume=lambda *_: None,
            group_metadata=lambda: None,
            _opened=lambda: [opened],
        )

    def is_over(self) -> bool:
        return self.position == len(self.row) and self.is_idle


def options(log: Log, retries: RetryTopics | None, producer: object) -> dict[str, Any]:
    given = {"retries": retries, "producer": producer} if retries is not None else {}
    return given | {"until": log.is_over, "commit_interval_ms": 0} | log.limits


def threads(log: Log, retries: RetryTopics | None) -> int:
    def poll(_: float) -> object:
        with log.changed:
            assert log.changed.wait_for(lambda: log.is_idle, WAIT_S)
        return log.take()

    def sends(call: str) -> Callable[..., object]:
        def send(*given: Any, **named: Any) -> object:
            return SimpleNamespace(result=lambda _: log.send(call)(*given, **named))

        return send

    producer = SimpleNamespace(send=sends("send"), send_bytes=sends("send_bytes"))
    consumer = log.consumer(poll, lambda offsets, **_: log.commit(offsets))
    return moldau.blocking.processing.process(consumer, log.handle, **options(log, retries, producer))


def tasks(log: Log, retries: RetryTopics | None, pause: Callable[[], Any], run: Callable[..., Any]) -> Any:
    async def poll(_: float) -> object:
        await pause()
        for _ in range(TURNS_MAX):
            if log.is_idle:
                break
            await pause()
        assert log.is_idle, "records that may run wait for a poll"
        return log.take()

    async def handler(record: Any) -> None:
        await pause()
        log.handle(record)

    async def commit(offsets: dict[TopicPartition, int], **_: object) -> None:
        await pause()
        log.commit(offsets)

    def sends(call: str) -> Callable[..., object]:
        async def send(*given: Any, **named: Any) -> Any:
            async def deliver() -> None:
                await pause()
                log.send(call)(*given, **named)

            return deliver()

        return send

    producer = SimpleNamespace(send=sends("send"), send_bytes=sends("send_bytes"))
    used = log.handle if log.is_plain else handler
    return run(log.consumer(poll, commit), used, **options(log, retries, producer))


def tasks_of_trio(log: Log, retries: RetryTopics | None) -> int:
    return trio.run(lambda: tasks(log, retries, trio.lowlevel.checkpoint, process))


def tasks_of_asyncio(log: Log, retries: RetryTopics | None) -> int:
    async def pause() -> None:
        await asyncio.sleep(0)

    return asyncio.run(tasks(log, retries, pause, moldau.aio.processing.process))


def modelled(row: Sequence[str], *, has_retries: bool) -> tuple[object, int, list[tuple[str, bytes, str]]]:
    """Returns the number of records or the error, the first record that is not done, and what is sent."""
    sent: list[tuple[str, bytes, str]] = []
    processed = 0
    for offset, outcome in enumerate(row):
        value = b"%d" % offset
        if outcome == "done":
            processed += 1
        elif not has_retries:
            return (RecordDeserializationError if outcome == "damaged" else ValueError), offset, sent
        elif outcome == "unsendable":
            return KafkaError, offset, sent
        elif outcome == "damaged":
            sent.append(("t.dead", value, "send_bytes"))
        else:
            processed += 1
            sent.append(("t.retry.1", value, "send"))
    return processed, len(row), sent


def only_error(error: BaseException) -> type[BaseException]:
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return type(error)


@pytest.mark.parametrize("has_retries", [False, True], ids=["plain", "retries"])
@pytest.mark.parametrize("run", [threads, tasks_of_trio, tasks_of_asyncio], ids=lambda each: each.__name__)
def test_processors_agree_with_a_model(run: Callable[..., int], has_retries: bool) -> None:
    for row in ROWS:
        log = Log(row, has_retries=has_retries)
        retries = RetryTopics("t", delays_ms=[1000]) if has_retries else None
        outcome: object
        try:
            outcome = run(log, retries)
        except Exception as error:  # noqa: BLE001 - each way to fail is compared
            outcome = only_error(error)
        wanted, end, sent = modelled(row, has_retries=has_retries)
        assert (outcome, log.sent, log.position) == (wanted, sent, end), row
        assert (log.commits or [0])[-1] == end, row
        assert log.commits == sorted(set(log.commits)), row


class AtOnce(Log):
    """Gives all its records in one poll."""

    def take(self) -> list[ConsumedBatch[Any, Any]]:
        if self.given:
            return []
        batches = [super(AtOnce, self).take()[0] for _ in self.row]
        records = [each for batch in batches for each in batch.records]
        return [replace(batches[0], records=records, next_offset=len(records))]


@pytest.mark.parametrize("limits", [{"concurrency": 1}, {"concurrency": 2, "order": "none"}], ids=["one", "two"])
@pytest.mark.parametrize("run", [threads, tasks_of_trio, tasks_of_asyncio], ids=lambda each: each.__name__)
def test_records_of_a_poll_need_no_other(run: Callable[..., int], limits: dict[str, Any]) -> None:
    """Polls wait 100 ms each: with one record for each, a processor would do ten in a second."""
    log = AtOnce(["done"] * 30, has_retries=False)
    log.limits = limits
    assert run(log, None) == 30
    assert log.commits[-1] == 30


class Plain(Log):
    """Has an ordinary function as its handler."""

    is_plain = True


@pytest.mark.parametrize("run", [tasks_of_trio, tasks_of_asyncio], ids=lambda each: each.__name__)
def test_an_ordinary_function_fails_no_record(run: Callable[..., int]) -> None:
    """Each record was processed, and went to the retry topic because None cannot be awaited."""
    log = Plain(["done"] * 2, has_retries=True)
    with pytest.raises((HandlerError, ExceptionGroup)) as caught:
        run(log, RetryTopics("t", delays_ms=[1000]))
    assert only_error(caught.value) is HandlerError
    assert log.sent == []
