"""The three faces of the clients under one set of calls: trio, asyncio and ordinary threads.

A scenario is written once, as a coroutine. A driver runs it under trio or asyncio; the thread's driver wraps the
blocking clients, whose calls return at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
from typing import TYPE_CHECKING, Any

import trio

import moldau
import moldau.aio
import moldau.blocking
import moldau.processing
from moldau import NewTopic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from moldau.runtime.ports.environment import Environment

NUMBERS = itertools.count()
LIMIT_MS = 120_000
ELSEWHERE = "THREE_FACES_BOOTSTRAP"
"""Names the cluster to use instead of one of Moldau: ``tests/interop/test_kafka_brokers.py`` names Kafka's."""


class Awaited:
    """A blocking object whose calls can be awaited, so that one scenario serves all faces."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aenter__(self) -> Awaited:
        return Awaited(self._inner.__enter__())

    async def __aexit__(self, *raised: Any) -> Any:
        return self._inner.__exit__(*raised)

    def __aiter__(self) -> Awaited:
        return Awaited(iter(self._inner))

    async def __anext__(self) -> Any:
        try:
            return next(self._inner)
        except StopIteration:
            raise StopAsyncIteration from None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            answer = found(*args, **kwargs)
            if isinstance(answer, list) and answer and hasattr(answer[0], "result"):
                return [Awaited(each) for each in answer]
            return Awaited(answer) if hasattr(answer, "result") or name == "batches" else answer

        return call

    def __await__(self) -> Any:
        return self.result().__await__()


async def done(answer: Any) -> Any:
    """Awaits the answer of a call that is a coroutine in some faces only."""
    return await answer if inspect.isawaitable(answer) else answer


async def iterated(answer: Any) -> Any:
    return await answer if inspect.iscoroutine(answer) else answer


class Face:
    def __init__(self, name: str, bootstrap: str, environment: Environment | None = None) -> None:
        self.name = name
        self.config = {"bootstrap.servers": bootstrap}
        self.extra = {} if environment is None else {"environment": environment}

    def make(self, kind: str, objects: dict[str, Any] | None = None, **settings: object) -> Any:
        config = self.config | {key.replace("_", "."): value for key, value in settings.items()}
        if self.name == "blocking":
            return Awaited(getattr(moldau.blocking, kind)(config, **(objects or {})))
        home = moldau.aio if self.name == "asyncio" else moldau
        return getattr(home, kind)(config, **self.extra, **(objects or {}))

    async def rest(self) -> None:
        """Lets time pass for background tasks."""
        await (trio.sleep if self.name == "trio" else asyncio.sleep)(0.01)

    def run(self, scenario: Callable[[Face], Coroutine[Any, Any, None]]) -> None:
        return trio.run(scenario, self) if self.name == "trio" else asyncio.run(scenario(self))


def new_topic() -> str:
    return f"topic-{next(NUMBERS)}"


async def created(face: Face, partitions: int = 1) -> str:
    topic = new_topic()
    async with face.make("Admin") as admin:
        (answer,) = await admin.create_topics([NewTopic(topic, partitions, 1)])
        assert answer.name == topic
        listed = await names(admin)
        if ELSEWHERE in os.environ:  # brokers of Kafka answer before they know the topic themselves
            for _ in range(500):
                listed = listed if topic in listed else await names(admin)
        assert listed.count(topic) == 1
    return topic


async def names(admin: Any) -> list[str]:
    return [listed.name for listed in await admin.list_topics()]


def reading(face: Face, topic: str, objects: dict[str, Any] | None = None, **settings: object) -> Any:
    return face.make("Consumer", objects, group_id=f"group-{topic}", auto_offset_reset="earliest", **settings)


@contextlib.asynccontextmanager
async def opened(block: Any) -> AsyncIterator[None]:
    """Opens the transaction of any face; a blocking one arrives in a coroutine."""
    if inspect.iscoroutine(block):
        with await block:
            yield
    else:
        async with block:
            yield


def processed(face: Face, *args: Any, **settings: Any) -> Any:
    """Runs ``process`` of the face; the handler of a face with coroutines is one."""
    if face.name == "blocking":
        consumer, handler = args
        if "producer" in settings:
            settings["producer"] = inner(settings["producer"])
        return moldau.blocking.process(inner(consumer), handler, **settings)
    consumer, handler = args

    async def handle(record: Any) -> None:
        handler(record)

    process = moldau.aio.process if face.name == "asyncio" else moldau.processing.process
    return process(consumer, handle, **settings)


def inner(client: Any) -> Any:
    return client._inner if isinstance(client, Awaited) else client
