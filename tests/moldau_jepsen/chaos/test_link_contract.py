"""Goal: proxies, network namespaces and the virtual network rule links alike: what is ordered holds for bytes between
members.

Method: three members with real sockets, or hosts of a simulated world on virtual time; near and far end of each
connection in the hands of the test; same tests on all. Where namespaces cannot be made, and where links lack something,
the reason is given for skipping.
"""

import ctypes
import os
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import pytest
import trio

from moldau_jepsen.chaos.network.links import HOST, Links
from moldau_jepsen.chaos.network.namespaces import NamespaceLinks
from moldau_jepsen.chaos.network.rules import CLIENT, DELAY, LOSS, OPEN, RATE, RESET, Link, LinkRule, LinkRules
from moldau_jepsen.launcher import LauncherUsageError
from moldau_jepsen.launcher.ports import take_free_ports
from moldau_jepsen.world.network.connection import VirtualConnection
from moldau_jepsen.world.network.network import VirtualListener, VirtualNetwork
from moldau_jepsen.world.world import World, run_world

MEMBERS = (1, 2, 3)
PORT = 9092
HELD_S = 0.3
WAIT_S = 240
VIRTUAL_SEEDS = 2
CLONE_NEWNET = 0x40000000
T = TypeVar("T")


class Stream(Protocol):
    """The calls of one end of a connection that tests use: a part of ``trio.SocketStream``."""

    async def send_all(self, data: bytes) -> None: ...

    async def receive_some(self, count: int) -> bytes: ...


class Ends(NamedTuple):
    near: Stream  # of the member that opened it
    far: Stream


class Members(Protocol):
    """Members that listen, and a way to open connections between them."""

    links: LinkRules

    async def connect(self, source: int, target: int) -> Ends: ...


class SocketMembers:
    """Members with real sockets."""

    def __init__(self, links: LinkRules, opened: AsyncExitStack) -> None:
        self.links = links
        self.addresses: dict[int, tuple[str, int]] = {}
        self.listeners: dict[int, trio.SocketListener] = {}
        self.opened = opened

    def socket_of(self, member: int) -> socket.socket:
        if isinstance(self.links, NamespaceLinks) and member != CLIENT:
            return in_namespace(self.links.namespace(member), partial(socket.socket, socket.AF_INET))
        return socket.socket(socket.AF_INET)

    async def listen(self, member: int, address: tuple[str, int]) -> None:
        plain = self.socket_of(member)
        plain.bind(address)
        plain.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(plain))
        self.listeners[member] = await self.opened.enter_async_context(listener)

    async def connect(self, source: int, target: int) -> Ends:
        near = trio.socket.from_stdlib_socket(self.socket_of(source))
        self.opened.callback(near.close)
        await near.connect(self.addresses[target])
        stream = trio.SocketStream(near)
        hello = frame(f"broker-{source}" if source else "app")
        await stream.send_all(hello)
        far = await self.opened.enter_async_context(await self.listeners[target].accept())
        assert await read(far, len(hello)) == hello
        return Ends(stream, far)


def frame(name: str) -> bytes:
    header = struct.pack(">hhih", 18, 0, 1, len(name)) + name.encode()
    return struct.pack(">i", len(header)) + header


def in_namespace(name: str, call: Callable[[], T]) -> T:
    """Calls in a thread that belongs to the namespace; a socket stays where it was made."""
    results: list[T] = []

    def work() -> None:
        descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY)
        try:
            assert ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) == 0, ctypes.get_errno()
            results.append(call())
        finally:
            os.close(descriptor)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT_S)
    assert results, f"the thread could not enter {name}"
    return results[0]


@asynccontextmanager
async def proxies() -> AsyncIterator[Members]:
    ports = take_free_ports(2 * len(MEMBERS))
    real, proxy = dict(zip(MEMBERS, ports[:3], strict=True)), dict(zip(MEMBERS, ports[3:], strict=True))
    links = Links(real)
    async with AsyncExitStack() as opened, trio.open_nursery() as nursery:
        world = SocketMembers(links, opened)
        for member in MEMBERS:
            await world.listen(member, (HOST, real[member]))
            world.addresses[member] = (HOST, proxy[member])
        await nursery.start(links.serve, proxy)
        yield world
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def namespaces() -> AsyncIterator[Members]:
    with ExitStack() as made:
        try:
            links = made.enter_context(NamespaceLinks(MEMBERS))
        except LauncherUsageError as error:
            pytest.skip(str(error))
        async with AsyncExitStack() as opened:
            world = SocketMembers(links, opened)
            for member in MEMBERS:
                world.addresses[member] = (links.place(member).host, PORT)
                await world.listen(member, world.addresses[member])
            yield world


