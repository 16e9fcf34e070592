"""Goal: closing a client from another task, thread, event loop or callback than the one that reads has one meaning.

Method: clients whose servers do not exist; what closes them waits until the reader waits.
"""

import asyncio
import threading

import pytest
import trio

import moldau
import moldau.aio
import moldau.blocking

WAIT_S = 60
NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
READS = [("Consumer", "records"), ("Consumer", "batches"), ("ShareConsumer", "records")]


def made(home, kind):
    return getattr(home, kind)(NOWHERE)


def wanted(consumer):
    if hasattr(consumer, "assign"):
        consumer.assign([("t", 0)])
    else:
        consumer.subscribe(["t"])


def iteration(consumer, reads):
    return consumer.batches() if reads == "batches" else consumer


def noticing(consumer, begun):
    """Calls ``begun`` once the trio client polls."""
    inner = getattr(consumer, "_consumer", consumer)
    name = "_poll_records" if hasattr(inner, "_poll_records") else "poll"
    original = getattr(inner, name)

    async def poll(*arguments, **options):
        begun()
        return await original(*arguments, **options)

    setattr(inner, name, poll)


@pytest.mark.parametrize(("kind", "reads"), READS)
def test_a_loop_under_trio_ends(kind, reads):
    async def main():
        async with made(moldau, kind) as consumer, trio.open_nursery() as nursery:
            wanted(consumer)
            begun = trio.Event()
            noticing(consumer, begun.set)

            async def read():
                async for _ in iteration(consumer, reads):
                    pass

            nursery.start_soon(read)
            await begun.wait()
            await consumer.close(0)

    trio.run(main)


@pytest.mark.parametrize("ends", ["close", "block"])
@pytest.mark.parametrize(("kind", "reads"), READS)
def test_a_loop_under_asyncio_ends(kind, reads, ends):
    """It ended in a RuntimeError, although iteration lasts until the consumer is closed, or its block is left."""

    async def main():
        loop = asyncio.get_running_loop()
        async with made(moldau.aio, kind) as consumer:
            wanted(consumer)
            begun = asyncio.Event()
            noticing(consumer, lambda: loop.call_soon_threadsafe(begun.set))

            async def read():
                async for _ in iteration(consumer, reads):
                    pass
                return "ended"

            reading = asyncio.create_task(read())
            await begun.wait()
            if ends == "close":
                await consumer.close(0)
                assert await reading == "ended"
                assert await read() == "ended"
        assert await reading == "ended"
        assert await read() == "ended"

    asyncio.run(main())


@pytest.mark.parametrize("ends", ["close", "block"])
@pytest.mark.parametrize(("kind", "reads"), READS)
def test_a_loop_in_a_thread_ends(kind, reads, ends):
    begun, outcomes = threading.Event(), []

    def read(consumer):
        try:
            for _ in iteration(consumer, reads):
                pass
        except RuntimeError as error:
            outcomes.append(error)
        else:
            outcomes.append("ended")

    with made(moldau.blocking, kind) as consumer:
        wanted(consumer)
        noticing(consumer, begun.set)
        reader = threading.Thread(target=read, args=(consumer,))
        reader.start()
        assert begun.wait(WAIT_S)
        if ends == "close":
            consumer.close(0)
            reader.join(WAIT_S)
            assert outcomes == ["ended"]
    reader.join(WAIT_S)
    read(consumer)
    assert outcomes == ["ended", "ended"]


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "ShareConsumer", "Admin"])
def test_another_event_loop_cannot_close(kind):
    """Its task waited without end: only the loop that opened the client learns that the thread has ended."""
    config = dict(NOWHERE)
    if kind not in ("Consumer", "ShareConsumer"):
        del config["group.id"]
    client = getattr(moldau.aio, kind)(config)

    async def main():
        async with asyncio.timeout(WAIT_S):
            await client.close()

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(client.__aenter__())
        with pytest.raises(RuntimeError, match=f"this {kind} was opened in another event loop"):
            asyncio.run(main())
        loop.run_until_complete(client.close())
    finally:
        loop.close()
    asyncio.run(main())  # it is closed already


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "ShareConsumer", "Admin"])
def test_a_callback_cannot_close(kind):
    """The thread cannot wait for its own end; the client stays open."""
    config = dict(NOWHERE)
    if kind not in ("Consumer", "ShareConsumer"):
        del config["group.id"]
    with getattr(moldau.blocking, kind)(config) as client:
        with pytest.raises(RuntimeError, match=f"a callback of moldau.blocking.{kind} runs in the client's own thread"):
            client._portal.call_sync(client.close)
        assert client._portal.call_sync(lambda: "open") == "open"
        assert not getattr(client, "_is_closed", False)


class Failing:
    """A portal whose calls meet the end of its thread; the client is closed meanwhile, or not."""

    def __init__(self, consumer, closes):
        self.consumer, self.closes = consumer, closes

    def call_or_undo(self, *_arguments, **_named):
        self.consumer._is_closed = self.closes
        raise RuntimeError("the client was closed during the call")

    async def call_async_or_undo(self, *arguments, **named):
        self.call_or_undo(*arguments, **named)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("home", [moldau.aio, moldau.blocking], ids=["aio", "blocking"])
@pytest.mark.parametrize(("kind", "reads"), READS)
def test_a_loop_ends_by_a_close_and_by_nothing_else(home, kind, reads, closes):
    """A client whose thread has ended by itself must say so: a loop that ends looks like a close."""
    consumer = made(home, kind)
    consumer._portal = Failing(consumer, closes)

    async def read():
        return [each async for each in iteration(consumer, reads)]

    def outcome():
        return asyncio.run(read()) if home is moldau.aio else list(iteration(consumer, reads))

    if closes:
        assert outcome() == []
    else:
        with pytest.raises(RuntimeError, match="closed during the call"):
            outcome()
