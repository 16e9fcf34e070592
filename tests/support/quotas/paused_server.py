"""A server in a simulated world whose handler pauses the connection after each request of one kind."""

from __future__ import annotations

import trio

from moldau.runtime.net.server import ServerLimits, serve
from moldau.runtime.net.throttle import Throttle
from moldau_jepsen.world.world import run_world

PAUSE_MS = 5_000
SLOW, QUICK, SASL_HANDSHAKE, SASL_AUTHENTICATE = b"\0\x09", b"\0\x03", b"\0\x11", b"\0\x24"


def framed(body):
    return len(body).to_bytes(4) + body


def request(kind, size=8):
    return framed(kind + bytes(size - 2))


class Handler:
    """Answers at once; a request of kind SLOW pauses the connection."""

    def __init__(self, clock, log):
        self.throttle = Throttle()
        self.clock, self.log, self.ended = clock, log, False

    def handle(self, frame):
        kind = bytes(frame[:2])
        self.log.append((kind, self.clock.monotonic_ms()))
        if kind == SLOW:
            self.throttle.extend(self.clock.monotonic_ms() + PAUSE_MS)
        return [framed(kind)]

    def flush(self):
        pass

    def closed(self):
        self.ended = True


class Stage:
    def __init__(self, environment, address, handlers, server):
        self.environment, self.address, self.handlers, self.server = environment, address, handlers, server

    async def connect(self):
        return await self.environment.network.connect(*self.address)


def with_server(scenario, **limits):
    async def main(world):
        node = world.node("server")
        stage = {}
        log = []

        async def serving(environment):
            handlers = []

            def handler(_connection):
                handlers.append(Handler(environment.clock, log))
                return handlers[-1]

            listener = await environment.network.listen("server", 9000)
            async with trio.open_nursery() as nursery:
                server = await nursery.start(_serve, environment, listener, handler, ServerLimits(**limits))
                stage["made"] = Stage(world.node("client").environment, ("server", 9000), handlers, server)
                await trio.sleep_forever()

        node.start(serving)
        while "made" not in stage:  # noqa: ASYNC110 - a node reports nothing
            await trio.sleep(0.001)
        with trio.fail_after(600):
            await scenario(stage["made"], log)

    return run_world(main, seed=1)


async def _serve(environment, listener, handler, limits, task_status):
    await serve(environment, listener, handler, limits, task_status=task_status)


async def answer(connection):
    got = bytearray()
    buffer = bytearray(100)
    while len(got) < 6:
        await connection.wait_readable()
        try:
            count = connection.receive_into_nowait(memoryview(buffer)[: 6 - len(got)])
        except BlockingIOError:
            continue
        assert count, "the server closed the connection"
        got += buffer[:count]
    return bytes(got[4:])


def gaps(log):
    begun = log[0][1]
    return [(kind, round((now - begun) / 1_000, 1)) for kind, now in log]


def check_pauses_end():
    """The answer leaves at once, later requests wait for the end of the pause, and then they are handled."""

    async def scenario(stage, log):
        connection = await stage.connect()
        await connection.send_all([request(SLOW) + request(QUICK) + request(SLOW) + request(QUICK)])
        begun = trio.current_time()
        assert await answer(connection) == SLOW
        assert trio.current_time() - begun < 1
        for expected in (QUICK, SLOW, QUICK):
            assert await answer(connection) == expected
        assert gaps(log) == [(SLOW, 0.0), (QUICK, 5.0), (SLOW, 5.0), (QUICK, 10.0)]
        connection.close()

    with_server(scenario)
