"""Goal: a small request waits for few long requests, however many connections send them.

Method: a server on real sockets whose handler records each request; the tests count turns, not time. Where several
connections must have received something in the same instant, the server runs on a virtual network without jitter.
"""

from __future__ import annotations

import pytest
import trio

from moldau.runtime.net.serving.answers import CloseConnection, Preparation, WaitingAnswer
from moldau.runtime.net.serving.parked_reader import HEAVY_BYTES, REQUESTS_PER_TURN
from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.net.serving.turns import CONNECTIONS_MAX
from moldau.runtime.ports.real import real_environment
from moldau_jepsen.world.network.network import NetworkProfile
from moldau_jepsen.world.world import run_world
from support.cluster.broker_cluster import read_frame

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
def test_small_request_does_not_wait_for_every_long_one(key: bytes, between_max: int) -> None:
    """Long requests are handled one per turn; the appends of all peers are handled together."""
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


def test_peer_without_answers_lets_others_have_a_turn() -> None:
    """A peer whose requests need no answers lets others have their turn."""
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


class Prepares(Preparation):
    """Takes some turns before its request is handled; fails as it is asked to."""

    def __init__(self, handler: Preparer, body: bytes) -> None:
        self.handler, self.body = handler, body

    async def prepare(self) -> None:
        for _ in range(self.body[2]):
            self.handler.handled.append(b"..")
            await trio.lowlevel.checkpoint()

    def handle(self):
        self.handler.staged = True
        self.handler.handled.append(self.body[:2])
        if self.body[3:4] == b"c":
            raise CloseConnection("asked to", [framed(b"the end")])
        return None if self.body[3:4] == b"s" else [framed(self.body[:6])]


class Preparer(Recorder):
    """Prepares requests that begin with PRODUCE; what it has staged must be flushed before anything else happens."""

    def __init__(self, handled: list[bytes]) -> None:
        super().__init__(handled)
        self.staged = False
        self.flushes = 0

    def handle(self, frame):
        assert not self.staged
        return Prepares(self, bytes(frame)) if bytes(frame[:2]) == PRODUCE else super().handle(frame)

    def flush(self):
        self.staged = False
        self.flushes += 1


def test_prepared_requests_keep_their_place() -> None:
    """Answers come in the order of the requests, with long ones and silent ones among them."""
    handler = Preparer([])
    bodies = [
        b"\x00\x03first....",
        PRODUCE + b"\x05-long..",
        PRODUCE + b"\x03sno answer",
        b"\x00\x03then....",
        PRODUCE + b"\x00-short.",
        PRODUCE + b"\x02-short.",
        b"\x00\x03last....",
    ]

    async def test(address) -> None:
        stream = await trio.open_tcp_stream(*address)
        await stream.send_all(b"".join(framed(body) for body in bodies))
        expected = b"".join(framed(body[:6]) for body in bodies if body[3:4] != b"s" or body[:2] != PRODUCE)
        received = b""
        while len(received) < len(expected):
            received += await stream.receive_some(1000)
        assert received == expected
        await stream.aclose()

    with_server(test, handler)
    assert [key for key in handler.handled if key != b".."] == [body[:2] for body in bodies]
    assert handler.handled.count(b"..") == 10
    assert handler.flushes >= 4
    assert not handler.staged


def test_others_are_served_while_a_request_is_prepared() -> None:
    handler = Preparer([])

    async def test(address) -> None:
        good, busy = await trio.open_tcp_stream(*address), await trio.open_tcp_stream(*address)
        await busy.send_all(framed(PRODUCE + b"\xff-long..") * 200)
        while b".." not in handler.handled:
            await trio.lowlevel.checkpoint()
        for _ in range(20):
            await good.send_all(framed(GOOD))
            await answers_of(good, 1)
        assert handler.handled.count(PRODUCE) < 200, "it was served between two of them, or within one"
        await answers_of(busy, 200)
        for stream in (good, busy):
            await stream.aclose()

    with_server(test, handler)


def test_a_prepared_request_may_end_the_connection() -> None:
    """Requests before it are answered, then its last answer is sent; requests behind it are dropped."""
    handler = Preparer([])

    async def test(address) -> None:
        stream = await trio.open_tcp_stream(*address)
        bodies = [b"\x00\x03first....", PRODUCE + b"\x03close..", b"\x00\x03dropped."]
        await stream.send_all(b"".join(framed(body) for body in bodies))
        received = b""
        while part := await stream.receive_some(1000):
            received += part
        assert received == framed(bodies[0][:6]) + framed(b"the end")
        await stream.aclose()

    with_server(test, handler)
    assert handler.handled == [b"\x00\x03", b"..", b"..", b"..", PRODUCE]


