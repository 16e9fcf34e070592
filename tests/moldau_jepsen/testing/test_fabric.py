"""Goal: ordinary threads can cut and heal links while they use them, and a wrong node is named.

Method: an echo server in a thread behind the proxies, talked to with blocking sockets.
"""

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest

from moldau_jepsen.chaos.network.fabric import LinkFabric
from moldau_jepsen.launcher import LauncherUsageError
from moldau_jepsen.launcher.ports import take_free_ports

WAIT_S = 120.0


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while True:
            try:
                chunk = self.request.recv(65536)
            except ConnectionResetError:
                return
            if not chunk:
                return
            self.request.sendall(chunk)


@pytest.fixture
def fabric() -> Iterator[tuple[LinkFabric, int]]:
    proxy, other = take_free_ports(2)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        with LinkFabric({1: server.server_address[1], 2: 1}, {1: proxy, 2: other}) as running:
            yield running, proxy
        server.shutdown()
        thread.join(WAIT_S)


def hello(name: bytes) -> bytes:
    header = struct.pack(">hhih", 18, 0, 1, len(name)) + name
    return struct.pack(">i", len(header)) + header


def talk(port: int, name: bytes) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    peer.sendall(hello(name))
    return peer


def test_a_thread_cuts_and_heals(fabric: tuple[LinkFabric, int]) -> None:
    links, port = fabric
    with talk(port, b"broker-2") as member, talk(port, b"app") as client:
        assert member.recv(100) == hello(b"broker-2")
        links.cut(1)
        member.sendall(b"held")
        assert client.recv(100)
        client.sendall(b"passes")
        assert client.recv(100) == b"passes"
        member.settimeout(0.05)
        with pytest.raises(TimeoutError):
            member.recv(100)
        links.heal()
        member.settimeout(WAIT_S)
        assert member.recv(100) == b"held"


def test_clients_are_cut_when_asked_for_and_resets_are_counted(fabric: tuple[LinkFabric, int]) -> None:
    links, port = fabric
    with talk(port, b"app") as client:
        assert client.recv(100)
        links.cut(1, 2, clients=True, one_way=True)
        client.sendall(b"answer is held")
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(100)
        links.heal()
        client.settimeout(WAIT_S)
        assert client.recv(100) == b"answer is held"
        assert links.reset(1) == 1
        with pytest.raises(ConnectionResetError):
            client.recv(100)


def test_unknown_nodes_and_taken_ports_are_named(fabric: tuple[LinkFabric, int]) -> None:
    links, port = fabric
    with pytest.raises(LauncherUsageError, match=r"no node 9 in this cluster; its nodes are 1, 2$"):
        links.cut(9)
    with pytest.raises(OSError, match=r"[Aa]ddress already in use"), LinkFabric({1: 1}, {1: port}):
        pass
