"""Goal: a listener at a name with addresses in both families is reached at both, as ``localhost`` must be.

Method: real sockets, with a resolver that is made up; a machine without IPv6 is played by its error.
"""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING, Any

import pytest
import trio
import trio.testing

from moldau.runtime.ports.real_network import RealNetwork

if TYPE_CHECKING:
    from collections.abc import Sequence

V4, V6 = socket.AF_INET, socket.AF_INET6


def has_ipv6() -> bool:
    try:
        with socket.socket(V6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the name ``both`` an address in each family, that of IPv6 first, as glibc does."""
    resolve = trio.socket.getaddrinfo

    async def resolved(host: str, port: int, *arguments: Any, **options: Any) -> Sequence[Any]:
        if host != "both":
            return await resolve(host, port, *arguments, **options)
        await trio.lowlevel.checkpoint()
        return [(V6, 1, 6, "", ("::1", port, 0, 0)), (V4, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", resolved)


@needs_ipv6
def test_a_name_of_both_families_is_reached_at_both() -> None:
    """Only the first address was bound: a client that asked for 127.0.0.1 was refused."""

    async def main() -> None:
        network = RealNetwork()
        listener = await network.listen("both", 0)
        host, port = listener.address
        assert host == "::1"
        with trio.fail_after(10):
            for address in ("127.0.0.1", "::1", "127.0.0.1", "127.0.0.1", "::1"):
                client = await network.connect(address, port)
                accepted = await listener.accept()
                assert accepted.peer_address == client.local_address
                accepted.close()
                client.close()
        listener.close()
        for address in ("127.0.0.1", "::1"):
            with pytest.raises(ConnectionRefusedError):
                await network.connect(address, port)

    trio.run(main)


@needs_ipv6
def test_neither_family_is_starved_by_the_other() -> None:
    async def main() -> None:
        network = RealNetwork()
        listener = await network.listen("both", 0)
        port = listener.address[1]
        with trio.fail_after(10):
            clients = [await network.connect(address, port) for address in ("::1",) * 4 + ("127.0.0.1",) * 4]
            accepted = [await listener.accept() for _ in clients]
        assert sorted(one.peer_address[0] for one in accepted[:2]) == ["127.0.0.1", "::1"]
        for connection in (*clients, *accepted):
            connection.close()
        listener.close()

    trio.run(main)


@needs_ipv6
def test_a_wait_at_both_ends_with_the_listener() -> None:
    async def main() -> None:
        listener = await RealNetwork().listen("both", 0)
        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                with pytest.raises(OSError, match="closed"):
                    await listener.accept()

            nursery.start_soon(accept)
            await trio.testing.wait_all_tasks_blocked()
            listener.close()

    trio.run(main)


@needs_ipv6
def test_a_port_that_one_family_has_taken_is_named() -> None:
    async def main() -> None:
        network = RealNetwork()
        other = await network.listen("127.0.0.1", 0)
        with pytest.raises(OSError, match="in use") as taken:
            await network.listen("both", other.address[1])
        assert taken.value.errno == errno.EADDRINUSE
        other.close()

    trio.run(main)


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
def test_a_machine_without_a_family_listens_in_the_other(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Where IPv6 is switched off, the hosts file still gives ``localhost`` the address ::1; the node did not start."""

    class Socket(socket.socket):
        def __init__(self, family: int = -1, *arguments: Any, **options: Any) -> None:
            if family == V6 and code == errno.EAFNOSUPPORT:
                raise OSError(code, "not supported")
            super().__init__(V4 if family == V6 else family, *arguments, **options)

        def bind(self, name: Any) -> None:
            if name[0] == "::1":
                raise OSError(code, "not available")
            super().bind(name)

    async def main() -> None:
        network = RealNetwork()
        listener = await network.listen("both", 0)
        assert listener.address[0] == "127.0.0.1"
        listener.close()
        with pytest.raises(OSError, match="not"):
            await network.listen("::1", 0)

    monkeypatch.setattr(socket, "socket", Socket)
    trio.run(main)
