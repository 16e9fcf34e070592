"""Goal: the clients for threads and asyncio pass every argument on, and return the answer of the trio client unchanged.

Method: each public call of each face runs on a trio client that notes its calls, once with a value of its own for every
parameter and once with as few as the call takes. The calls are found by their names; those left out are listed.
"""

from __future__ import annotations

import asyncio
import inspect
from array import array
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import moldau
import moldau.aio
import moldau.blocking
from moldau.blocking.handover import Handover
from moldau.consumer import CommittedOffset, ConsumedBatch
from moldau.consumer.core.positions import Lag
from moldau.records import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

CONFIGS = {
    "Producer": {"transactional.id": "x"},
    "Consumer": {"group.id": "g"},
    "ShareConsumer": {"group.id": "g"},
    "Admin": {},
}
FACES = {"blocking": moldau.blocking, "aio": moldau.aio}
NOT_PASSED_ON = {
    # Records go through a queue, and the last two are made of the other calls.
    "Producer": {"send", "send_bytes", "send_many", "wait_delivery", "close", "transaction", "transform"},
    # They read what iteration has fetched, or use the thread's end.
    "Consumer": {"batches", "offsets_to_commit", "close", "commits_automatically"},
    "ShareConsumer": {"close"},
    "Admin": {"close", "within"},  # ``within`` returns a client
}
CHECKED = {
    "partition": ("t", 3),
    "partitions": [("t", 4), ("u", 5)],
    "topics": ["t", "u"],
    "offsets": {("t", 6): CommittedOffset(7)},
    "timeout_ms": 9.0,
}
"""Values for parameters that a face looks at; all others get one that is equal to nothing else."""
ANSWERS = {"lag": Lag(position=11, end_offset=13), "assignment": [("t", 0)]}

DEFAULTS: dict[tuple[str, str], dict[str, object]] = {
    ("Producer", "flush"): {"timeout_ms": 120_000},  # of a thread, which no scope cancels
    ("Consumer", "subscribe"): {"topics": [], "pattern": None},
}
"""Arguments that a face passes on in another form, if the caller gives none."""


class Noted:
    """Stands for the client in the trio thread, or for the queue before it."""

    def __init__(self, native: type, calls: list[tuple[str, dict[str, object]]]) -> None:
        self._native = native
        self.calls = calls
        self.answer: object = object()

    def __getattr__(self, name: str) -> Any:
        member = inspect.getattr_static(self._native, name)
        if isinstance(member, property):
            self.calls.append((name, {}))
            return self.answer

        def call(*args: object, **kwargs: object) -> object:
            self.calls.append((name, bound(member, *args, **kwargs)))
            return _answered(self.answer) if inspect.iscoroutinefunction(member) else self.answer

        return call


async def _answered(answer: object) -> object:
    return answer


def bound(call: Callable[..., object], *args: object, **kwargs: object) -> dict[str, object]:
    """Returns all arguments of a call by name, with defaults."""
    found = inspect.signature(call).bind(None, *args, **kwargs)
    found.apply_defaults()
    return {name: value for name, value in found.arguments.items() if name != "self"}


class Inline:
    """A portal that runs calls where they are made."""

    token = None
    undo: Any = None

    def call_sync(self, function: Callable[..., object], *args: object, **kwargs: object) -> object:
        return function(*args, **kwargs)

    async def call_async(self, function: Callable[..., Awaitable[object]], *args: object, **kwargs: object) -> object:
        return await function(*args, **kwargs)

    async def call_async_or_undo(self, undo: object, function: Any, *args: object, **kwargs: object) -> object:
        self.undo = undo
        return await function(*args, **kwargs)

    def call(self, function: Any, *args: object, **kwargs: object) -> object:
        return asyncio.run(self.call_async(function, *args, **kwargs))

    def call_or_undo(self, undo: object, function: Any, *args: object, **kwargs: object) -> object:
        self.undo = undo
        return self.call(function, *args, **kwargs)


def opened(face: str, kind: str) -> tuple[Any, Noted]:
    """Returns a client of a face, and the one that stands for its trio client."""
    client = getattr(FACES[face], kind)({"bootstrap.servers": "127.0.0.1:1"} | CONFIGS[kind])
    noted = Noted(getattr(moldau, kind), [])
    client._portal = Inline()
    if kind == "Producer":
        client._trio_producer, client._handover = noted, Noted(Handover, noted.calls)
    elif kind == "Admin":
        client._admin = noted
    else:
        client._consumer = noted
    return client, noted


def calls() -> Iterator[Any]:
    for face, home in FACES.items():
        for kind in CONFIGS:
            for name, member in inspect.getmembers(getattr(home, kind)):
                if not name.startswith("_") and name not in NOT_PASSED_ON[kind]:
                    yield pytest.param(face, kind, name, member, id=f"{face}-{kind}-{name}")


def given(member: Any, *, only_needed: bool) -> tuple[list[object], dict[str, object]]:
    """Returns a value for each parameter of a call, or for those without a default."""
    positional: list[object] = []
    named: dict[str, object] = {}
    for each in list(inspect.signature(member).parameters.values())[1:]:
        value = CHECKED.get(each.name, SimpleNamespace(named=each.name))
        if each.kind is each.VAR_POSITIONAL:
            positional += [] if only_needed else CHECKED["partitions"]
        elif only_needed and each.default is not each.empty:
            continue
        elif each.kind is each.KEYWORD_ONLY:
            named[each.name] = value
        else:
            positional.append(value)
    return positional, named


