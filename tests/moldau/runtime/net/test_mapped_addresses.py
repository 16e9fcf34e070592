"""Goal: a peer has one address, at whatever listener: limits, quotas and ACLs of an address hold for it.

Method: a listener on a real socket for IPv6 and IPv4, and a client that connects by IPv4.
"""

from __future__ import annotations

import socket

import pytest
import trio

from moldau.runtime.ports.real import real_environment


def test_a_listener_of_both_families_names_ipv4_peers_as_such() -> None:
    async def peer_of(host: str) -> tuple[str, int]:
        network = real_environment().network
        listener = await network.listen("::", 0)
        try:
            client = await network.connect(host, listener.address[1])
            accepted = await listener.accept()
            assert accepted.peer_address == client.local_address
            accepted.close()
            client.close()
            return accepted.peer_address
        finally:
            listener.close()

    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no socket for both families")
    assert trio.run(peer_of, "127.0.0.1")[0] == "127.0.0.1"
    assert trio.run(peer_of, "::1")[0] == "::1"


@pytest.mark.parametrize("written", ["", "*"])
def test_a_listener_without_a_host_has_all_interfaces(written: str) -> None:
    """Java binds such a listener to both families; a cluster with IPv6 alone needs that. A star is in use elsewhere."""

    async def check(host: str) -> None:
        network = real_environment().network
        listener = await network.listen(written, 0)
        try:
            assert listener.address[0] == "0.0.0.0", "it is advertised if nothing else is"
            client = await network.connect(host, listener.address[1])
            accepted = await listener.accept()
            assert accepted.peer_address == client.local_address
            accepted.close()
            client.close()
        finally:
            listener.close()

    trio.run(check, "127.0.0.1")
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no socket for both families")
    trio.run(check, "::1")
