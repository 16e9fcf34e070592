"""Goal: a thread that is interrupted while it waits for the trio thread loses no result, and leaves no call running.

Method: calls given up by hand at each of their moments; then real threads, where the coroutine itself sends the signal
that interrupts the main thread, so that no time is involved.
"""

import asyncio
import contextlib
import signal
import threading
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trio

from moldau import aio, blocking
from moldau.blocking import portal as portal_module
from moldau.blocking.consumer_calls import ConsumerCalls
from moldau.blocking.portal import Call, Portal
from moldau.cluster.metadata import TopicPartition
from moldau.consumer import ConsumedBatch
from moldau.records import Record

WAIT_S = 120


class Interrupt(Exception):
    """The signal handler raises this, as it would KeyboardInterrupt."""


ARRIVED = threading.Event()
"""The signal handler has run."""


def interrupt_main() -> None:
    """Interrupts the main thread, and returns when the signal handler has run.

    A signal that comes just before the main thread waits for a lock only marks the handler as due: Python runs it when
    the wait ends. So the signal is sent again until the handler has run.
    """
    ARRIVED.clear()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    while not ARRIVED.wait(1.0):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)


@pytest.fixture
def _interrupts():
    def handler(*_: object) -> None:
        ARRIVED.set()
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def portal():
    @asynccontextmanager
    async def client():
        yield object()

    opened = Portal("moldau-test", client())
    opened.start()
    try:
        yield opened
    finally:
        opened.stop(gives_up=False)


class Records:
    """A consumer's position, and a poll that takes ten records without a checkpoint after it."""

    def __init__(self) -> None:
        self.position = 0

    async def poll(self) -> list[int]:
        await trio.lowlevel.checkpoint()
        return self.take()

    def take(self) -> list[int]:
        self.position += 10
        return list(range(self.position - 10, self.position))

    def put_back(self, taken: list[int]) -> None:
        self.position = taken[0]


def test_a_call_that_is_given_up_before_it_begins_never_does():
    records = Records()
    call = Call(records.poll, records.put_back)
    call.give_up()
    assert call.is_over.is_set()
    trio.run(call.run)
    assert (records.position, call.answers) == (0, [])


def test_a_call_that_is_given_up_on_its_way_is_cancelled():
    records = Records()

    async def poll() -> list[int]:
        call.give_up()
        assert not call.is_over.is_set(), "it goes on until it ends"
        return await records.poll()

    call = Call(poll, records.put_back)
    trio.run(call.run)
    assert call.is_over.is_set()
    assert (records.position, call.answers, call.error) == (0, [], None)


def test_an_answer_that_no_cancellation_could_prevent_is_undone():
    records = Records()

    async def poll() -> list[int]:
        taken = await records.poll()
        call.give_up()
        return taken

    call = Call(poll, records.put_back)
    trio.run(call.run)
    assert call.is_over.is_set()
    assert records.position == 0


def test_an_answer_that_was_there_before_is_undone():
    records = Records()
    call = Call(records.poll, records.put_back)
    trio.run(call.run)
    assert (records.position, call.is_over.is_set()) == (10, False)
    call.give_up()
    assert (records.position, call.is_over.is_set()) == (0, True)


class Seeks:
    """Notes seeks."""

    def __init__(self) -> None:
        self.seeks: list[tuple[TopicPartition, int]] = []

    def seek(self, partition: TopicPartition, offset: int, **_: object) -> None:
        self.seeks.append((partition, offset))


def test_hidden_records_keep_no_others_from_being_put_back():
    """An interceptor has hidden all records of the first partition; an undo that raises would end the trio thread."""
    shown = ConsumedBatch(
        topic="t", partition=1, records=[Record(4, 0, None, b"x")], next_offset=5, leader_epoch=3, high_watermark=5
    )
    calls = ConsumerCalls()
    calls._consumer = consumer = Seeks()

    async def poll() -> list[ConsumedBatch]:
        return [replace(shown, partition=0, records=[]), shown]

    call = Call(poll, calls._put_back)
    trio.run(call.run)
    call.give_up()
    assert call.is_over.is_set()
    assert consumer.seeks == [(TopicPartition("t", 1), 4)]


class Recorder:
    """A portal that interrupts its first call, and notes the others."""

    def __init__(self):
        self.calls = []
        self.is_interrupted = False

    def call_sync(self, function, *_arguments, **_more):
        if not self.is_interrupted:
            self.is_interrupted = True
            raise Interrupt
        self.calls.append(function)

    def call(self, function, *_arguments, **_more):
        self.calls.append(function)

    def call_or_undo(self, _, function, *_arguments, **_more):
        self.calls.append(function)

    async def call_async(self, function, *_arguments, **_more):
        self.calls.append(function)

    async def call_async_or_undo(self, _, function, *_arguments, **_more):
        self.calls.append(function)


