"""Simulates a network: TCP as applications see it, with delays, losses, cuts, resets and dead hosts.

Each direction of a connection is a ``Pipe``: segments leave it in order, each after a drawn delay. A pipe takes at most
one window of bytes that the far end has not read yet, so back-pressure is real. A lost segment arrives later, after its
retransmission, and the segments behind it wait. While the link is cut or the far host is down, segments wait (TCP would
retransmit them); after too long a time the sender gives up with a timeout. It also gives up if the way back is cut,
because it gets no acknowledgements and no window updates. When a process dies (``kill_process``), its kernel closes the
connections: peers see the end of the stream or a reset. A host without power is silent and retransmits nothing: peers
run into their own timeouts, or get a reset when the host is back and does not know the connection.

``HostNetwork`` is the ``Network`` port of one process of a node. Once it is frozen, code in ``finally`` blocks of its
tasks has no effect.
"""

from __future__ import annotations

import errno
from collections import deque
from dataclasses import dataclass
from functools import partial
from math import log
from typing import TYPE_CHECKING

import trio

from moldau.runtime.ports.environment import SYSTEM_BUFFERS, SocketBuffers
from moldau_jepsen.world.network.arrivals import VirtualArrivals
from moldau_jepsen.world.network.connection import VirtualConnection
from moldau_jepsen.world.network.hosts import Host, Kernel, ignored

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from moldau_jepsen.world.network.connection import Pipe
    from moldau_jepsen.world.time.timeline import Agenda
    from moldau_jepsen.world.trace import Trace

SYN_RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
WILDCARD_NAMES = ("", "0.0.0.0", "::")


@dataclass(slots=True, kw_only=True)
class NetworkProfile:
    """The behaviour of the links; drawn per world. Times in seconds."""

    delay_min: float = 0.000_1
    delay_jitter: float = 0.000_4  # mean of an exponential distribution on top
    spike_probability: float = 0.001
    spike_max: float = 0.2
    loopback_delay: float = 0.000_02
    fragment_probability: float = 0.05  # a segment arrives in two parts
    window_bytes: int = 128 * 1024
    retransmit_seconds: float = 0.2  # first resend after a cut is healed, at most
    resend_seconds: float = 0.2  # before a lost segment is retransmitted; doubled each time (RFC 6298 section 5.5)
    give_up_seconds: float = 20.0  # a sender without acknowledgements ends the connection after this time


@dataclass(slots=True)
class _Link:
    """One direction between two hosts."""

    cut: bool = False
    extra_delay: float = 0.0
    bytes_per_second: float = 0.0  # 0: unlimited
    loss_probability: float = 0.0  # for each transmission of a segment
    slowed: Callable[[], None] = ignored  # called for each delayed segment
    lost: Callable[[], None] = ignored  # called for each lost segment


class VirtualListener:
    """The ``Listener`` port."""

    __slots__ = ("_acceptors", "_address", "_backlog", "_network", "closed", "host", "is_loopback", "queue")

    def __init__(
        self, network: VirtualNetwork, host: Host, address: tuple[str, int], backlog: int, *, is_loopback: bool
    ) -> None:
        """Is called by ``HostNetwork.listen`` only; a loopback listener is reached from its own host alone."""
        self._network = network
        self.is_loopback = is_loopback
        self.host = host
        self._address = address
        self._backlog = backlog
        self.queue: deque[VirtualConnection] = deque()
        self.closed = False
        self._acceptors = trio.lowlevel.ParkingLot()

    @property
    def address(self) -> tuple[str, int]:
        """Returns the bound host and port."""
        return self._address

    def offer(self, connection: VirtualConnection) -> bool:
        """Adds an established connection to the backlog; returns False if the backlog is full."""
        if len(self.queue) >= self._backlog:
            return False
        self.queue.append(connection)
        self._acceptors.unpark()
        return True

    async def accept(self) -> VirtualConnection:
        """See ``Listener.accept``."""
        await trio.lowlevel.checkpoint()
        while True:
            if self.closed:
                raise OSError(errno.EBADF, "the listener was closed")
            if self.queue:
                return self.queue.popleft()
            await self._acceptors.park()

    def close(self) -> None:
        """See ``Listener.close``."""
        if not self.closed:
            self.closed = True
            self.host.listeners.pop(self._address[1], None)
            while self.queue:
                self.queue.popleft().close()
            self._acceptors.unpark_all()

    def die(self) -> None:
        """Ends the listener of a dead process; the host ends the connections in the backlog with all others."""
        self.closed = True
        self.queue.clear()
        self._acceptors.unpark_all()


