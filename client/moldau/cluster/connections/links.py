"""The connections of one client: a slot for each pair of node and purpose, opened on demand and after a back-off.

A client holds one connection to each broker for ordinary requests and one for each kind of request that the broker
delays (fetches, group requests), so that a long poll blocks nothing else. Bootstrap servers have negative node ids; a
host name is resolved whenever a connection is opened.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from moldau.cluster.bootstrap import Misfits, bootstrap_key, explained, secured_environment
from moldau.protocol.codec import ProtocolError
from moldau.protocol.errors import ErrorCode, KafkaError
from moldau.runtime.config import addresses
from moldau.runtime.net.rpc import RpcConnection
from moldau.runtime.tasks.supervision import BackoffPolicy
from moldau.values import join_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moldau.cluster.connections.recovery import Recovery
    from moldau.cluster.metadata import ClusterMetadata
    from moldau.runtime.config import Config
    from moldau.runtime.ports.environment import Environment
    from moldau.runtime.tasks.supervision import TaskHost
    from moldau.runtime.tasks.sync import Signal
    from moldau.runtime.telemetry.log import EventLogger

TRANSPORT_ERRORS = (OSError, trio.TooSlowError, ProtocolError)
"""Exceptions of a request that a fault of its connection causes, not its content."""

STARTS_AGAIN = "the client starts again at its bootstrap servers"


class LinksOwner(Protocol):
    """The parts of a client that its connections use."""

    environment: Environment
    config: Config
    client_id: str
    asks_controllers: bool
    logger: EventLogger
    cluster_metadata: ClusterMetadata
    recovery: Recovery
    tasks: TaskHost
    changed: Signal

    @property
    def now_ms(self) -> float:
        """The time of the monotonic clock, in milliseconds."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the client has closed its connections."""
        ...

    def check_open(self) -> None:
        """Refuses to open a connection of a closed client."""
        ...

    def opened(self, connection: RpcConnection, purpose: str) -> None:
        """Takes note of a new connection."""
        ...

    def opening_failed(self, address: tuple[str, int], error: Exception) -> None:
        """Takes note of a failed attempt to connect."""
        ...

    def request_update(self) -> None:
        """Requests fresh metadata."""
        ...

    def rebootstrap(self, reason: str) -> None:
        """Starts again at the bootstrap servers."""
        ...


class Link:
    """One connection slot of a node.

    Invariant: at most one task opens it at a time.
    """

    __slots__ = (
        "connection",
        "failed",
        "failure",
        "failures",
        "lock",
        "opening",
        "purpose",
        "retry_at_ms",
        "silent_until_ms",
        "used_at_ms",
    )

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self.connection: RpcConnection | None = None
        self.lock = trio.Lock()
        self.opening = False
        self.failures = 0  # in a row
        self.failed = 0  # attempts that failed since the start
        self.failure: Exception | None = None  # of the last one, while tasks wait that must fail with it
        self.retry_at_ms = -math.inf
        self.silent_until_ms = -math.inf  # it has not answered in time, or its metadata may be stale
        self.used_at_ms = -math.inf

    @property
    def is_open(self) -> bool:
        """Whether it has a connection, as far as is known."""
        return self.connection is not None and self.connection.is_open

    def notice_lost_session(self) -> RpcConnection | None:
        """Returns its connection while that is open; closes one whose session has ended."""
        connection = self.connection
        return connection if connection is not None and connection.notice_lost_session() else None

    def note_failure(self, error: Exception) -> None:
        """Takes note of a failed attempt to open it, for the tasks that wait for the lock."""
        self.failed += 1
        self.failure = error
        self.forget_failure()

    def forget_failure(self) -> None:
        """Drops the last failure, which holds frames of the task that met it, once no task waits for it."""
        if not self.lock.statistics().tasks_waiting:
            self.failure = None