class VirtualStream:
    """A virtual connection as ``trio.SocketStream`` would show it."""

    def __init__(self, connection: VirtualConnection) -> None:
        self._connection = connection

    async def send_all(self, data: bytes) -> None:
        await self._connection.send_all([data])

    async def receive_some(self, count: int) -> bytes:
        buffer = bytearray(count)
        while True:
            try:
                return bytes(buffer[: self._connection.receive_into_nowait(memoryview(buffer))])
            except BlockingIOError:
                await self._connection.wait_readable()
            except OSError as error:
                raise trio.BrokenResourceError from error


def host(member: int) -> str:
    return f"n{member}" if member != CLIENT else "app"


class VirtualLinks(LinkRules):
    """The virtual network under the contract: every call is one of the network's own faults."""

    blocks = False
    lacks: ClassVar[dict[str, str]] = {}

    def __init__(self, network: VirtualNetwork) -> None:
        super().__init__()
        self._network = network

    def reset(self, members: Iterable[int]) -> int:
        chosen, hosts = {host(member) for member in members}, self._network.host_names
        pairs = {frozenset((one, other)) for one in chosen for other in hosts if one != other}
        return sum(self._network.reset_connections(*sorted(pair)) for pair in pairs)

    def _carry_out(self, changes: Mapping[Link, tuple[LinkRule, LinkRule]]) -> None:
        network = self._network
        if not self._rules:
            network.heal_all()
            return
        for link, (_, rule) in changes.items():
            names = host(link.source), host(link.target)
            (network.cut if rule.cut else network.heal)(*names)
            network.slow_link(*names, extra_delay=rule.delay_ms / 1000, bytes_per_second=rule.bytes_per_second)
            network.lossy_link(*names, probability=rule.loss)