class VirtualNetwork:
    """All hosts and links of a world, and the operations that inject faults into them."""

    __slots__ = (
        "_blocked",
        "_connections_made",
        "_hosts",
        "_links",
        "_silent",
        "agenda",
        "names",
        "profile",
        "random",
        "segments_lost",
        "tap",
        "trace",
    )

    def __init__(self, agenda: Agenda, random: random.Random, trace: Trace, profile: NetworkProfile) -> None:
        """Makes a network without hosts."""
        self.agenda = agenda
        self.random = random
        self.trace = trace
        self.profile = profile
        self.tap: Callable[[VirtualConnection, bytes], None] | None = None
        """Observer that is called with all bytes and the sending end, before they are sent.

        It may hold the end's outgoing pipe (``Pipe.hold``), and must not change anything else.
        """
        self._hosts: dict[str, Host] = {}
        self._links: dict[tuple[str, str], _Link] = {}
        self._blocked: list[Pipe] = []
        self._silent: list[Pipe] = []
        self._connections_made = 0
        self.segments_lost = 0
        self.names: dict[str, str] = {}
        """Further names of hosts, as a name server has them; each connection looks its name up."""

    def host(self, name: str) -> Host:
        """Returns the host with a name; adds it if it is new."""
        found = self._hosts.get(name)
        if found is None:
            found = self._hosts[name] = Host(name)
        return found

    @property
    def host_names(self) -> list[str]:
        """Returns the names of all hosts, in the order of their creation."""
        return list(self._hosts)

    def find(self, name: str) -> Host | None:
        """Returns the host with a name, or None."""
        return self._hosts.get(self.names.get(name, name))

    def _link(self, source: str, target: str) -> _Link:
        found = self._links.get((source, target))
        if found is None:
            found = self._links[source, target] = _Link()
        return found

    # --- faults

    def cut(self, source: str, target: str) -> None:
        """Cuts the direction from ``source`` to ``target``; the other direction is unaffected."""
        self._link(source, target).cut = True

    def heal(self, source: str, target: str) -> None:
        """Ends a cut of one direction."""
        self._link(source, target).cut = False
        self._release_blocked()

    def cut_between(self, left: Sequence[str], right: Sequence[str]) -> None:
        """Cuts both directions between every host of ``left`` and every host of ``right``."""
        for one in left:
            for other in right:
                self.cut(one, other)
                self.cut(other, one)

    def slow_link(
        self,
        source: str,
        target: str,
        *,
        extra_delay: float,
        bytes_per_second: float = 0.0,
        slowed: Callable[[], None] = ignored,
    ) -> None:
        """Adds ``extra_delay`` seconds to one direction and bounds its bandwidth (0: unlimited).

        ``slowed`` is called for each segment that is delayed.
        """
        link = self._link(source, target)
        link.extra_delay, link.bytes_per_second, link.slowed = extra_delay, bytes_per_second, slowed

    def lossy_link(self, source: str, target: str, *, probability: float, lost: Callable[[], None] = ignored) -> None:
        """Makes one direction lose that share of all transmissions, at random, retransmissions included (0: none).

        ``lost`` is called for each lost segment.
        """
        assert 0.0 <= probability < 1.0, "a link that loses everything is cut"
        link = self._link(source, target)
        link.loss_probability, link.lost = probability, lost

    def heal_all(self, outside: Sequence[str] = ()) -> None:
        """Ends every cut, delay and loss, but cuts the hosts ``outside`` off from all others."""
        self.cut_between(outside, [name for name in self._hosts if name not in outside])
        for (source, target), link in self._links.items():
            link.cut = (source in outside) is not (target in outside)
            link.extra_delay = link.bytes_per_second = link.loss_probability = 0.0
        self._release_blocked()

    def reset_connections(self, one: str, other: str) -> int:
        """Resets all connections between two hosts at both ends; returns their number."""
        host = self.host(one)
        found = [connection for connection in list(host.connections.values()) if connection.peer_end.host.name == other]
        for connection in found:
            connection.fail(errno.ECONNRESET, "the connection was reset")
            connection.peer_end.fail(errno.ECONNRESET, "the connection was reset")
        return len(found)

    def kill_process(self, name: str) -> None:
        """Ends the network use of the host's process: the kernel closes its connections and listeners."""
        host = self.host(name)
        for listener in list(host.listeners.values()):
            listener.die()
        host.listeners.clear()
        for connection in list(host.connections.values()):
            connection.die(silent=False)
        host.connections.clear()

    def power_off(self, name: str) -> None:
        """Makes the host silent."""
        host = self.host(name)
        host.up = False
        host.kernel.off_seconds = self.agenda.clock.now
        for listener in list(host.listeners.values()):
            listener.die()
        host.listeners.clear()
        for connection in list(host.connections.values()):
            connection.die(silent=True)
        host.connections.clear()

    def power_on(self, name: str) -> None:
        """Makes the host answer again; it does not know earlier connections."""
        host = self.host(name)
        host.up = True
        host.kernel = Kernel()
        self._release_blocked()

    # --- mechanics

    def blocked(self, source: Host, target: Host) -> bool:
        """Returns whether no segment gets from ``source`` to ``target`` now."""
        if not target.up:
            return True
        link = self._links.get((source.name, target.name))
        return link is not None and link.cut

    def remember_blocked(self, pipe: Pipe) -> None:
        """Adds a pipe that holds segments until its direction is free."""
        self._blocked.append(pipe)

    def remember_silent(self, pipe: Pipe) -> None:
        """Adds a pipe whose sender gets no acknowledgements until the way back is free."""
        self._silent.append(pipe)

    def acknowledge(self, pipe: Pipe, count: int) -> None:
        """Acknowledges ``count`` bytes to the sender of ``pipe``: at once, unless the way back is slow or cut."""
        link = self._links.get((pipe.receiver.host.name, pipe.sender.host.name))
        if link is None:
            pipe.sender.credit(count)
        elif link.extra_delay:
            self.agenda.call_after(link.extra_delay, partial(pipe.acknowledge, count))
        else:
            pipe.acknowledge(count)

    def _release_blocked(self) -> None:
        still: list[Pipe] = []
        for pipe in self._blocked:
            if not pipe.held:
                continue
            if self.blocked(pipe.sender.host, pipe.receiver.host):
                still.append(pipe)
            else:
                pipe.release()
        self._blocked = still
        silent, self._silent = self._silent, []
        for pipe in silent:
            if self.blocked(pipe.receiver.host, pipe.sender.host):
                self._silent.append(pipe)
            else:
                pipe.way_back_is_free()

    def draw_delay(self, source: Host, target: Host, count: int) -> float:
        """Returns the transit time of ``count`` bytes in seconds."""
        profile = self.profile
        if source is target:
            return profile.loopback_delay
        draw = self.random.random
        delay = profile.delay_min - log(1.0 - draw()) * profile.delay_jitter
        if draw() < profile.spike_probability:
            delay += draw() * profile.spike_max
        link = self._links.get((source.name, target.name))
        if link is not None and (link.extra_delay or link.bytes_per_second):
            delay += link.extra_delay
            if link.bytes_per_second:
                delay += count / link.bytes_per_second
            link.slowed()
        return delay

    def lose(self, source: Host, target: Host) -> bool:
        """Draws whether a segment from ``source`` to ``target`` is lost now."""
        link = self._links.get((source.name, target.name))
        if link is None or not link.loss_probability or self.random.random() >= link.loss_probability:
            return False
        self.segments_lost += 1
        link.lost()
        self.trace.event("lost", source.name, target.name)
        return True

    def resend_delay(self, source: Host, target: Host) -> float | None:
        """Returns the seconds by which losses delay a segment; None if the sender gives up before one gets through.

        A lost segment is retransmitted when its acknowledgement is overdue, each time after twice as long. Losses on
        the way back add no delay, because acknowledgements are cumulative.
        """
        delay, wait = 0.0, self.profile.resend_seconds
        while self.lose(source, target):
            delay += wait
            wait *= 2.0
            if delay > self.profile.give_up_seconds:
                return None
        return delay

    def establish(
        self, client_host: Host, client_address: tuple[str, int], listener: VirtualListener
    ) -> VirtualConnection | None:
        """Makes both ends and queues the server's end; returns the client's end, None if the backlog is full."""
        self._connections_made += 1
        number = self._connections_made
        client = VirtualConnection(self, client_host, number, client_address, listener.address)
        server = VirtualConnection(self, listener.host, number, listener.address, client_address)
        client.peer_end, server.peer_end = server, client
        client.outgoing.receiver, server.outgoing.receiver = server, client
        if not listener.offer(server):
            return None
        client_host.remember(client)
        listener.host.remember(server)
        self.trace.event("connect", client_host.name, listener.host.name, listener.address[1], number)
        return client


