"""The cost of TLS for a connection: both ends in one process on loopback, CPU time of both together.

    python -m benchmarks.network.tls [--megabytes 500] [--messages 20000] [--connections 100]

Certificates are RSA 2048, made by trustme. Prints a table; CPU time, so that a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import ssl
import time
from typing import TYPE_CHECKING

import trio
import trustme

from moldau.runtime.config.tls import TlsSettings
from moldau.runtime.ports.real import real_environment
from moldau.runtime.tls.connection import TlsConnection
from moldau.runtime.tls.context import client_context, server_context

if TYPE_CHECKING:
    from moldau.runtime.ports.environment import Connection, Environment, Listener

HOST = "127.0.0.1"
CHUNK = b"x" * 1_000_000
MESSAGE = b"y" * 100
BUFFER = memoryview(bytearray(1 << 20))


def contexts(environment: Environment, client_auth: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of server and client; both have a certificate."""
    authority = trustme.CA(key_type=trustme.KeyType.RSA)
    issued = authority.issue_cert(HOST, key_type=trustme.KeyType.RSA)
    settings = TlsSettings(
        keystore_location=None,
        certificate_chain=b"".join(piece.bytes() for piece in issued.cert_chain_pems).decode(),
        key=issued.private_key_pem.bytes().decode(),
        key_password=None,
        truststore_location=None,
        trusted_certificates=authority.cert_pem.bytes().decode(),
        client_auth=client_auth,
        checks_host_name=True,
        protocols=("TLSv1.3",),
        prefix="",
    )
    return server_context(settings, environment.disk), client_context(settings, environment.disk)


async def connect(
    environment: Environment, listener: Listener, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None
) -> tuple[Connection, Connection]:
    """Both ends of a fresh connection."""
    client = await environment.network.connect(*listener.address)
    server = await listener.accept()
    if tls is None:
        return client, server
    secured = TlsConnection(client, tls[1], server_side=False, server_hostname=HOST)
    securing = TlsConnection(server, tls[0], server_side=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(secured.handshake)
        nursery.start_soon(securing.handshake)
    return secured, securing


async def receive(connection: Connection, count: int) -> None:
    while count > 0:
        try:
            count -= connection.receive_into_nowait(BUFFER)
        except BlockingIOError:
            await connection.wait_readable()


async def send(connection: Connection, chunks: int) -> None:
    for _ in range(chunks):
        await connection.send_all((CHUNK,))
        await trio.lowlevel.checkpoint()


async def measure(name: str, options: argparse.Namespace, environment: Environment, listener: Listener) -> None:
    """Prints one row."""
    tls = {"plaintext": None, "TLS": "none", "TLS, both certified": "required"}[name]
    chosen = None if tls is None else contexts(environment, tls)
    begin = time.process_time()
    for _ in range(options.connections):
        for end in await connect(environment, listener, chosen):
            end.close()
    opening_ms = (time.process_time() - begin) / options.connections * 1000
    client, server = await connect(environment, listener, chosen)
    begin = time.process_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send, server, options.megabytes)
        nursery.start_soon(receive, client, options.megabytes * len(CHUNK))
    bulk_s = time.process_time() - begin
    begin = time.process_time()
    for _ in range(options.messages):
        await client.send_all((MESSAGE,))
        await receive(server, len(MESSAGE))
    message_us = (time.process_time() - begin) / options.messages * 1_000_000
    client.close()
    server.close()
    print(f"| {name} | {opening_ms:.2f} ms | {message_us:.1f} us | {bulk_s:.2f} s |")


async def main(options: argparse.Namespace) -> None:
    environment = real_environment()
    listener = await environment.network.listen(HOST, 0)
    print(f"{ssl.OPENSSL_VERSION}\n")
    print(f"| | open | message of {len(MESSAGE)} bytes | {options.megabytes} MB |\n|---|---|---|---|")
    for name in ("plaintext", "TLS", "TLS, both certified"):
        await measure(name, options, environment, listener)
    listener.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--connections", type=int, default=100)
    trio.run(main, parser.parse_args())
