"""Goal: however many connections send requests that take long, a small one waits for few of them.

Method: a server on real sockets whose handler writes down what it handles; turns are counted, not time.
"""

from __future__ import annotations

import pytest
import trio

from moldau.runtime.connection_loop import HEAVY_BYTES, REQUESTS_PER_TURN
from moldau.runtime.real import real_environment
from moldau.runtime.server import ServerLimits, serve

HEAVY_PEERS = 50
GOOD = b"\x00\x03a good one"
FETCH = b"\x00\x01"
PRODUCE = b"\x00\x00"


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


class Recorder:
    """Writes down the first bytes of each frame; answers all but those that begin with ``silent``."""

    def __init__(self, handled: list[bytes], silent: bytes | None = None) -> None:
        self.handled, self.silent = handled, silent

    def handle(self, frame):
        self.handled.append(bytes(frame[:2]))
        return None if bytes(frame[:2]) == self.silent else [framed(bytes(frame[:6]))]

    def flush(self):
        pass

    def closed(self):
        pass


async def answers_of(stream: trio.SocketStream, count: int) -> None:
    received = 0
    while received < 10 * count:
        part = await stream.receive_some(10_000)
        assert part
        received += len(part)


def with_server(test, handler) -> None:
    async def main() -> None:
        environment = real_environment(1)
        async with trio.open_nursery() as nursery:
            listener = await environment.network.listen("127.0.0.1", 0)

            async def start(task_status) -> None:
                await serve(environment, listener, lambda _: handler, ServerLimits(), task_status=task_status)

            await nursery.start(start)
            with trio.fail_after(30):
                await test(listener.address)
            nursery.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize(("key", "between_max"), [(FETCH, 12), (PRODUCE, HEAVY_PEERS * 30)])
def test_a_small_request_does_not_wait_for_a_long_one_of_each_peer(key: bytes, between_max: int) -> None:
    """Requests of one peer that take long go one a turn; appends of all peers go together, as many as there are."""
    handled: list[bytes] = []
    heavy = framed(key + bytes(HEAVY_BYTES))

    async def test(address) -> None:
        good = await trio.open_tcp_stream(*address)
        peers = [await trio.open_tcp_stream(*address) for _ in range(HEAVY_PEERS)]
        most = 0
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(peer.send_all, heavy * 30)
                nursery.start_soon(answers_of, peer, 30)
            while len(handled) < 5:
                await trio.lowlevel.checkpoint()
            for _ in range(20):
                before = len(handled)
                await good.send_all(framed(GOOD))
                await answers_of(good, 1)
                most = max(most, len(handled) - before - 1)
        assert handled.count(key) == HEAVY_PEERS * 30, "all were served in the end"
        assert most <= between_max, f"{most} requests that take long were handled while one small one waited"
        for stream in (good, *peers):
            await stream.aclose()

    with_server(test, Recorder(handled))


def test_a_peer_that_wants_no_answers_lets_others_have_their_turn() -> None:
    handled: list[bytes] = []
    longest = 0

    async def test(address) -> None:
        nonlocal longest
        good, flood = await trio.open_tcp_stream(*address), await trio.open_tcp_stream(*address)
        large = framed(PRODUCE + bytes(1_000_000))  # leaves a buffer that holds very many small frames
        small = framed(PRODUCE + bytes(6)) * 50_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood.send_all, large + small)
            while handled.count(PRODUCE) <= 50_000:
                await good.send_all(framed(GOOD))
                await answers_of(good, 1)
        run = 0
        for key in handled:
            run = run + 1 if key == PRODUCE else 0
            longest = max(longest, run)
        for stream in (good, flood):
            await stream.aclose()

    with_server(test, Recorder(handled, PRODUCE))
    assert longest <= 12 * REQUESTS_PER_TURN, f"{longest} requests of one peer in a row"
