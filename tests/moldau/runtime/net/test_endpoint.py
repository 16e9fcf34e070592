"""Goal: the HTTP endpoint answers its paths, and limits each peer. Method: the simulated network and time."""

import trio

from moldau.runtime.telemetry.endpoint import CONNECTIONS_MAX, REQUEST_BYTES_MAX, REQUEST_MS, Page, serve_pages
from moldau_jepsen.world.world import run_world

PORT = 9644
PAGES = {"/metrics": lambda: Page(200, "a 1\n"), "/health/ready": lambda: Page(503, "broker: starts\n")}


def run(scenario):
    async def main(world):
        server, client = world.node("server"), world.node("client")
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_pages, server.environment, "server", PORT, PAGES)
            await scenario(client.environment)
            nursery.cancel_scope.cancel()

    run_world(main, seed=1)


async def ask(environment, request):
    """Sends ``request`` and returns everything that comes until the end of the stream."""
    connection = await environment.network.connect("server", PORT)
    try:
        await connection.send_all([request])
        return await rest(connection)
    finally:
        connection.close()


async def rest(connection):
    received = b""
    buffer = memoryview(bytearray(4096))
    while True:
        try:
            count = connection.receive_into_nowait(buffer)
        except BlockingIOError:
            await connection.wait_readable()
            continue
        except ConnectionError:
            return received
        if count == 0:
            return received
        received += bytes(buffer[:count])


def test_pages_and_their_status():
    async def scenario(environment):
        answer = await ask(environment, b"GET /metrics?x=1 HTTP/1.1\r\nHost: server\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\na 1\n")
        assert b"503" in await ask(environment, b"GET /health/ready HTTP/1.0\r\n\r\n")
        assert b"404" in await ask(environment, b"GET /other HTTP/1.1\r\nHost: server\r\n\r\n")
        head = await ask(environment, b"HEAD /metrics HTTP/1.1\r\nHost: server\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert head.endswith(b"\r\n\r\n")
        posted = b"POST /metrics HTTP/1.1\r\nHost: server\r\nContent-Length: 2\r\n\r\nxx"
        assert b"405" in await ask(environment, posted)

    run(scenario)


def test_malformed_http_requests_are_refused():
    async def scenario(environment):
        assert b" 400 " in await ask(environment, b"\0\0\0\x10\0\x12\0\0 not HTTP\r\n\r\n")
        large = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (REQUEST_BYTES_MAX + 10)
        assert (await ask(environment, large))[9:12] in (b"431", b"413", b"")
        assert b" 200 " in await ask(environment, b"GET /metrics HTTP/1.1\r\nHost: server\r\n\r\n")

    run(scenario)


def test_a_refused_head_request_ends_no_endpoint():
    """The answer to HEAD has no body, also where the request's own body is malformed or too large."""

    async def scenario(environment):
        head = b"HEAD /metrics HTTP/1.1\r\nHost: server\r\n"
        for rest_of_it in (
            b"Transfer-Encoding: chunked\r\n\r\nno length\r\n",
            b"Content-Length: 100000\r\n\r\n" + b"x" * REQUEST_BYTES_MAX,
        ):
            assert (await ask(environment, head + rest_of_it))[9:12] in (b"400", b"413", b"")
            assert b" 200 " in await ask(environment, head + b"\r\n")

    run(scenario)


def test_silent_peers_lose_their_connections():
    """Connections beyond the bound are closed at once, silent ones after their time limit."""

    async def scenario(environment):
        silent = [await environment.network.connect("server", PORT) for _ in range(CONNECTIONS_MAX)]
        await trio.sleep(0.1)
        assert await ask(environment, b"GET /metrics HTTP/1.1\r\nHost: server\r\n\r\n") == b""
        begun = trio.current_time()
        assert [await rest(connection) for connection in silent] == [b""] * CONNECTIONS_MAX
        assert trio.current_time() - begun <= REQUEST_MS / 1000
        assert b" 200 " in await ask(environment, b"GET /metrics HTTP/1.1\r\nHost: server\r\n\r\n")

    run(scenario)