@pytest.mark.parametrize("only_needed", [False, True], ids=["all", "needed"])
@pytest.mark.parametrize(("face", "kind", "name", "member"), list(calls()))
def test_arguments_and_answers_pass(face: str, kind: str, name: str, member: Any, only_needed: bool) -> None:
    client, noted = opened(face, kind)
    noted.answer = ANSWERS.get(name, noted.answer)
    if kind == "Producer":
        client._handover.answer = noted.answer
    native = inspect.getattr_static(getattr(moldau, kind), name)
    if isinstance(member, property):
        assert getattr(client, name) is noted.answer
        assert noted.calls == [(name, {})]
        return
    positional, named = given(member, only_needed=only_needed)
    answer = getattr(client, name)(*positional, **named)
    if inspect.isawaitable(answer):
        answer = asyncio.run(_awaited(answer))
    wanted = bound(native, *positional, **named)
    if only_needed and (kind, name) in DEFAULTS:
        wanted = DEFAULTS[kind, name]
    assert noted.calls == [(name, wanted)]
    if inspect.signature(member).return_annotation != "None":
        assert answer == noted.answer


@pytest.mark.parametrize("face", FACES)
def test_a_bounded_client_is_another_one(face: str) -> None:
    """Only its calls have the limit; both use one thread."""
    client, noted = opened(face, "Admin")
    noted.answer = limited = Noted(moldau.Admin, [])
    bounded = client.within(5_000)
    assert noted.calls == [("within", {"timeout_ms": 5_000})]
    for one, wanted in ((bounded, limited), (client, noted)):
        wanted.calls.clear()
        answer = one.describe_quorum()
        if inspect.isawaitable(answer):
            asyncio.run(_awaited(answer))
        assert [name for name, _ in wanted.calls] == ["describe_quorum"]
    assert bounded._portal is client._portal
    assert type(bounded) is type(client)


@pytest.mark.parametrize("face", FACES)
def test_a_loop_acquires_one_record_at_a_time(face: str) -> None:
    """Others of the same poll would be lost to the loop, or be accepted with the first."""
    client, noted = opened(face, "ShareConsumer")
    record = object()
    noted.answer = [record]
    for _ in range(2):
        found = asyncio.run(_awaited(anext(client))) if face == "aio" else next(iter(client))
        assert found is record
    assert noted.calls == [("poll", {"timeout_ms": 1000, "max_records": 1})] * 2


UNDONE = {
    ("Producer", "init_transactions"): ("undeliver_outcome", {"of_begin": False}),
    ("Producer", "begin_transaction"): ("undeliver_outcome", {"of_begin": True}),
    ("Producer", "commit_transaction"): ("undeliver_outcome", {"of_begin": False}),
    ("Producer", "abort_transaction"): ("undeliver_outcome", {"of_begin": False}),
    ("ShareConsumer", "poll"): ("put_back", {"records": "the answer"}),
}


@pytest.mark.parametrize(("kind", "name"), UNDONE)
@pytest.mark.parametrize("face", FACES)
def test_calls_without_a_receiver_are_undone(face: str, kind: str, name: str) -> None:
    """An interrupt or a cancellation may come after the call had its effect: the client then keeps the outcome."""
    client, noted = opened(face, kind)
    answer = getattr(client, name)()
    if inspect.isawaitable(answer):
        asyncio.run(_awaited(answer))
    noted.calls.clear()
    client._portal.undo("the answer")
    assert noted.calls == [UNDONE[kind, name]]


PART: dict[str, Any] = {"topic": "t", "partition": 3, "cluster": 2}
BATCH = ConsumedBatch(
    records=[Record(4, 0, None, b"x"), Record(9, 0, None, b"y")],
    next_offset=11,
    leader_epoch=6,
    high_watermark=12,
    **PART,
)
COLUMNS = SimpleNamespace(columns=SimpleNamespace(offsets=array("q", [5, 8]).tobytes()), **PART)
PUT_BACK: dict[str, tuple[object, dict[str, object]]] = {
    "poll": ([BATCH], {"offset": 4, "leader_epoch": 6}),
    "poll_columns": ([COLUMNS], {"offset": 5, "leader_epoch": -1}),
    "batches": (BATCH, {"offset": 4, "leader_epoch": 6}),
}


@pytest.mark.parametrize("name", PUT_BACK)
@pytest.mark.parametrize("face", FACES)
def test_records_without_a_receiver_are_put_back(face: str, name: str) -> None:
    """The position goes back before the first of them, in the cluster that they are of."""
    client, noted = opened(face, "Consumer")
    taken, wanted = PUT_BACK[name]
    noted.answer = _Once(taken) if name == "batches" else taken
    answer = getattr(client, name)()
    if name == "batches":
        answer = anext(answer) if face == "aio" else next(answer)
    if inspect.isawaitable(answer):
        asyncio.run(_awaited(answer))
    noted.calls.clear()
    client._portal.undo(taken)
    assert noted.calls == [("seek", {"partition": ("t", 3), "cluster": 2} | wanted)]


class _Once:
    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def __anext__(self) -> object:
        return self._answer


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer
