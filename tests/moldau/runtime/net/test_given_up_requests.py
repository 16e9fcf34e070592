"""Goal: a request that was given up with its connection does not arrive later; a request without an answer does.

Method: one connection over the virtual network, which drops its packets while requests are sent and heals afterwards.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from types import SimpleNamespace

import pytest
import trio

from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from moldau.protocol.messages.metadata import MetadataRequest
from moldau.runtime.net.pending import RpcBusyError, older_version
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.sasl.core.client import ClientSession, ClientState
from moldau.runtime.sasl.core.plain import PlainClient
from moldau.runtime.sasl.network import Authenticated
from moldau_jepsen.world.network.network import NetworkProfile
from moldau_jepsen.world.world import run_world

CALM = NetworkProfile(delay_min=0.001, delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0)
API = 20_001


def run_story(story):
    """Runs ``story`` with a connection whose way there is cut; returns what the peer reads once it is healed."""

    async def run(world):
        listener = await world.node("b").environment.network.listen("b", 1000)
        near = await world.node("a").environment.network.connect("b", 1000)
        far = await listener.accept()
        world.network.cut("a", "b")
        await story(RpcConnection(near, "a"))
        world.network.heal("a", "b")
        await trio.sleep(5.0)
        buffer = bytearray(1 << 16)
        try:
            return bytes(buffer[: far.receive_into_nowait(memoryview(buffer))])
        except ConnectionResetError:
            return "reset"

    return run_world(run, 1, CALM)


async def out_of_time(connection):
    with pytest.raises(trio.TooSlowError):
        await connection.submit_raw(API, 0, b"late").wait(5_000)


async def closed(connection):
    connection.submit_raw(API, 0, b"late")
    await trio.sleep(1.0)
    connection.close()


async def cancelled(connection):
    with trio.move_on_after(1.0):
        await connection.submit_raw(API, 0, b"late").wait()
    connection.close()


@pytest.mark.parametrize("story", [out_of_time, closed, cancelled])
def test_a_request_that_was_given_up_does_not_arrive_later(story):
    assert run_story(story) == "reset"


async def needs_no_answer(connection):
    connection.submit_without_response(MetadataRequest(), 0)
    connection.close()


async def needs_no_answer_among_others(connection):
    connection.submit_raw(API, 0, b"unanswered")
    await needs_no_answer(connection)


async def needs_no_answer_before_one_that_is_late(connection):
    """The time limit of the other one ends the connection; nothing but the transport repeats the first one."""
    connection.submit_without_response(MetadataRequest(), 0)
    await out_of_time(connection)


async def last_words(connection):
    """Of a client that ends: a member that was cancelled while it left its group."""
    with trio.move_on_after(1.0):
        await connection.submit_raw(API, 0, b"farewell").wait()
    connection.close(keeps_sent=True)


STORIES_WITHOUT_RETRY = [
    needs_no_answer,
    needs_no_answer_among_others,
    needs_no_answer_before_one_that_is_late,
    last_words,
]


@pytest.mark.parametrize("story", STORIES_WITHOUT_RETRY)
def test_requests_without_retry_are_left_to_the_transport(story):
    read = run_story(story)
    assert isinstance(read, bytes)
    assert read, "all that was sent"


async def answered_unread(connection, far):
    """The answer is there before its time is over, and no task has read it."""
    frame = bytearray(100)
    far.receive_into_nowait(memoryview(frame))
    far.send_nowait([b"\0\0\0\x04" + frame[8:12]])
    await trio.sleep(10.0)


async def silent(connection, far):
    await trio.sleep(10.0)


@pytest.mark.parametrize(("story", "is_open"), [(answered_unread, True), (silent, False)])
def test_a_silent_peer_of_a_cancelled_request_is_noticed(story, is_open):
    """Calls that are each cancelled before their own time is over would keep a dead connection for good."""

    async def run(world):
        listener = await world.node("b").environment.network.listen("b", 1000)
        connection = RpcConnection(await world.node("a").environment.network.connect("b", 1000), "a")
        far = await listener.accept()
        with trio.move_on_after(1.0):
            await connection.submit_raw(API, 0, b"first").wait(5_000)
        with trio.move_on_after(1.0):
            await connection.submit_raw(API, 0, b"not overdue yet").wait(50_000)
        await story(connection, far)
        if is_open:
            connection.submit_raw(API, 0, b"next")
        else:
            with pytest.raises(ConnectionError, match="no answer"):
                connection.submit_raw(API, 0, b"next")
        assert connection.is_open is is_open
        connection.close()

    run_world(run, 1, CALM)


def test_the_time_of_a_cancelled_request_begins_after_the_pause():
    """A peer that throttles the client (KIP-219) reads the request only then; its connection is sound."""

    async def run(world):
        listener = await world.node("b").environment.network.listen("b", 1000)
        connection = RpcConnection(await world.node("a").environment.network.connect("b", 1000), "a")
        await listener.accept()
        connection.throttled_until = trio.current_time() + 20.0
        with trio.move_on_after(1.0):
            await connection.submit_raw(API, 0, b"first").wait(5_000)
        await trio.sleep_until(connection.throttled_until + 4.9)
        assert connection.notice_end()
        await trio.sleep(0.2)
        assert not connection.notice_end()

    run_world(run, 1, CALM)


def authenticated(clock, **changes):
    """An authentication that is due for its repetition (KIP-368)."""
    keys = [ApiVersion(api_key=key, min_version=0, max_version=1) for key in (17, 36)]
    session = ClientSession("PLAIN", "b:1000", "a", ("test", "1"))
    session.state, session.api_versions = ClientState.AUTHENTICATED, ApiVersionsResponse(api_keys=keys)
    login = SimpleNamespace(exchange_nowait=lambda: PlainClient("user", "password"), needs_fetch=False)
    given = Authenticated(session=session, login=login, clock=clock, again_at_ms=0.0, expires_at_ms=math.inf)
    return dataclasses.replace(given, **changes)


def in_renewal(test, **settings):
    """Runs ``test(connection)`` with a connection whose first request begins a re-authentication."""

    async def run(world):
        listener = await world.node("b").environment.network.listen("b", 1000)
        environment = world.node("a").environment
        near = await environment.network.connect("b", 1000)
        given = authenticated(environment.clock, **settings.pop("authentication", {}))
        connection = RpcConnection(near, "a", authenticated=given, **settings)
        await listener.accept()
        connection.submit_raw(API, 0, b"held")
        test(connection)
        connection.close()

    run_world(run, 1, CALM)


def test_requests_that_a_renewal_holds_back_are_in_flight():
    """They are bounded like all others: the request of the exchange is one, and each that waits for its end."""

    def test(connection):
        assert connection.in_flight == 2
        connection.submit_raw(API, 0, b"held too")
        with pytest.raises(RpcBusyError):
            connection.submit_raw(API, 0, b"one too many")
        with pytest.raises(RpcBusyError):
            connection.submit_frame(lambda _: b"another one", bytes)

    in_renewal(test, in_flight_max=3)


def test_requests_without_an_answer_wait_for_a_renewal_too():
    """The server closes a connection that sends anything else between the two ends of the exchange."""

    def test(connection):
        connection.submit_without_response(MetadataRequest(), 0)
        assert [pending is None for pending, _ in connection._renewal.held] == [False, True]

    in_renewal(test)


def test_a_session_that_ends_in_its_renewal_is_not_lost():
    """The exchange goes on with the token that it has begun with, although the next one would need another."""
    login = SimpleNamespace(exchange_nowait=lambda: PlainClient("user", "password"), needs_fetch=True)

    def test(connection):
        assert connection.notice_lost_session()
        assert connection.is_open

    in_renewal(test, authentication={"login": login, "expires_at_ms": 0.0})


@pytest.mark.parametrize("slept_s", [1.0, 10.0])
def test_a_peer_that_is_silent_in_a_renewal_is_noticed(slept_s):
    """Requests wait for its end. Each of them is cancelled before its own time is over."""

    async def run(world):
        listener = await world.node("b").environment.network.listen("b", 1000)
        environment = world.node("a").environment
        near = await environment.network.connect("b", 1000)
        connection = RpcConnection(near, "a", authenticated=authenticated(environment.clock))
        await listener.accept()
        with trio.move_on_after(1.0):
            await connection.submit_raw(API, 0, b"first").wait(5_000)
        with trio.move_on_after(1.0):
            await connection.submit_raw(API, 0, b"not overdue yet").wait(50_000)
        await trio.sleep(slept_s)
        if slept_s < 4:
            connection.submit_raw(API, 0, b"next")
        else:
            with pytest.raises(ConnectionError, match="no answer"):
                connection.submit_raw(API, 0, b"next")
        assert connection.is_open is (slept_s < 4)
        connection.close()

    run_world(run, 1, CALM)


def test_a_request_that_a_renewal_holds_is_not_sent_yet():
    """A producer with acks=0 takes records for delivered once the transport has their bytes."""

    async def run(world):
        listener = await world.node("b").environment.network.listen("b", 1000)
        environment = world.node("a").environment
        near = await environment.network.connect("b", 1000)
        connection = RpcConnection(near, "a", authenticated=authenticated(environment.clock))
        await listener.accept()
        connection.submit_without_response(MetadataRequest(topics=[]), 1)
        with trio.move_on_after(5.0) as scope:
            await connection.flush()
        assert scope.cancelled_caught
        connection.fail("the peer is silent")
        await connection.flush()

    run_world(run, 1, CALM)


def test_another_waiting_task_goes_on_sending():
    """It receives, and heard nothing of the cancelled task: its own request stayed here until its time was over."""
    slow = dataclasses.replace(CALM, window_bytes=1000)

    async def run(world):
        listener = await world.node("b").environment.network.listen("b", 1000)
        connection = RpcConnection(await world.node("a").environment.network.connect("b", 1000), "a")
        far = await listener.accept()
        sending = trio.CancelScope()

        async def ask(body, scope):
            with scope:
                await connection.submit_raw(API, 0, body).wait(30_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, bytes(2000), sending)
            await trio.sleep(0.1)
            nursery.start_soon(ask, b"second", trio.CancelScope())
            await trio.sleep(0.1)
            sending.cancel()
            await trio.sleep(0.1)
            buffer, got = bytearray(4096), bytearray()
            with trio.fail_after(5):
                while not got.endswith(b"second"):
                    await far.wait_readable()
                    got += buffer[: far.receive_into_nowait(memoryview(buffer))]
            for correlation_id in range(2):
                far.send_nowait([struct.pack(">ii", 4, correlation_id)])
        connection.close()

    run_world(run, 1, slow)


@pytest.mark.parametrize(("last", "tried", "asked"), [(None, 4, 0), (2, 4, 2), (4, 4, 3), (9, 4, 3)])
def test_each_refused_version_is_followed_by_an_older_one(last, tried, asked):
    """A peer may refuse the version that it names, or name none: the client would ask the same for ever."""
    keys = [] if last is None else [ApiVersion(api_key=18, min_version=0, max_version=last)]
    assert older_version(ApiVersionsResponse(error_code=35, api_keys=keys), tried) == asked