class _Attempt:
    """An attempt to open a connection."""

    __slots__ = ("abandoned", "connection", "error", "finished")

    def __init__(self) -> None:
        self.finished = trio.Event()
        self.connection: VirtualConnection | None = None
        self.error: OSError | None = None
        self.abandoned = False


class HostNetwork:
    """The ``Network`` port of one process of a node."""

    __slots__ = ("_host", "_network", "frozen")

    def __init__(self, network: VirtualNetwork, host: Host) -> None:
        """Makes the port of a new process."""
        self._network = network
        self._host = host
        self.frozen = False

    def _check(self) -> None:
        if self.frozen:
            raise OSError(errno.ENETDOWN, f"{self._host.name} has crashed")

    async def listen(
        self, host: str, port: int, *, backlog: int = 1024, buffers: SocketBuffers = SYSTEM_BUFFERS
    ) -> VirtualListener:
        """See ``Network.listen``."""
        await trio.lowlevel.checkpoint()
        self._check()
        if host not in (self._host.name, *LOOPBACK_NAMES, *WILDCARD_NAMES):
            raise OSError(errno.EADDRNOTAVAIL, f"{host!r} is no address of {self._host.name}")
        if port == 0:
            port = self._host.take_port()
        if port in self._host.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} of {self._host.name} is taken")
        listener = VirtualListener(
            self._network, self._host, (self._host.name, port), backlog, is_loopback=host in LOOPBACK_NAMES
        )
        self._host.listeners[port] = listener
        return listener

    def arrivals(self) -> VirtualArrivals:
        """See ``Network.arrivals``."""
        return VirtualArrivals()

    async def connect(self, host: str, port: int) -> VirtualConnection:
        """See ``Network.connect``."""
        await trio.lowlevel.checkpoint()
        self._check()
        target = self._host if host in LOOPBACK_NAMES else self._network.find(host)
        if target is None:
            raise ConnectionError(errno.EHOSTUNREACH, f"host name {host!r} cannot be resolved")
        attempt = _Attempt()
        self._send_syn(attempt, target, port, 0)
        try:
            await attempt.finished.wait()
        except trio.Cancelled:
            attempt.abandoned = True
            if attempt.connection is not None:
                attempt.connection.close()
            raise
        if attempt.error is not None:
            raise attempt.error
        assert attempt.connection is not None
        return attempt.connection

    def _send_syn(self, attempt: _Attempt, target: Host, port: int, tries: int) -> None:
        delay = self._network.draw_delay(self._host, target, 0)
        self._network.agenda.call_after(delay, lambda: self._syn_arrives(attempt, target, port, tries))

    def _syn_arrives(self, attempt: _Attempt, target: Host, port: int, tries: int) -> None:
        network = self._network
        if attempt.abandoned or self.frozen:
            return
        lost = network.blocked(self._host, target) or network.blocked(target, self._host)
        lost = lost or network.lose(self._host, target) or network.lose(target, self._host)
        connection: VirtualConnection | None = None
        if not lost:
            listener = target.listeners.get(port)
            if listener is None or (listener.is_loopback and target is not self._host):
                self._finish(
                    attempt, target, ConnectionRefusedError(errno.ECONNREFUSED, f"{target.name}:{port} refused")
                )
                return
            connection = network.establish(self._host, (self._host.name, self._host.take_port()), listener)
        if connection is not None:
            attempt.connection = connection
            self._finish(attempt, target, None)
        elif tries < len(SYN_RETRY_SECONDS):
            network.agenda.call_after(
                SYN_RETRY_SECONDS[tries], lambda: self._send_syn(attempt, target, port, tries + 1)
            )
        else:
            self._finish(attempt, target, TimeoutError(errno.ETIMEDOUT, f"{target.name}:{port} does not answer"))

    def _finish(self, attempt: _Attempt, target: Host, error: OSError | None) -> None:
        def arrive() -> None:
            attempt.error = error
            attempt.finished.set()

        self._network.agenda.call_after(self._network.draw_delay(target, self._host, 0), arrive)
