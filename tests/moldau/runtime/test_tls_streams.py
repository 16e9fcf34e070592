"""Goal: a TLS stream carries messages of any size in both directions, and says what ended it.

Method: a client and a server over the virtual network; sizes at, below and above what one call encrypts.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from moldau.runtime.config import ADMIN_CONFIG, BROKER_CONFIG, SecurityProtocol
from moldau.runtime.net.layers import LayeredNetwork, logs_in
from moldau.runtime.sasl.network import SaslNetwork
from moldau.runtime.tls.connection import PLAINTEXT_BYTES_MAX, TlsConnection
from moldau.runtime.tls.context import ListenerTls, TlsNetwork, client_context, outgoing_environment
from moldau.runtime.tls.outgoing import brokers_environment, client_environment, controllers_environment
from moldau_jepsen.world.world import run_world
from support.certificates import authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

HOST = "server"
MOST = PLAINTEXT_BYTES_MAX
SIZES = (1, 4, 0, 1, MOST - 1, MOST, 1, MOST + 1, 3, 2 * MOST, 3 * MOST + 7, 5)


@contextlib.asynccontextmanager
async def pair(world: Any) -> AsyncIterator[tuple[TlsConnection, TlsConnection]]:
    """Yields both ends of a stream: the client's, then the server's."""
    far, near = world.node("server").environment, world.node("client").environment
    listener = await far.network.listen("server", 0)
    network = TlsNetwork(near.network, client_context(authority().settings(), near.disk))
    server: TlsConnection | None = None

    async def accept() -> None:
        nonlocal server
        server = ListenerTls(authority().settings(HOST), far.disk)(await listener.accept())
        await server.handshake()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        client = await network.connect(*listener.address)
    assert server is not None
    yield client, server
    client.close()
    server.close()
    listener.close()


def with_pair(test: Callable[[TlsConnection, TlsConnection], Awaitable[None]]) -> None:
    async def main(world: Any) -> None:
        with trio.fail_after(1_000):
            async with pair(world) as (client, server):
                await test(client, server)

    run_world(main, 1)


async def read(connection: TlsConnection, count: int) -> bytes:
    """Reads so many bytes, or fewer at the end of the stream."""
    buffer, filled = bytearray(count), 0
    while filled < count:
        try:
            got = connection.receive_into_nowait(memoryview(buffer)[filled:])
        except BlockingIOError:
            await connection.wait_readable()
            continue
        if not got:
            break
        filled += got
    return bytes(buffer[:filled])


def pattern(number: int, size: int) -> bytes:
    return bytes((number * 37 + at) % 251 for at in range(min(size, 251))) * (size // 251 + 1)


async def by_send_all(connection: TlsConnection, message: bytes) -> None:
    await connection.send_all([message])


async def in_parts(connection: TlsConnection, message: bytes) -> None:
    await connection.send_all([message[:1], b"", memoryview(message)[1:3], message[3:]])


async def by_send_nowait(connection: TlsConnection, message: bytes) -> None:
    """Offers what is left, in three parts, until all has been taken."""
    left = message
    while left:
        try:
            left = left[connection.send_nowait([left[:2], b"", left[2:5], left[5:]]) :]
        except BlockingIOError:
            await connection.wait_writable()


@pytest.mark.parametrize("send", [by_send_all, in_parts, by_send_nowait])
def test_messages_of_any_size_arrive_in_order(send: Callable[[TlsConnection, bytes], Awaitable[None]]) -> None:
    """Each end sends many messages: what one call has taken says nothing about the next."""
    messages = [pattern(number, size)[:size] for number, size in enumerate(SIZES)]

    async def test(client: TlsConnection, server: TlsConnection) -> None:
        for source, target in ((client, server), (server, client), (client, server)):
            async with trio.open_nursery() as nursery:

                async def talk(source: TlsConnection = source) -> None:
                    for message in messages:
                        await send(source, message)

                nursery.start_soon(talk)
                for message in messages:
                    assert await read(target, len(message)) == message
        with pytest.raises(BlockingIOError):
            client.receive_into_nowait(memoryview(bytearray(1)))

    with_pair(test)


def test_one_call_takes_no_more_than_its_bound() -> None:
    """It takes all that fits, however many buffers that is: each further call costs the kernel one more."""

    async def test(client: TlsConnection, server: TlsConnection) -> None:
        offered = [b"a" * 10, b"b" * (MOST // 2), b"c" * MOST]
        taken = 0
        with contextlib.suppress(BlockingIOError):
            taken = client.send_nowait(offered)
        assert taken <= MOST
        if not taken:
            await client.wait_writable()
            taken = client.send_nowait(offered)
        assert taken == MOST
        assert await read(server, MOST) == b"".join(offered)[:MOST]

    with_pair(test)


def test_content_of_files_and_messages_share_a_stream() -> None:
    async def test(client: TlsConnection, server: TlsConnection) -> None:
        content = pattern(3, 5_000)[:5_000]

        class File:
            path = "/f"

            def read(self, position: int, count: int) -> bytes:
                return content[position : position + count]

        file: Any = File()
        for position, count in ((0, 10), (4_990, 10), (100, 4_000), (0, 10_000)):
            await client.send_all([b"head"])
            sent, wanted = 0, content[position : position + count]
            while sent < len(wanted):
                try:
                    sent += client.send_file_nowait(file, position + sent, count - sent)
                except BlockingIOError:
                    await client.wait_writable()
            assert await read(server, 4 + len(wanted)) == b"head" + wanted
        with pytest.raises(EOFError, match="no content at position 5000"):
            client.send_file_nowait(file, 5_000, 10)

    with_pair(test)


@pytest.mark.parametrize("end", ["close", "abort"])
def test_an_end_that_was_closed_refuses_each_call(end: str) -> None:
    async def test(client: TlsConnection, server: TlsConnection) -> None:
        file: Any = None
        getattr(client, end)()
        for call in (
            lambda: client.receive_into_nowait(memoryview(bytearray(1))),
            lambda: client.send_nowait([b"x"]),
            lambda: client.send_file_nowait(file, 0, 1),
        ):
            with pytest.raises(ConnectionAbortedError, match="this end of the connection was closed"):
                call()
        for wait in (client.wait_readable, client.wait_writable, lambda: client.send_all([b"x"])):
            with pytest.raises(ConnectionAbortedError, match="this end of the connection was closed"):
                await wait()
        client.close()
        client.abort()

    with_pair(test)


@pytest.mark.parametrize("unread", ["nothing", "in the socket", "decrypted", "partly read", "all but one", "all read"])
def test_a_close_says_goodbye_only_if_all_was_read(unread: str) -> None:
    """The end without it counts as a cut: the peer learns that its last bytes were not handled."""
    received: list[bytes] = []

    async def test(client: TlsConnection, server: TlsConnection) -> None:
        if unread != "nothing":
            await server.send_all([b"12345678"])
            if unread == "all but one":  # the last byte stays within OpenSSL
                await trio.sleep(1)
                assert client.receive_into_nowait(memoryview(bytearray(7))) == 7
            elif unread != "in the socket":
                await client.wait_readable()
            count = {"partly read": 3, "all read": 8}.get(unread, 0)
            received.append(await read(client, count))
        client.close()
        if unread in ("nothing", "all read", "in the socket"):  # bytes in the socket make its own end a reset
            with contextlib.suppress(ConnectionResetError):
                assert await read(server, 1) == b""
        else:
            with pytest.raises(ConnectionResetError):
                await read(server, 1)

    with_pair(test)


# --- environments

NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:9093",
    "listeners": "INNER://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "inter.broker.listener.name": "INNER",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required username="n" password="p" '
    'user_n="p";',
}


def layers(environment: Any) -> tuple[bool, bool]:
    """Whether connections use TLS, and whether they log in: always after the TLS handshake."""
    found, network = [], environment.network
    while isinstance(network, LayeredNetwork):
        found.append(type(network))
        network = network.plain
    assert found == [each for each in (SaslNetwork, TlsNetwork) if each in found]
    assert logs_in(environment.network) is (SaslNetwork in found)
    return TlsNetwork in found, SaslNetwork in found


@pytest.mark.parametrize("inner", SecurityProtocol)
@pytest.mark.parametrize("controller", SecurityProtocol)
def test_connections_are_secured_as_their_listener_demands(
    inner: SecurityProtocol, controller: SecurityProtocol
) -> None:
    """Brokers, controllers and clients may each have another protocol."""

    async def main(world: Any) -> None:
        environment = world.node("a").environment
        protocols = f"INNER:{inner.name},CONTROLLER:{controller.name}"
        keys = authority().keys(HOST)
        config = BROKER_CONFIG.parse({**NODE, **keys, "listener.security.protocol.map": protocols})
        assert layers(environment) == (False, False)
        assert layers(brokers_environment(environment, config)) == (inner.uses_tls, inner.uses_sasl)
        assert layers(controllers_environment(environment, config)) == (controller.uses_tls, controller.uses_sasl)
        assert layers(outgoing_environment(environment, config, "INNER", inner)) == (inner.uses_tls, False)
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "n", "sasl.password": "p"} if inner.uses_sasl else {}
        client = ADMIN_CONFIG.parse({"bootstrap.servers": "b:1", "security.protocol": inner.name, **login})
        made = client_environment(environment, client)
        assert layers(made) == (inner.uses_tls, inner.uses_sasl)
        assert replace(made, network=environment.network) == environment

    run_world(main, 1)
