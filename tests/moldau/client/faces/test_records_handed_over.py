"""Goal: each way to send hands over the record that the application gave: for threads by a fast path too.

Method: producers for threads and asyncio without their trio thread; what they put into the queue is compared with what
was given, for each combination of its parts.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from moldau import aio, blocking
from moldau.blocking.handover import LARGE_BYTES, Handover
from moldau.cluster.interceptors import ProducerInterceptor
from moldau.producer import OutputRecord

if TYPE_CHECKING:
    from collections.abc import Callable

FACES = {"blocking": blocking, "aio": aio}


class Subclass(bytes):
    """Not exactly ``bytes``: such values take the longer path."""


VALUES = [None, b"", b"v", Subclass(b"v"), bytearray(b"v"), memoryview(b"v"), b"v" * LARGE_BYTES]
KEYS = [None, b"k", Subclass(b"k"), b"k" * LARGE_BYTES]
HEADERS: list[tuple[tuple[str, bytes | None], ...]] = [(), (("a", b"1"), ("b", None), ("a", b"2"))]
PLACES = [(None, None), (3, None), (0, 0), (None, 77)]
"""Partition and timestamp."""


def opened(face: str, **options: Any) -> tuple[Any, Handover, list[object]]:
    """Returns a producer, its queue, and the calls into its thread."""
    producer: Any = FACES[face].Producer({"bootstrap.servers": "b:1"}, **options)
    woken: list[object] = []
    token = SimpleNamespace(run_sync_soon=woken.append)
    producer._portal = SimpleNamespace(token=token, open_token=token)
    producer._handover = Handover(producer._trio_producer)
    return producer, producer._handover, woken


def result(call: Callable[..., Any], *given: object, **named: object) -> Any:
    answer = call(*given, **named)
    return asyncio.run(awaited(answer)) if inspect.iscoroutine(answer) else answer


async def awaited(answer: Any) -> Any:
    return await answer


@pytest.mark.parametrize("call", ["send", "send_bytes"])
@pytest.mark.parametrize("face", FACES)
def test_a_record_is_handed_over_as_it_was_given(face: str, call: str) -> None:
    producer, handover, woken = opened(face)
    for value, key, headers, (partition, timestamp) in itertools.product(VALUES, KEYS, HEADERS, PLACES):
        named = {"headers": headers, "partition": partition, "timestamp": timestamp}
        delivery = result(getattr(producer, call), "t", value, key, **named)
        (handed,) = handover.queue
        assert handed[:6] == ("t", value, key, headers, partition, timestamp)
        assert handed[6] is delivery
        assert not delivery.is_done
        assert woken == [handover._wanted.notify]
        for each in (handover.queue, woken, handover._large):
            each.clear()
        handover.is_called, handover._large_bytes = False, 0


@pytest.mark.parametrize("face", FACES)
def test_records_of_an_ended_queue_are_refused(face: str) -> None:
    producer, handover, _ = opened(face)
    handover.is_ended = True
    for value in (b"v", Subclass(b"v")):
        with pytest.raises(RuntimeError, match="closed"):
            result(producer.send, "t", value)
    assert not handover.queue


@pytest.mark.parametrize("face", FACES)
def test_many_records_keep_their_keys_and_order(face: str) -> None:
    producer, handover, woken = opened(face)
    deliveries = result(producer.send_many, "t", [b"a", None, b"c"], keys=[b"1", b"2", None], partition=4)
    assert [each[:6] for each in handover.queue] == [
        ("t", b"a", b"1", (), 4, None),
        ("t", None, b"2", (), 4, None),
        ("t", b"c", None, (), 4, None),
    ]
    assert [each[6] for each in handover.queue] == deliveries
    assert len(woken) == 1, "the thread is woken once"
    for keys in ([b"1"], [b"1", b"2", b"3"]):
        handover.queue.clear()
        with pytest.raises(ValueError, match="zip"):
            result(producer.send_many, "t", [b"a", b"b"], keys=keys)
        assert len(handover.queue) == min(len(keys), 2), "records before the one that raises are sent"


class Noting(ProducerInterceptor):
    """Renames the topic, and notes outcomes."""

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.outcomes: list[object] = []

    def on_send(self, record: OutputRecord[Any, Any]) -> OutputRecord[Any, Any]:
        self.seen.append(record)
        return record._replace(topic="other", headers=(*record.headers, ("more", b"h")), partition=8, timestamp=9)

    def on_acknowledgement(self, record: Any, metadata: Any, error: BaseException | None) -> None:
        self.outcomes.append((record.topic, metadata, type(error)))


class Serializer:
    """Notes what it is called with; refuses ``bad``."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, str, str, object]] = []

    def serialize(self, value: str, context: Any) -> bytes:
        self.calls.append((value, context.topic, context.field, context.headers))
        if value == "bad":
            raise ValueError(value)
        return value.encode()


@pytest.mark.parametrize("face", FACES)
def test_interceptors_come_before_serializers(face: str) -> None:
    noting, serializer = Noting(), Serializer()
    producer, handover, _ = opened(face, interceptors=[noting], key_serializer=serializer, value_serializer=serializer)
    delivery = result(producer.send, "t", "v", "k", headers=[("a", b"1")], partition=3, timestamp=4)
    headers = (("a", b"1"), ("more", b"h"))
    assert noting.seen == [OutputRecord("t", "v", "k", (("a", b"1"),), 3, 4)]
    assert serializer.calls == [("k", "other", "key", headers), ("v", "other", "value", headers)]
    (handed,) = handover.queue
    assert handed[:6] == ("other", b"v", b"k", headers, 8, 9)
    assert delivery.intercepted == OutputRecord("other", "v", "k", headers, 8, 9)
    assert noting.outcomes == [], "the outcome is that of the delivery"
    with pytest.raises(Exception, match="cannot be serialized") as caught:
        result(producer.send, "t", "bad")
    assert noting.outcomes == [("other", None, caught.type)]
    assert len(handover.queue) == 1
    result(producer.send_bytes, "t", b"v")
    assert (len(noting.seen), handover.queue[-1][0]) == (2, "t"), "bytes of send_bytes pass no interceptor"


@pytest.mark.parametrize("face", FACES)
def test_a_value_that_is_none_is_not_serialized(face: str) -> None:
    """It deletes the key of a compacted topic."""
    serializer = Serializer()
    producer, handover, _ = opened(face, value_serializer=serializer)
    result(producer.send, "t", None, b"k")
    assert (handover.queue[0][:3], serializer.calls) == (("t", None, b"k"), [])
