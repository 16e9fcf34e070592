"""Goal: the HTTP endpoint answers its paths, and limits each peer. Method: the simulated network and time."""

import pytest
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


BODIES = {200: b"a 1\n", 503: b"broker: starts\n", 405: b"only GET and HEAD are served\n"}


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/metrics", 200),
        (b"/metrics?x=1", 200),
        (b"/health/ready", 503),
        (b"/other", 404),
        (b"http://s:9644/metrics?x=http://s/other", 200),  # absolute form, as proxies send it (RFC 9112, 3.2.2)
        (b"HTTPS://[::1]:9644/health/ready", 503),
        (b"http://s", 404),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE"])
def test_pages_and_their_status(method, path, status, version):
    """A path that is served takes GET and HEAD, and says so; the answer to HEAD has the size of a body, and none."""
    wanted = status if status == 404 or method in (b"GET", b"HEAD") else 405
    sent = b"xx" if method in (b"POST", b"PUT") else b""

    async def scenario(environment):
        length = b"Content-Length: %d\r\n" % len(sent) if sent else b""
        head, _, body = (
            await ask(environment, b"%b %b HTTP/%b\r\nHost: s\r\n%b\r\n%b" % (method, path, version, length, sent))
        ).partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        assert first.startswith(b"HTTP/1.1 %d " % wanted)
        assert len(first.split(b" ", 2)[2]) > 0
        assert headers[b"connection"] == b"close"
        assert (b"allow" in headers) is (wanted == 405)
        if method == b"HEAD":
            assert (body, int(headers[b"content-length"]) > 0) == (b"", True)
        else:
            assert len(body) == int(headers[b"content-length"])
            assert body == BODIES[wanted] if wanted in BODIES else b"/health/ready, /metrics" in body

    run(scenario)


def test_one_connection_serves_one_request():
    """A peer may send more requests behind it; they get no answer, however early they come."""

    async def scenario(environment):
        request = b"GET /metrics HTTP/1.1\r\nHost: server\r\n\r\n"
        assert (await ask(environment, request * 3)).count(b"HTTP/1.1 200") == 1

    run(scenario)


def test_malformed_http_requests_are_refused():
    async def scenario(environment):
        assert b" 400 " in await ask(environment, b"\0\0\0\x10\0\x12\0\0 not HTTP\r\n\r\n")
        large = b"GET /metrics HTTP/1.1\r\nX: " + b"x" * (REQUEST_BYTES_MAX + 10)
        assert (await ask(environment, large))[9:12] in (b"431", b"413", b"")
        assert b" 200 " in await ask(environment, b"GET /metrics HTTP/1.1\r\nHost: server\r\n\r\n")

    run(scenario)


@pytest.mark.parametrize(("size", "status"), [(REQUEST_BYTES_MAX - 200, b"405"), (REQUEST_BYTES_MAX, b"413")])
def test_a_body_is_read_up_to_its_bound(size, status):
    """It is thrown away, but a peer must not keep a connection busy for its ten seconds."""

    async def scenario(environment):
        head = b"POST /metrics HTTP/1.1\r\nHost: server\r\nContent-Length: %d\r\n\r\n" % size
        assert (await ask(environment, head + b"x" * size))[9:12] == status

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
