"""Goal: connections are counted over all listeners of a node, and clients cannot shut brokers out.

Method: two servers with one tally on real sockets; a connection counts as admitted if it gets an answer.
"""

from __future__ import annotations

from functools import partial

import pytest
import trio

from moldau.runtime.net.serving.connection_tally import ConnectionTally
from moldau.runtime.net.serving.server import ServerLimits, serve
from moldau.runtime.ports.real import real_environment

PING = (8).to_bytes(4) + b"pingping"


class Echo:
    """Answers each frame by itself."""

    def handle(self, frame):
        return [len(frame).to_bytes(4) + bytes(frame)]

    def flush(self):
        pass

    def closed(self):
        pass


async def is_served(stream: trio.SocketStream) -> bool:
    """Whether the connection is open and answers."""
    try:
        await stream.send_all(PING)
        received = b""
        while len(received) < len(PING):
            part = await stream.receive_some(100)
            if not part:
                return False
            received += part
    except trio.BrokenResourceError:
        return False
    return received == PING


class Node:
    """Two listeners: 0 is that of brokers."""

    def __init__(self, servers, addresses, tally) -> None:
        self.servers, self.addresses, self.tally = servers, addresses, tally
        self.streams: list[trio.SocketStream] = []

    async def connect(self, listener: int) -> trio.SocketStream:
        stream = await trio.open_tcp_stream(*self.addresses[listener])
        self.streams.append(stream)
        return stream


def with_node(test, limits: ServerLimits, **tally_settings) -> None:
    async def main() -> None:
        environment = real_environment(1)
        tally = ConnectionTally(**tally_settings)
        async with trio.open_nursery() as nursery:
            servers, addresses = [], []
            for is_protected in (True, False):
                listener = await environment.network.listen("127.0.0.1", 0)
                addresses.append(listener.address)
                start = partial(serve, environment, listener, lambda _: Echo(), limits, tally=tally)
                servers.append(await nursery.start(partial(start, is_protected=is_protected)))
            node = Node(servers, addresses, tally)
            with trio.fail_after(30):
                await test(node)
            for stream in node.streams:
                await stream.aclose()
            nursery.cancel_scope.cancel()
        assert (tally.total, tally.per_host) == (0, {})

    trio.run(main)


def test_clients_count_together_and_brokers_are_admitted() -> None:
    """Clients of all listeners count together, and a broker is admitted beyond the bound."""

    async def test(node: Node) -> None:
        oldest, newer = await node.connect(1), await node.connect(1)
        assert await is_served(oldest)
        assert await is_served(newer)
        broker = await node.connect(0)
        assert await is_served(broker)
        assert await is_served(oldest), "now the other has been silent longer"
        assert not await is_served(await node.connect(1)), "three are as many as may be"
        second = await node.connect(0)
        assert await is_served(second)
        assert not await is_served(newer), "it made way"
        assert await is_served(oldest)
        assert await is_served(await node.connect(0))
        assert not await is_served(oldest)
        fourth = await node.connect(0)
        assert await is_served(fourth), "there are none left but brokers, which do not shut each other out"
        assert node.tally.total == 4
        assert not await is_served(await node.connect(1))
        assert [server.refused for server in node.servers] == [0, 2]
        await second.aclose()
        await fourth.aclose()
        with trio.fail_after(10):
            while node.tally.total > 2:
                await trio.lowlevel.checkpoint()
        assert await is_served(await node.connect(1)), "there is room again"

    with_node(test, ServerLimits(connections_max=3))


class Silent:
    """A connection that was active at a time."""

    def __init__(self, last_active_ms: float) -> None:
        self.last_active_ms = last_active_ms
        self.reason = ""

    def make_way(self, reason: str) -> None:
        self.reason = reason


class Owner:
    def __init__(self, *times: float, is_protected: bool = False) -> None:
        self.is_protected = is_protected
        self.connections = [Silent(each) for each in times]

    def removable(self) -> list[Silent]:
        return [each for each in self.connections if not each.reason]

    def left(self) -> list[float]:
        return [each.last_active_ms for each in self.removable()]


def test_a_bound_that_falls_ends_silent_clients() -> None:
    """The bound held for new connections only."""
    tally, brokers, clients, others = ConnectionTally(), Owner(1, is_protected=True), Owner(7, 5), Owner(4, 6)
    for owner in (brokers, clients, others):
        tally.add_owner(owner)
    tally.shed(5)
    assert (clients.left(), others.left()) == ([7, 5], [4, 6])
    tally.shed(3)
    assert (clients.left(), others.left()) == ([7], [6])
    assert clients.connections[1].reason == "max.connections=3 is below the number of connections"
    tally.shed(0)
    assert (brokers.left(), clients.left(), others.left()) == ([1], [], [])


def test_an_address_counts_over_all_listeners() -> None:
    async def test(node: Node) -> None:
        assert await is_served(await node.connect(0))
        assert await is_served(await node.connect(1))
        assert not await is_served(await node.connect(0))
        assert not await is_served(await node.connect(1))
        assert node.tally.per_host == {"127.0.0.1": 2}

    with_node(test, ServerLimits(connections_per_ip_max=2))
    with_node(test, ServerLimits(connections_per_ip_max=1, connections_of_ips={"127.0.0.1": 2}))


def test_descriptors_bound_connections_of_clients() -> None:
    """The bound may fall while connections are open; a broker is let in as beyond ``max.connections``."""
    bound = [2]

    async def test(node: Node) -> None:
        first, second = await node.connect(1), await node.connect(1)
        assert await is_served(first)
        assert await is_served(second)
        assert not await is_served(await node.connect(1))
        assert await is_served(await node.connect(0)), "a client makes way for a broker"
        bound[0] = 1
        assert not await is_served(await node.connect(1))
        bound[0] = 10
        assert await is_served(await node.connect(1))

    with_node(test, ServerLimits(), descriptors_max=lambda: bound[0])


def test_a_listener_may_have_a_bound_of_its_own() -> None:
    async def test(node: Node) -> None:
        for listener in (0, 1):
            assert await is_served(await node.connect(listener))
            assert not await is_served(await node.connect(listener))

    with_node(test, ServerLimits(listener_connections_max=1))


@pytest.mark.parametrize(
    ("listener", "limits"), [(0, ServerLimits(listener_connections_max=5)), (1, ServerLimits(connections_max=5))]
)
def test_a_burst_is_counted_before_the_first_of_it_runs(listener: int, limits: ServerLimits) -> None:
    async def test(node: Node) -> None:
        served: list[bool] = []

        async def ask(stream: trio.SocketStream) -> None:
            served.append(await is_served(stream))

        streams = []
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(lambda: _append(streams, node.connect(listener)))
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(ask, stream)
        assert (sum(served), node.tally.total) == (5, 5)

    with_node(test, limits)


async def _append(streams: list[trio.SocketStream], connecting) -> None:
    streams.append(await connecting)
