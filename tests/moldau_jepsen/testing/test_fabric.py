"""Goal: ordinary threads can cut and heal links while they use them, and a wrong node is named.

Method: an echo server in a thread behind the proxies, talked to with blocking sockets.
"""

import socket
import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

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


def test_a_node_that_is_slowed_stays_cut(fabric: tuple[LinkFabric, int]) -> None:
    links, port = fabric
    with talk(port, b"broker-2") as member:
        assert member.recv(100) == hello(b"broker-2")
        links.cut(1, one_way=True)
        links.slow(1, 1)
        member.sendall(b"held")
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


def forwarded(links: LinkFabric) -> int:
    """Returns how many bytes the proxies have delivered once they have nothing to do."""
    trio.from_thread.run(wait_all_tasks_blocked, trio_token=links._token)
    return links._links.bytes_forwarded


def test_a_node_stays_cut_while_others_change(fabric: tuple[LinkFabric, int]) -> None:
    """The bytes that its links held got through when another node was cut off or healed."""
    links, port = fabric
    with talk(port, b"app") as client:
        assert client.recv(100)
        links.isolate(1)
        client.sendall(b"held")
        before = forwarded(links)
        for others in ([2], [], [2], []):
            links.isolate(1, *others)
            assert forwarded(links) == before
        assert links.in_force == ["cut(1, clients=True)"]
        links.isolate(2)
        assert client.recv(100) == b"held"
        links.isolate()
        assert links.in_force == []


def test_unknown_nodes_and_taken_ports_are_named(fabric: tuple[LinkFabric, int]) -> None:
    links, port = fabric
    with pytest.raises(LauncherUsageError, match=r"no node 9 in this cluster; its nodes are 1, 2$"):
        links.cut(9)
    with pytest.raises(OSError, match=r"[Aa]ddress already in use"), LinkFabric({1: 1}, {1: port}):
        pass
