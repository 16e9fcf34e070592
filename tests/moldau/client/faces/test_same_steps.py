"""Goal: a transaction makes the same calls in a thread as in a task, with the same arguments, whatever fails.

Method: ``transform`` and ``transaction`` of the producer for threads, beside those that trio and asyncio share, with
clients that note their calls. Each call fails in each way, and there are no, few and hidden records.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau import ErrorCode, KafkaError, blocking
from moldau.consumer import ConsumedBatch
from moldau.producer import AbortableTransactionError, FatalTransactionError, OutputRecord
from moldau.producer.steps import Steps, transaction
from moldau.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = ConsumedBatch(
    topic="in",
    partition=3,
    records=[Record(4, 0, None, b"x"), Record(5, 0, None, b"y")],
    next_offset=6,
    leader_epoch=7,
    high_watermark=8,
)
SECOND = replace(FIRST, partition=2, records=[Record(14, 0, None, b"z")], next_offset=15, leader_epoch=9)
POLLED = {
    "nothing": [],
    "one batch": [FIRST],
    "two batches": [FIRST, SECOND],
    "hidden records": [replace(FIRST, records=[]), SECOND],
}
ERRORS = {
    "abortable": AbortableTransactionError(ErrorCode.INVALID_RECORD, "refused"),
    "fatal": FatalTransactionError(ErrorCode.PRODUCER_FENCED, "fenced"),
    "timed out": KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer"),
    "broken": RuntimeError("closed"),
    "other": ZeroDivisionError(),
    "interrupted": KeyboardInterrupt(),
}
SECOND_ERRORS: dict[str, dict[str, BaseException]] = {
    "": {},
    "abort refused": {"abort": KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone")},
    "abort closed": {"abort": RuntimeError("closed")},
    "seek closed": {"seek": RuntimeError("closed")},
}
"""The call that fails after the first error, with its own."""
CALLS = ("poll", "begin", "send", "offsets_to_commit", "send_offsets", "commit", "abort", "seek")
OFFSETS, GROUP = object(), object()


class Notes:
    """The calls of both clients; ``errors`` names those that raise."""

    commits_automatically = False
    clusters_left = 0

    def __init__(self, batches: list[ConsumedBatch[Any, Any]], errors: dict[str, BaseException]) -> None:
        self.batches = batches
        self.errors = errors
        self.calls: list[tuple[object, ...]] = []

    def note(self, name: str, *arguments: object, **named: object) -> None:
        self.calls.append((name, arguments, named))
        if name in self.errors:
            raise self.errors[name]

    def poll(self, timeout_ms: float, max_records: int | None) -> list[ConsumedBatch[Any, Any]]:
        self.note("poll", timeout_ms, max_records)
        return self.batches

    def producer_calls(self) -> dict[str, Callable[..., None]]:
        """Returns the producer's calls, which a task awaits."""
        return {
            "begin_transaction": lambda: self.note("begin"),
            "send": lambda *given, **named: self.note("send", *given, **named),
            "send_offsets_to_transaction": lambda *given: self.note("send_offsets", *given),
            "commit_transaction": lambda *given: self.note("commit", *given),
            "abort_transaction": lambda limit_ms=None: self.note("abort", limit_ms),
        }

    def consumer(self, poll: Callable[..., object]) -> Any:
        def offsets_to_commit() -> object:
            self.note("offsets_to_commit")
            return OFFSETS

        return SimpleNamespace(
            commits_automatically=False,
            clusters_left=0,
            poll=poll,
            group_metadata=lambda: GROUP,
            offsets_to_commit=offsets_to_commit,
            seek=lambda *given, **named: self.note("seek", *given, **named),
        )


def function(record: Any) -> list[OutputRecord[Any, Any]]:
    """Returns two outputs for the first record, and none for the others."""
    if record.offset != 4:
        return []
    first = OutputRecord("out", record.value, b"key", (("name", b"header"),), 5, 77)
    return [first, OutputRecord("more", None)]


