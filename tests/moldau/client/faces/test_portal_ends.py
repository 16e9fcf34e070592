"""Goal: a client that ends says what went wrong once, and leaves no call waiting; a closer that gives up counts.

Method: the portals of threads and asyncio with clients of the test, whose trio thread is held where order matters.
"""

import asyncio
import os
import threading
from contextlib import asynccontextmanager

import pytest
import trio

from moldau.aio.portal import AioPortal
from moldau.blocking.portal import Portal

WAIT_S = 60


class Client:
    """Notes how its block is left, and may fail then."""

    def __init__(self, error=None):
        self.error, self.left = error, []

    async def __aenter__(self):
        return self

    async def __aexit__(self, kind, *_error):
        self.left.append(kind)
        if self.error is not None:
            raise self.error


def test_a_thread_raises_an_error_of_closing_once():
    portal = Portal("moldau-test", Client(OSError("not closed")))
    portal.start()
    with pytest.raises(OSError, match="not closed"):
        portal.stop(gives_up=False)
    portal.stop(gives_up=False)


def test_a_task_raises_an_error_of_closing_once():
    async def main():
        portal = AioPortal("moldau-test", Client(OSError("not closed")))
        await portal.open()
        with pytest.raises(OSError, match="not closed"):
            await portal.shut(gives_up=False)
        await portal.shut(gives_up=False)

    asyncio.run(main())


@pytest.mark.parametrize("order", [(True, False), (False, True), (False, False)])
def test_a_client_gives_up_if_one_of_its_closers_does(order):
    """A block is left by an exception while another thread closes the client in order, or the other way round."""
    client, held = Client(), threading.Event()
    portal = Portal("moldau-test", client)
    portal.start()
    portal.token.run_sync_soon(held.wait, WAIT_S)
    for gives_up in order:
        assert portal._ask_stop(gives_up=gives_up)
    held.set()
    portal.stop(gives_up=False)
    assert client.left == [trio.Cancelled if any(order) else None]


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_call_ends_with_its_client(gives_up):
    """Under asyncio another task may close the client while one awaits a call."""

    async def main():
        portal, begun = AioPortal("moldau-test", Client()), asyncio.Event()
        await portal.open()
        loop = asyncio.get_running_loop()

        async def endless():
            loop.call_soon_threadsafe(begun.set)
            await trio.sleep_forever()

        call = asyncio.create_task(portal.call_async(endless))
        await begun.wait()
        await portal.shut(gives_up=gives_up)
        with pytest.raises(RuntimeError, match="the client was closed during the call"):
            await asyncio.wait_for(call, WAIT_S)

    asyncio.run(main())


def test_a_thread_that_calls_ends_with_its_client():
    portal, begun, outcomes = Portal("moldau-test", Client()), threading.Event(), []
    portal.start()

    async def endless():
        begun.set()
        await trio.sleep_forever()

    def call():
        try:
            portal.call(endless)
        except RuntimeError as error:
            outcomes.append(str(error))

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert begun.wait(WAIT_S)
    portal.stop(gives_up=False)
    caller.join(WAIT_S)
    assert outcomes == ["the client was closed during the call"]


@pytest.mark.parametrize("closes", [None, 5.0])
def test_what_closes_a_client_runs_before_its_block_is_left(closes):
    done = []

    @asynccontextmanager
    async def client():
        yield done
        done.append("left")

    async def closing(opened):
        await trio.lowlevel.checkpoint()
        opened.append("closed")

    portal = Portal("moldau-test", client())
    portal.start()
    portal.stop(gives_up=False, closing=None if closes is None else closing)
    assert done == (["left"] if closes is None else ["closed", "left"])


def test_another_process_is_named_as_the_owner(monkeypatch):
    """A forked process has no copy of the thread: it must open a client of its own, and must not end this one."""
    portal = Portal("moldau-test", Client())
    portal.start()
    owner = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: owner + 1)
        with pytest.raises(RuntimeError, match=f"the client was opened in process {owner}, and a forked process"):
            _ = portal.token
        assert not portal.begin_exit()
    assert portal.token is portal.open_token
    portal.stop(gives_up=False)
    with pytest.raises(RuntimeError, match="the client is closed"):
        _ = portal.token
