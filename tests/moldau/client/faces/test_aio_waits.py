"""Goal: a task of asyncio that waits in the producer or the portal learns the outcome, whatever the others wait for.

Method: the shells alone, in one thread: their trio tasks run under trio, their coroutines under asyncio, and stand-ins
take the place of the other side.
"""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from moldau.aio.consumer import Consumer
from moldau.aio.portal import AioPortal
from moldau.aio.producer import AioDelivery, Producer
from moldau.aio.share import ShareConsumer
from moldau.blocking import handover as handover_module
from moldau.cluster.interceptors import ProducerInterceptor
from moldau.runtime.tasks.sync import Signal

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
WAIT_S = 60


class Event:
    """Stands for a ``LoopEvent``."""

    def __init__(self):
        self.is_set = False

    def set(self):
        self.is_set = True


def test_a_delivery_does_not_wait_for_another_one():
    """Two tasks await deliveries in one turn of the loop; the trio producer cannot take the second record yet."""
    producer = Producer(NOWHERE)
    producer._handover = SimpleNamespace(taken=Signal())
    first, second = ((AioDelivery(producer), Event()) for _ in range(2))

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer._watch_deliveries, [first, second])
            await trio.testing.wait_all_tasks_blocked()
            first[0].taken = SimpleNamespace(is_done=True)
            producer._handover.taken.notify()
            await trio.testing.wait_all_tasks_blocked()
            assert (first[1].is_set, second[1].is_set) == (True, False)
            second[0].resolve(None, ValueError("refused"))
            producer._handover.taken.notify()
        assert second[1].is_set

    trio.run(main)


def test_a_wait_that_meets_the_end_of_the_thread_ends():
    """The trio thread ends between the look at the delivery and the call into the thread."""
    producer = Producer(NOWHERE)

    def run_sync_soon(function):
        raise trio.RunFinishedError

    async def main():
        token = SimpleNamespace(run_sync_soon=run_sync_soon)
        producer._portal = SimpleNamespace(token=token, loop=asyncio.get_running_loop())
        for _ in range(2):
            with pytest.raises(RuntimeError, match="closed during the call"):
                await asyncio.wait_for(AioDelivery(producer).wait(), 5)

    asyncio.run(main())


def test_a_call_that_meets_the_end_of_trio_ends():
    """The thread still takes calls, but trio takes no more tasks."""

    class EndingPortal(AioPortal):
        token = SimpleNamespace(run_sync_soon=lambda function, *args: function(*args))

    async def main():
        portal = EndingPortal("moldau-consumer", None)
        portal._loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="closed during the call"):
            await asyncio.wait_for(portal.call_async(trio.sleep, 1), 5)

    asyncio.run(main())


def test_a_callback_ends_with_the_call_that_runs_it():
    """A poll is cancelled while its rebalance callback runs in the loop."""

    async def main():
        ended = asyncio.Event()
        scope = trio.CancelScope()

        async def revoked(partitions):
            token.run_sync_soon(scope.cancel)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.set()
                raise

        consumer = Consumer(NOWHERE, on_revoked=revoked)
        consumer._portal._loop = asyncio.get_running_loop()

        async def poll():
            nonlocal token
            token = trio.lowlevel.current_trio_token()
            with scope:
                await consumer._in_loop("on_revoked", revoked)([])
            assert scope.cancelled_caught

        token = None
        await asyncio.to_thread(trio.run, poll)
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(main())


def test_a_wait_that_trio_takes_no_more_tasks_for_ends(monkeypatch):
    """The trio run ends between the call into the thread and the task that would wait there."""
    producer, events = Producer(NOWHERE), [Event(), Event()]
    producer._awaited.extend((AioDelivery(producer), event) for event in events)

    def refuse(*_):
        raise RuntimeError("the run ends")

    monkeypatch.setattr(trio.lowlevel, "spawn_system_task", refuse)
    producer._watch()
    assert [event.is_set for event in events] == [True, True]
    assert not producer._awaited


@pytest.mark.parametrize("error", [None, ZeroDivisionError, KeyError])
def test_an_error_of_a_callback_comes_out_of_its_call(error):
    """A poll that hid it would go on with partitions whose state the application could not restore."""
    seen = []

    async def assigned(partitions):
        await asyncio.sleep(0)
        seen.append((partitions, asyncio.get_running_loop()))
        if error is not None:
            raise error

    async def main():
        consumer = Consumer(NOWHERE, on_assigned=assigned)
        loop = consumer._portal._loop = asyncio.get_running_loop()
        call = asyncio.to_thread(trio.run, consumer._in_loop("on_assigned", assigned), [("t", 0)])
        if error is None:
            await call
        else:
            with pytest.raises(error):
                await call
        assert seen == [([("t", 0)], loop)]

    asyncio.run(main())


