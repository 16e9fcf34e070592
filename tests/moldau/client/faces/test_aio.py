"""The asyncio clients against a small cluster on real sockets: cancellation, closing, misuse, fork and exit."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading

import pytest
import trio

import moldau.blocking
from moldau.aio import Admin, Consumer, Producer
from moldau.blocking.handover import HANDOVER_RECORDS_MAX
from support.client.socket_cluster import WAIT_S, cluster

KINDS = [Producer, Consumer, Admin]
NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


def threads_of_clients():
    return {thread for thread in threading.enumerate() if thread.name.startswith("moldau-")}


@pytest.mark.parametrize("is_late", [False, True])
def test_a_cancelled_poll_loses_no_record(is_late):
    """``is_late``: the cancellation arrives when the trio thread has taken the records already."""

    async def main(fake):
        config = {"bootstrap.servers": fake.bootstrap}
        async with Producer(config) as producer:
            for number in range(10):
                await producer.send("t", b"%d" % number)
        async with Consumer(config | {"group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([("t", 0)])
            (first,) = await consumer.poll(1000 * WAIT_S, max_records=3)
            assert [record.offset for record in first.records] == [0, 1, 2]
            original = consumer._consumer.poll
            task = asyncio.current_task()
            loop = asyncio.get_running_loop()
            taken = []

            async def interrupted(*args, **kwargs):
                if not is_late:
                    loop.call_soon_threadsafe(poll.cancel)
                    await trio.sleep(WAIT_S)
                answer = await original(*args, **kwargs)
                taken.append(len(answer[0].records))
                loop.call_soon_threadsafe(poll.cancel)
                return answer

            consumer._consumer.poll = interrupted
            poll = asyncio.create_task(consumer.poll(1000 * WAIT_S))
            with pytest.raises(asyncio.CancelledError):
                await poll
            consumer._consumer.poll = original
            assert taken == ([7] if is_late else [])
            assert task.cancelling() == 0
            assert await consumer.position(("t", 0)) == 3
            (second,) = await consumer.poll(1000 * WAIT_S)
            assert [record.value for record in second.records] == [b"%d" % number for number in range(3, 10)]

    with cluster() as fake:
        fake.add_topic("t")
        asyncio.run(main(fake))


def test_a_timeout_cancels_a_call():
    async def main(fake):
        async with Consumer({"bootstrap.servers": fake.bootstrap}) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await consumer.poll(1000 * WAIT_S)
            assert await consumer.poll(0) == []

    with cluster() as fake:
        fake.add_topic("t")
        asyncio.run(main(fake))


def test_a_cancelled_call_ends_before_its_task_goes_on():
    """Else the next call of the task, a poll for example, would meet one that still runs."""
    released, ended = threading.Event(), []

    async def main():
        loop = asyncio.get_running_loop()
        async with Admin(NOWHERE) as admin:
            begun = asyncio.Event()

            async def call():
                loop.call_soon_threadsafe(begun.set)
                try:
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(released.wait, WAIT_S)
                    ended.append("ended")

            calling = asyncio.create_task(admin._portal.call_async(call))
            await begun.wait()
            calling.cancel()
            done = asyncio.ensure_future(asyncio.wait([calling]))
            for _ in range(10):  # turns in which a task that waits for nothing else would go on
                await asyncio.sleep(0)
            went_on = done.done()
            released.set()
            await done
            assert not went_on, "the cancellation waits for the end of the call"
            assert calling.cancelled()
            assert ended == ["ended"]

    asyncio.run(main())


def test_tasks_share_a_producer_beyond_its_queue():
    """More records than the queue holds; deliveries are awaited by other tasks, some of them twice."""
    count = HANDOVER_RECORDS_MAX // 2

    async def main(fake):
        async with Producer({"bootstrap.servers": fake.bootstrap}) as producer:

            async def send(start):
                deliveries = [await producer.send("t", b"%d" % n) for n in range(start, start + count)]
                return [(await each).offset for each in deliveries[-50:]], deliveries[-1]

            sent = await asyncio.gather(*(send(start * count) for start in range(4)))
            offsets = [offset for some, _ in sent for offset in some]
            assert len(set(offsets)) == 200
            for _, last in sent:
                both = await asyncio.gather(last.wait(), last.wait())
                assert both[0] == both[1] == last.result()
            await producer.flush(1000 * WAIT_S)

    with cluster() as fake:
        (part,) = fake.add_topic("t")
        asyncio.run(main(fake))
        assert sorted(map(int, part.values())) == list(range(4 * count))


def test_an_exception_in_the_block_drops_pending_records():
    async def main(fake):
        config = {"bootstrap.servers": fake.bootstrap, "linger.ms": 60_000, "delivery.timeout.ms": 120_000}
        async with Producer(config) as producer:
            await producer.send("t", b"given up")
            raise ZeroDivisionError

    with cluster() as fake:
        (part,) = fake.add_topic("t")
        before = threads_of_clients()
        with pytest.raises(ZeroDivisionError):
            asyncio.run(main(fake))
        assert threads_of_clients() == before
        assert part.values() == []


def test_a_cancelled_close_ends_the_thread():
    """The topic is missing, so pending records would keep the client until ``max.block.ms`` is over."""

    async def main(fake, is_closing):
        async with Producer({"bootstrap.servers": fake.bootstrap, "max.block.ms": 600_000}) as producer:
            await producer.send("missing", b"")
            is_closing.set()  # the task goes on without a pause until it waits for the thread's end

    with cluster() as fake:

        async def cancelled():
            is_closing = asyncio.Event()
            task = asyncio.create_task(main(fake, is_closing))
            await is_closing.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        before = threads_of_clients()
        asyncio.run(cancelled())
        assert threads_of_clients() == before


def test_callbacks_run_in_the_loop_and_may_commit():
    seen = []

    async def main(fake):
        config = {"bootstrap.servers": fake.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}

        async def on_assigned(partitions):
            seen.append(("assigned", partitions, threading.current_thread() is threading.main_thread()))

        async def on_revoked(partitions):
            await consumer.commit()
            committed = await consumer.committed(partitions)
            seen.append(("revoked", {partition: each.offset for partition, each in committed.items()}))

        async with Producer(config_of(fake)) as producer:
            await producer.send("t", b"1")
        async with Consumer(
            config | {"enable.auto.commit": False}, on_assigned=on_assigned, on_revoked=on_revoked
        ) as consumer:
            consumer.subscribe(["t"])
            assert len(await consumer.poll(1000 * WAIT_S)) == 1
            await consumer.unsubscribe()

    with cluster() as fake:
        fake.add_topic("t")
        asyncio.run(main(fake))
    assert seen == [("assigned", [("t", 0)], True), ("revoked", {("t", 0): 1})]


def config_of(fake):
    return {"bootstrap.servers": fake.bootstrap}


@pytest.mark.parametrize("kind", KINDS)
def test_misplaced_calls_name_the_right_client(kind):
    name = kind.__name__
    with pytest.raises(TypeError, match=rf"use `async with moldau.aio.{name}\(...\)` under asyncio"), kind(NOWHERE):
        pass

    async def under_trio():
        async with kind(NOWHERE):
            pass

    with pytest.raises(RuntimeError, match=rf"moldau.aio.{name} would stop trio's event loop"):
        trio.run(under_trio)

    async def main():
        async with kind(NOWHERE) as client:

            def elsewhere():
                with pytest.raises(RuntimeError, match="no event loop runs in this thread"):
                    _ = client._portal.token

            async def in_another_loop():
                with pytest.raises(RuntimeError, match="was opened in another event loop"):
                    _ = client._portal.token

            await asyncio.to_thread(elsewhere)
            await asyncio.to_thread(asyncio.run, in_another_loop())
        with pytest.raises(RuntimeError, match="the client is closed"):
            _ = client._portal.token
        with pytest.raises(RuntimeError, match="opened only once"):
            await client.__aenter__()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_refused():
    """The child has no copy of the client's thread; calls say so, and its end of the block does not hang."""
    with moldau.blocking.Producer(NOWHERE) as producer:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                producer.send("t", b"")
            except RuntimeError as error:
                os.write(writing, str(error).encode())
            producer.close()
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            text = pipe.read().decode()
        assert os.waitpid(child, 0)[1] == 0
    assert f"the client was opened in process {os.getpid()}" in text
    assert "open a client of its own in each process" in text


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", ["Producer", "Consumer", "ShareConsumer", "Admin"])
def test_a_forked_child_may_not_use_a_trio_client(kind):
    calls = {
        "Producer": lambda client: client.send_nowait("t", b""),
        "Consumer": lambda client: client.subscribe(["t"]),
        "ShareConsumer": lambda client: client.subscribe(["t"]),
        "Admin": lambda client: client.list_topics().send(None),
    }

    async def main():
        member = {"group.id": "g"} if kind == "ShareConsumer" else {}
        async with getattr(moldau, kind)(NOWHERE | member) as client:
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    calls[kind](client)
                except RuntimeError as error:
                    os.write(writing, str(error).encode())
                os._exit(0)
            os.close(writing)
            with os.fdopen(reading, "rb") as pipe:
                text = pipe.read().decode()
            os.waitpid(child, 0)  # noqa: ASYNC222 - the child has closed its pipe as its last act
        assert f"this {kind} was opened in process {os.getpid()}, before a fork" in text

    trio.run(main)


def test_a_client_left_open_lets_the_loop_and_interpreter_end():
    program = textwrap.dedent("""
        import asyncio
        import sys
        from moldau.aio import Producer
        async def main():
            producer = await Producer({"bootstrap.servers": sys.argv[1]}).__aenter__()
            await (await producer.send("t", b"1"))
            return producer
        producer = asyncio.run(main())
        print("sent")
    """)
    with cluster() as fake:
        fake.add_topic("t")
        done = subprocess.run(
            [sys.executable, "-c", program, fake.bootstrap],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "sent\n", "")


def test_a_client_left_open_lets_the_interpreter_exit():
    """Its member leaves the group, so that the others need not wait for the session timeout."""
    program = textwrap.dedent("""
        import sys
        from moldau.blocking import Consumer
        consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g"}).__enter__()
        consumer.subscribe(["t"])
        while not consumer.assignment:
            consumer.poll(100)
        print("assigned")
    """)
    with cluster() as fake:
        fake.add_topic("t")
        done = subprocess.run(
            [sys.executable, "-c", program, fake.bootstrap],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "assigned\n", "")
        assert fake.groups["g"].members == {}