class Shared(Recorder):
    """Handlers of several connections, which note in one list when they flush."""

    def __init__(self, handled: list[bytes], fails: bytes = b"") -> None:
        super().__init__(handled)
        self.fails = fails
        self.last = b""

    def handle(self, frame):
        self.last = bytes(frame[6:8])
        if self.last == self.fails == b"KO":
            raise ValueError("planted")
        if self.last == b"BY":
            raise CloseConnection("planted", [framed(b"farewell")])
        return super().handle(frame)

    def flush(self):
        self.handled.append(b"flush")
        if self.last == self.fails == b"NO":
            raise CloseConnection("the disk failed")


def in_one_turn(bodies: list[bytes], handler_of) -> list[bytes | None]:
    """Sends one request on each connection, all in the same instant; returns the answers, None for a closed one."""
    profile = NetworkProfile(delay_jitter=0.0, spike_probability=0.0, fragment_probability=0.0)
    answers: list[bytes | None] = [b""] * len(bodies)

    async def main(world) -> None:
        async def listen(environment) -> None:
            listener = await environment.network.listen("server", 80)
            await serve(environment, listener, lambda _: handler_of(), ServerLimits())

        async def ask(number: int, connection) -> None:
            found = await read_frame(connection)
            answers[number] = None if found is None else bytes(found)

        world.node("server").start(listen)
        await trio.sleep(0.1)
        network = world.node("peer").environment.network
        connections = [await network.connect("server", 80) for _ in bodies]
        await trio.sleep(0.1)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for number, (connection, body) in enumerate(zip(connections, bodies, strict=True)):
                    connection.send_nowait([framed(body)])
                    nursery.start_soon(ask, number, connection)

    run_world(main, 1, profile)
    return answers


def request(tail: bytes) -> bytes:
    """A request whose bytes 6 and 7 are ``tail``."""
    return b"\x00\x03good" + tail


def test_requests_of_many_connections_are_flushed_together() -> None:
    """All requests of a turn are handled before the first flush, and no turn has more than ``CONNECTIONS_MAX``."""
    handled: list[bytes] = []
    count = CONNECTIONS_MAX + 8
    answers = in_one_turn([request(b"OK")] * count, lambda: Shared(handled))
    assert answers == [b"\x00\x03good"] * count
    first = handled.index(b"flush")
    assert handled[:first] == [b"\x00\x03"] * CONNECTIONS_MAX
    assert handled[first : first + CONNECTIONS_MAX] == [b"flush"] * CONNECTIONS_MAX


@pytest.mark.parametrize(
    ("tail", "answer"), [(b"KO", None), (b"NO", None), (b"BY", b"farewell")], ids=["error", "failed flush", "farewell"]
)
def test_an_error_of_a_turn_ends_its_own_connection(tail: bytes, answer: bytes | None) -> None:
    """The other connections of the turn are answered."""
    handled: list[bytes] = []
    bodies = [request(b"OK"), request(tail), request(b"OK")]
    good = b"\x00\x03good"
    assert in_one_turn(bodies, lambda: Shared(handled, tail)) == [good, answer, good]


def test_a_request_that_takes_long_leaves_its_turn() -> None:
    """The small requests that arrived with it are answered first."""
    handled: list[bytes] = []
    heavy = FETCH + b"good" + bytes(HEAVY_BYTES)
    answers = in_one_turn([heavy, request(b"OK"), heavy, request(b"OK")], lambda: Shared(handled))
    assert answers == [FETCH + b"good", b"\x00\x03good"] * 2
    assert [key for key in handled if key != b"flush"] == [b"\x00\x03"] * 2 + [FETCH] * 2


class Awaited(WaitingAnswer):
    """Waits until a request of another connection ends it; its answer may fail."""

    def __init__(self, size: int, *, fails: bool) -> None:
        super().__init__()
        self.size, self.fails = size, fails

    def answer_now(self):
        if self.fails:
            raise CloseConnection("planted")
        return [framed(bytes(self.size))]


class Ending(Recorder):
    """``WT`` waits for a small answer, ``WL`` for a large one, ``WE`` for one that fails; ``GO`` ends all waits."""

    def __init__(self, waiting: list[Awaited]) -> None:
        super().__init__([])
        self.waiting = waiting

    def handle(self, frame):
        tail = bytes(frame[6:8])
        if tail in (b"WT", b"WL", b"WE"):
            self.waiting.append(Awaited(3_000_000 if tail == b"WL" else 3, fails=tail == b"WE"))
            return self.waiting[-1]
        if tail == b"GO":
            for each in self.waiting:
                each.finish()
        return super().handle(frame)


def test_answers_leave_in_the_turn_that_ends_their_waits() -> None:
    """The writers send what the transport did not take, and end a connection whose answer fails; others are served."""
    waiting: list[Awaited] = []
    tails = [b"WT", b"WE", b"WL", b"WT", b"WL", b"GO"]
    answers = in_one_turn([request(tail) for tail in tails], lambda: Ending(waiting))
    assert answers == [bytes(3), None, bytes(3_000_000), bytes(3), bytes(3_000_000), b"\x00\x03good"]
    assert len(waiting) == 5
