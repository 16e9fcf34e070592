"""Goal: the link proxies forward unharmed bytes, know their clients, and hold, delay and reset as their rules say.

Method: an echo server behind one proxy on real sockets of the loopback interface; members name themselves in the first
frame as Kafka's request header does.
"""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from moldau_jepsen.chaos.network.links import HOST, Links, member_of
from moldau_jepsen.chaos.network.rules import CLIENT, Link, LinkRule
from moldau_jepsen.launcher.ports import take_free_ports


def frame(client_id: str | None, payload: bytes = b"") -> bytes:
    name = (client_id or "").encode()
    header = struct.pack(">hhih", 3, 9, 1, -1 if client_id is None else len(name)) + name
    return struct.pack(">i", len(header) + len(payload)) + header + payload


@pytest.mark.parametrize(
    ("client_id", "member"),
    [
        ("broker-2", 2),
        ("broker-12-fetcher-3", 12),
        ("controller-101", 101),
        ("my-app", CLIENT),
        ("broker-x", CLIENT),
        (None, CLIENT),
    ],
)
def test_the_first_frame_identifies_the_client(client_id: str | None, member: int) -> None:
    whole = frame(client_id)
    assert member_of(whole) == member
    assert all(member_of(whole[:cut]) in (None, member) for cut in range(len(whole)))
    assert member_of(whole[:13]) is None


async def echo(stream: trio.SocketStream) -> None:
    try:
        async for chunk in stream:
            await stream.send_all(chunk)
    except trio.BrokenResourceError:
        return  # the test reset the connection


@asynccontextmanager
async def fabric() -> AsyncIterator[tuple[Links, Callable[[str], Awaitable[trio.SocketStream]]]]:
    real, proxy = take_free_ports(2)
    links = Links({2: real})

    async def connect(client_id: str) -> trio.SocketStream:
        stream = await opened.enter_async_context(await trio.open_tcp_stream(HOST, proxy))
        await stream.send_all(frame(client_id))
        return stream

    async with AsyncExitStack() as opened, trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, echo, real, host=HOST))
        await nursery.start(links.serve, {2: proxy})
        with trio.fail_after(120):
            yield links, connect
        nursery.cancel_scope.cancel()


async def read(stream: trio.SocketStream, count: int) -> bytes:
    got = b""
    while len(got) < count:
        chunk = await stream.receive_some(count - len(got))
        assert chunk, f"the stream ended after {len(got)} of {count} bytes"
        got += chunk
    return got


def test_bytes_pass_unharmed_in_both_directions() -> None:
    async def main() -> None:
        async with fabric() as (links, connect):
            stream = await connect("app")
            payload = bytes(range(256)) * 4096
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.send_all, payload)
                assert await read(stream, len(frame("app")) + len(payload)) == frame("app") + payload
            assert links.bytes_forwarded >= 2 * len(payload)

    trio.run(main)


def test_a_cut_holds_one_member_only_until_it_is_healed() -> None:
    """A cut holds the bytes of one member until it is healed; the bytes of other members pass."""

    async def main() -> None:
        async with fabric() as (links, connect):
            first = await connect("broker-1")
            await read(first, len(frame("broker-1")))
            links.cut([1], [2])
            await first.send_all(b"held")
            other = await connect("broker-3")
            await read(other, len(frame("broker-3")))
            with trio.move_on_after(0.05) as scope:
                await first.receive_some(1)
            assert scope.cancelled_caught
            links.heal()
            assert await read(first, 4) == b"held"

    trio.run(main)


def test_a_one_way_cut_passes_requests_and_holds_responses() -> None:
    """A one-way cut passes the request and holds the response."""

    async def main() -> None:
        async with fabric() as (links, connect):
            links.cut([2], [1], both_ways=False)
            stream = await connect("broker-1")
            before = links.bytes_forwarded
            while links.bytes_forwarded == before:
                await trio.lowlevel.checkpoint()
            assert links.rule(Link(1, 2)) == LinkRule()
            with trio.move_on_after(0.05) as scope:
                await stream.receive_some(1)
            assert scope.cancelled_caught
            links.heal()
            await read(stream, len(frame("broker-1")))

    trio.run(main)


def test_a_cut_holds_bytes_that_waited_for_a_delay() -> None:
    async def main() -> None:
        link, links = Link(CLIENT, 2), Links({2: 1})
        near, source = trio.testing.memory_stream_pair()
        target, far = trio.testing.memory_stream_pair()
        links.set_rule(link, LinkRule(delay_ms=100))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(links._pump, link, source, target, b"", None, nursery.cancel_scope)
            await near.send_all(b"x")
            await trio.sleep(0.05)
            links.set_rule(link, LinkRule(cut=True))
            await trio.sleep(1)
            with trio.move_on_after(1) as limit:
                await far.receive_some(1)
            assert limit.cancelled_caught, "the cut lets nothing pass"
            links.heal()
            assert await far.receive_some(1) == b"x"
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_slow_link_delays_what_passes() -> None:
    async def main() -> None:
        async with fabric() as (links, connect):
            links.set_rule(Link(CLIENT, 2), LinkRule(delay_ms=80))
            begun = trio.current_time()
            stream = await connect("app")
            await read(stream, len(frame("app")))
            assert trio.current_time() - begun >= 0.08

    trio.run(main)


def test_a_cut_holds_what_a_slow_link_delayed() -> None:
    """Bytes that were on their way when the cut began wait for its end."""
    link, links = Link(1, 2), Links({})

    async def main() -> float:
        near, source = trio.testing.memory_stream_one_way_pair()
        target, far = trio.testing.memory_stream_one_way_pair()
        ends: Any = (source, target)
        links.set_rule(link, LinkRule(delay_ms=1_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(links._pump, link, *ends, b"", None, trio.CancelScope())
            await near.send_all(b"x")
            await trio.sleep(0.5)
            links.set_rule(link, LinkRule(cut=True))
            nursery.start_soon(heal_after, 5.0)
            assert await far.receive_some() == b"x"
            nursery.cancel_scope.cancel()
        return trio.current_time()

    async def heal_after(seconds: float) -> None:
        await trio.sleep(seconds)
        links.heal()

    assert trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == 5.5


def test_a_reset_ends_the_connections_of_the_member_only() -> None:
    async def main() -> None:
        async with fabric() as (links, connect):
            first, other = await connect("broker-1"), await connect("app")
            await read(first, len(frame("broker-1")))
            await read(other, len(frame("app")))
            assert links.reset([1]) == 1
            with pytest.raises(trio.BrokenResourceError):
                await first.receive_some(1)
            await other.send_all(b"on")
            assert await read(other, 2) == b"on"

    trio.run(main)


def test_a_target_that_is_down_ends_the_connection() -> None:
    async def main() -> None:
        down, proxy = take_free_ports(2)
        links = Links({1: down})
        async with trio.open_nursery() as nursery:
            await nursery.start(links.serve, {1: proxy})
            with trio.fail_after(120):
                async with await trio.open_tcp_stream(HOST, proxy) as stream:
                    await stream.send_all(frame("app"))
                    with pytest.raises(trio.BrokenResourceError):
                        await stream.receive_some(1)
            nursery.cancel_scope.cancel()

    trio.run(main)
