"""Goal: ``socket.send.buffer.bytes`` and ``socket.receive.buffer.bytes`` set the buffers of a broker's connections.

Method: a listener on a real socket, opened as a broker opens it. The kernel reports the sizes of an accepted
connection, and the test compares them with those of a socket that got the same sizes directly.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio

from moldau.runtime.config import BROKER_CONFIG, broker_listeners
from moldau.runtime.ports.real import real_environment
from moldau_broker.server.lifecycle.startup import bind

SIZE = 32 * 1024
OPTIONS = (socket.SO_SNDBUF, socket.SO_RCVBUF)


def sizes_of(given: socket.socket) -> list[int]:
    return [given.getsockopt(socket.SOL_SOCKET, option) for option in OPTIONS]


def expected() -> list[int]:
    """The kernel's result for ``SIZE``: Linux doubles it."""
    with socket.socket() as plain:
        for option in OPTIONS:
            plain.setsockopt(socket.SOL_SOCKET, option, SIZE)
        return sizes_of(plain)


def accepted_sizes(**settings: str) -> list[int]:
    """Returns the sizes of a connection to a broker with these settings."""
    config = BROKER_CONFIG.parse(
        {
            "process.roles": "broker",
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "101@127.0.0.1:1",
            "log.dirs": "/unused",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    (endpoint,) = broker_listeners(config)

    async def connect() -> list[int]:
        environment = real_environment()
        listener = await bind(environment, config, endpoint)
        try:
            client = await environment.network.connect(*listener.address)
            connection: Any = await listener.accept()
            try:
                return sizes_of(connection._socket)
            finally:
                connection.close()
                client.close()
        finally:
            listener.close()

    return trio.run(connect)


def test_configured_sizes_hold_for_accepted_connections() -> None:
    sizes = accepted_sizes(socket_send_buffer_bytes=str(SIZE), socket_receive_buffer_bytes=str(SIZE))
    assert sizes == expected()


@pytest.mark.parametrize("given", [{}, {"socket_send_buffer_bytes": "-1"}])
def test_system_chooses_the_sizes_by_default(given: dict[str, str]) -> None:
    assert all(size > limit for size, limit in zip(accepted_sizes(**given), expected(), strict=True))
