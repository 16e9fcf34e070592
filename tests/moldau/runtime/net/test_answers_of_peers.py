"""Goal: an answer reaches the request that it belongs to and no other, and a bad peer is named.

Method: one connection over the virtual network, to a peer that answers what a test says.
"""

from __future__ import annotations

import math
import struct
from itertools import permutations
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import trio

from moldau.protocol.api import ApiKey
from moldau.protocol.codec import decode
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.protocol.framing import decode_request_header, encode_response
from moldau.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from moldau.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from moldau.protocol.messages.sasl_handshake import SaslHandshakeResponse
from moldau.runtime.net.frames import reason_of_end
from moldau.runtime.net.peers import ExpectedPeer
from moldau.runtime.net.rpc import EXPECTED_PEER_VERSION, RpcConnection
from moldau.runtime.sasl.core.client import ClientSession, ClientState
from moldau.runtime.sasl.core.plain import PlainClient
from moldau.runtime.sasl.network import Authenticated
from moldau_jepsen.world.network.network import NetworkProfile
from moldau_jepsen.world.world import run_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.protocol.schema import Response
    from moldau.runtime.ports.environment import Connection, Environment

CALM = NetworkProfile(delay_min=0.001, delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0)
API, REQUESTS = 20_001, 3


def answer(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


async def frames(connection: Connection, count: int) -> list[bytes]:
    """Reads so many requests, without their sizes."""
    return [await read(connection, int.from_bytes(await read(connection, 4), "big")) for _ in range(count)]


async def read(connection: Connection, count: int) -> bytes:
    buffer, filled = bytearray(count), 0
    while filled < count:
        try:
            filled += connection.receive_into_nowait(memoryview(buffer)[filled:])
        except BlockingIOError:
            await connection.wait_readable()
    return bytes(buffer)


def with_peer(peer: Callable[[Connection], Awaitable[None]], client: Callable[[Environment], Awaitable[None]]) -> None:
    async def main(world: object) -> None:
        listener = await world.node("b").environment.network.listen("b", 1000)

        async def serve() -> None:
            await peer(await listener.accept())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            with trio.fail_after(100):
                await client(world.node("a").environment)
            nursery.cancel_scope.cancel()

    run_world(main, 1, CALM)


@pytest.mark.parametrize("order", list(permutations(range(REQUESTS))))
def test_answers_in_another_order_are_refused(order: tuple[int, ...]) -> None:
    """Kafka's peers answer in order. The first answer that is out of order closes the connection.

    Those before it are right; no request gets the answer of another.
    """
    right = next((place for place, number in enumerate(order) if place != number), REQUESTS)

    async def peer(connection: Connection) -> None:
        asked = await frames(connection, REQUESTS)
        ids = [decode_request_header(frame).correlation_id for frame in asked]
        await connection.send_all([answer(ids[number], b"%d" % number) for number in order])
        await trio.sleep_forever()

    async def client(environment: Environment) -> None:
        connection = await RpcConnection.open(environment, "b", 1000, "a", negotiate=False)
        pending = [connection.submit_raw(API, 0, b"") for _ in range(REQUESTS)]
        for place, each in enumerate(pending):
            if place < right:
                assert bytes(await each.wait()) == b"%d" % place
            else:
                with pytest.raises(ConnectionError, match=f"correlation id {order[right]} where {right} was expected"):
                    await each.wait()
        assert connection.is_open is (right == REQUESTS)
        connection.close()

    with_peer(peer, client)


def test_an_answer_to_no_request_closes_the_connection() -> None:
    async def peer(connection: Connection) -> None:
        await frames(connection, 1)
        await connection.send_all([answer(0, b"right"), answer(1, b"unasked")])
        await trio.sleep_forever()

    async def client(environment: Environment) -> None:
        connection = await RpcConnection.open(environment, "b", 1000, "a", negotiate=False)
        assert bytes(await connection.request_raw(API, 0, b"")) == b"right"
        await trio.sleep(1)
        assert not connection.notice_end()
        with pytest.raises(ConnectionError, match="correlation id 1 where none was expected"):
            await connection.request_raw(API, 0, b"")

    with_peer(peer, client)


@pytest.mark.parametrize("last", range(EXPECTED_PEER_VERSION + 1))
@pytest.mark.parametrize("names_itself", [True, False], ids=["names-its-version", "names-none"])
def test_an_older_peer_is_asked_in_its_own_version(last: int, names_itself: bool) -> None:
    """A peer that does not know the version refuses it in version 0; the second question names no expected node."""
    seen = []

    async def peer(connection: Connection) -> None:
        while True:
            (frame,) = await frames(connection, 1)
            header = decode_request_header(frame)
            request = decode(ApiVersionsRequest, header.api_version, frame, header.body_offset)
            seen.append((header.api_version, getattr(request, "node_id", -1)))
            own = [ApiVersion(api_key=18, min_version=0, max_version=last)]
            if header.api_version <= last:
                response, version = ApiVersionsResponse(api_keys=own), header.api_version
            else:
                code = ErrorCode.UNSUPPORTED_VERSION
                response, version = ApiVersionsResponse(error_code=code, api_keys=own if names_itself else []), 0
            await connection.send_all([encode_response(response, version, header.correlation_id)])

    async def client(environment: Environment) -> None:
        expected = ExpectedPeer("cluster", 7)
        connection = await RpcConnection.open(environment, "b", 1000, "a", expected=expected)
        assert connection.served_versions == {18: (0, last)}
        connection.close()

    with_peer(peer, client)
    newest = ApiVersionsRequest.__versions__.last
    second = last if names_itself else 0
    wanted = [newest] if last >= newest else [newest, second]
    assert seen == [(version, 7 if version >= EXPECTED_PEER_VERSION else -1) for version in wanted]


def test_a_peer_that_refuses_the_question_is_named() -> None:
    async def peer(connection: Connection) -> None:
        (frame,) = await frames(connection, 1)
        header = decode_request_header(frame)
        response = ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        await connection.send_all([encode_response(response, header.api_version, header.correlation_id)])
        await trio.sleep_forever()

    async def client(environment: Environment) -> None:
        with pytest.raises(KafkaError, match="refused ApiVersions") as caught:
            await RpcConnection.open(environment, "b", 1000, "a")
        assert caught.value.code is ErrorCode.REBOOTSTRAP_REQUIRED

    with_peer(peer, client)


@pytest.mark.parametrize(
    ("is_first", "serves_sasl", "advises"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_sasl_is_advised_only_where_it_may_be_missing(is_first: bool, serves_sasl: bool, advises: bool) -> None:
    text = reason_of_end(is_first=is_first, serves_sasl=serves_sasl)
    assert text.startswith("the peer closed the connection")
    assert ("security.protocol=SASL_PLAINTEXT" in text) is advises


@pytest.mark.parametrize("timeout_ms", [1, 5_000, 30_000])
@pytest.mark.parametrize("throttled_s", [0, 2, 40])
def test_a_wait_takes_its_time_and_no_more(timeout_ms: int, throttled_s: int) -> None:
    """The time begins when the peer reads requests again."""

    async def peer(connection: Connection) -> None:
        await trio.sleep_forever()

    async def client(environment: Environment) -> None:
        connection = await RpcConnection.open(environment, "b", 1000, "a", negotiate=False)
        begun = trio.current_time()
        connection.throttled_until = begun + throttled_s
        with pytest.raises(trio.TooSlowError, match=f"no answer within {timeout_ms} ms"):
            await connection.request_raw(API, 0, b"", timeout_ms=timeout_ms)
        assert trio.current_time() - begun == pytest.approx(throttled_s + timeout_ms / 1000)
        assert not connection.is_open

    with_peer(peer, client)


@pytest.mark.parametrize(("end", "given"), [("fail", ["the test says so"]), ("close", [])])
def test_the_end_of_a_connection_reaches_each_waiting_request(end: str, given: list[str]) -> None:
    """One task receives for all; the others hear of the end at once, and not when their own time is over."""

    async def peer(connection: Connection) -> None:
        await trio.sleep_forever()

    async def client(environment: Environment) -> None:
        connection = await RpcConnection.open(environment, "b", 1000, "a", negotiate=False)
        ended = []

        async def ask() -> None:
            with pytest.raises(ConnectionError):
                await connection.request_raw(API, 0, b"", timeout_ms=30_000)
            ended.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.sleep(1)
            begun = trio.current_time()
            getattr(connection, end)(*given)
        assert ended == [pytest.approx(begun, abs=0.1)] * 3

    with_peer(peer, client)


@pytest.mark.parametrize("throttle_ms", [0, 700])
def test_an_answer_says_when_its_peer_reads_again(throttle_ms: int) -> None:
    async def peer(connection: Connection) -> None:
        (frame,) = await frames(connection, 1)
        header = decode_request_header(frame)
        response = ApiVersionsResponse(throttle_time_ms=throttle_ms, api_keys=[ApiVersion(api_key=18, max_version=4)])
        await connection.send_all([encode_response(response, header.api_version, header.correlation_id)])

    async def client(environment: Environment) -> None:
        connection = await RpcConnection.open(environment, "b", 1000, "a", negotiate=False)
        await connection.submit(ApiVersionsRequest(), 4).wait()
        until = trio.current_time() + throttle_ms / 1000 if throttle_ms else 0
        assert connection.throttled_until == until
        connection.close()

    with_peer(peer, client)


@pytest.mark.parametrize("lifetime_ms", [0, 60_000])
def test_requests_that_a_renewal_held_leave_in_their_order(lifetime_ms: int) -> None:
    """The peer gets the exchange alone, and then all requests that were made meanwhile."""
    seen = []

    async def peer(connection: Connection) -> None:
        while True:
            (frame,) = await frames(connection, 1)
            header = decode_request_header(frame)
            seen.append((header.api_key, bytes(frame[-1:])))
            if header.api_key == ApiKey.SASL_HANDSHAKE:
                response: Response = SaslHandshakeResponse(mechanisms=["PLAIN"])
            elif header.api_key == ApiKey.SASL_AUTHENTICATE:
                await trio.sleep(1)
                assert len(seen) == 2, "nothing else comes before the answer"
                response = SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms)
            else:
                await connection.send_all([answer(header.correlation_id, frame[-1:])])
                continue
            await connection.send_all([encode_response(response, header.api_version, header.correlation_id)])

    async def client(environment: Environment) -> None:
        session = ClientSession("PLAIN", "b:1000", "a", ("test", "1"))
        keys = [ApiVersion(api_key=key, min_version=0, max_version=1) for key in (17, 36)]
        session.state, session.api_versions = ClientState.AUTHENTICATED, ApiVersionsResponse(api_keys=keys)
        login = SimpleNamespace(exchange_nowait=lambda: PlainClient("user", "password"), needs_fetch=False)
        given = Authenticated(
            session=session, login=login, clock=environment.clock, again_at_ms=0.0, expires_at_ms=math.inf
        )
        near = await environment.network.connect("b", 1000)
        connection = RpcConnection(near, "a", authenticated=given)
        pending = [connection.submit_raw(API, 0, b"%d" % number) for number in range(4)]
        assert connection.in_flight == 5
        assert [bytes(await each.wait()) for each in reversed(pending)] == [b"3", b"2", b"1", b"0"]
        assert bytes(await connection.request_raw(API, 0, b"4")) == b"4"
        assert (given.expires_at_ms < math.inf) is (lifetime_ms > 0)
        connection.close()

    with_peer(peer, client)
    assert [key for key, _ in seen[:2]] == [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    assert seen[2:] == [(API, b"%d" % number) for number in range(5)]