CALLS = {
    "assign": ([("t", 0)],),
    "subscribe": (["t"],),
    "unsubscribe": (),
    "poll": (0,),
    "poll_columns": (0,),
    "batches": (),
    "seek": (("t", 0), 5),
    "seek_to_beginning": (),
    "seek_to_end": (),
    "pause": (("t", 0),),
}
"""The calls that act on what the application has seen, with arguments."""


def with_an_unread_record(consumer):
    """Returns a consumer whose loop has not received the record at offset 7, and its portal."""
    consumer._portal = portal = Recorder()
    record, shape = Record(7, 0, None, b"v"), {"next_offset": 8, "leader_epoch": 0, "high_watermark": 8}
    consumer._unread.fill([ConsumedBatch(topic="t", partition=0, records=[record], **shape)])
    return consumer, portal


@pytest.mark.parametrize(("name", "arguments"), CALLS.items(), ids=CALLS)
def test_unread_records_go_back_first_under_asyncio(name, arguments):
    """Else ``unsubscribe``, for one, would commit records that the loop never receives."""

    async def main():
        consumer, portal = with_an_unread_record(aio.Consumer({"bootstrap.servers": "b:1", "group.id": "g"}))
        portal.is_interrupted = True
        answer = getattr(consumer, name)(*arguments)
        if answer is not None:
            await (anext(answer) if name == "batches" else answer)
        assert (len(portal.calls), portal.calls[0]) == (2, consumer._seek_back)

    asyncio.run(main())


@pytest.mark.parametrize(("name", "arguments"), CALLS.items(), ids=CALLS)
def test_what_the_loop_has_not_received_goes_back_first(name, arguments):
    """Each call acts on what the application has seen; one that is interrupted before that loses nothing."""
    consumer, portal = with_an_unread_record(blocking.Consumer({"bootstrap.servers": "b:1", "group.id": "g"}))

    def call(consumer):
        answer = getattr(consumer, name)(*arguments)
        return next(answer) if name == "batches" else answer

    with pytest.raises(Interrupt):
        call(consumer)
    assert (len(consumer._unread), portal.calls) == (1, [])
    call(consumer)
    assert (len(portal.calls), portal.calls[0]) == (2, consumer._seek_back)
    offsets = []
    consumer._consumer.seek = lambda partition, offset, **_: offsets.append(offset)
    consumer._seek_back()
    assert (len(consumer._unread), offsets) == (0, [7])


def test_a_callback_that_raises_has_ended():
    """Its thread serves other calls later, which may close the client."""
    portal = Portal("moldau-consumer", None)

    def fail():
        raise ValueError("once")

    async def main():
        with pytest.raises(ValueError, match="once"):
            await portal.call_back(fail)
        await trio.to_thread.run_sync(portal.check_closer)

    trio.run(main)


def test_a_call_that_failed_has_nothing_to_undo():
    async def fail() -> int:
        raise ZeroDivisionError

    call = Call(fail, lambda _: pytest.fail("nothing was answered"))
    with pytest.raises(ZeroDivisionError):
        trio.run(call.run)
    call.give_up()
    assert call.is_over.is_set()


@pytest.mark.usefixtures("_interrupts")
def test_interrupted_poll_has_ended_when_it_raises():
    """An interrupted poll has ended when the interrupt leaves it."""
    records = Records()
    ended = threading.Event()

    async def poll() -> list[int]:
        try:
            interrupt_main()
            await trio.sleep_forever()
        finally:
            ended.set()
        return records.take()

    with portal() as opened:
        with pytest.raises(Interrupt):
            opened.call_or_undo(records.put_back, poll)
        assert ended.is_set()
        assert opened.call(records.poll) == list(range(10))


@pytest.mark.usefixtures("_interrupts")
def test_records_taken_during_an_interrupt_are_taken_again():
    """Records that a poll took while the interrupt arrived are returned again."""
    records = Records()

    async def poll() -> list[int]:
        await trio.lowlevel.checkpoint()
        interrupt_main()
        return records.take()

    with portal() as opened:
        for _ in range(20):
            with pytest.raises(Interrupt):
                opened.call_or_undo(records.put_back, poll)
            assert records.position == 0
        assert opened.call(records.poll) == list(range(10))


@pytest.mark.usefixtures("_interrupts")
def test_second_interrupt_leaves_a_hanging_call_undone(monkeypatch):
    """A second interrupt leaves a call that does not end, and the call is still undone."""
    records = Records()
    undone = threading.Event()

    async def poll(released: trio.Event) -> list[int]:
        with trio.CancelScope(shield=True):
            interrupt_main()
            await given_up.wait()
            interrupt_main()
            await released.wait()
        return records.take()

    def put_back(taken: list[int]) -> None:
        records.put_back(taken)
        undone.set()

    with portal() as opened:
        given_up, released = opened.call_sync(trio.Event), opened.call_sync(trio.Event)
        original = Call.give_up

        def give_up(call: Call) -> None:
            original(call)
            given_up.set()

        monkeypatch.setattr(Call, "give_up", give_up)
        with pytest.raises(Interrupt) as caught:
            opened.call_or_undo(put_back, poll, released)
        assert isinstance(caught.value.__context__, Interrupt)
        assert not undone.is_set()
        opened.call_sync(released.set)
        assert undone.wait(WAIT_S)
        assert opened.call(records.poll) == list(range(10))


