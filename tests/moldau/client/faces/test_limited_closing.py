"""Goal: ``close(timeout_ms)`` of the clients for threads and asyncio is that of the trio clients.

Method: clients whose servers do not exist; the close of the trio client notes its time limit, or has none left.
"""

import asyncio
import math

import pytest
import trio

import moldau.aio
import moldau.blocking
from moldau import ErrorCode, KafkaError

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
CONFIGS = {"Producer": NOWHERE, "Consumer": NOWHERE, "ShareConsumer": NOWHERE | {"group.id": "g"}}


def closed(home, kind, *arguments):
    """Opens and closes a client; returns the limits that the trio client was given."""
    client = getattr(home, kind)(CONFIGS[kind])
    inner = client._trio_producer if kind == "Producer" else client._consumer
    original, given = inner.close, []

    async def close(timeout_ms=None):
        await trio.lowlevel.checkpoint()
        given.append(timeout_ms)
        await original(0)

    inner.close = close

    async def main():
        async with client:
            await client.close(*arguments)
            await client.close(*arguments)

    if home is moldau.aio:
        asyncio.run(main())
    else:
        with client:
            client.close(*arguments)
            client.close(*arguments)
    return [each for each in given if each is not None]


@pytest.mark.parametrize("home", [moldau.aio, moldau.blocking], ids=["aio", "blocking"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_limit_reaches_the_trio_client(home, kind):
    default = math.inf if kind == "Producer" else 30_000
    assert closed(home, kind) == [default]
    assert closed(home, kind, 0) == [0]
    with pytest.raises(TypeError, match="timeout_ms must be a number of milliseconds"):
        closed(home, kind, None)


@pytest.mark.parametrize("home", [moldau.aio, moldau.blocking], ids=["aio", "blocking"])
def test_records_without_time_left_fail(home):
    """The topic is unknown for as long as no server answers, which is longer than the test."""

    async def main():
        async with moldau.aio.Producer(NOWHERE) as producer:
            delivery = await producer.send("t", b"")
            await producer.close(0)
            return delivery

    if home is moldau.aio:
        delivery = asyncio.run(main())
    else:
        with moldau.blocking.Producer(NOWHERE) as producer:
            delivery = producer.send("t", b"")
            producer.close(0)
    with pytest.raises(KafkaError, match="closed before") as caught:
        delivery.outcome()
    assert caught.value.code is ErrorCode.OPERATION_NOT_ATTEMPTED


@pytest.mark.parametrize("home", [moldau.aio, moldau.blocking], ids=["aio", "blocking"])
def test_a_position_that_comes_too_late_is_a_timeout(home):
    async def main():
        async with moldau.aio.Consumer(NOWHERE) as consumer:
            consumer.assign([("t", 0)])
            await consumer.position(("t", 0), 0)

    if home is moldau.aio:
        with pytest.raises(TimeoutError, match="no position within 0 ms"):
            asyncio.run(main())
    else:
        with moldau.blocking.Consumer(NOWHERE) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(TimeoutError, match="no position within 0 ms"):
                consumer.position(("t", 0), 0)


def test_a_flush_without_time_left_says_what_waits():
    with moldau.blocking.Producer(NOWHERE) as producer:
        producer.flush(0)  # nothing is pending
        delivery = producer.send("t", b"")
        with pytest.raises(TimeoutError, match="records wait for metadata or memory after 0 ms"):
            producer.flush(0)
        with pytest.raises(TimeoutError, match="the record was not delivered within 0 ms"):
            delivery.result(0)
        producer.close(0)


def test_an_asyncio_flush_without_time_left():
    async def main():
        async with moldau.aio.Producer(NOWHERE) as producer:
            await producer.flush(0)
            await producer.send("t", b"")
            with pytest.raises(TimeoutError, match="records wait for metadata or memory after 0 ms"):
                await producer.flush(0)
            await producer.close(0)

    asyncio.run(main())
