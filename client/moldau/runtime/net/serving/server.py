"""The server side of Kafka connections: accepts them and holds the state that those of one listener share.

``connection_loop`` documents the work on a connection and the cost of its buffers and answers. This module holds the
bounds (``ServerLimits``), the byte budget of all connections, and one sweeper per server. The sweeper enforces the
deadlines (idle connections, frames that never complete, peers that do not read, waiting requests that keep bytes which
others need) and frees unused buffers, so that a wait needs no cancel scope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from moldau.runtime.config import connections_of_ips, key_of_listener
from moldau.runtime.config.declaration import INT_MAX
from moldau.runtime.net.buffers import BufferPool
from moldau.runtime.net.serving.connection_loop import LARGE_BUFFER_MS, ConnectionLoop
from moldau.runtime.net.serving.connection_tally import AdmissionRates, ConnectionTally
from moldau.runtime.net.serving.handshakes import Handshakes
from moldau.runtime.net.serving.turns import EndedWaits, serve_arrivals
from moldau.runtime.tasks.sync import ByteBudget
from moldau.runtime.telemetry.log import EventLogger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from moldau.runtime.config import Config, ListenerEndpoint
    from moldau.runtime.net.serving.answers import HandlerFactory
    from moldau.runtime.net.serving.request_times import RequestTimes
    from moldau.runtime.ports.environment import Arrivals, Clock, Connection, Environment, Listener

UNBOUNDED_CONNECTIONS: Final = 100_000
"""The bound where ``max.connections`` is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The bounds of one listener; the names in brackets are the configuration keys."""

    request_bytes_max: int = 100 * 1024 * 1024  # [socket.request.max.bytes] largest frame
    buffered_bytes_max: int = 256 * 1024 * 1024  # [queued.max.request.bytes] receive buffers beyond the first, and
    # the memory of waiting requests beyond their allowance, together
    connections_max: int = 10_000  # [max.connections] of all listeners that share a tally
    listener_connections_max: int = 1 << 31  # [listener.name.*.max.connections] of this one
    connections_per_ip_max: int = 10_000  # [max.connections.per.ip] of all listeners that share a tally
    connections_of_ips: Mapping[str, int] = field(default_factory=dict)  # [max.connections.per.ip.overrides]
    refusals_delayed_max: int = 1_000  # connections of addresses above their rate that wait to be closed
    idle_ms: float = 600_000  # [connections.max.idle.ms] without a request and without an answer in progress
    frame_ms: float = 60_000  # a frame that has begun must be complete after this time
    send_ms: float = 30_000  # a peer that takes no byte of an answer for this time is cut off
    held_ms: float = 15_000  # a connection that keeps bytes others wait for must complete an answer within this time
    overdraft_ms: float = 1_000  # within this time if it keeps more bytes than its fair share
    handshake_ms: float = 10_000  # TLS handshake
    handshakes_max: int = 256  # connections in their TLS handshake; each costs signatures for an unknown peer
    handshakes_per_ip_max: int = 128  # of them from one address
    answers_max: int = 64  # answers in progress per connection before its requests wait
    answer_bytes_max: int = 1024 * 1024  # ready answers of one drain before they are sent
    buffer_bytes: int = 16 * 1024  # first size of a receive buffer
    gather_bytes_max: int = 1024 * 1024  # of small file ranges that are read and sent in one call
    sendfile_bytes_min: int = 64 * 1024  # file ranges of this size and more are never read, they go by sendfile
    pooled_buffers_max: int = 8  # gather buffers kept for reuse


def idle_limit_ms(configured_ms: int) -> float:
    """Returns the limit that ``connections.max.idle.ms`` stands for; a negative value is none, as in Kafka."""
    return math.inf if configured_ms < 0 else float(configured_ms)


def listener_limits(config: Config, endpoint: ListenerEndpoint) -> ServerLimits:
    """Returns the bounds of a listener under ``config``.

    A listener may have a ``max.connections`` of its own beside the node's.
    """
    own = key_of_listener(endpoint.listener_name, "max.connections")
    total = config.get_int("max.connections")
    return ServerLimits(
        request_bytes_max=config.get_int("socket.request.max.bytes"),
        buffered_bytes_max=config.get_int("queued.max.request.bytes"),
        connections_max=UNBOUNDED_CONNECTIONS if total == INT_MAX else total,
        listener_connections_max=config.get_int(own) if own in config else INT_MAX,
        connections_per_ip_max=config.get_int("max.connections.per.ip"),
        connections_of_ips=connections_of_ips(config),
        idle_ms=idle_limit_ms(config.get_int("connections.max.idle.ms")),
    )


class LowBounds:
    """Warns of bounds of connections with which nodes refuse each other, once for each value."""

    def __init__(self, logger: EventLogger) -> None:
        self._logger = logger
        self._warned: dict[str, int] = {}

    def look(self, config: Config, remedies: Mapping[str, str], needed: int, why: str, **nodes: int) -> None:
        """Compares the bounds that ``remedies`` names with the connections that are needed for so many ``nodes``."""
        low = {key: value for key in remedies if (value := config.get_int(key)) < needed}
        for key, value in low.items():
            if self._warned.get(key) != value:
                self._logger.warning(
                    "connections-bound-low", key=key, value=value, needed=needed, **nodes, why=why, remedy=remedies[key]
                )
        self._warned = low


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """Counts since the start of the server, and the number of open connections."""

    connections: int
    accepted: int
    refused: int
    throttled: int
    requests: int
    closed_for_cause: int
    buffered_bytes: int
    handshakes: int
    handshakes_given_up: int


class Server:
    """State that the connections of one listener share. Made by ``serve``."""

    def __init__(
        self,
        clock: Clock,
        handler_factory: HandlerFactory,
        limits: ServerLimits,
        budget: ByteBudget,
        logger: EventLogger,
        tally: ConnectionTally | None = None,
        *,
        is_protected: bool = False,
        times: RequestTimes | None = None,
    ) -> None:
        """Nothing is connected."""
        self.times = times
        self.listener_name = ""
        """Appears in traces."""
        self.arrivals: Arrivals | None = None
        """Wakes all connections together; None if each waits for its own bytes."""
        self.ended_waits = EndedWaits()
        """The answers that the present turn sends at its end."""
        self.tally = tally if tally is not None else ConnectionTally()
        self.is_protected = is_protected
        self.clock = clock
        self.handler_factory = handler_factory
        self.limits = limits
        self.budget = budget
        self.logger = logger
        self.pool = BufferPool(limits.gather_bytes_max, limits.pooled_buffers_max)
        self.connections: dict[int, ConnectionLoop] = {}
        self.keepers: dict[ConnectionLoop, None] = {}
        """Connections that keep bytes of the budget or wait for them, and some that no longer do."""
        self.heavy_lane = trio.Lock()
        """Held while a request is handled that may take long."""
        self.accepted = 0
        self.refused = 0
        self.throttled = 0
        """Connections that were closed because their address opened too many a second."""
        self._closing = 0  # of them, those that wait to be closed
        self.requests = 0
        self.closed_for_cause = 0
        self.handshakes: Handshakes[ConnectionLoop] = Handshakes()
        """Connections whose TLS handshake is under way."""
        self.handshakes_given_up = 0
        self.handshakes_failed = 0
        """TLS handshakes that failed, without those whose peer left at once."""

    def statistics(self) -> ServerStatistics:
        """Returns the present counts."""
        return ServerStatistics(
            connections=len(self.connections),
            accepted=self.accepted,
            refused=self.refused,
            throttled=self.throttled,
            requests=self.requests,
            closed_for_cause=self.closed_for_cause,
            buffered_bytes=self.budget.used,
            handshakes=len(self.handshakes),
            handshakes_given_up=self.handshakes_given_up,
        )

    def refusal(self, peer_host: str, *, shakes_hands: bool) -> str | None:
        """Returns why one more connection from ``peer_host`` is not taken, None if it is.

        Others may have to make way for it. ``shakes_hands``: it begins with a TLS handshake.
        """
        limits, tally = self.limits, self.tally
        if len(self.connections) >= limits.listener_connections_max:
            return f"max.connections={limits.listener_connections_max} of the listener reached"
        per_ip_max = limits.connections_of_ips.get(peer_host, limits.connections_per_ip_max)
        if tally.per_host.get(peer_host, 0) >= per_ip_max:
            return f"max.connections.per.ip={per_ip_max} reached"
        victims = self._handshakes_to_give_up(peer_host) if shakes_hands else []
        if victims is None:
            return f"{len(self.handshakes)} TLS handshakes are under way"
        has_room = False  # whether a client makes way: one is enough, and none does for a connection that is refused
        if tally.total >= limits.connections_max:
            reason = f"max.connections={limits.connections_max} reached"
            has_room = tally.make_room(self, reason)
            if not has_room and not self.is_protected:
                return reason
        if tally.total >= tally.descriptors_max() and not has_room:
            reason = f"file descriptors are left for {tally.descriptors_max()} connections only"
            if not tally.make_room(self, reason):
                return reason
        for loop in victims:
            self._give_up_handshake(loop)
        return None

    def _handshakes_to_give_up(self, peer_host: str) -> list[ConnectionLoop] | None:
        """Returns the handshakes that make way for another one from ``peer_host``; None if that is to be refused."""
        return self.handshakes.victims(
            peer_host,
            self.clock.monotonic_ms(),
            most=self.limits.handshakes_max,
            most_per_host=self.limits.handshakes_per_ip_max,
        )

    def _give_up_handshake(self, loop: ConnectionLoop) -> None:
        self.handshakes.leave(loop)
        loop.give_up_handshake()
        self.handshakes_given_up += 1
        if _is_logged(self.handshakes_given_up):
            self.logger.warning(
                "handshake-given-up",
                peer=loop.peer_host,
                reason="the peer was silent, and others connect",
                given_up=self.handshakes_given_up,
            )

    def heard_in_handshake(self, loop: ConnectionLoop) -> None:
        """Notes that a peer has sent a part of its TLS handshake."""
        self.handshakes.heard(loop, self.clock.monotonic_ms())

    def admit(self, connection: Connection, *, shakes_hands: bool) -> tuple[int, ConnectionLoop]:
        """Counts a connection that is taken, at once: several may be accepted before the first of them runs."""
        self.accepted += 1
        loop = ConnectionLoop(self, connection)
        self.connections[self.accepted] = loop
        self.tally.enter(connection.peer_address[0])
        if shakes_hands:
            self.handshakes.enter(loop, connection.peer_address[0], self.clock.monotonic_ms())
        return self.accepted, loop

    async def run_connection(
        self, number: int, loop: ConnectionLoop, host: str, secure: Callable[[Connection], Connection] | None
    ) -> None:
        """Serves an admitted connection until it ends; raises nothing but broken invariants and cancellation."""
        try:
            await loop.run(secure)
        finally:
            del self.connections[number]
            self.keepers.pop(loop, None)
            self.tally.leave(host)

    async def close_later(self, connection: Connection, delay_ms: float) -> None:
        """Closes a connection that is not served, after a delay, so that its peer does not come back at once."""
        self.throttled += 1
        if _is_logged(self.throttled):
            self.logger.warning(
                "connection-rate-exceeded",
                peer=connection.peer_address[0],
                reason="connection_creation_rate of its address",
                throttled=self.throttled,
            )
        self._closing += 1
        try:
            if self._closing <= self.limits.refusals_delayed_max:
                await trio.sleep(delay_ms / 1_000)
        finally:
            self._closing -= 1
            connection.close()

    def removable(self) -> list[ConnectionLoop]:
        """See ``ConnectionOwner.removable``."""
        return [loop for loop in self.connections.values() if not loop.is_ending]

    def _keepers(self) -> list[ConnectionLoop]:
        for loop in [loop for loop in self.keepers if not loop.keeps_or_waits]:
            del self.keepers[loop]
        return list(self.keepers)

    def keepers_count(self) -> int:
        """See ``BudgetUser.keepers_count``."""
        return len(self._keepers())

    def reclaim(self) -> None:
        """Gives back large buffers that are empty, and ends waits that need not go on while bytes are short."""
        for loop in self._keepers():
            loop.shrink_if_parked()
            loop.end_waits()

    async def sweep(self) -> None:
        """Enforces the deadlines of all connections, with a delay of at most a quarter of the shortest."""
        limits = self.limits
        shortest_ms = min(limits.idle_ms, limits.frame_ms, limits.send_ms, limits.held_ms)
        period_ms = max(1.0, min(1000.0, shortest_ms / 4))
        turn_ms = min(period_ms, max(1.0, limits.overdraft_ms / 4))
        all_due_ms = 0.0
        was_short = False
        while True:
            await trio.sleep(turn_ms / 1000)
            now_ms = self.clock.monotonic_ms()
            is_short = self.budget.waiting
            if is_short:
                self.reclaim()
            if is_short and was_short:  # what could be given back has had its time to leave
                share = self.budget.fair_share
                for loop in self._keepers():
                    loop.enforce_share(now_ms, share)
            was_short = is_short
            if now_ms < all_due_ms:
                continue
            all_due_ms = now_ms + period_ms
            most = self.limits.connections_max  # it may have changed while brokers run
            if self.tally.total > most:
                self.tally.shed(most)
            for loop in list(self.connections.values()):
                loop.shrink_if_parked(now_ms - LARGE_BUFFER_MS)
                loop.enforce_deadlines(now_ms)


async def _pause_before(connection: Connection, pause_ms: float) -> None:
    """Pauses the listener before it serves a connection that has been accepted."""
    try:
        await trio.sleep(pause_ms / 1_000)
    except BaseException:
        connection.close()
        raise


def _is_logged(count: int) -> bool:
    """Returns whether this is the 1st, 2nd, 4th, 8th ...: a flood stays readable."""
    return count & (count - 1) == 0


async def serve(
    environment: Environment,
    listener: Listener,
    handler_factory: HandlerFactory,
    limits: ServerLimits,
    *,
    budget: ByteBudget | None = None,
    tally: ConnectionTally | None = None,
    is_protected: bool = False,
    secure: Callable[[Connection], Connection] | None = None,
    logger: EventLogger | None = None,
    times: RequestTimes | None = None,
    rates: AdmissionRates | None = None,
    listener_name: str = "",
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves ``listener`` until cancelled; closes the listener and all connections on the way out.

    ``budget`` shares ``limits.buffered_bytes_max`` among several listeners, and ``tally`` the bounds on connections.
    ``is_protected`` marks the listener that brokers use among themselves. ``secure`` wraps each accepted connection
    (TLS: ``moldau.runtime.tls.context.ListenerTls``); a method ``handshake`` of the wrapper runs within
    ``limits.handshake_ms`` and reports each time bytes of the peer arrive. ``times`` counts the requests. ``rates``
    bounds the rate of connections to the listener, which it knows as ``listener_name``. Started with the ``Server``,
    whose ``statistics()`` shells export.

    Raises:
        OSError: the listener failed.
    """
    logger = logger if logger is not None else EventLogger("moldau.server")
    shared = budget if budget is not None else ByteBudget(limits.buffered_bytes_max)
    server = Server(
        environment.clock, handler_factory, limits, shared, logger, tally, is_protected=is_protected, times=times
    )
    server.listener_name = listener_name
    shared.add_user(server)
    server.tally.add_owner(server)
    server.arrivals = environment.network.arrivals() if secure is None else None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_arrivals, server)
            nursery.start_soon(server.sweep)
            task_status.started(server)
            while True:
                connection = await listener.accept()
                if rates is not None:
                    host = connection.peer_address[0]
                    wait_ms, close_ms = rates.arrived(listener_name, host, server.clock.monotonic_ms())
                    if close_ms:
                        nursery.start_soon(server.close_later, connection, close_ms)
                        continue
                    if wait_ms:
                        await _pause_before(connection, wait_ms)
                refusal = server.refusal(connection.peer_address[0], shakes_hands=secure is not None)
                if refusal is not None:
                    connection.close()
                    server.refused += 1
                    if _is_logged(server.refused):
                        logger.warning(
                            "connection-refused",
                            peer=connection.peer_address[0],
                            reason=refusal,
                            refused=server.refused,
                        )
                    continue
                number, loop = server.admit(connection, shakes_hands=secure is not None)
                nursery.start_soon(server.run_connection, number, loop, connection.peer_address[0], secure)
    finally:
        shared.remove_user(server)
        server.tally.remove_owner(server)
        listener.close()
        if server.arrivals is not None:
            server.arrivals.close()