def as_task(call: Callable[..., object]) -> Callable[..., Any]:
    async def run(*given: object, **named: object) -> object:
        return call(*given, **named)

    return run


def in_a_task(notes: Notes, times: int) -> list[object]:
    producer = SimpleNamespace(**{name: as_task(call) for name, call in notes.producer_calls().items()})
    consumer, steps = notes.consumer(as_task(notes.poll)), Steps()

    async def step() -> object:
        return await steps.run(producer, consumer, function, 12, 34, contextlib.nullcontext)

    return [outcome(lambda: trio.run(step)) for _ in range(times)]


def in_a_thread(notes: Notes, times: int) -> list[object]:
    producer: Any = blocking.Producer({"bootstrap.servers": "b:1", "transactional.id": "x"})
    for name, call in notes.producer_calls().items():
        setattr(producer, name, call)
    consumer = notes.consumer(notes.poll)
    return [outcome(lambda: producer.transform(consumer, function, 12, max_records=34)) for _ in range(times)]


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - each way to fail is compared
        return type(error), str(error), getattr(error, "__notes__", [])


def errors_of(first: str, error: str, second: str) -> dict[str, BaseException]:
    """Returns errors without notes of earlier cases."""
    made = ERRORS[error]
    copy = type(made)(made.code, made.message) if isinstance(made, KafkaError) else type(made)(*made.args)
    return {first: copy} | SECOND_ERRORS[second]


@pytest.mark.parametrize("polled", POLLED)
def test_a_step_commits_its_records(polled: str) -> None:
    batches = POLLED[polled]
    notes = Notes(batches, {})
    assert in_a_task(notes, 1) == [sum(len(each.records) for each in batches)]
    names = [name for name, *_ in notes.calls]
    if not batches:
        assert names == ["poll"], "no transaction begins for nothing"
        return
    sends = ["send", "send"] if batches[0].records else []
    assert names == ["poll", "begin", *sends, "offsets_to_commit", "send_offsets", "commit"]
    assert ("send_offsets", (OFFSETS, GROUP), {}) in notes.calls
    if sends:
        assert notes.calls[2:4] == [
            ("send", ("out", b"x", b"key"), {"headers": (("name", b"header"),), "partition": 5, "timestamp": 77}),
            ("send", ("more", None, None), {"headers": (), "partition": None, "timestamp": None}),
        ]


@pytest.mark.parametrize("second", SECOND_ERRORS)
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("at", CALLS)
def test_steps_of_a_thread_are_those_of_a_task(at: str, error: str, second: str) -> None:
    """A second step follows: not after an unknown outcome."""
    for batches in POLLED.values():
        task, thread = (Notes(batches, errors_of(at, error, second)) for _ in range(2))
        assert in_a_thread(thread, 2) == in_a_task(task, 2)
        assert thread.calls == task.calls


@pytest.mark.parametrize("second", list(SECOND_ERRORS)[:3])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("at", ["begin", "send", "commit", "abort", ""])
def test_blocks_of_a_thread_are_those_of_a_task(at: str, error: str, second: str) -> None:
    """Without a call that fails, the block itself raises."""

    def block(send: Callable[..., object]) -> None:
        if not at:
            raise errors_of("block", error, "")["block"]

    task, thread = (Notes([], errors_of(at, error, second)) for _ in range(2))
    tasks: Any = SimpleNamespace(**{name: as_task(call) for name, call in task.producer_calls().items()})

    async def in_task() -> None:
        async with transaction(tasks, contextlib.nullcontext):
            await tasks.send("t")
            block(tasks.send)

    producer: Any = blocking.Producer({"bootstrap.servers": "b:1", "transactional.id": "x"})
    for name, call in thread.producer_calls().items():
        setattr(producer, name, call)

    def in_thread() -> None:
        with producer.transaction():
            producer.send("t")
            block(producer.send)

    assert outcome(in_thread) == outcome(lambda: trio.run(in_task))
    assert thread.calls == task.calls