@pytest.mark.usefixtures("_interrupts")
def test_the_wait_for_a_call_that_does_not_end_is_bounded(monkeypatch):
    monkeypatch.setattr(portal_module, "INTERRUPTED_WAIT_S", 0)

    async def poll(released: trio.Event) -> None:
        with trio.CancelScope(shield=True):
            interrupt_main()
            await released.wait()

    with portal() as opened:
        released = opened.call_sync(trio.Event)
        with pytest.raises(Interrupt):
            opened.call(poll, released)
        opened.call_sync(released.set)


@pytest.mark.usefixtures("_interrupts")
def test_an_interrupted_opening_leaves_no_client_open():
    """The block was never entered, so nothing closed the client before the interpreter ended."""
    closed = threading.Event()

    @asynccontextmanager
    async def client():
        interrupt_main()
        try:
            yield object()
        finally:
            closed.set()

    opened = Portal("moldau-test", client())
    with pytest.raises(Interrupt):
        opened.start()
    assert closed.wait(0)
    with pytest.raises(RuntimeError, match=r"the client (is|was) closed"):  # "was" while the thread still ends
        opened.call_sync(object)


@contextlib.contextmanager
def closing_portal(close):
    """Opens a portal whose client waits in ``close`` for its pending work."""

    @asynccontextmanager
    async def client():
        yield object()
        await close()

    opened = Portal("moldau-test", client())
    opened.start()
    yield opened


@pytest.mark.usefixtures("_interrupts")
def test_an_interrupted_close_gives_up_pending_work():
    given_up = threading.Event()

    async def close() -> None:
        try:
            interrupt_main()
            await trio.sleep_forever()
        finally:
            given_up.set()

    with closing_portal(close) as opened:
        with pytest.raises(Interrupt):
            opened.stop(gives_up=False)
        assert given_up.is_set()
        opened.stop(gives_up=False)


def test_an_interrupt_just_after_a_close_has_begun(monkeypatch):
    """It left the client waiting for its pending work: the interrupt came before the thread began to wait."""
    given_up = threading.Event()

    async def close() -> None:
        try:
            await trio.sleep_forever()
        finally:
            given_up.set()

    with closing_portal(close) as opened:
        ask_stop = opened._ask_stop

        def interrupted(**given: object) -> bool:
            ask_stop(**given)
            raise Interrupt

        monkeypatch.setattr(opened, "_ask_stop", interrupted)
        with pytest.raises(Interrupt):
            opened.stop(gives_up=False)
        assert given_up.wait(0), "the client has given up when the interrupt goes on"


@pytest.mark.usefixtures("_interrupts")
def test_a_client_runs_on_after_two_interrupts_of_close(monkeypatch):
    """Python 3.11 takes a thread for ended whose ``join`` was interrupted: a second close and the exit did nothing."""
    monkeypatch.setattr(portal_module, "INTERRUPTED_WAIT_S", 0)
    released, ended = threading.Event(), threading.Event()

    async def close() -> None:
        interrupt_main()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(released.wait, WAIT_S)
        ended.set()

    with closing_portal(close) as opened:
        with pytest.raises(Interrupt):
            opened.stop(gives_up=False)
        assert opened.token is opened.open_token, "the client is open until it has ended"
        assert opened.begin_exit()
        released.set()
        opened.stop(gives_up=False)
        assert ended.is_set()
        assert not opened.begin_exit()


def test_clients_that_are_open_at_exit_end_together(monkeypatch):
    """One after the other, clients whose brokers do not answer would take the whole time each."""
    did: list[str] = []

    class Left:
        def __init__(self, name: str) -> None:
            self.name = name

        def begin_exit(self) -> bool:
            did.append(f"{self.name} begins")
            return self.name != "closed"

        def wait_end(self, timeout_s: float) -> None:
            assert timeout_s <= portal_module.INTERRUPTED_WAIT_S
            did.append(f"{self.name} ends")

    monkeypatch.setattr(portal_module, "_open_portals", [Left("one"), Left("closed"), Left("two")])
    portal_module._stop_all()
    assert did == ["one begins", "closed begins", "two begins", "one ends", "two ends"]


def test_a_call_that_takes_too_long_raises_timeout_error():
    """The error of trio would be no ``TimeoutError``, which the callers of threads expect."""

    async def wait() -> None:
        with trio.fail_after(0):
            await trio.sleep_forever()

    with portal() as opened, pytest.raises(TimeoutError):
        opened.call(wait)