class Links:
    """All connection slots of a client, and the addresses of its nodes."""

    def __init__(self, client: LinksOwner) -> None:
        """Belongs to ``client``, whose metadata hold the addresses of brokers."""
        config = client.config
        self._client = client
        self._links: dict[tuple[int, str], Link] = {}
        self._bootstrap = addresses(config, bootstrap_key(config))
        # Each client has its own order, so that one server that never answers does not delay all clients.
        self._bootstrap_nodes = [-1 - index for index in range(len(self._bootstrap))]
        client.environment.random.shuffle(self._bootstrap_nodes)
        self._setup_timeout_ms = config.get_int("socket.connection.setup.timeout.ms")
        self._idle_ms = config.get_int("connections.max.idle.ms")
        first_ms, most_ms = config.get_int("reconnect.backoff.ms"), config.get_int("reconnect.backoff.max.ms")
        if not config.is_set("reconnect.backoff.max.ms"):
            most_ms = max(first_ms, most_ms)
        self._reconnect = BackoffPolicy(initial_ms=first_ms, max_ms=most_ms)
        self._outgoing = secured_environment(client.environment, config)
        self.misfits = Misfits(client.logger)

    # --- nodes

    def address(self, node_id: int) -> tuple[str, int] | None:
        """Returns the address of a broker or a bootstrap server; None if the metadata do not hold it."""
        if node_id < 0:
            index = -1 - node_id
            return self._bootstrap[index] if index < len(self._bootstrap) else None
        broker = self._client.cluster_metadata.brokers.get(node_id)
        return None if broker is None else (broker.host, broker.port)

    def link(self, node_id: int, purpose: str = "") -> Link:
        """Returns the slot of a node for one purpose."""
        return self._links.setdefault((node_id, purpose), Link(purpose))

    def candidates(self) -> list[int]:
        """Returns the nodes that may answer any request, in the order in which to try them.

        Brokers with an open connection come first, bootstrap servers last. Within each class, nodes that were
        unreachable or have not answered come after the others. Without a recovery strategy the bootstrap servers serve
        only until the first brokers are known. Of controllers the active one comes first: others refuse most requests.
        """
        client = self._client
        brokers = sorted(client.cluster_metadata.brokers)
        client.environment.random.shuffle(brokers)
        now_ms = client.now_ms

        def rank(node_id: int) -> int:
            link = self._links.get((node_id, ""))
            if link is None:
                return 1
            if link.silent_until_ms > now_ms:
                return 3
            if link.is_open:
                return 0
            return 2 if link.retry_at_ms <= now_ms else 3

        brokers.sort(key=rank)
        active = client.cluster_metadata.controller_id
        if client.asks_controllers and active in brokers and rank(active) < 3:
            brokers.sort(key=lambda node_id: node_id != active)
        if brokers and not client.recovery.is_enabled:
            return brokers
        return [*brokers, *sorted(self._bootstrap_nodes, key=rank)]

    @property
    def servers(self) -> str:
        """The servers that the client starts at, or the brokers if it never starts again, for messages."""
        brokers = self._client.cluster_metadata.brokers
        if brokers and not self._client.recovery.is_enabled:
            return ", ".join(join_address(broker.host, broker.port) for broker in brokers.values())
        return ", ".join(join_address(host, port) for host, port in self._bootstrap)

    @property
    def has_alternatives(self) -> bool:
        """Whether another broker, or another bootstrap server, could answer in place of a silent one."""
        brokers = self._client.cluster_metadata.brokers
        return len(brokers) > 1 or (len(self._bootstrap) > 1 and (self._client.recovery.is_enabled or not brokers))

    # --- opening

    async def connection(self, node_id: int, purpose: str) -> RpcConnection:
        """See ``ClusterClient.connection``.

        Calls that wait for an attempt which fails then fail with it: one attempt each, in turn, would take minutes
        while the host does not answer.
        """
        link = self.link(node_id, purpose)
        link.used_at_ms = self._client.now_ms
        if (current := link.notice_lost_session()) is not None:
            return current
        generation = self._client.recovery.generation
        failed = link.failed
        async with link.lock:
            if (current := link.notice_lost_session()) is not None:
                return current
            if link.failed != failed:
                raise _shared_failure(link)
            wait_ms = link.retry_at_ms - self._client.now_ms
            if wait_ms > 0:
                await trio.sleep(wait_ms / 1000)
            if node_id >= 0 and generation != self._client.recovery.generation:
                raise ConnectionAbortedError(STARTS_AGAIN)  # the id may be that of another cluster's broker now
            return await self._open(node_id, link)

    async def open_first(self, patience_ms: float) -> list[int]:
        """Returns the ``candidates``, and before all others the one whose connection is open, or opens first.

        If a connection does not open for ``patience_ms`` (the host hangs, or no way leads there), one to the next node
        is tried too. So a request that only one node may get does not wait for a silent one.
        """
        nodes = self.candidates()
        tried: list[tuple[int, Link]] = []
        for node_id in nodes if len(nodes) > 1 else ():
            link = self.link(node_id)
            self.connection_nowait(node_id, "")
            tried.append((node_id, link))
            with trio.move_on_after(patience_ms / 1000):
                await self._client.changed.wait_until(partial(_is_decided, link, tried))
            for opened, each in tried:
                if each.is_open:
                    return [opened, *(other for other in nodes if other != opened)]
        return nodes

    def connection_nowait(self, node_id: int, purpose: str) -> RpcConnection | None:
        """See ``ClusterClient.connection_nowait``."""
        client, link = self._client, self.link(node_id, purpose)
        link.used_at_ms = client.now_ms
        if link.connection is not None:
            if link.connection.notice_lost_session():
                return link.connection
            link.connection = None
            # A connection that just died is reopened after the first back-off.
            link.retry_at_ms = max(link.retry_at_ms, client.now_ms + self._reconnect.initial_ms)
        if not link.opening and client.tasks.accepts and client.now_ms >= link.retry_at_ms and not client.is_closed:
            link.opening = True
            client.tasks.start(self._open_quietly, node_id, link)
        return None

    def retry_delay_ms(self, node_id: int, purpose: str) -> float:
        """See ``ClusterClient.retry_delay_ms``."""
        link = self.link(node_id, purpose)
        return math.inf if link.opening else max(link.retry_at_ms - self._client.now_ms, 0.0)

    async def _open(self, node_id: int, link: Link) -> RpcConnection:
        client = self._client
        address = self.address(node_id)
        if address is None:
            raise ConnectionError(f"broker {node_id} is not known")
        client.check_open()
        generation = client.recovery.generation
        link.opening = True
        try:
            connection = await RpcConnection.open(
                self._outgoing,
                address[0],
                address[1],
                client.client_id,
                timeout_ms=self._setup_timeout_ms,
                expected=client.recovery.expected(client.cluster_metadata.cluster_id, node_id),
            )
        except (*TRANSPORT_ERRORS, KafkaError) as failure:
            error = await explained(failure, self._outgoing, *address)
            link.failures += 1
            link.retry_at_ms = client.now_ms + self._reconnect.delay_ms(link.failures, client.environment.random)
            self.misfits.failed(address, error)
            client.opening_failed(address, error)
            if isinstance(error, KafkaError) and error.code is ErrorCode.REBOOTSTRAP_REQUIRED:
                reason = f"{join_address(*address)} is not broker {node_id} of this cluster"
                if generation == client.recovery.generation:
                    client.rebootstrap(reason)
                error = ConnectionAbortedError(reason)
            link.note_failure(error)
            if error is failure:
                raise
            raise error from failure
        finally:
            link.opening = False
        if client.is_closed or generation != client.recovery.generation:
            connection.close()
            client.check_open()
            raise ConnectionAbortedError(STARTS_AGAIN)
        link.failures = 0
        link.failure = None
        self.misfits.opened(address)
        link.retry_at_ms = -math.inf
        link.connection = connection
        client.opened(connection, link.purpose)
        return connection

    async def _open_quietly(self, node_id: int, link: Link) -> None:
        client = self._client
        failed = link.failed
        try:
            async with link.lock:
                if link.notice_lost_session() is None:
                    if link.failed != failed:
                        raise _shared_failure(link)
                    await self._open(node_id, link)
        except (*TRANSPORT_ERRORS, KafkaError):
            # A broker with an unknown address was not tried, but needs a pause too.
            link.retry_at_ms = max(link.retry_at_ms, client.now_ms + self._reconnect.initial_ms)
            # Leadership may have moved away from a broker that cannot be reached.
            client.request_update()
            link.opening = False
            client.changed.notify()

    # --- closing

    async def close_idle_forever(self) -> None:
        """Closes connections that were not used for ``connections.max.idle.ms``."""
        while self._idle_ms > 0:
            await trio.sleep(max(self._idle_ms / 4, 1000) / 1000)
            for link in self._links.values():
                connection = link.connection
                is_idle = self._client.now_ms - link.used_at_ms > self._idle_ms
                if connection is not None and is_idle and not connection.in_flight:
                    connection.close()
                    link.connection = None

    def abandon(self, reason: str) -> None:
        """Closes every connection; requests in flight fail with ``reason``. Back-offs continue."""
        for link in self._links.values():
            link.silent_until_ms = -math.inf
            if link.connection is not None:
                link.connection.fail(reason)
                link.connection = None

    def close(self) -> None:
        """Closes every connection. The transport still delivers the bytes it has taken."""
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close(keeps_sent=True)
        self._links.clear()


def _is_decided(last: Link, tried: Sequence[tuple[int, Link]]) -> bool:
    """Returns whether a connection is open, or the attempt to open the last one has ended."""
    return not last.opening or any(link.is_open for _, link in tried)


def _shared_failure(link: Link) -> Exception:
    """Returns the error of the attempt that failed while the caller waited for its end."""
    failure = link.failure
    link.forget_failure()
    assert failure is not None, "it is kept while a task waits"
    return failure.with_traceback(None)
