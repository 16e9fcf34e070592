"""A server in a simulated world whose handler pauses the connection after each request of one kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.net.serving.throttle import Throttle
from moldau_jepsen.world.world import run_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from moldau.runtime.net.serving.answers import Answer, HandlerFactory
    from moldau.runtime.net.serving.server import Server
    from moldau.runtime.ports.environment import Clock, Connection, Environment, Listener
    from moldau_jepsen.world.world import World

    Log = list[tuple[bytes, float]]

PAUSE_MS = 5_000
SLOW, QUICK, SASL_HANDSHAKE, SASL_AUTHENTICATE = b"\0\x09", b"\0\x03", b"\0\x11", b"\0\x24"


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def request(kind: bytes, size: int = 8) -> bytes:
    return framed(kind + bytes(size - 2))


class Handler:
    """Answers at once; a request of kind SLOW pauses the connection."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self.throttle = Throttle()
        self.clock, self.log, self.ended = clock, log, False

    def handle(self, frame: memoryview) -> Answer:
        kind = bytes(frame[:2])
        self.log.append((kind, self.clock.monotonic_ms()))
        if kind == SLOW:
            self.throttle.extend(self.clock.monotonic_ms() + PAUSE_MS)
        return [framed(kind)]

    def flush(self) -> None:
        pass

    def closed(self) -> None:
        self.ended = True


class Stage:
    """A running server, its handlers, and an environment to connect from."""

    def __init__(
        self, environment: Environment, address: tuple[str, int], handlers: list[Handler], server: Server
    ) -> None:
        self.environment, self.address, self.handlers, self.server = environment, address, handlers, server

    async def connect(self) -> Connection:
        return await self.environment.network.connect(*self.address)


def with_server(scenario: Callable[[Stage, Log], Awaitable[None]], limits: ServerLimits | None = None) -> None:
    async def main(world: World) -> None:
        node = world.node("server")
        stage: dict[str, Stage] = {}
        log: Log = []

        async def serving(environment: Environment) -> None:
            handlers: list[Handler] = []

            def handler(_connection: Connection) -> Handler:
                handlers.append(Handler(environment.clock, log))
                return handlers[-1]

            listener = await environment.network.listen("server", 9000)
            async with trio.open_nursery() as nursery:
                server = await nursery.start(_serve, environment, listener, handler, limits or ServerLimits())
                stage["made"] = Stage(world.node("client").environment, ("server", 9000), handlers, server)
                await trio.sleep_forever()

        node.start(serving)
        while "made" not in stage:  # noqa: ASYNC110 - a node reports nothing
            await trio.sleep(0.001)
        with trio.fail_after(600):
            await scenario(stage["made"], log)

    run_world(main, seed=1)


async def _serve(
    environment: Environment,
    listener: Listener,
    handler: HandlerFactory,
    limits: ServerLimits,
    task_status: trio.TaskStatus[Server],
) -> None:
    await serve(environment, listener, handler, limits, task_status=task_status)


async def answer(connection: Connection) -> bytes:
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


def gaps(log: Log) -> list[tuple[bytes, float]]:
    begun = log[0][1]
    return [(kind, round((now - begun) / 1_000, 1)) for kind, now in log]


def check_pauses_end() -> None:
    """The answer leaves at once, later requests wait for the end of the pause, and then they are handled."""

    async def scenario(stage: Stage, log: Log) -> None:
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
