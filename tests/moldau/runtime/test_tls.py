"""TLS on top of both environments: bytes, ends, back-pressure, bad peers, and the server loop behind it."""

import contextlib
import shutil
import ssl
import subprocess

import pytest
import trio

from moldau.runtime.environment import OpenMode
from moldau.runtime.real import real_environment
from moldau.runtime.rpc import RpcConnection
from moldau.runtime.server import ServerLimits, serve
from moldau.runtime.tls import TlsHandshakeError, client_wrapper, server_wrapper
from moldau_jepsen.simulation.world import run_world

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certificates")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", "key.pem", "-out", "certificate.pem", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        cwd=directory,
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "certificate.pem", directory / "key.pem")
    client = ssl.create_default_context(cafile=str(directory / "certificate.pem"))
    return server, client


@pytest.fixture(params=["real", "virtual"])
def run(request):
    def run_real(test):
        async def main():
            environment = real_environment(1)
            with trio.fail_after(20):
                await test(environment, environment, "127.0.0.1")

        trio.run(main)

    def run_virtual(test):
        async def main(world):
            with trio.fail_after(10_000):
                await test(world.node("server").environment, world.node("client").environment, "server")

        run_world(main, 3)

    return run_real if request.param == "real" else run_virtual


@contextlib.asynccontextmanager
async def pair(contexts, given_server, given_client, host):
    listener = await given_server.network.listen(host, 0)
    client = client_wrapper(contexts[1], "localhost")(await given_client.network.connect(*listener.address))
    server = server_wrapper(contexts[0])(await listener.accept())
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.handshake)
            nursery.start_soon(server.handshake)
        yield client, server
    finally:
        client.close()
        server.close()
        listener.close()


async def receive(connection, count):
    buffer = bytearray(count)
    filled = 0
    while filled < count:
        try:
            got = connection.receive_into_nowait(memoryview(buffer)[filled:])
        except BlockingIOError:
            await connection.wait_readable()
            continue
        if got == 0:
            break
        filled += got
    return bytes(buffer[:filled])


def test_bytes_and_end(contexts, run):
    async def test(*given):
        async with pair(contexts, *given) as (client, server):
            content = bytes(n % 251 for n in range(1_000_000))
            received = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send_all, [content[:10], content[10:]])
                received.append(await receive(server, len(content)))
            assert received == [content]
            assert server.peer_certificate is None
            assert client.peer_certificate is not None
            client.close()
            await server.wait_readable()
            assert await receive(server, 1) == b""

    run(test)


def test_bytes_taken_are_reported_once_whatever_the_transport_takes(contexts, run, tmp_path):
    content = bytes(n * 31 % 251 for n in range(12_000_000))

    async def test(*given):
        async with pair(contexts, *given) as (client, server):
            file = given[0].disk.open(str(tmp_path / "f") if given[0] is given[1] else "/f", OpenMode.CREATE)
            file.append([content])
            position = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    position += server.send_nowait([content[position : position + 4], content[position + 4 :][:99_999]])
            assert 0 < position < len(content), "nobody reads, so the transport is full"
            received = []

            async def read_all():
                received.append(await receive(client, len(content)))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_all)
                while position < len(content):
                    try:
                        if position % 3 == 0:
                            position += server.send_file_nowait(file, position, len(content))
                        else:
                            position += server.send_nowait([content[position : position + 100_000]])
                    except BlockingIOError:
                        await server.wait_writable()
            file.close()
            assert received == [content]

    run(test)


def test_a_peer_without_tls_and_one_that_does_not_trust(contexts, run):
    async def test(given_server, given_client, host):
        listener = await given_server.network.listen(host, 0)
        plain = await given_client.network.connect(*listener.address)
        server = server_wrapper(contexts[0])(await listener.accept())
        await plain.send_all([b"\0\0\0\x10 not a client hello"])
        with pytest.raises(TlsHandshakeError, match="TLS handshake failed"):
            await server.handshake()
        server.close()
        plain.close()
        client = client_wrapper(ssl.create_default_context(), "localhost")(
            await given_client.network.connect(*listener.address)
        )
        server = server_wrapper(contexts[0])(await listener.accept())
        failures = []

        async def shake(end):
            try:
                await end.handshake()
                await end.wait_readable()
                end.receive_into_nowait(memoryview(bytearray(1)))
            except ConnectionError as error:
                failures.append(str(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shake, client)
            nursery.start_soon(shake, server)
        assert any("CERTIFICATE_VERIFY_FAILED" in text for text in failures)
        client.close()
        server.close()
        listener.close()

    run(test)


def test_the_server_loop_speaks_tls(contexts, run):
    class Handler:
        def handle(self, frame):
            return [b"\0\0\0\x08", frame[4:8].tobytes(), b"pong"]

        def flush(self):
            pass

        def closed(self):
            pass

    async def test(given_server, given_client, host):
        async with trio.open_nursery() as nursery:
            listener = await given_server.network.listen(host, 0)
            await nursery.start(
                lambda task_status: serve(
                    given_server,
                    listener,
                    lambda connection: Handler(),
                    ServerLimits(),
                    secure=server_wrapper(contexts[0]),
                    task_status=task_status,
                )
            )
            connection = await RpcConnection.open(
                given_client,
                *listener.address,
                "test",
                secure=client_wrapper(contexts[1], "localhost"),
                negotiate=False,
            )
            for size in (1, 100_000):
                assert bytes(await connection.request_raw(20_000, 0, b"x" * size)) == b"pong"
            connection.close()
            nursery.cancel_scope.cancel()

    run(test)