def test_an_ordinary_callback_is_refused_where_it_is_called():
    async def main():
        consumer = Consumer(NOWHERE, on_lost=lambda partitions: None)
        consumer._portal._loop = asyncio.get_running_loop()
        with pytest.raises(TypeError, match="on_lost must be a coroutine function"):
            await asyncio.to_thread(trio.run, consumer._in_loop("on_lost", lambda partitions: None), [])

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["producer", "consumer", "share"])
def test_reports_reach_the_loop_and_stop_with_it(kind):
    """Trio's thread may report once more while the loop is closed already."""
    seen, values = [], ("partition", [1, 2], None) if kind == "share" else ("numbers",)

    def note(*given):
        seen.append((given, threading.current_thread() is threading.main_thread()))

    async def main():
        if kind == "share":
            client = ShareConsumer(NOWHERE | {"group.id": "g"})
            call = client._in_loop(note)
        elif kind == "consumer":
            client = Consumer(NOWHERE)
            call = client._reporting(note)
        else:
            client = Producer(NOWHERE)
            call = client._in_loop(note)
        client._portal._loop = asyncio.get_running_loop()
        await asyncio.to_thread(call, *values)
        await turns()
        return call

    call = asyncio.run(main())
    assert seen == [(values, True)]
    call(*values)
    assert len(seen) == 1


def test_deliveries_are_not_awaited_beyond_the_trio_thread():
    """A task of the event loop would wait for good if the thread ended without a word."""
    producer = Producer(NOWHERE)
    producer._handover = SimpleNamespace(taken=Signal())
    awaited = [(AioDelivery(producer), Event()) for _ in range(2)]

    async def main():
        with trio.move_on_after(1):
            await producer._watch_deliveries(awaited)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert all(settled.is_set for _, settled in awaited)


def test_a_cancelled_send_has_queued_nothing():
    """Each 256th call lets other tasks run; a task that was cancelled there had sent its record nevertheless."""

    async def main():
        async with Producer(NOWHERE) as producer:
            producer._since_step = 255
            sending = asyncio.create_task(producer.send("t", b""))
            await asyncio.sleep(0)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert (producer._handover._passed, producer._handover._in_hand, producer._since_step) == (0, None, 0)
            assert not producer._handover.queue

    asyncio.run(main())


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("tasks", [1, 2, 3, 4])
def test_all_tasks_that_wait_for_room_get_it(tasks, capacity, monkeypatch):
    """A task that goes on and finds the queue full again waits with the others, whose turn comes after its own."""
    monkeypatch.setattr(handover_module, "HANDOVER_RECORDS_MAX", capacity)
    monkeypatch.setattr(handover_module, "_ROOM_RECORDS", capacity - 1)
    producer = Producer(NOWHERE)
    handover = producer._handover = handover_module.Handover(producer._trio_producer)

    async def send_some():
        for _ in range(4):
            await producer.send("t", b"x")

    async def main():
        token = SimpleNamespace(run_sync_soon=lambda function: None)
        producer._portal = SimpleNamespace(token=token, loop=asyncio.get_running_loop())
        sending = [asyncio.create_task(send_some()) for _ in range(tasks)]
        taken = 0
        for turn in range(400):
            await asyncio.sleep(0)
            if turn % 10 == 9 and handover.queue:  # the trio thread takes a record
                handover.queue.popleft()
                handover._announce_room()
                taken += 1
        assert taken == 4 * tasks
        assert all(each.done() for each in sending)
        for each in sending:
            each.cancel()

    asyncio.run(main())


def test_an_interceptor_learns_of_a_cancelled_send():
    outcomes = []

    class Noting(ProducerInterceptor):
        def on_acknowledgement(self, record, metadata, error):
            outcomes.append((record.value, metadata, type(error)))

    async def main():
        async with Producer(NOWHERE, interceptors=[Noting()]) as producer:
            producer._since_step = 255
            sending = asyncio.create_task(producer.send("t", b"x"))
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.wait([sending])

    asyncio.run(main())
    assert outcomes == [(b"x", None, asyncio.CancelledError)]


class FullQueue:
    """Stands for the hand-over: full until ``is_full`` is cleared, and counts who looks."""

    def __init__(self):
        self.is_full, self.looks, self.on_room = True, 0, None

    def put_nowait(self, record, token, on_room):
        self.looks += 1
        self.on_room = on_room
        return not self.is_full


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_task_looks_for_room_when_there_may_be_some():
    """One that finds the queue full again waits again: it must not spin."""
    producer = Producer(NOWHERE)
    queue = producer._handover = FullQueue()

    async def main():
        producer._portal = SimpleNamespace(token=None, loop=asyncio.get_running_loop())
        sending = asyncio.create_task(producer.send("t", b"x"))
        for looks in (2, 4, 6):  # before and after it has asked to be called back
            await turns()
            assert queue.looks == looks
            queue.on_room()
        await turns()
        queue.is_full = False
        queue.on_room()
        await sending

    asyncio.run(main())


class SlowOpening:
    """A client whose opening takes until ``go_on`` is set."""

    def __init__(self):
        self.begun, self.go_on, self.left = threading.Event(), threading.Event(), []

    async def __aenter__(self):
        self.begun.set()
        await trio.to_thread.run_sync(self.go_on.wait, WAIT_S)
        return self

    async def __aexit__(self, kind, *_error):
        self.left.append(kind)


def test_a_cancelled_opening_leaves_no_client_open():
    """The thread may not have opened the client yet; no one else would close it."""
    client = SlowOpening()
    portal = AioPortal("moldau-slow", client)

    async def main():
        opening = asyncio.create_task(portal.open())
        await asyncio.to_thread(client.begun.wait, WAIT_S)
        opening.cancel()
        await turns()
        assert not opening.done(), "it waits for the end of what it has begun"
        client.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert client.left == [trio.Cancelled], "it gives up pending work"
        assert not portal._thread.is_alive()

    asyncio.run(main())
