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