class VirtualMembers:
    """Members on hosts of a simulated world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._listeners: dict[int, VirtualListener] = {}
        self.links: LinkRules = VirtualLinks(world.network)

    async def listen(self) -> None:
        for member in MEMBERS:
            network = self._world.node(host(member)).environment.network
            self._listeners[member] = await network.listen(host(member), PORT)

    async def connect(self, source: int, target: int) -> Ends:
        near = await self._world.node(host(source)).environment.network.connect(host(target), PORT)
        return Ends(VirtualStream(near), VirtualStream(await self._listeners[target].accept()))


def run_virtual(body: Callable[[Members], Awaitable[None]]) -> None:
    async def main(world: World) -> None:
        members = VirtualMembers(world)
        await members.listen()
        with trio.fail_after(WAIT_S):
            await body(members)

    for seed in range(VIRTUAL_SEEDS):
        run_world(main, seed)


@pytest.fixture(params=[proxies, namespaces, None], ids=["proxies", "namespaces", "virtual"])
def worlds(request: pytest.FixtureRequest) -> Callable[[], AsyncIterator[Members]] | None:
    return request.param


async def read(stream: Stream, count: int) -> bytes:
    got = b""
    while len(got) < count:
        chunk = await stream.receive_some(count - len(got))
        assert chunk, f"the stream ended after {len(got)} of {count} bytes"
        got += chunk
    return got


async def passes(source: Stream, target: Stream, data: bytes = b"passes") -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.send_all, data)
        assert await read(target, len(data)) == data


async def nothing_comes(*streams: Stream) -> None:
    for stream in streams:
        with trio.move_on_after(HELD_S) as scope:
            await stream.receive_some(1)
        assert scope.cancelled_caught


def run(worlds, body) -> None:
    if worlds is None:
        run_virtual(body)
        return

    async def main() -> None:
        with trio.fail_after(WAIT_S):
            async with worlds() as world:
                await body(world)

    trio.run(main)


def need(world: Members, name: str) -> None:
    if name in world.links.lacks:
        pytest.skip(f"these links know no {name}: {world.links.lacks[name]}")


def test_bytes_pass_unharmed_between_all_members(worlds) -> None:
    async def body(world: Members) -> None:
        payload = bytes(range(256)) * 2048
        for source in (CLIENT, *MEMBERS):
            for target in MEMBERS:
                if source != target:
                    near, far = await world.connect(source, target)
                    await passes(far, near)
                    await passes(near, far, payload)

    run(worlds, body)


def test_a_cut_holds_two_members_only_until_it_is_healed(worlds) -> None:
    """A cut holds the bytes between two members until it is healed; other members are unaffected."""

    async def body(world: Members) -> None:
        cut, other, client = [await world.connect(source, 2) for source in (1, 3, CLIENT)]
        world.links.cut([1], [2])
        await cut.near.send_all(b"request")
        await cut.far.send_all(b"answer")
        await nothing_comes(cut.far, cut.near)
        await passes(*other)
        await passes(*client)
        world.links.heal()
        assert await read(cut.far, 7) == b"request"
        assert await read(cut.near, 6) == b"answer"

    run(worlds, body)


def test_a_connect_during_a_cut_succeeds_once_it_is_healed(worlds) -> None:
    """A connection that is opened during a cut is established when the cut is healed."""

    async def body(world: Members) -> None:
        world.links.cut([1], [2])
        made: list[Ends] = []

        async def connect() -> None:
            made.append(await world.connect(1, 2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await trio.sleep(HELD_S)
            assert not made
            world.links.heal()
        await passes(*made[0])

    run(worlds, body)


def test_a_one_way_cut_passes_requests_and_holds_responses(worlds) -> None:
    """A one-way cut passes the request and holds the response."""

    async def body(world: Members) -> None:
        near, far = await world.connect(1, 2)
        world.links.cut([2], [1], both_ways=False)
        await passes(near, far)
        await far.send_all(b"answer")
        await nothing_comes(near)
        world.links.heal()
        assert await read(near, 6) == b"answer"

    run(worlds, body)


def test_an_isolated_member_is_lost_to_members_and_clients(worlds) -> None:
    async def body(world: Members) -> None:
        lost = [await world.connect(source, 2) for source in (1, 3, CLIENT)]
        other = await world.connect(1, 3)
        world.links.cut([2], [1, 3, CLIENT])
        for ends in lost:
            await ends.near.send_all(b"held")
        await nothing_comes(*(ends.far for ends in lost))
        await passes(*other)
        world.links.heal()
        for ends in lost:
            assert await read(ends.far, 4) == b"held"

    run(worlds, body)


def test_a_member_between_two_cut_ones_reaches_both(worlds) -> None:
    async def body(world: Members) -> None:
        one, other = MEMBERS[0], MEMBERS[-1]
        cut = await world.connect(one, other)
        bridged = [await world.connect(source, 2) for source in (one, other)]
        world.links.cut([one], [other])
        await cut.near.send_all(b"held")
        await nothing_comes(cut.far)
        for ends in bridged:
            await passes(*ends)

    run(worlds, body)


def test_a_rate_slows_one_direction(worlds) -> None:
    async def body(world: Members) -> None:
        need(world, RATE)
        near, far = await world.connect(1, 2)
        world.links.set_rule(Link(1, 2), LinkRule(bytes_per_second=40_000))
        payload = bytes(40_000)
        begun = trio.current_time()
        await passes(near, far, payload)
        assert trio.current_time() - begun >= 0.5
        world.links.heal()
        await passes(near, far, payload * 260)  # at the rate this would take longer than the test may

    run(worlds, body)


def test_a_delay_makes_bytes_late(worlds) -> None:
    async def body(world: Members) -> None:
        need(world, DELAY)
        near, far = await world.connect(1, 2)
        world.links.set_rule(Link(1, 2), LinkRule(delay_ms=80))
        begun = trio.current_time()
        await passes(near, far)
        assert trio.current_time() - begun >= 0.08

    run(worlds, body)


def test_through_loss_everything_arrives_in_the_end(worlds) -> None:
    async def body(world: Members) -> None:
        need(world, LOSS)
        near, far = await world.connect(1, 2)
        world.links.set_rule(Link(1, 2), LinkRule(loss=1 / 8))
        for number in range(100):
            await passes(near, far, number.to_bytes(4, "big"))
        await passes(*await world.connect(1, 2))

    run(worlds, body)


def test_unsupported_rules_are_refused_without_a_change(worlds) -> None:
    async def body(world: Members) -> None:
        wanted = {
            DELAY: LinkRule(delay_ms=1),
            RATE: LinkRule(bytes_per_second=1),
            LOSS: LinkRule(loss=0.5),
        }
        for name in world.links.lacks:
            if name in wanted:
                with pytest.raises(ValueError, match=f"these links know no {name}: "):
                    world.links.set_rule(Link(1, 2), wanted[name])
                assert world.links.rule(Link(1, 2)) == OPEN

    run(worlds, body)


def test_rules_are_read_replaced_and_healed(worlds) -> None:
    async def body(world: Members) -> None:
        link, slow = Link(1, 2), LinkRule(bytes_per_second=1e5)
        need(world, RATE)
        near, far = await world.connect(1, 2)
        for rule in (slow, LinkRule(cut=True), slow, slow, LinkRule(bytes_per_second=2e5)):
            world.links.set_rule(link, rule)
            assert world.links.rule(link) == rule
            assert world.links.rule(Link(2, 1)) == OPEN
        world.links.heal()
        world.links.heal()
        assert world.links.rule(link) == OPEN
        await passes(near, far)

    run(worlds, body)


def test_a_reset_ends_the_connections_of_a_member_for_both_ends(worlds) -> None:
    async def body(world: Members) -> None:
        need(world, RESET)
        opened, accepted = await world.connect(1, 2), await world.connect(3, 1)
        other = await world.connect(3, 2)
        assert world.links.reset([1]) == 2
        for stream in (*opened, *accepted):
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)
        await passes(*other)
        assert world.links.reset([1]) == 0

    run(worlds, body)
