"""Goal: a server bounds the connections that it is about to close, and gives up silent handshakes for others.

Method: a server without a listener, in virtual time, with connections that do nothing.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import MockClock

from moldau.runtime.net.serving.connection_tally import ConnectionTally
from moldau.runtime.net.serving.handshakes import PATIENCE_MS
from moldau.runtime.net.serving.server import Server, ServerLimits
from moldau.runtime.tasks.sync import ByteBudget
from moldau.runtime.telemetry.log import EventLogger


class Peer:
    """A connection, and the loop that serves one."""

    peer_address = ("10.0.0.1", 5)
    peer_host = "10.0.0.1"

    def __init__(self) -> None:
        self.closed_s: float | None = None
        self.is_given_up = False

    def close(self) -> None:
        self.closed_s = trio.current_time()

    def give_up_handshake(self) -> None:
        self.is_given_up = True


def server_of(now: Any, **limits: Any) -> Server:
    clock: Any = SimpleNamespace(monotonic_ms=lambda: now.ms)
    handler: Any = None
    return Server(clock, handler, ServerLimits(**limits), ByteBudget(1000), EventLogger("test"))


def test_few_connections_wait_at_a_time_to_be_closed() -> None:
    async def main() -> None:
        server = server_of(SimpleNamespace(ms=0.0), refusals_delayed_max=2)
        peers: list[Any] = [Peer() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(server.close_later, peer, 3000.0)
        assert sorted(peer.closed_s or 0.0 for peer in peers) == [0.0, 0.0, 3.0, 3.0]
        assert server.statistics().throttled == 4
        last: Any = Peer()
        await server.close_later(last, 3000.0)
        assert last.closed_s == 6.0, "the others wait no more"

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_bound_that_changes_holds_for_open_connections() -> None:
    """Brokers replace the limits of a listener while it runs (KIP-402)."""

    async def main() -> None:
        shed: list[int] = []
        server = server_of(SimpleNamespace(ms=0.0), connections_max=5)
        server.clock = SimpleNamespace(monotonic_ms=lambda: trio.current_time() * 1000)  # type: ignore[assignment]
        server.tally = SimpleNamespace(total=4, shed=shed.append)  # type: ignore[assignment]
        with trio.move_on_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.sweep)
                await trio.sleep(5)
                assert shed == []
                server.limits = replace(server.limits, connections_max=3)
                await trio.sleep(2)
                assert set(shed) == {3}
                nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_silent_handshake_makes_way_for_another_one() -> None:
    now = SimpleNamespace(ms=0.0)
    server = server_of(now, handshakes_per_ip_max=2)
    peers: list[Any] = [Peer(), Peer()]
    for peer in peers:
        server.handshakes.enter(peer, peer.peer_host, now.ms)
    assert server.refusal("10.0.0.2", shakes_hands=True) is None
    assert server.refusal("10.0.0.1", shakes_hands=False) is None
    assert server.refusal("10.0.0.1", shakes_hands=True) == "2 TLS handshakes are under way"
    now.ms = PATIENCE_MS / 2
    server.heard_in_handshake(peers[0])
    now.ms = PATIENCE_MS
    assert server.refusal("10.0.0.1", shakes_hands=True) is None
    assert [peer.is_given_up for peer in peers] == [False, True]
    assert (server.statistics().handshakes, server.statistics().handshakes_given_up) == (1, 1)


def test_one_client_makes_way_for_one_broker_that_is_served() -> None:
    """Two bounds that are reached at once cost one client, and a refused handshake costs none."""
    handler: Any = None
    clock: Any = SimpleNamespace(monotonic_ms=lambda: 0.0)
    ended: list[str] = []
    clients: Any = SimpleNamespace(is_protected=False)
    clients.removable = lambda: [SimpleNamespace(last_active_ms=0.0, make_way=ended.append)]
    tally = ConnectionTally(lambda: 5)
    tally.add_owner(clients)
    tally.total = 5
    limits = ServerLimits(connections_max=5, handshakes_per_ip_max=1)
    server = Server(clock, handler, limits, ByteBudget(1000), EventLogger("test"), tally, is_protected=True)
    assert server.refusal("10.0.0.2", shakes_hands=True) is None
    assert ended == ["makes way for a broker: max.connections=5 reached"]
    silent: Any = Peer()
    server.handshakes.enter(silent, silent.peer_host, 0.0)
    assert server.refusal(silent.peer_host, shakes_hands=True) == "1 TLS handshakes are under way"
    assert len(ended) == 1, "the client makes way for no broker"
    assert not silent.is_given_up
